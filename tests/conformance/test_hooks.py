"""Hooks are told of everything, in frozen events that add up to the statistics, and can break nothing."""

import dataclasses
import logging
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from support import VirtualClock
from support.until import until

from batchlib import BatchEnded, BatchStarted, Closed, RequestEnded
from batchlib.policies.structures._lengths import Lengths
from batchlib.protocols import Accepted

from .held import Held, Kind, of_kind
from .runtimes import LONG, MixedRuntime, Runtime
from .test_refused_by_collation import AtMostFour

Make = Callable[..., Any]


def of_type(events: list[Any], kind: type) -> list[Any]:
    return [event for event in events if isinstance(event, kind)]


def test_every_batch_and_request_leaves_its_event(
    runtime: Runtime, kind: Kind, clock: VirtualClock, make: Make
) -> None:
    events: list[Any] = []

    def work(items: list[str]) -> list[Any]:
        clock.advance(3)
        return [ValueError("secret text") if item == "bad" else item for item in items]

    function = make(of_kind(kind, work), hooks=[events.append], clock=clock, name="embed", version="7", cost=len)
    assert runtime.start(function.options(tenant="acme", priority=2), "good").result() == "good"
    assert isinstance(runtime.start(function, "bad").error(), ValueError)
    until(lambda: len(events) == 6)
    assert [type(event) for event in events] == [BatchStarted, BatchEnded, RequestEnded] * 2
    started, ended, request = events[:3]
    assert (started.name, started.version, started.batch, started.size, started.cost) == ("embed", "7", 1, 1, 4)
    assert (started.fill, started.reason, started.queue_delays, started.now) == (1 / 32, "executor_free", (0.0,), 100.0)
    assert (ended.batch, ended.execution_time, ended.failed, ended.now) == (1, 3.0, 0, 103.0)
    assert (request.state.value, request.tenant, request.priority, request.cost) == ("completed", "acme", 2, 4)
    assert (request.batch, request.queue_delay, request.latency, request.error, request.detail) == (1, 0, 3, None, None)
    _, ended, request = events[3:]
    assert (ended.failed, request.state.value, request.error) == (1, "failed", "ValueError")
    assert request.detail is None  # the text of a user's error is never passed on
    assert not any("secret" in repr(event) or "good" in repr(event) for event in events)


def test_what_a_batch_would_waste_if_it_were_padded(runtime: Runtime, make: Make) -> None:
    events: list[Any] = []
    function = make(lambda items: items, hooks=[events.append], cost=len, max_batch_size=3, max_wait=LONG)
    for call in runtime.start_each(function, ["a", "bcd", "ef"]):
        call.result()
    until(lambda: len(events) == 5)
    batches = [event for event in events if isinstance(event, BatchStarted | BatchEnded)]
    assert [(batch.size, batch.cost, batch.longest) for batch in batches] == [(3, 6, 3)] * 2


class Halves(AtMostFour):
    """The two halves of an item are padded by themselves."""

    def accept(self, args: tuple[Any, ...]) -> Accepted:
        return Accepted(args, None, Lengths((1, len(args[0]) - 1)))


def test_costs_are_plain_numbers_whatever_a_collation_gives(runtime: Runtime, make: Make) -> None:
    """Not every encoder takes a subclass of float."""
    events: list[Any] = []
    function = make(of_kind("plain", lambda items: items), hooks=[events.append], collate=Halves())
    assert runtime.start(function, "abc").result() == "abc"
    until(lambda: len(events) == 3)
    started, ended, request = events
    costs = [started.cost, started.longest, ended.cost, ended.longest, request.cost]
    assert [(type(cost), cost) for cost in costs] == [(float, 3)] * 5


def test_events_are_frozen(make: Make) -> None:
    events: list[Any] = []
    make(lambda items: items, hooks=[events.append]).call(1)
    for event in events:
        with pytest.raises(dataclasses.FrozenInstanceError):
            event.now = 0


