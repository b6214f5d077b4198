"""A deadline ends a request at its instant, not before it and not after, whatever the executor does."""

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from support import VirtualClock
from support.until import until

from batchlib import BatchlibError, DeadlineExceeded, batch_context

from .held import Held, Kind
from .runtimes import Call, Runtime

Make = Callable[..., Any]
JUST = 0.001


def ended(clock: VirtualClock, call: Call) -> BaseException | None:
    """What a call ended with. A wake-up may be asked for when the clock has just passed it, so it is asked again."""
    until(lambda: clock.advance(0) or call.done)
    return call.error()


def test_one_that_waits_expires_on_time_while_the_executor_is_busy(
    runtime: Runtime, kind: Kind, clock: VirtualClock, make: Make
) -> None:
    held = Held(kind)
    function = make(held, clock=clock)
    first = runtime.start(function, 0)
    until(lambda: held.seen)
    late = runtime.start(function.options(timeout=5), 1)
    patient = runtime.start(function, 2)
    until(lambda: function.statistics().submitted == 3)
    clock.advance(5 - JUST)
    assert function.statistics().expired == 0
    clock.advance(JUST)
    error = ended(clock, late)
    assert isinstance(error, DeadlineExceeded)
    assert isinstance(error, TimeoutError)
    assert isinstance(error, BatchlibError)
    assert "while it waited" in str(error)
    assert "5 s were granted" in str(error)
    now = function.statistics()
    assert (now.expired, now.cancelled) == (1, 0)
    held.gate.open()
    assert (first.result(), patient.result()) == (0, 2)
    assert sorted(held.items) == [0, 2]  # what has expired is never started


def test_one_that_runs_leaves_on_time_and_its_batch_goes_on(
    runtime: Runtime, kind: Kind, clock: VirtualClock, make: Make
) -> None:
    held = Held(kind)
    function = make(held, clock=clock, max_wait=1, max_concurrent_batches=2)
    calls = [runtime.start(function.options(timeout=timeout), timeout) for timeout in (5, None)]
    until(lambda: function.statistics().waiting == 2)
    clock.advance(1)
    until(lambda: clock.advance(0) or len(held.items) == 2)
    clock.advance_to(105 - JUST)
    assert function.statistics().expired == 0
    clock.advance(JUST)
    error = ended(clock, calls[0])
    assert isinstance(error, DeadlineExceeded)
    assert "while its batch ran" in str(error)
    now = function.statistics()
    assert (now.expired, now.running) == (1, 1)
    held.gate.open()
    assert calls[1].result() is None
    done = function.statistics()
    assert (done.submitted, done.completed, done.expired, done.failed) == (2, 1, 1, 0)


def test_a_function_that_never_returns_keeps_nobody_past_a_deadline(
    runtime: Runtime, kind: Kind, clock: VirtualClock, make: Make
) -> None:
    held = Held(kind)
    function = make(held, clock=clock, timeout=5, max_execution_time=10)
    calls = [runtime.start(function, 0)]
    until(lambda: held.seen)
    calls += runtime.start_each(function, range(1, 6))
    until(lambda: function.statistics().submitted == 6)
    clock.advance(5)
    assert all(isinstance(ended(clock, call), DeadlineExceeded) for call in calls)
    assert function.statistics().expired == 6
    assert function.statistics().healthy
    if kind == "plain":  # a thread is never killed: it keeps its slot, and that shows
        clock.advance(5 + JUST)
        now = function.statistics()
        assert (now.healthy, now.running_batches, now.oldest_running_age) == (False, 1, pytest.approx(10 + JUST))


def test_when_all_have_expired_the_function_can_see_it(runtime: Runtime, clock: VirtualClock, make: Make) -> None:
    begun, saw = threading.Event(), threading.Event()

    def function(items: list[int]) -> list[int]:
        context = batch_context()
        begun.set()
        until(lambda: context.cancelled)
        saw.set()
        return items

    call = runtime.start(make(function, clock=clock, timeout=5), 1)
    until(begun.is_set)
    clock.advance(5)
    assert isinstance(ended(clock, call), DeadlineExceeded)
    until(saw.is_set)


def test_an_async_function_is_cancelled_when_all_have_expired(
    runtime: Runtime, clock: VirtualClock, make: Make
) -> None:
    held = Held("async")
    function = make(held, clock=clock, timeout=5)
    call = runtime.start(function, 1)
    until(lambda: held.seen)
    clock.advance(5)
    assert isinstance(ended(clock, call), DeadlineExceeded)
    until(lambda: held.cancelled)
    until(lambda: function.statistics().running_batches == 0)


def test_no_time_at_all_is_never_started(runtime: Runtime, kind: Kind, clock: VirtualClock, make: Make) -> None:
    held = Held(kind)
    function = make(held, clock=clock)
    call = runtime.start(function.options(timeout=0), 1)
    assert isinstance(ended(clock, call), DeadlineExceeded)
    assert held.seen == []
    assert function.statistics().expired == 1


@pytest.mark.parametrize("timeout", [7, 7.0, timedelta(seconds=7)])
def test_a_timeout_is_seconds_or_a_timedelta(timeout: Any, clock: VirtualClock, make: Make) -> None:
    function = make(lambda items: [context.deadline for context in batch_context()], clock=clock)
    assert function.options(timeout=timeout).call(1) == 107.0


def test_deadlines_end_in_their_order_not_in_that_of_arrival(runtime: Runtime, clock: VirtualClock, make: Make) -> None:
    held = Held("plain")
    function = make(held, clock=clock)
    runtime.start(function, -1)
    until(lambda: held.seen)
    calls = {timeout: runtime.start(function.options(timeout=timeout), timeout) for timeout in (30, 10, 20)}
    until(lambda: function.statistics().waiting == 3)
    for gone, timeout in enumerate((10, 20, 30), 1):
        clock.advance_to(100 + timeout - JUST)
        assert function.statistics().expired == gone - 1
        clock.advance_to(100 + timeout)
        assert isinstance(ended(clock, calls[timeout]), DeadlineExceeded)
        assert function.statistics().expired == gone


def test_a_result_just_in_time_counts(runtime: Runtime, clock: VirtualClock, make: Make) -> None:
    held = Held("plain")
    function = make(held, clock=clock, timeout=5)
    call = runtime.start(function, 1)
    until(lambda: held.seen)
    clock.advance(5 - JUST)
    held.gate.open()
    assert call.result() == 1
    clock.advance(5)
    done = function.statistics()
    assert (done.completed, done.expired) == (1, 0)


def test_a_timeout_in_real_time(runtime: Runtime, kind: Kind, make: Make) -> None:
    held = Held(kind)
    function = make(held, timeout=0.01)
    assert isinstance(runtime.start(function, 1).error(), DeadlineExceeded)
