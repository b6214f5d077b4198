"""What is in use stays, what is not goes, whenever the garbage collector comes by."""

import asyncio
import gc
import threading
import weakref
from typing import Any

import pytest
import trio
from support import Held
from support.callers import Start, outcomes
from support.until import until

from batchlib import batched


def threads_of_batchlib() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("batchlib")}


@pytest.mark.parametrize("size", [1, 2])
def test_a_batch_task_survives_collections(size: int) -> None:
    """asyncio itself holds its tasks weakly, and this one waits for what only it knows."""
    inner: list[weakref.ref[Any]] = []

    async def function(items: list[int]) -> list[int]:
        future = asyncio.get_running_loop().create_future()
        inner.append(weakref.ref(future))
        await future
        return items

    f = batched(function, max_batch_size=size)

    async def main() -> None:
        tasks = [asyncio.create_task(f(item)) for item in range(size)]
        while not inner:
            await asyncio.sleep(0)
        for _ in range(3):
            gc.collect()
            await asyncio.sleep(0)
        future = inner[0]()
        assert future is not None
        future.set_result(None)
        del future
        assert await asyncio.gather(*tasks) == list(range(size))
        del tasks
        await asyncio.sleep(0)
        gc.collect()
        assert inner[0]() is None

    asyncio.run(main())


def test_a_batch_in_trio_survives_collections() -> None:
    event: list[trio.Event] = []

    async def function(items: list[int]) -> list[int]:
        event.append(trio.Event())
        await event[0].wait()
        return items

    f = batched(function)
    results: list[int] = []

    async def call() -> None:
        results.append(await f(1))

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(call)
            while not event:
                await trio.sleep(0)
            for _ in range(3):
                gc.collect()
                await trio.sleep(0)
            event[0].set()

    trio.run(main)
    assert results == [1]


@pytest.mark.parametrize("asynchronous", [False, True])
def test_the_threads_of_a_dropped_function_end(start: Start, asynchronous: bool) -> None:
    before = threads_of_batchlib()

    def use() -> weakref.ref[Any]:
        async def run_async(items: list[int]) -> list[int]:
            return items

        f = batched(run_async if asynchronous else lambda items: items, max_concurrent_batches=3)
        assert outcomes([start(f.options(timeout=60), item) for item in range(10)]) == list(range(10))
        assert f.submit(1).result() == 1
        assert threads_of_batchlib() - before
        return weakref.ref(f)

    gone = use()
    until(lambda: gc.collect() is not None and gone() is None)
    until(lambda: not threads_of_batchlib() - before)


@pytest.mark.parametrize("state", ["waiting", "running"])
def test_a_function_that_is_dropped_in_use_still_answers(start: Start, state: str) -> None:
    before = threads_of_batchlib()
    held = Held()

    def use() -> Any:
        f = batched(held, max_batch_size=1)
        first = start(f, 1)
        assert held.started.wait()
        calls = [first] if state == "running" else [first, start(f, 2)]
        until(lambda: f.statistics().waiting == len(calls) - 1)
        return calls

    calls = use()
    gc.collect()
    held.gate.set()
    assert outcomes(calls) == [1, 2][: len(calls)]
    del calls
    until(lambda: gc.collect() is not None and not threads_of_batchlib() - before)


def test_a_dropped_map_gives_its_place_back() -> None:
    before = threads_of_batchlib()
    results = iter(batched(lambda items: items, max_batch_size=2).map(range(100)))
    assert next(results) == 0
    del results
    until(lambda: gc.collect() is not None and not threads_of_batchlib() - before)
