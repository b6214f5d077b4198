"""No thread is to be had, for a while: nothing is closed, nobody waits for ever, and the next call tries anew."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import trio
from support import VirtualClock
from support.until import until

from batchlib import Closed, DeadlineExceeded

from .held import Held, Kind, of_kind
from .runtimes import FuturesRuntime, LoopRuntime, Runtime, ThreadsRuntime

Make = Callable[..., Any]
NO_THREAD = "can't start new thread"


class ScarceClock(VirtualClock):
    """Needs a thread for each wake-up, and at times there is none."""

    scarce = False

    def call_at(self, instant: float, callback: Callable[[], object]) -> None:
        if self.scarce:
            raise RuntimeError(NO_THREAD)
        super().call_at(instant, callback)


@pytest.fixture
def scarce() -> ScarceClock:
    return ScarceClock()


@contextmanager
def no_more(*names: str) -> Iterator[None]:
    """Threads whose names begin so cannot be started."""
    start = threading.Thread.start

    def start_or_refuse(thread: threading.Thread) -> None:
        if thread.name.startswith(names):
            raise RuntimeError(NO_THREAD)
        start(thread)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(threading.Thread, "start", start_or_refuse)
        yield


def same(items: list[Any]) -> list[Any]:
    return items


def in_threads(runtime: Runtime) -> bool:
    return isinstance(runtime, ThreadsRuntime | FuturesRuntime)


def test_without_a_clock_nobody_is_held_back_and_later_one_is_again(runtime: Runtime, kind: Kind, make: Make) -> None:
    function = make(of_kind(kind, same), max_batch_size=2, max_wait=60)
    with no_more("batchlib-clock"):
        assert [runtime.start(function, item).result() for item in range(3)] == [0, 1, 2]
    assert function.statistics().reasons == {"no_clock": 3}
    held = runtime.start(function, 3)
    until(lambda: function.statistics().waiting == 1)
    function.configure(max_wait=0)
    assert held.result() == 3
    assert function.statistics().reasons == {"no_clock": 3, "executor_free": 1}


def test_without_a_clock_what_comes_in_one_tick_is_still_one_batch(
    loop: LoopRuntime, kind: Kind, make: Make, scarce: ScarceClock
) -> None:
    held = Held(kind)
    held.gate.open()
    scarce.scarce = True
    function = make(held, clock=scarce, max_wait=3).options(timeout=5)
    assert [call.result() for call in loop.start_each(function, range(4))] == [0, 1, 2, 3]
    assert held.sizes == [4]


def test_a_deadline_that_nobody_could_watch_is_watched_from_the_next_arrival_on(
    runtime: Runtime, kind: Kind, make: Make, scarce: ScarceClock
) -> None:
    held = Held(kind)
    function = make(held, clock=scarce)
    running = runtime.start(function, 0)
    until(lambda: held.seen)
    scarce.scarce = True
    late = runtime.start(function.options(timeout=5), 1)
    until(lambda: function.statistics().submitted == 2)
    scarce.scarce = False
    patient = runtime.start(function.options(timeout=50), 2)
    until(lambda: function.statistics().submitted == 3)
    scarce.advance(5)
    until(lambda: scarce.advance(0) or late.done)
    assert isinstance(late.error(), DeadlineExceeded)
    held.gate.open()
    assert (running.result(), patient.result()) == (0, 2)


def test_without_a_clock_what_is_late_ends_with_the_batch_before_it_and_never_runs(
    runtime: Runtime, kind: Kind, make: Make, scarce: ScarceClock
) -> None:
    held = Held(kind)
    function = make(held, clock=scarce)
    running = runtime.start(function, 0)
    until(lambda: held.seen)
    scarce.scarce = True
    late = runtime.start(function.options(timeout=5), 1)
    until(lambda: function.statistics().submitted == 2)
    scarce.advance(5)
    held.gate.open()
    assert running.result() == 0
    assert isinstance(late.error(), DeadlineExceeded)
    assert held.items == [0]


def test_no_time_at_all_ends_without_a_clock(runtime: Runtime, kind: Kind, make: Make, scarce: ScarceClock) -> None:
    """Behind a batch that never ends, nothing else would ever look."""
    held = Held(kind)
    function = make(held, clock=scarce)
    running = runtime.start(function, 0)
    until(lambda: held.seen)
    scarce.scarce = True
    assert isinstance(runtime.start(function.options(timeout=0), 1).error(), DeadlineExceeded)
    held.gate.open()
    assert running.result() == 0


@pytest.mark.parametrize("options", [{}, {"max_wait": 60}, {"timeout": 60}])
def test_without_a_thread_for_a_batch_its_callers_are_told_and_the_next_call_tries_anew(
    runtime: Runtime, kind: Kind, make: Make, options: Any
) -> None:
    function = make(of_kind(kind, same), **options)
    with no_more("batchlib-"):
        for item in range(3):
            call = runtime.start(function, item)
            if kind == "plain" or in_threads(runtime):
                assert repr(call.error()) == repr(RuntimeError(NO_THREAD))
            else:  # it runs on its caller's loop, which is there; in a mixture some callers are in threads
                assert call.error() is None or (item == 1 and repr(call.error()) == repr(RuntimeError(NO_THREAD)))
    function.configure(**dict.fromkeys(set(options) & {"max_wait"}, 0))
    assert [runtime.start(function, item).result() for item in range(3)] == [0, 1, 2]
    now = function.statistics()
    assert (now.waiting, now.running_batches, now.rejected) == (0, 0, 0)


def test_each_caller_of_a_batch_without_a_thread_has_an_error_of_its_own(loop: LoopRuntime, make: Make) -> None:
    function = make(same)
    with no_more("batchlib-"):
        errors = [call.error() for call in loop.start_each(function, range(3))]
    assert [repr(error) for error in errors] == [repr(RuntimeError(NO_THREAD))] * 3
    assert len({id(error) for error in errors}) == 3


def test_hundreds_of_groups_end_one_by_one_where_neither_clock_nor_batch_has_a_thread(
    make: Make, scarce: ScarceClock
) -> None:
    """Each end lets the next one go, deeper than any stack."""
    function = make(same, clock=scarce, max_wait=1000, group_by=lambda item: item)
    futures = []
    with no_more("batchlib-"):
        for item in range(400):
            scarce.advance(1)
            futures.append(function.submit(item))
        assert function.statistics().waiting == 400
        scarce.scarce = True
        scarce.advance(601)
        assert all(str(future.exception()) == NO_THREAD for future in futures)
    assert not function.statistics().closed


def test_a_private_loop_that_cannot_be_made_fails_its_batch_and_is_made_by_the_next(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> Any:
        raise OSError(24, "Too many open files")

    function = make(of_kind("async", same))
    for runtime in (ThreadsRuntime(), FuturesRuntime()):
        with monkeypatch.context() as patch:
            patch.setattr(asyncio, "new_event_loop", refuse)
            assert isinstance(runtime.start(function, 1).error(), OSError)
    assert function.call(2) == 2
    now = function.statistics()
    assert (now.failed, now.completed, now.running_batches) == (2, 1, 0)


# ---- ends


@contextmanager
def no_thread_to_close_in() -> Iterator[None]:
    async def refuse(*_: Any, **__: Any) -> None:
        raise RuntimeError(NO_THREAD)

    with pytest.MonkeyPatch.context() as patch, no_more("batchlib-close"):
        patch.setattr(trio.to_thread, "run_sync", refuse)
        yield


def test_aclose_without_a_thread_to_drain_in_says_so_and_changes_nothing(
    loop: LoopRuntime, kind: Kind, make: Make
) -> None:
    function = make(of_kind(kind, same))
    with no_thread_to_close_in(), pytest.raises(RuntimeError, match="nothing has been closed"):
        loop.run(function.aclose)
    assert loop.start(function, 1).result() == 1
    loop.run(function.aclose)
    assert isinstance(loop.start(function, 2).error(), Closed)


def test_a_second_aclose_needs_no_thread(loop: LoopRuntime, make: Make) -> None:
    function = make(same)
    loop.run(function.aclose)
    with no_thread_to_close_in():
        loop.run(function.aclose)


def test_aclose_on_no_loop_closes_nothing(make: Make) -> None:
    function = make(same)
    closing = function.aclose()
    with pytest.raises(RuntimeError, match="loop"):
        closing.send(None)
    assert function.call(1) == 1


def test_aclose_without_draining_needs_no_thread(loop: LoopRuntime, kind: Kind, make: Make) -> None:
    held = Held(kind)
    function = make(held, max_batch_size=1)
    running, waiting = loop.start(function, 0), loop.start(function, 1)
    until(lambda: held.seen)
    until(lambda: function.statistics().submitted == 2)
    with no_thread_to_close_in():
        loop.run(lambda: function.aclose(drain=False))
    assert isinstance(waiting.error(), Closed)
    held.gate.open()
    assert running.result() == 0


def test_draining_without_a_clock_still_ends_in_time(make: Make, kind: Kind) -> None:
    held = Held(kind)
    function = make(held)
    future = function.submit(1)
    until(lambda: held.seen)
    with no_more("batchlib-clock"):
        function.close(timeout=0.01)
    assert isinstance(future.exception(), Closed)


def test_a_thread_without_room_waits_without_a_clock_no_longer_than_its_deadline(make: Make, kind: Kind) -> None:
    held = Held(kind)
    function = make(held, max_batch_size=1, max_waiting=1)
    futures = [function.submit(0)]
    until(lambda: held.seen)
    futures.append(function.submit(1))
    with no_more("batchlib-clock"):
        late = function.options(timeout=0.01).submit(2)
        assert isinstance(late.exception(), DeadlineExceeded)
    held.gate.open()
    assert [future.result() for future in futures] == [0, 1]