def test_the_events_add_up_to_the_statistics(kind: Kind, make: Make) -> None:
    events: list[Any] = []
    held = Held(kind, lambda items: [ValueError(item) if item % 7 == 1 else item for item in items])
    function = make(held, hooks=[events.append], max_batch_size=5, max_waiting=60, overflow="reject", cost=abs)
    with MixedRuntime("asyncio", "trio", "uvloop") as runtime:
        calls = [runtime.start(function, 0)]
        until(lambda: held.seen)
        calls += runtime.start_each(function, range(1, 81))  # some are refused
        until(lambda: function.statistics().submitted == 81)
        until(lambda: sum(call.done for call in calls) == function.statistics().rejected)
        for call in [call for call in calls if not call.done][:10]:
            call.leave()
        until(lambda: function.statistics().cancelled == 10)
        held.gate.open()
        for call in calls:
            call.error()
        until(lambda: function.statistics().running_batches == 0)
    done = function.statistics()
    assert done.rejected > 0
    assert done.cancelled == 10
    assert done.submitted == done.completed + done.failed + done.cancelled + done.rejected
    requests = of_type(events, RequestEnded)
    states = Counter(event.state.value for event in requests)
    assert states == {
        "completed": done.completed,
        "failed": done.failed,
        "cancelled": done.cancelled,
        "rejected": done.rejected,
    }
    batches = of_type(events, BatchStarted)
    assert len(batches) == len(of_type(events, BatchEnded)) == done.batches
    assert Counter(event.reason for event in batches) == done.reasons
    assert sum(event.size for event in batches) == done.mean_batch_size * done.batches
    assert max(max(event.queue_delays) for event in batches) == pytest.approx(done.max_queue_delay)
    sizes = {event.batch: event.size for event in batches}
    ran = Counter(event.batch for event in requests if event.batch is not None)
    assert ran == sizes
    assert all((event.batch is None) == (event.queue_delay is None) for event in requests)


def test_a_batch_is_told_of_before_its_requests(runtime: Runtime, kind: Kind, make: Make) -> None:
    events: list[Any] = []
    function = make(of_kind(kind, lambda items: items), hooks=[events.append])
    for call in runtime.start_each(function, range(20)):
        call.result()
    until(lambda: len(of_type(events, RequestEnded)) == 20)
    place = {(type(event), event.batch): number for number, event in enumerate(events)}
    for number in {event.batch for event in of_type(events, BatchStarted)}:
        assert place[BatchStarted, number] < place[BatchEnded, number] < place[RequestEnded, number]


