"""One object outlives any number of loops, closed ones leave nothing behind, and nobody burns a processor."""

import asyncio
import gc
import time
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import trio
import uvloop
from support import Held, VirtualClock
from support.until import until

from batchlib import batched


def plain(items: list[int]) -> list[int]:
    return [item * 10 for item in items]


async def asynchronous(items: list[int]) -> list[int]:
    return plain(items)


FUNCTIONS = pytest.mark.parametrize("function", [plain, asynchronous])


def run_uvloop(main: Any) -> Any:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main)


def run_trio(main: Any) -> Any:
    async def started() -> Any:
        return await main

    return trio.run(started)


RUNS: dict[str, Callable[[Any], Any]] = {"asyncio": asyncio.run, "uvloop": run_uvloop, "trio": run_trio}


@FUNCTIONS
@pytest.mark.parametrize("kind", list(RUNS))
def test_loop_after_loop(kind: str, function: Any) -> None:
    f = batched(function)
    for item in range(50):
        assert RUNS[kind](f(item)) == item * 10
    assert f.statistics().completed == 50


@FUNCTIONS
def test_loops_of_all_kinds_in_turn_and_threads_in_between(function: Any) -> None:
    f = batched(function)
    for item in range(30):
        run = list(RUNS.values())[item % 3]
        assert run(f(item)) == item * 10
        assert f.call(item) == item * 10


@FUNCTIONS
@pytest.mark.parametrize("kind", list(RUNS))
def test_at_most_one_closed_loop_is_remembered(kind: str, function: Any) -> None:
    f = batched(function)
    loops: list[weakref.ref[Any]] = []

    async def main() -> None:
        here = trio.lowlevel.current_root_task() if kind == "trio" else asyncio.get_running_loop()
        loops.append(weakref.ref(here))
        assert await f(1) == 10

    for _ in range(5):
        RUNS[kind](main())
    gc.collect()
    assert sum(loop() is not None for loop in loops) <= 1


def left_behind(f: Any, item: int) -> asyncio.Task[Any]:
    """A call that waits on a loop which is then closed under it."""
    loop = asyncio.new_event_loop()

    async def main() -> None:
        while f.statistics().waiting + f.statistics().running != 1:
            await asyncio.sleep(0)

    task = loop.create_task(f(item))
    loop.run_until_complete(main())
    loop.close()
    task._log_destroy_pending = False  # type: ignore[attr-defined]  (that is what this is about)
    return task


@FUNCTIONS
@pytest.mark.parametrize("following", ["asyncio", "trio", "thread"])
def test_a_request_left_on_a_closed_loop_is_in_nobodys_way(function: Any, following: str) -> None:
    clock = VirtualClock()
    f = batched(function, max_batch_size=2, max_wait=60, clock=clock)
    task = left_behind(f, 0)

    async def pair() -> list[int]:
        return await asyncio.gather(f(1), f(2))

    async def nursery() -> list[int]:
        results: dict[int, int] = {}

        async def one(item: int) -> None:
            results[item] = await f(item)

        async with trio.open_nursery() as tasks:
            tasks.start_soon(one, 1)
            tasks.start_soon(one, 2)
        return [results[1], results[2]]

    if function is plain:  # whose batches take whoever comes: the one that was left, too
        f.submit(3).result()
    if following == "asyncio":
        assert asyncio.run(pair()) == [10, 20]
    elif following == "trio":
        assert trio.run(nursery) == [10, 20]
    else:
        assert [future.result() for future in (f.submit(1), f.submit(2))] == [10, 20]
    clock.advance(60)
    f.configure(max_batch_size=1)
    assert f.call(4) == 40
    until(lambda: f.statistics().running_batches == 0)
    assert f.statistics().waiting == 0
    del task


def test_a_batch_that_ran_on_a_closed_loop_gives_its_place_back() -> None:
    async def for_ever(items: list[int]) -> list[int]:
        if items == [0]:
            await asyncio.Event().wait()
        return items

    f = batched(for_ever, max_concurrent_batches=1)
    task = left_behind(f, 0)
    assert asyncio.run(f(1)) == 1
    assert f.call(2) == 2
    assert f.statistics().running_batches == 0
    del task


@FUNCTIONS
def test_neither_an_idle_batcher_nor_a_closed_loop_uses_the_processor(function: Any) -> None:
    """Real time, since only that shows a thread that spins: it would use ten times the limit."""
    f = batched(function, max_batch_size=2, max_wait=60)
    task = left_behind(f, 0)
    pending = f.options(timeout=30).submit(1) if function is asynchronous else None
    before = time.process_time()
    time.sleep(0.1)
    assert time.process_time() - before < 0.01
    f.close(drain=False)
    del task, pending


def test_an_outcome_for_a_closed_loop_is_dropped() -> None:
    held = Held()
    f = batched(held)
    task = left_behind(f, 1)
    assert held.started.wait()
    held.gate.set()
    assert f.call(2) == 2
    assert not task.done()
    assert f.statistics().completed == 2
