"""A caller may leave at any moment: nobody else notices, and nothing runs for those who have gone."""

import asyncio
import logging
from typing import Any

import anyio
import pytest
import trio
from support import Held
from support.callers import Start, outcomes
from support.held_async import HeldAsync
from support.until import until

from batchlib import batch_context, batched


def same(items: list[Any]) -> list[Any]:
    return items


@pytest.fixture(params=[Held, HeldAsync])
def held(request: pytest.FixtureRequest) -> Any:
    """A plain and an async function."""
    return request.param()


def leave(f: Any, future: Any) -> None:
    """Makes a caller leave, and waits until its request knows."""
    before = f.statistics().cancelled
    assert future.cancel()
    until(lambda: f.statistics().cancelled == before + 1)


def test_one_leaves_a_running_batch_and_the_rest_get_their_results(
    start_leaving: Start, held: Any, caplog: pytest.LogCaptureFixture
) -> None:
    f = batched(held, max_batch_size=4, max_wait=60)
    calls = [start_leaving(f, item) for item in range(4)]
    assert held.started.wait()
    gone = calls.pop(1)
    if gone.cancel():
        until(lambda: f.statistics().cancelled == 1)
        assert f.statistics().running == 3
    else:  # the future of a running request, as in the standard library
        calls.insert(1, gone)
    held.gate.set()
    assert set(outcomes(calls)) >= {0, 2, 3}
    assert outcomes([start_leaving(f, item) for item in range(4)]) == [0, 1, 2, 3]
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


def test_a_request_whose_caller_left_while_it_waited_never_runs(start_leaving: Start) -> None:
    """Its place in the batch goes to the next."""
    held = Held()
    f = batched(held, max_batch_size=2)
    first = start_leaving(f, "a")
    assert held.started.wait()
    waiting: dict[str, Any] = {}
    for number, item in enumerate("bcd", 1):
        waiting[item] = start_leaving(f, item)
        until(lambda number=number: f.statistics().waiting == number)
    leave(f, waiting.pop("c"))
    held.gate.set()
    assert outcomes([first, *waiting.values()]) == ["a", "b", "d"]
    assert held.seen == [["a"], ["b", "d"]]


def test_a_batch_that_everybody_left_is_not_run(start_leaving: Start, held: Any) -> None:
    f = batched(held, max_batch_size=2)
    first = start_leaving(f, "a")
    assert held.started.wait()
    waiting = [start_leaving(f, item) for item in "bcd"]
    until(lambda: f.statistics().waiting == 3)
    for future in waiting:
        leave(f, future)
    assert f.statistics().groups == 0
    held.gate.set()
    assert outcomes([first, start_leaving(f, "e")]) == ["a", "e"]
    assert held.seen == [["a"], ["e"]]


def test_a_request_that_waits_for_company_can_be_left_too(start_leaving: Start) -> None:
    f = batched(same, max_batch_size=2, max_wait=60)
    gone = start_leaving(f, 1)
    until(lambda: f.statistics().waiting == 1)
    leave(f, gone)
    assert outcomes([start_leaving(f, 2), start_leaving(f, 3)]) == [2, 3]


@pytest.mark.parametrize("remaining", [0, 1])
@pytest.mark.parametrize("kind", ["asyncio", "trio"])
def test_an_async_function_goes_on_only_while_somebody_wants_it(kind: Any, remaining: int) -> None:
    held = HeldAsync()
    f = batched(held, max_batch_size=3, max_wait=60)
    scopes: dict[int, anyio.CancelScope] = {}
    results: list[int] = []

    async def call(item: int) -> None:
        with anyio.CancelScope() as scope:
            scopes[item] = scope
            results.append(await f(item))

    async def main() -> None:
        async with anyio.create_task_group() as tasks:
            for item in range(3):
                tasks.start_soon(call, item)
            while not held.started.is_set():
                await anyio.sleep(0)
            for item in range(remaining, 3):
                scopes[item].cancel()
            while f.statistics().cancelled != 3 - remaining:
                await anyio.sleep(0)
            if remaining:
                held.gate.set()
            while not held.ended:
                await anyio.sleep(0)
        assert held.ended == ["returned" if remaining else "cancelled"]
        assert results == ([0] if remaining else [])
        held.gate.set()
        f.configure(max_batch_size=1)
        assert await f(7) == 7

    anyio.run(main, backend=kind)
    assert f.statistics().cancelled == 3 - remaining


