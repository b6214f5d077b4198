"""`close` stops intake first, then ends what was accepted in the way it was told to; a second one does nothing."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
from support import VirtualClock
from support.until import until

from batchlib import BatchEnded, BatchStarted, BlockingCallError, Closed, ReentrantCallError, Rejected

from .held import Held, Kind, of_kind
from .runtimes import LONG, Call, FuturesRuntime, Left, LoopRuntime, Runtime, ThreadsRuntime

Make = Callable[..., Any]


def in_thread(work: Callable[[], Any]) -> Call:
    call = Call()
    threading.Thread(target=call.end_as, args=(work,), daemon=True).start()
    return call


def backlog(runtime: Runtime, held: Held, function: Any) -> tuple[Call, list[Call]]:
    """One running request and three waiting ones."""
    first = runtime.start(function, 0)
    until(lambda: held.seen)
    calls = runtime.start_each(function, range(1, 4))
    until(lambda: function.statistics().waiting == 3)
    return first, calls


def test_drain_finishes_what_was_accepted(runtime: Runtime, kind: Kind, make: Make) -> None:
    held = Held(kind)
    function = make(held)
    first, calls = backlog(runtime, held, function)
    closing = in_thread(function.close)
    until(lambda: function.statistics().closed)
    refused = runtime.start(function, 9)
    error = refused.error()
    assert isinstance(error, Closed)
    assert isinstance(error, Rejected)
    assert not closing.done
    held.gate.open()
    assert [call.result() for call in [first, *calls]] == [0, 1, 2, 3]
    closing.result()
    done = function.statistics()
    assert (done.completed, done.rejected, done.waiting, done.running_batches) == (4, 1, 0, 0)


def test_drain_does_not_wait_for_company(runtime: Runtime, kind: Kind, make: Make) -> None:
    function = make(Held(kind).function, max_wait=3600)
    held = function.__wrapped__.__self__
    held.gate.open()
    calls = runtime.start_each(function, range(3))
    until(lambda: function.statistics().waiting == 3)
    function.close()
    assert [call.result() for call in calls] == [0, 1, 2]
    assert set(function.statistics().reasons) == {"drain"}


def test_without_drain_those_that_wait_are_given_up(runtime: Runtime, kind: Kind, make: Make) -> None:
    held = Held(kind)
    function = make(held)
    first, calls = backlog(runtime, held, function)
    function.close(drain=False)
    errors = [call.error() for call in calls]
    assert all(isinstance(error, Closed) for error in errors)
    assert len({id(error) for error in errors}) == 3
    assert not first.done
    held.gate.open()
    assert first.result() == 0
    assert held.seen == [[0]]
    done = function.statistics()
    assert (done.completed, done.rejected) == (1, 3)


def test_a_drain_that_takes_too_long_ends_with_closed_for_the_rest(
    runtime: Runtime, kind: Kind, clock: VirtualClock, make: Make
) -> None:
    held = Held(kind)
    function = make(held, clock=clock)
    first, calls = backlog(runtime, held, function)
    closing = in_thread(lambda: function.close(timeout=5))
    until(lambda: function.statistics().closed)
    until(lambda: clock.advance(5) or closing.done)
    closing.result()
    errors = [call.error() for call in [first, *calls]]
    assert all(isinstance(error, Closed) for error in errors)
    assert "ran" in str(errors[0])
    assert all("never ran" in str(error) for error in errors[1:])
    held.gate.open()
    until(lambda: function.statistics().running_batches == 0)
    assert held.seen == [[0]]


@pytest.mark.parametrize("drain", [True, False])
def test_a_second_close_does_nothing(kind: Kind, drain: bool, make: Make) -> None:
    function = make(Held(kind), max_wait=3600)
    future = function.submit(1)
    function.close(drain=False)
    function.close(drain=drain)
    function.close(drain=drain, timeout=0)
    assert isinstance(future.exception(30), Closed)
    assert function.statistics().closed


def test_closing_one_that_was_never_used(make: Make) -> None:
    function = make(lambda items: items)
    function.close()
    with pytest.raises(Closed):
        function.call(1)


def test_a_draining_close_on_a_loops_thread_is_refused(loop: LoopRuntime, kind: Kind, make: Make) -> None:
    held = Held(kind)
    held.gate.open()
    function = make(held)
    with pytest.raises(BlockingCallError, match="await aclose"):
        loop.do(function.close)
    assert not function.statistics().closed  # it has not even begun
    assert loop.start(function, 1).result() == 1
    loop.do(lambda: function.close(drain=False))
    assert function.statistics().closed


def test_aclose_drains(loop: LoopRuntime, kind: Kind, make: Make) -> None:
    held = Held(kind)
    function = make(held)
    first, calls = backlog(loop, held, function)
    (closing,) = loop.spawn(function.aclose)
    until(lambda: function.statistics().closed)
    held.gate.open()
    closing.result()
    assert [call.result() for call in [first, *calls]] == [0, 1, 2, 3]
    loop.run(function.aclose)


def test_aclose_without_drain(loop: LoopRuntime, kind: Kind, make: Make) -> None:
    held = Held(kind)
    function = make(held)
    first, calls = backlog(loop, held, function)
    loop.run(lambda: function.aclose(drain=False))
    assert all(isinstance(call.error(), Closed) for call in calls)
    held.gate.open()
    assert first.result() == 0


def test_a_cancelled_aclose_goes_on_without_its_caller(loop: LoopRuntime, kind: Kind, make: Make) -> None:
    held = Held(kind)
    function = make(held)
    first, calls = backlog(loop, held, function)
    (closing,) = loop.spawn(function.aclose)
    until(lambda: function.statistics().closed)
    closing.leave()
    with pytest.raises(Left):
        closing.result()
    held.gate.open()
    assert [call.result() for call in [first, *calls]] == [0, 1, 2, 3]
    until(lambda: function.statistics().running_batches == 0)


def test_as_a_context_manager(kind: Kind, make: Make) -> None:
    held = Held(kind)
    held.gate.open()
    with make(held) as function, ThreadsRuntime() as runtime:
        assert runtime.start(function, 1).result() == 1
    assert function.statistics().closed


def test_as_an_async_context_manager(loop: LoopRuntime, kind: Kind, make: Make) -> None:
    held = Held(kind)
    held.gate.open()
    function = make(held)

    async def main() -> Any:
        async with function as same:
            assert same is function
            return await function(1)

    assert loop.run(main) == 1
    assert function.statistics().closed


def test_a_context_manager_closes_after_an_error_too(make: Make) -> None:
    function = make(lambda items: items)

    def fail() -> None:
        with function:
            raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        fail()
    assert function.statistics().closed


def test_closing_from_inside_the_function(runtime: Runtime, kind: Kind, make: Make) -> None:
    """The running batch may end; what waits is closed."""
    held = Held(kind, lambda items: function.close(drain=False) or items)
    function = make(held)
    first, calls = backlog(runtime, held, function)
    held.gate.open()
    assert first.result() == 0
    assert all(isinstance(call.error(), Closed) for call in calls)
    until(lambda: function.statistics().running_batches == 0)


def test_a_draining_close_from_inside_the_function_would_wait_for_itself(runtime: Runtime, make: Make) -> None:
    held = Held("plain", lambda items: function.close() or items)
    function = make(held)
    call = runtime.start(function, 1)
    until(lambda: held.seen)
    held.gate.open()
    assert isinstance(call.error(), ReentrantCallError)
    assert not function.statistics().closed


def test_a_draining_aclose_from_inside_the_function_would_wait_for_itself(loop: LoopRuntime, make: Make) -> None:
    async def closes(items: list[int]) -> list[int]:
        await function.aclose()
        return items

    function = make(closes)
    assert isinstance(loop.start(function, 1).error(), ReentrantCallError)
    assert not function.statistics().closed


def test_who_blocks_in_submit_is_told(make: Make) -> None:
    held = Held("plain")
    function = make(held, max_waiting=1)
    with FuturesRuntime() as runtime:
        first = runtime.start(function, 0)
        until(lambda: held.seen)
        second = runtime.start(function, 1)
        blocked = in_thread(lambda: function.submit(2).result(30))
        third = in_thread(lambda: function.submit(3).result(30))
        function.close(drain=False)
        assert isinstance(blocked.error(), Closed)
        assert isinstance(third.error(), Closed)
        assert isinstance(second.error(), Closed)
        held.gate.open()
        assert first.result() == 0


def test_methods_close_by_instance(make: Make) -> None:
    from batchlib import batched

    class Model:
        @batched
        def run(self, items: list[int]) -> list[int]:
            return items

    one, other = Model(), Model()
    one.run.close()
    with pytest.raises(Closed):
        one.run.call(1)
    assert other.run.call(1) == 1
    other.run.close()


def test_a_batch_formed_while_its_batcher_was_closed_comes_to_its_end(runtime: Runtime, kind: Kind, make: Make) -> None:
    """Between the forming of a batch and its start, the close told all threads to end."""
    events: list[Any] = []

    def close(event: Any) -> None:
        events.append(event)
        if isinstance(event, BatchStarted) and event.batch == 2:
            closing = threading.Thread(target=function.close, kwargs={"timeout": 0})
            closing.start()
            closing.join(LONG)

    function = make(of_kind(kind, lambda items: items), hooks=[close], max_concurrent_batches=1)
    assert runtime.start(function, 1).result() == 1  # there are threads now
    assert isinstance(runtime.start(function, 2).error(), Closed)
    until(lambda: function.statistics().running_batches == 0)
    until(lambda: len(events) == 6)
    assert [event.batch for event in events if isinstance(event, BatchEnded)] == [1, 2]
