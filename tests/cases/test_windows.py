"""When a batch leaves: the window opens with its oldest request, and nothing waits that need not."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from support import Held, VirtualClock
from support.callers import Start, outcomes
from support.until import until

from batchlib import DeadlineExceeded, batched
from batchlib.policies import Greedy

EVERYBODY = 60.0  # seconds of virtual time: more than any limit below


class Recorder:
    """A plain batch function that keeps its batches."""

    def __init__(self) -> None:
        self.seen: list[list[Any]] = []

    def __call__(self, items: list[Any]) -> list[Any]:
        self.seen.append(items)
        return items


def wait(f: Any, number: int) -> None:
    until(lambda: f.statistics().waiting == number)


def asleep(clock: VirtualClock, seconds: float) -> None:
    """Until the clock has been asked to wake somebody in so many seconds: one who waits is counted before that."""
    until(lambda: clock.next_due is not None and clock.next_due <= clock.now() + seconds)


def test_the_window_opens_with_the_first_item_after_a_pause(start: Start) -> None:
    """Not with the end of the batch before."""
    clock, function = VirtualClock(), Recorder()
    f = batched(function, max_batch_size=8, max_wait=1.0, clock=clock)
    warm = start(f, "warm")
    asleep(clock, 1.0)
    clock.advance(1.0)
    assert warm.result() == "warm"
    clock.advance(10)
    a = start(f, "a")
    asleep(clock, 1.0)
    clock.advance(0.5)
    assert f.statistics().waiting == 1
    b = start(f, "b")
    wait(f, 2)
    clock.advance(0.499)
    assert f.statistics().waiting == 2
    clock.advance(0.001)
    assert outcomes([a, b]) == ["a", "b"]
    assert function.seen == [["warm"], ["a", "b"]]


def test_a_full_batch_waits_for_nothing(start: Start) -> None:
    """The clock stands still: a batcher that waits out its window would hang."""
    clock = VirtualClock()
    f = batched(Recorder(), max_batch_size=32, max_wait=EVERYBODY, clock=clock)
    assert outcomes([start(f, item) for item in range(32)]) == list(range(32))
    assert f.statistics().reasons == {"full": 1}
    assert f.statistics().max_queue_delay == 0


@pytest.mark.parametrize("size", [1, 8])
def test_without_a_window_a_lone_request_waits_for_nothing(start: Start, size: int) -> None:
    f = batched(Recorder(), max_batch_size=size, clock=VirtualClock())
    assert start(f, 1).result() == 1
    assert f.statistics().max_queue_delay == 0


def test_an_idle_batcher_asks_nobody_anything() -> None:
    """No polling: what the policy is asked follows from arrivals, ends and its own wake-ups alone."""
    asked: list[float] = []

    class Counting:
        def start(self) -> "Counting":
            self._greedy = Greedy().start()
            return self

        def decide(self, group: Any, now: float) -> Any:
            asked.append(now)
            return self._greedy.decide(group, now)

    clock = VirtualClock()
    f = batched(Recorder(), dispatch=Counting(), clock=clock)
    for item in range(10):
        assert f.submit(item).result() == item
    clock.advance(1000)
    f.close()
    assert len(asked) == 10


def test_those_left_over_keep_their_age(start: Start) -> None:
    """They leave when their own window ends, with nobody else arriving."""
    clock, function = VirtualClock(), Recorder()
    f = batched(function, max_batch_size=4, max_wait=1.0, clock=clock)
    early = start(f, 0)
    asleep(clock, 1.0)
    clock.advance(0.75)
    late = [start(f, item) for item in range(1, 7)]
    until(lambda: f.statistics().completed == 4)
    wait(f, 3)
    asleep(clock, 1.0)
    clock.advance(0.999)
    assert f.statistics().waiting == 3
    clock.advance(0.001)
    assert outcomes([early, *late]) == list(range(7))
    assert [len(items) for items in function.seen] == [4, 3]


def test_batches_fill_while_the_executor_is_busy(start: Start) -> None:
    """A batch is closed when an executor takes it and not before."""
    held = Held()
    f = batched(held, max_batch_size=8, max_wait=0.0)
    calls = [start(f, 0)]
    assert held.started.wait()
    calls += [start(f, item) for item in range(1, 41)]
    wait(f, 40)
    held.gate.set()
    assert outcomes(calls) == list(range(41))
    assert [len(items) for items in held.seen] == [1, 8, 8, 8, 8, 8]


def test_the_first_to_come_is_the_first_to_go(start: Start) -> None:
    """Equals keep their order, whatever their number."""
    held = Held()
    f = batched(held, max_batch_size=4)
    calls = [start(f, -1)]
    assert held.started.wait()
    for item in range(20):
        calls.append(start(f, item))
        wait(f, item + 1)
    held.gate.set()
    outcomes(calls)
    assert [item for items in held.seen for item in items] == list(range(-1, 20))


def test_a_deadline_passes_on_time_while_the_executor_is_busy(start: Start) -> None:
    clock, held = VirtualClock(), Held()
    f = batched(held, max_batch_size=1, clock=clock)
    running = start(f, "running")
    assert held.started.wait()
    hasty = start(f.options(timeout=0.02), "hasty")
    asleep(clock, 0.02)
    clock.advance(0.0199)
    assert f.statistics().waiting == 1
    clock.advance(0.0001)
    error = hasty.exception()
    assert type(error) is DeadlineExceeded
    assert isinstance(error, TimeoutError)
    assert f.statistics().waiting == f.statistics().groups == 0
    assert not running.done()
    held.gate.set()
    assert outcomes([running, start(f, "next")]) == ["running", "next"]
    assert held.seen == [["running"], ["next"]]


def test_a_deadline_that_passes_during_the_run_ends_the_waiting_only(start: Start) -> None:
    clock, held = VirtualClock(), Held()
    f = batched(held, max_batch_size=2, max_wait=EVERYBODY, clock=clock)
    patient, hasty = start(f, "patient"), start(f.options(timeout=1), "hasty")
    assert held.started.wait()
    asleep(clock, 1)
    clock.advance(1)
    assert type(hasty.exception()) is DeadlineExceeded
    held.gate.set()
    assert patient.result() == "patient"
    assert len(held.seen) == 1
    assert f.statistics().expired == 1


def test_deadlines_pass_in_their_own_order(start: Start) -> None:
    clock, held = VirtualClock(), Held()
    f = batched(held, max_batch_size=1, clock=clock)
    running = start(f, 0)
    assert held.started.wait()
    calls = [start(f.options(timeout=timeout), timeout) for timeout in (3, 1, 2)]
    wait(f, 3)
    for left in (2, 1, 0):
        asleep(clock, 1)
        clock.advance(1)
        assert f.statistics().waiting == left
    assert [type(error) for error in outcomes(calls)] == [DeadlineExceeded] * 3
    held.gate.set()
    assert running.result() == 0


def test_a_window_longer_than_a_deadline_still_keeps_the_deadline(start: Start) -> None:
    clock, function = VirtualClock(), Recorder()
    f = batched(function, max_batch_size=8, max_wait=5.0, timeout=1.0, clock=clock)
    call = start(f, 1)
    asleep(clock, 1.0)
    clock.advance(1.0)
    assert type(call.exception()) is DeadlineExceeded
    clock.advance(EVERYBODY)
    assert function.seen == []


@pytest.mark.parametrize("number", [1, 5, 7, 8, 9, 13])
async def test_what_one_tick_gathers_is_cut_into_full_batches(number: int) -> None:
    """With no timer at all, and none left behind without a new arrival."""
    function = Recorder()
    f = batched(function, max_batch_size=4, clock=VirtualClock())
    assert await asyncio.gather(*(f(item) for item in range(number))) == list(range(number))
    assert [len(items) for items in function.seen] == sizes(number, 4)


def sizes(number: int, limit: int) -> Sequence[int]:
    return [min(limit, number - first) for first in range(0, number, limit)]
