"""How much may wait, how much may run, and changing both while in use."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support import VirtualClock
from support.until import until

from batchlib import Closed, DeadlineExceeded, ItemTooLarge, Overloaded, Rejected

from .held import Held, Kind, of_kind
from .runtimes import Call, LoopRuntime, Runtime

Make = Callable[..., Any]


def in_thread(work: Callable[[], Any]) -> Call:
    call = Call()
    threading.Thread(target=call.end_as, args=(work,), daemon=True).start()
    return call


def full(runtime: Runtime, held: Held, function: Any, waiting: int) -> list[Call]:
    """One running request, and so many waiting ones."""
    calls = [runtime.start(function, 0)]
    until(lambda: held.seen)
    calls += runtime.start_each(function, range(1, waiting + 1))
    until(lambda: function.statistics().waiting == waiting)
    return calls


# ---- overflow


def test_an_awaiting_or_blocking_caller_always_joins(loop: LoopRuntime, kind: Kind, make: Make) -> None:
    held = Held(kind)
    function = make(held, max_waiting=2)
    calls = full(loop, held, function, 10)
    blocked = in_thread(lambda: function.call(11))
    until(lambda: function.statistics().waiting == 11)
    held.gate.open()
    assert [call.result() for call in [*calls, blocked]] == list(range(12))


def test_submit_in_a_thread_waits_for_room(kind: Kind, make: Make) -> None:
    most: list[int] = []

    def function(items: list[int]) -> list[int]:
        most.append(batcher.statistics().waiting)
        return items

    batcher = make(of_kind(kind, function), max_waiting=3, max_batch_size=2)
    futures = [batcher.submit(number) for number in range(100)]
    assert [future.result(30) for future in futures] == list(range(100))
    assert max(most) <= 3


def test_a_blocked_submit_goes_on_when_there_is_room(make: Make) -> None:
    held = Held("plain")
    function = make(held, max_waiting=1)
    first = function.submit(0)
    until(lambda: held.seen)
    second = function.submit(1)
    blocked = in_thread(lambda: function.submit(2).result(30))
    assert (function.statistics().submitted, blocked.done) == (2, False)
    held.gate.open()
    assert (first.result(30), second.result(30), blocked.result()) == (0, 1, 2)


def test_a_blocked_submit_goes_on_when_somebody_leaves(make: Make) -> None:
    held = Held("plain")
    function = make(held, max_waiting=1)
    function.submit(0)
    until(lambda: held.seen)
    leaver = function.submit(1)
    blocked = in_thread(lambda: function.submit(2))
    assert leaver.cancel()
    future = blocked.result()
    held.gate.open()
    assert future.result(30) == 2


def test_a_deadline_passes_while_submit_waits_for_room(clock: VirtualClock, make: Make) -> None:
    held = Held("plain")
    function = make(held, max_waiting=1, clock=clock)
    function.submit(0)
    until(lambda: held.seen)
    function.submit(1)
    blocked = in_thread(lambda: function.options(timeout=5).submit(2).result(30))
    until(lambda: clock.advance(5) or blocked.done)
    assert isinstance(blocked.error(), DeadlineExceeded)
    assert function.statistics().expired == 1


def test_submit_on_a_loops_thread_is_refused_when_full(loop: LoopRuntime, kind: Kind, make: Make) -> None:
    held = Held(kind)
    function = make(held, max_waiting=2)
    calls = full(loop, held, function, 2)
    with pytest.raises(Overloaded, match="2 requests wait"):
        loop.do(lambda: function.submit(9))
    held.gate.open()
    assert [call.result() for call in calls] == [0, 1, 2]
    assert loop.do(lambda: function.submit(3)).result(30) == 3


def test_map_pauses_when_it_is_full(kind: Kind, make: Make) -> None:
    held = Held(kind)
    function = make(held, max_waiting=3, max_batch_size=1)
    pulled: list[int] = []

    def source() -> Iterator[int]:
        for number in range(30):
            pulled.append(number)
            yield number

    call = in_thread(lambda: list(function.map(source(), look_ahead=30)))
    until(lambda: held.seen)
    assert len(pulled) <= 4
    held.gate.open()
    assert call.result() == list(range(30))


def test_map_pauses_on_a_loop_too(loop: LoopRuntime, kind: Kind, make: Make) -> None:
    held = Held(kind)
    function = make(held, max_waiting=3, max_batch_size=1)
    pulled: list[int] = []

    def source() -> Iterator[int]:
        for number in range(30):
            pulled.append(number)
            yield number

    async def main() -> list[int]:
        return [value async for value in function.map(source(), look_ahead=30)]

    (call,) = loop.spawn(main)
    until(lambda: held.seen)
    assert len(pulled) <= 4
    held.gate.open()
    assert call.result() == list(range(30))


def test_reject_refuses_everyone_over_the_limit(runtime: Runtime, kind: Kind, make: Make) -> None:
    held = Held(kind)
    function = make(held, max_waiting=2, overflow="reject")
    calls = full(runtime, held, function, 2)
    errors = [call.error() for call in runtime.start_each(function.options(tenant="acme"), range(90, 95))]
    for error in errors:
        assert isinstance(error, Overloaded)
        assert isinstance(error, Rejected)
        assert "2 requests wait and max_waiting is 2" in str(error)
        assert "acme" in str(error)
        assert error.retry_after is None  # nothing has ended yet that an estimate could be made from
    assert function.statistics().rejected == 5
    held.gate.open()
    assert [call.result() for call in calls] == [0, 1, 2]
    assert runtime.start(function, 3).result() == 3


def test_an_estimate_of_when_to_come_back(make: Make, clock: VirtualClock) -> None:
    held = Held("plain", lambda items: clock.advance(2) or items)
    function = make(held, max_waiting=4, overflow="reject", clock=clock, max_batch_size=2)
    first = function.submit(0)
    held.gate.open()
    assert first.result(30) == 0
    until(lambda: function.statistics().running_batches == 0)
    second = Held("plain")
    held.work = second.function
    futures = [function.submit(0)]
    until(lambda: second.seen)
    futures += [function.submit(number) for number in range(1, 5)]
    with pytest.raises(Overloaded) as refused:
        function.call(9)
    assert refused.value.retry_after == 4.0  # four wait, two batches of two, two seconds each
    second.gate.open()
    assert [future.result(30) for future in futures] == list(range(5))


def test_no_limit_on_what_waits(make: Make) -> None:
    held = Held("plain")
    function = make(held, max_waiting=None)
    futures = [function.submit(number) for number in range(3000)]
    held.gate.open()
    assert [future.result(30) for future in futures] == list(range(3000))


# ---- several batches at once


def test_so_many_batches_run_at_once_and_no_more(runtime: Runtime, kind: Kind, make: Make) -> None:
    held = Held(kind)
    function = make(held, max_concurrent_batches=3, max_batch_size=1)
    calls = [runtime.start(function, number) for number in range(6)]
    until(lambda: len(held.seen) == 3 and function.statistics().submitted == 6)
    now = function.statistics()
    assert (now.running_batches, now.running, now.waiting) == (3, 3, 3)
    held.gate.open()
    assert [call.result() for call in calls] == list(range(6))


def test_no_limit_on_batches_at_once(runtime: Runtime, kind: Kind, make: Make) -> None:
    held = Held(kind)
    function = make(held, max_concurrent_batches=None, max_batch_size=1)
    calls = [runtime.start(function, number) for number in range(12)]
    until(lambda: len(held.seen) == 12)
    held.gate.open()
    assert [call.result() for call in calls] == list(range(12))


# ---- max_wait


def test_an_incomplete_batch_waits_for_company_until_its_instant(
    runtime: Runtime, clock: VirtualClock, make: Make
) -> None:
    held = Held("plain")
    function = make(held, max_wait=2, clock=clock)
    calls = [runtime.start(function, 0)]
    until(lambda: function.statistics().waiting == 1)
    clock.advance(1)
    calls += [runtime.start(function, number) for number in (1, 2)]
    until(lambda: function.statistics().waiting == 3)
    clock.advance(0.999)
    assert function.statistics().batches == 0
    clock.advance(0.001)  # two seconds from the oldest, not from the youngest
    until(lambda: clock.advance(0) or held.seen)
    held.gate.open()
    assert [call.result() for call in calls] == [0, 1, 2]
    done = function.statistics()
    assert (done.batches, done.reasons) == (1, {"max_wait": 1})


def test_a_full_batch_waits_for_nothing(runtime: Runtime, clock: VirtualClock, make: Make) -> None:
    function = make(lambda items: items, max_wait=3600, max_batch_size=4, clock=clock)
    calls = [runtime.start(function, number) for number in range(8)]
    assert [call.result() for call in calls] == list(range(8))
    assert function.statistics().reasons == {"full": 2}


def test_one_groups_wait_never_delays_another(runtime: Runtime, clock: VirtualClock, make: Make) -> None:
    function = make(lambda items: items, max_wait=3600, max_batch_size=3, group_by=str.isupper, clock=clock)
    patient = runtime.start(function, "a")
    until(lambda: function.statistics().waiting == 1)
    assert [runtime.start(function, letter) for letter in "BC"]
    assert runtime.start(function, "D").result() == "D"
    assert not patient.done
    now = function.statistics()
    assert (now.waiting, now.groups) == (1, 1)
    clock.advance(3600)
    until(lambda: clock.advance(0) or patient.done)
    assert patient.result() == "a"


# ---- cost


def test_no_batch_costs_more_than_the_limit(runtime: Runtime, make: Make) -> None:
    held = Held("plain")
    function = make(held, cost=len, max_batch_cost=10)
    texts = ["a", "bbbb", "ccccc", "dddddd", "eeee", "ffff", "gg"]
    calls = []
    for text in texts:
        calls.append(runtime.start(function, text))
        until(lambda: held.seen and function.statistics().submitted == len(calls))
    held.gate.open()
    assert [call.result() for call in calls] == texts
    # In order, closed at the first that does not fit: nobody jumps.
    assert held.seen == [["a"], ["bbbb", "ccccc"], ["dddddd", "eeee"], ["ffff", "gg"]]


def test_an_item_that_can_never_fit_is_refused_at_once(runtime: Runtime, kind: Kind, make: Make) -> None:
    held = Held(kind)
    function = make(held, cost=len, max_batch_cost=4)
    first = runtime.start(function, "abc")
    until(lambda: held.seen)
    error = runtime.start(function, "abcde").error()
    assert isinstance(error, ItemTooLarge)
    assert isinstance(error, Rejected)
    assert "needs 5" in str(error)
    assert "may hold 4" in str(error)
    held.gate.open()
    assert first.result() == "abc"
    assert function.statistics().rejected == 1


def test_or_runs_by_itself(runtime: Runtime, make: Make) -> None:
    held = Held("plain")
    function = make(held, cost=len, max_batch_cost=4, oversize="alone")
    calls = []
    for text in ("x", "a", "bbbbbbb", "c", "d"):
        calls.append(runtime.start(function, text))
        until(lambda: held.seen and function.statistics().submitted == len(calls))
    held.gate.open()
    assert [call.result() for call in calls] == ["x", "a", "bbbbbbb", "c", "d"]
    assert held.seen == [["x"], ["a"], ["bbbbbbb"], ["c", "d"]]
    assert function.statistics().reasons["oversize"] == 1


# ---- configure


def test_the_batch_size_changes_in_use(runtime: Runtime, make: Make) -> None:
    held = Held("plain")
    function = make(held, max_batch_size=4)
    calls = full(runtime, held, function, 12)
    function.configure(max_batch_size=6)
    held.gate.open()
    for call in calls:
        call.result()
    assert held.sizes == [1, 6, 6]


def test_more_batches_at_once_start_without_an_arrival(runtime: Runtime, kind: Kind, make: Make) -> None:
    held = Held(kind)
    function = make(held, max_batch_size=1)
    calls = full(runtime, held, function, 3)
    function.configure(max_concurrent_batches=4)
    until(lambda: len(held.seen) == 4)
    held.gate.open()
    assert [call.result() for call in calls] == [0, 1, 2, 3]


def test_no_more_wait_lets_those_go_that_were_held_back(runtime: Runtime, kind: Kind, make: Make) -> None:
    function = make(of_kind(kind, lambda items: items), max_wait=3600)
    calls = runtime.start_each(function, range(3))
    until(lambda: function.statistics().waiting == 3)
    function.configure(max_wait=0)
    assert [call.result() for call in calls] == [0, 1, 2]


def test_a_waiting_item_that_fits_no_longer_is_told(runtime: Runtime, kind: Kind, make: Make) -> None:
    held = Held(kind)
    function = make(held, cost=len, max_batch_cost=10)
    first = runtime.start(function, "a")
    until(lambda: held.seen)
    large, small = runtime.start(function, "bbbbbbbb"), runtime.start(function, "cc")
    until(lambda: function.statistics().waiting == 2)
    function.configure(max_batch_cost=5)
    error = large.error()
    assert isinstance(error, ItemTooLarge)
    assert "needs 8" in str(error)
    held.gate.open()
    assert (first.result(), small.result()) == ("a", "cc")


def test_room_made_by_configure_frees_a_blocked_submit(make: Make) -> None:
    held = Held("plain")
    function = make(held, max_waiting=1)
    function.submit(0)
    until(lambda: held.seen)
    function.submit(1)
    blocked = in_thread(lambda: function.submit(2))
    function.configure(max_waiting=5)
    future = blocked.result()
    held.gate.open()
    assert future.result(30) == 2


def test_a_new_timeout_is_for_later_calls(make: Make, clock: VirtualClock) -> None:
    held = Held("plain")
    function = make(held, clock=clock)
    early = function.submit(0)
    until(lambda: held.seen)
    function.configure(timeout=5)
    late = function.submit(1)
    clock.advance(5)
    assert isinstance(late.exception(30), DeadlineExceeded)
    held.gate.open()
    assert early.result(30) == 0


def test_health_goes_by_the_new_limit(make: Make, clock: VirtualClock) -> None:
    held = Held("plain")
    function = make(held, clock=clock)
    function.submit(0)
    until(lambda: held.seen)
    clock.advance(100)
    assert function.statistics().healthy
    function.configure(max_execution_time=99)
    assert not function.statistics().healthy
    function.configure(max_execution_time=None)
    assert function.statistics().healthy


WRONG: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"max_batch_size": 0}, ValueError, "max_batch_size"),
    ({"max_batch_size": 64, "max_waiting": -1}, ValueError, "max_waiting"),
    ({"max_batch_size": 64, "max_wait": None}, ValueError, "max_wait"),
    ({"max_batch_size": 64, "max_batch_cost": 5}, TypeError, "cost="),
    ({"max_batch_size": 64, "on_error": "bisect"}, TypeError, "limits only.*on_error"),
    ({"max_batch_size": 64, "unknown": 1}, TypeError, "limits only.*unknown"),
]


@pytest.mark.parametrize(("limits", "error", "message"), WRONG, ids=lambda value: repr(value))
def test_wrong_limits_change_nothing(limits: dict[str, Any], error: type[Exception], message: str, make: Make) -> None:
    held = Held("plain")
    function = make(held, max_batch_size=2)
    futures = [function.submit(0)]
    until(lambda: held.seen)
    futures += [function.submit(number) for number in range(1, 5)]
    with pytest.raises(error, match=message):
        function.configure(**limits)
    held.gate.open()
    assert [future.result(30) for future in futures] == list(range(5))
    assert held.sizes == [1, 2, 2]


def test_configure_after_close_is_harmless(make: Make) -> None:
    function = make(lambda items: items)
    function.close()
    function.configure(max_batch_size=3)
    with pytest.raises(Closed):
        function.call(1)
