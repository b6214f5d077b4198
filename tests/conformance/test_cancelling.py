"""A caller that leaves is taken out or dropped, and nobody else notices."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
import trio
from support.until import until

from batchlib import BatchEnded, BatchStarted, RequestEnded, batch_context

from .held import Gate, Held, Kind
from .runtimes import Call, FuturesRuntime, Left, LoopRuntime, Runtime

Make = Callable[..., Any]


@pytest.mark.parametrize("leaver", [0, 2, 4])
def test_who_leaves_while_waiting_never_runs(leaving: Runtime, leaver: int, make: Make) -> None:
    held = Held("plain")
    function = make(held)
    first = leaving.start(function, -1)
    until(lambda: held.seen)
    calls = leaving.start_each(function, range(5))
    until(lambda: function.statistics().waiting == 5)
    calls[leaver].leave()
    with pytest.raises(Left):
        calls[leaver].result()
    now = function.statistics()
    assert (now.cancelled, now.waiting) == (1, 4)
    held.gate.open()
    stayed = [number for number in range(5) if number != leaver]
    assert [calls[number].result() for number in stayed] == stayed
    assert first.result() == -1
    assert sorted(held.items) == [-1, *stayed]


def test_who_leaves_while_waiting_for_an_async_function(leaving: Runtime, make: Make) -> None:
    held = Held("async")
    function = make(held, max_wait=3600)  # an incomplete batch stays open for as long as the test takes
    calls = leaving.start_each(function, range(5))
    until(lambda: function.statistics().waiting == 5)
    for call in calls:
        call.leave()
        with pytest.raises(Left):
            call.result()
    now = function.statistics()
    assert (now.cancelled, now.waiting, now.groups, now.batches) == (5, 0, 0, 0)
    assert held.seen == []


def test_all_leave_and_the_queue_is_empty(leaving: Runtime, make: Make) -> None:
    held = Held("plain")
    function = make(held)
    first = leaving.start(function, -1)
    until(lambda: held.seen)
    calls = leaving.start_each(function, range(20))
    until(lambda: function.statistics().waiting == 20)
    for call in calls:
        call.leave()
    until(lambda: function.statistics().waiting == 0)
    assert function.statistics().groups == 0
    held.gate.open()
    assert first.result() == -1
    assert leaving.start(function, 99).result() == 99
    assert held.seen == [[-1], [99]]


def test_who_leaves_a_running_batch_leaves_the_others_alone(leaving_a_batch: Runtime, make: Make) -> None:
    held = Held("plain")
    function = make(held)
    blocker = leaving_a_batch.start(function, -1)
    until(lambda: held.seen)
    calls = leaving_a_batch.start_each(function, range(4))
    until(lambda: function.statistics().waiting == 4)
    second = Held("plain")  # the batch of four is held at a gate of its own
    held.work = lambda items: items if items == [-1] else second.function(items)
    held.gate.open()
    until(lambda: second.seen)
    calls[1].leave()
    with pytest.raises(Left):
        calls[1].result()
    now = function.statistics()
    assert (now.cancelled, now.running, now.running_batches) == (1, 3, 1)
    second.gate.open()
    assert [calls[number].result() for number in (0, 2, 3)] == [0, 2, 3]
    assert blocker.result() == -1
    done = function.statistics()
    assert (done.submitted, done.completed, done.cancelled, done.failed) == (5, 4, 1, 0)


def test_who_leaves_a_running_async_batch_leaves_the_others_alone(loop: LoopRuntime, make: Make) -> None:
    held = Held("async")
    function = make(held)
    calls = loop.start_each(function, range(3))
    until(lambda: held.seen)
    calls[0].leave()
    with pytest.raises(Left):
        calls[0].result()
    assert function.statistics().running == 2
    held.gate.open()
    assert [call.result() for call in calls[1:]] == [1, 2]
    assert held.cancelled == []


def test_a_plain_function_sees_that_everybody_has_left(loop: LoopRuntime, make: Make) -> None:
    seen: list[bool] = []
    begun: list[Any] = []

    def function(items: list[int]) -> list[int]:
        context = batch_context()
        seen.append(context.cancelled)
        begun.append(items)
        until(lambda: context.cancelled)
        seen.append(context.cancelled)
        return items

    batcher = make(function)
    calls = loop.start_each(batcher, range(3))
    until(lambda: begun)
    for call in calls:
        call.leave()
    until(lambda: seen == [False, True])
    done = batcher.statistics()
    assert (done.cancelled, done.running) == (3, 0)


def test_one_who_stays_keeps_the_batch_wanted(loop: LoopRuntime, make: Make) -> None:
    held = Held("plain", lambda items: [batch_context().cancelled] * len(items))
    function = make(held)
    calls = loop.start_each(function, range(3))
    until(lambda: held.seen)
    for call in calls[:2]:
        call.leave()
        with pytest.raises(Left):
            call.result()
    held.gate.open()
    assert calls[2].result() is False


def test_an_async_function_is_cancelled_when_everybody_has_left(loop: LoopRuntime, make: Make) -> None:
    held = Held("async")
    function = make(held)
    calls = loop.start_each(function, range(3))
    until(lambda: held.seen)
    for call in calls[:2]:
        call.leave()
        with pytest.raises(Left):
            call.result()
    assert held.cancelled == []
    calls[2].leave()
    until(lambda: held.cancelled)
    until(lambda: function.statistics().running_batches == 0)
    held.gate.open()
    assert loop.start(function, 7).result() == 7  # and the batcher goes on
    assert function.statistics().cancelled == 3


def test_an_async_function_may_finish_its_work_when_cancelled(loop: LoopRuntime, make: Make) -> None:
    begun: list[Any] = []
    cleaned: list[Any] = []

    async def function(items: list[int]) -> list[int]:
        begun.append(items)
        try:
            await Gate().wait_async()
        finally:
            cleaned.append(items)
        return items

    batcher = make(function)
    call = loop.start(batcher, 1)
    until(lambda: begun)
    call.leave()
    until(lambda: cleaned == [[1]])
    until(lambda: batcher.statistics().running_batches == 0)


def test_a_batch_that_is_left_before_its_task_begins_frees_its_slot(loop: LoopRuntime, make: Make) -> None:
    held = Held("async")
    calls: list[Call] = []

    def leave_the_second(event: Any) -> None:
        if isinstance(event, BatchStarted) and event.batch == 2:
            calls[1].cancel()

    events: list[Any] = []
    function = make(held, hooks=[events.append, leave_the_second])
    calls.append(loop.start(function, 1))
    until(lambda: held.seen)
    calls.append(loop.start(function, 2))
    until(lambda: function.statistics().waiting == 1)
    held.gate.open()
    assert calls[0].result() == 1
    with pytest.raises(Left):
        calls[1].result()
    until(lambda: function.statistics().running_batches == 0)
    assert loop.start(function, 3).result() == 3
    until(lambda: function.statistics().running_batches == 0)
    told = [(type(event), event.batch) for event in events if not isinstance(event, RequestEnded)]
    assert sorted(told, key=str) == [(kind, number) for kind in (BatchEnded, BatchStarted) for number in (1, 2, 3)]


def test_a_task_cancelled_in_the_tick_of_its_call_gets_no_result(loop: LoopRuntime, make: Make) -> None:
    """Whether a batch has taken it by then or not."""
    held = Held("plain")
    function = make(held)

    async def main() -> None:
        if trio.lowlevel.in_trio_task():
            with trio.CancelScope() as scope:
                scope.cancel()
                await function(1)
            assert scope.cancelled_caught
        else:
            task = asyncio.get_running_loop().create_task(function(1))
            asyncio.get_running_loop().call_soon(task.cancel)
            await asyncio.wait([task])
            assert task.cancelled()

    loop.run(main)
    now = function.statistics()
    assert (now.submitted, now.cancelled, now.waiting, now.running) == (1, 1, 0, 0)
    held.gate.open()
    assert loop.start(function, 2).result() == 2


def test_a_running_future_cannot_be_cancelled(kind: Kind, make: Make) -> None:
    held = Held(kind)
    function = make(held)
    with FuturesRuntime() as runtime:
        call = runtime.start(function, 1)
        until(lambda: held.seen)
        future = function.submit(2)
        assert call.leave() is False
        assert future.cancel() is True
        assert future.cancel() is True
        assert future.cancelled()
        held.gate.open()
        assert call.result() == 1
    assert held.seen == [[1]]
    assert function.statistics().cancelled == 1


def test_a_futures_states_are_the_standard_librarys(make: Make) -> None:
    held = Held("plain")
    function = make(held)
    first = function.submit(1)
    until(lambda: held.seen)
    second = function.submit(2)
    assert (first.running(), second.running()) == (True, False)
    assert (first.done(), second.done()) == (False, False)
    held.gate.open()
    assert (first.result(30), second.result(30)) == (1, 2)
    assert first.done()
    assert not first.running()
    assert first.cancel() is False