def test_a_plain_function_can_see_that_everybody_left() -> None:
    seen: list[bool] = []
    held = Held()

    def function(items: list[int]) -> list[int]:
        batch = batch_context()
        seen.append(batch.cancelled)
        held(items)
        seen.append(batch.cancelled)
        return items

    async def main() -> None:
        task = asyncio.create_task(f(1))
        while not held.started.is_set():
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        held.gate.set()

    f = batched(function)
    asyncio.run(main())
    f.close()
    assert seen == [False, True]


def test_equal_items_are_not_one_request(start_leaving: Start) -> None:
    """The one leaving must not take the other with it, nor spoil the item for later callers."""
    held = Held()
    f = batched(held, max_batch_size=2)
    first = start_leaving(f, "busy")
    assert held.started.wait()
    calls = [start_leaving(f, "same") for _ in range(2)]
    until(lambda: f.statistics().waiting == 2)
    leave(f, calls.pop(0))
    held.gate.set()
    assert outcomes([first, *calls]) == ["busy", "same"]
    assert start_leaving(f, "same").result() == "same"


async def test_cancellation_reaches_the_asyncio_caller_as_itself() -> None:
    held = Held()
    f = batched(held, max_batch_size=1)
    running, waiting = asyncio.create_task(f(1)), asyncio.create_task(f(2))
    while not held.started.is_set() or f.statistics().waiting != 1:
        await asyncio.sleep(0)
    for task in (waiting, running):
        assert task.cancel("out of patience")
        with pytest.raises(asyncio.CancelledError, match="out of patience"):
            await task
        assert task.cancelled()
    held.gate.set()


@pytest.mark.parametrize("kind", ["asyncio", "trio"])
def test_the_end_of_a_scope_is_the_scopes_own(kind: Any) -> None:
    """A timeout around the call stays a timeout of its owner: DeadlineExceeded is for `timeout=` alone."""
    held = Held()
    f = batched(held, max_batch_size=1)

    async def main() -> None:
        with anyio.move_on_after(0) as scope:
            await f(1)
        assert scope.cancelled_caught
        with pytest.raises(TimeoutError) as caught, anyio.fail_after(0):
            await f(2)
        assert type(caught.value) is TimeoutError

    anyio.run(main, backend=kind)
    held.gate.set()
    f.close()
    assert f.statistics().cancelled == 2


def test_leaving_in_the_moment_of_delivery_loses_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """The outcome is on its way to the loop when the caller is cancelled there."""
    f = batched(same, max_batch_size=2, max_wait=60)

    async def main() -> None:
        gone, stays = asyncio.create_task(f(1)), asyncio.create_task(f(2))
        while not f.statistics().batches:
            await asyncio.sleep(0)
        until(lambda: f.statistics().completed == 2)  # this loop is blocked: it cannot have heard of it yet
        gone.cancel()
        assert await stays == 2
        assert gone.cancelled()

    asyncio.run(main(), debug=True)
    assert f.statistics().cancelled == 0
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


def test_leaving_in_the_moment_of_delivery_on_trio() -> None:
    f = batched(same, max_batch_size=2, max_wait=60)
    results: list[int] = []

    async def call(item: int) -> None:
        results.append(await f(item))

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(call, 1)
            nursery.start_soon(call, 2)
            while not f.statistics().batches:
                await trio.sleep(0)
            until(lambda: f.statistics().completed == 2)
            nursery.cancel_scope.cancel()

    trio.run(main)
    assert f.statistics().completed == 2
    assert set(results) <= {1, 2}
