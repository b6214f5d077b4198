"""Nobody waits for ever because others are many, urgent or broken."""

import asyncio
from typing import Any

import pytest
from support import Held, VirtualClock, waiting_for
from support.callers import Start, outcomes
from support.until import until

from batchlib import Overloaded, batched
from batchlib.policies import FairShare, MaxWaiting, Priority, TenantQuota


def occupied(start: Start, **options: Any) -> tuple[Held, Any, Any]:
    """A batcher whose executor is held by a first call."""
    held = Held()
    f = batched(held, **options)
    first = start(f, "first")
    assert held.started.wait()
    return held, f, first


def queue(f: Any, number: int) -> None:
    until(lambda: f.statistics().waiting == number)


async def test_a_flood_of_one_tenant_does_not_delay_another() -> None:
    held = Held()
    f = batched(held, max_batch_size=8)
    flood = [asyncio.ensure_future(f.options(tenant="A")(("A", number))) for number in range(1000)]
    await waiting_for(f, 992, lambda: asyncio.sleep(0))
    other = asyncio.ensure_future(f.options(tenant="B")(("B", 0)))
    await waiting_for(f, 993, lambda: asyncio.sleep(0))
    held.gate.set()
    assert await other == ("B", 0)
    assert await asyncio.gather(*flood) == [("A", number) for number in range(1000)]
    assert ("B", 0) in held.seen[1]
    assert [item for batch in held.seen for item in batch if item[0] == "A"] == [
        ("A", number) for number in range(1000)
    ]
    assert all(len(batch) == 8 for batch in held.seen[:-1])
    assert f.statistics().tenants_tracked == 0


def test_a_flood_delays_nobody_however_they_call(start: Start) -> None:
    held, f, first = occupied(start, max_batch_size=4)
    flood = [start(f.options(tenant="A"), ("A", number)) for number in range(40)]
    queue(f, 40)
    others = [start(f.options(tenant=tenant), (tenant, 0)) for tenant in ("B", "C")]
    queue(f, 42)
    held.gate.set()
    assert outcomes([first, *others, *flood]) == ["first", ("B", 0), ("C", 0), *(("A", number) for number in range(40))]
    assert {("B", 0), ("C", 0)} <= set(held.seen[1])
    assert all(len(batch) == 4 for batch in held.seen[1:-1])


def test_tenants_leave_no_state_however_many_there_have_been(start: Start) -> None:
    held, f, first = occupied(start, admission=(TenantQuota(max_waiting=5), MaxWaiting(1000)))
    calls = [start(f.options(tenant=tenant), tenant) for tenant in range(40)]
    queue(f, 40)
    assert f.statistics().tenants_tracked >= 40
    held.gate.set()
    assert outcomes([first, *calls]) == ["first", *range(40)]
    assert f.statistics().tenants_tracked == 0


def test_a_quota_keeps_room_for_the_others(start: Start) -> None:
    """A full queue refuses everyone, fair or not: what a tenant may have in it is what helps."""
    held, f, first = occupied(start, admission=(TenantQuota(max_waiting=8), MaxWaiting(10, "reject")))
    flood = []
    for number in range(8):
        flood.append(start(f.options(tenant="A"), number))
        queue(f, number + 1)
    for _ in range(5):
        assert type(start(f.options(tenant="A"), "over").exception()) is Overloaded
    other = start(f.options(tenant="B"), "B")
    queue(f, 9)
    held.gate.set()
    assert outcomes([first, *flood, other]) == ["first", *range(8), "B"]


def test_an_urgent_request_is_next_when_all_places_are_taken(start: Start) -> None:
    held, f, first = occupied(start, max_batch_size=2, max_concurrent_batches=1)
    calls = []
    for number in range(6):
        calls.append(start(f.options(priority=5), number))
        queue(f, number + 1)
    urgent = start(f.options(priority=-5), "urgent")
    queue(f, 7)
    held.gate.set()
    assert outcomes([first, *calls, urgent]) == ["first", *range(6), "urgent"]
    assert held.seen == [["first"], ["urgent", 0], [1, 2], [3, 4], [5]]


@pytest.mark.parametrize("aging", [0.5, 2.25])
def test_the_least_urgent_is_served_in_the_end(start: Start, aging: float) -> None:
    """However many urgent ones keep coming: those that arrive `aging` x 3 later no longer pass."""
    clock = VirtualClock()
    held, f, first = occupied(start, max_batch_size=1, clock=clock, ordering=Priority(aging=aging))
    calls = [start(f.options(priority=3), "patient")]
    queue(f, 1)
    for number in range(10):
        clock.advance(1.0)
        calls.append(start(f, number))
        queue(f, number + 2)
    held.gate.set()
    outcomes([first, *calls])
    served = [item for batch in held.seen for item in batch]
    passed = int(3 * aging)  # the ones that came 1, 2, ... seconds later
    assert served.index("patient") == 1 + passed
    assert [item for item in served if item not in ("first", "patient")] == list(range(10))


def test_weights_share_what_there_is(start: Start) -> None:
    held, f, first = occupied(start, max_batch_size=4, ordering=FairShare({"paying": 3}))
    calls = []
    for number in range(12):
        for tenant in ("paying", "free"):
            calls.append(start(f.options(tenant=tenant), (tenant, number)))
            queue(f, len(calls))
    held.gate.set()
    outcomes([first, *calls])
    for batch in held.seen[1:5]:
        assert sorted(tenant for tenant, _ in batch) == ["free", "paying", "paying", "paying"]


def test_counters_do_not_drift_and_cost_no_throughput(start_leaving: Start) -> None:
    """After callers that left, failed, or were refused, there is as much room as before."""
    admission = (TenantQuota(max_waiting=4, max_in_flight=6), MaxWaiting(5, "reject"))

    def fail(items: list[Any]) -> list[Any]:
        return [ValueError(item) if item == "wrong" else item for item in items]

    held = Held(fail)
    f = batched(held, max_batch_size=2, admission=admission)
    for _ in range(20):
        held.started.clear()
        held.gate.clear()
        running = [start_leaving(f, "runs")]
        assert held.started.wait()
        waiting = []
        for number in range(4):
            waiting.append(start_leaving(f, "wrong" if number == 3 else number))
            queue(f, number + 1)
        assert type(start_leaving(f, "over").exception()) is Overloaded
        waiting.pop(0).cancel()
        queue(f, 3)
        held.gate.set()
        assert [type(outcome) for outcome in outcomes([*running, *waiting])] == [str, int, int, ValueError]
        until(lambda: not f.statistics().running_batches)
        assert f.statistics().tenants_tracked == 0


def test_a_batch_that_fails_is_not_run_for_ever_and_does_not_block_the_next(start: Start) -> None:
    seen: list[Any] = []

    def broken(items: list[Any]) -> list[Any]:
        seen.append(items)
        if "wrong" in items:
            raise ValueError("wrong")
        return items

    f = batched(broken, max_batch_size=1)
    calls = [start(f.options(tenant="A", priority=-1), "wrong"), start(f.options(tenant="B"), "right")]
    assert [type(outcome) for outcome in outcomes(calls)] == [ValueError, str]
    assert sorted(item for batch in seen for item in batch) == ["right", "wrong"]