def test_a_batch_that_nobody_waits_for_any_more_when_it_is_told_of(
    runtime: Runtime, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    """It was formed in one thread, and given up in another before the first came to its start."""
    events: list[Any] = []

    def give_up(event: Any) -> None:
        events.append(event)
        if isinstance(event, BatchEnded) and event.batch == 1:  # the next one is formed by now, and nobody knows of it
            closing = threading.Thread(target=function.close, kwargs={"timeout": 0})
            closing.start()
            closing.join(LONG)

    held = Held("async")
    function = make(held, hooks=[give_up], max_batch_size=1, max_concurrent_batches=1, cost=lambda item: item + 4)
    first = runtime.start(function, 0)
    until(lambda: held.seen)
    second = runtime.start(function, 1)
    until(lambda: function.statistics().waiting == 1)
    held.gate.open()
    assert first.result() == 0
    assert isinstance(second.error(), Closed)
    until(lambda: function.statistics().running_batches == 0 and len(events) == 6)
    started, ended = [event for event in events if not isinstance(event, RequestEnded) and event.batch == 2]
    assert isinstance(started, BatchStarted)
    assert isinstance(ended, BatchEnded)
    assert [(event.size, event.cost, event.longest) for event in (started, ended)] == [(1, 5, 5)] * 2
    assert len(started.queue_delays) == 1
    assert [tuple(items) for items in held.seen] == [(0,)]  # it is not run for nobody
    assert not caplog.records


REFUSALS = {
    "full": ("Overloaded", "max_waiting is 1"),
    "too large": ("ItemTooLarge", "needs 9"),
    "closed": ("Closed", "takes no more"),
}


@pytest.mark.parametrize("why", REFUSALS)
def test_a_refused_request_says_why(runtime: Runtime, kind: Kind, why: str, make: Make) -> None:
    events: list[Any] = []
    held = Held(kind)
    function = make(
        held, hooks=[events.append], max_waiting=1, overflow="reject", cost=lambda item: item, max_batch_cost=5
    )
    runtime.start(function, 1)
    until(lambda: held.seen)
    if why == "full":
        runtime.start(function, 1)
        until(lambda: function.statistics().waiting == 1)
    elif why == "closed":
        function.close(drain=False)
    refused = runtime.start(function, 9 if why == "too large" else 1)
    error, detail = REFUSALS[why]
    assert type(refused.error()).__name__ == error
    (event,) = of_type(events, RequestEnded)
    assert (event.state.value, event.error, event.batch, event.queue_delay) == ("rejected", error, None, None)
    assert detail in event.detail


def test_an_expired_and_a_cancelled_request_have_their_events(
    leaving: Runtime, clock: VirtualClock, make: Make
) -> None:
    events: list[Any] = []
    held = Held("plain")
    function = make(held, hooks=[events.append], clock=clock)
    leaving.start(function, 0)
    until(lambda: held.seen)
    late, gone = leaving.start(function.options(timeout=5), 1), leaving.start(function, 2)
    until(lambda: function.statistics().waiting == 2)
    gone.leave()
    until(lambda: function.statistics().cancelled == 1)
    clock.advance(5)
    until(lambda: clock.advance(0) or late.done)
    cancelled, expired = of_type(events, RequestEnded)
    assert (cancelled.state.value, cancelled.error, cancelled.batch) == ("cancelled", None, None)
    assert (expired.state.value, expired.error, expired.latency) == ("expired", "DeadlineExceeded", 5)


def test_a_hook_that_raises_is_logged_and_changes_nothing(
    runtime: Runtime, kind: Kind, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    events: list[Any] = []

    def broken(event: Any) -> None:
        raise LookupError("the observer's own fault")

    function = make(of_kind(kind, lambda items: items), hooks=[broken, events.append], name="embed")
    with caplog.at_level(logging.ERROR, "batchlib"):
        assert [call.result() for call in runtime.start_each(function, range(4))] == [0, 1, 2, 3]
        until(lambda: function.statistics().running_batches == 0)
    assert len(of_type(events, RequestEnded)) == 4  # the next hook is told all the same
    assert len(caplog.records) == len(events)
    record = caplog.records[0]
    assert record.name == "batchlib"
    assert "embed" in record.getMessage()
    assert "a hook raised on BatchStarted" in record.getMessage()
    assert record.exc_info is not None
    assert isinstance(record.exc_info[1], LookupError)
    assert function.statistics().completed == 4


def test_a_hook_may_look_and_call(runtime: Runtime, kind: Kind, make: Make) -> None:
    """Hooks are called outside every lock."""
    seen: list[int] = []

    def look(event: Any) -> None:
        seen.append(function.statistics().submitted)
        function.configure(max_batch_size=7)

    function = make(of_kind(kind, lambda items: items), hooks=[look])
    assert runtime.start(function, 1).result() == 1
    until(lambda: seen == [1, 1, 1])


def test_one_hook_needs_no_list(make: Make) -> None:
    events: list[Any] = []
    make(lambda items: items, hooks=events.append).call(1)
    assert len(events) == 3


def test_the_name_is_the_functions_own_unless_given(make: Make) -> None:
    def embed(items: list[int]) -> list[int]:
        return items

    events: list[Any] = []
    make(embed, hooks=[events.append]).call(1)
    assert {(event.name.rpartition(".")[2], event.version) for event in events} == {("embed", None)}
