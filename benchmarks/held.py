"""The function is held by an event and everything else waits: what a waiting request takes, and an operation."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import threading
import time
import tracemalloc
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from adapters import Adapter, BatchFunction
from common import MICRO, Measured

T = TypeVar("T")


def resident_bytes() -> int:
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def settle() -> None:
    """Lets everything that is ready run, and what that makes ready in turn."""
    for _ in range(20):
        await asyncio.sleep(0)
    await asyncio.sleep(0.2)


async def waiting(adapter: Adapter, requests: int, trace: bool) -> Measured:
    """What one waiting request and its caller's task take, while the function is held by an event."""
    held = threading.Event()

    def hold(items: list[int]) -> list[int]:
        held.wait()
        return items

    function = BatchFunction(hold, ThreadPoolExecutor(1))
    acall = adapter.open(function, 64, 0.001).acall
    loop = asyncio.get_running_loop()

    async def caller(item: int) -> int:
        return await acall(item)

    running = [loop.create_task(caller(item)) for item in range(128)]
    tasks = [running[0]] * requests
    await settle()
    gc.collect()
    if trace:
        tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0] if trace else resident_bytes()
    for item in range(requests):
        tasks[item] = loop.create_task(caller(item))
        if item % 2000 == 0:
            await asyncio.sleep(0)
    await settle()
    gc.collect()
    after = tracemalloc.get_traced_memory()[0] if trace else resident_bytes()
    if any(task.done() for task in tasks):
        raise AssertionError("a request ended although the function is held")
    return {"bytes": (after - before) / requests}


async def operations(adapter: Adapter, requests: int, repeats: int) -> Measured:
    """CPU of a submit and of a cancel, from a thread and from a task, beside so many waiting requests."""
    held = threading.Event()

    def hold(items: list[int]) -> list[int]:
        held.wait()
        return items

    opened = adapter.open(BatchFunction(hold), 64, 0.001)
    acall, submit, clock = opened.acall, opened.submit, time.thread_time
    if submit is None:
        raise TypeError("this adapter has no submit")
    loop, randomness, chunk = asyncio.get_running_loop(), random.Random(3), 100
    spent = dict.fromkeys(("thread submit", "thread cancel", "task submit", "task cancel"), 0.0)

    async def caller(item: int) -> int:
        return await acall(item)

    def victims(among: list[T]) -> list[T]:
        """A random chunk of what waits, old and new, taken out of the list."""
        for place in range(chunk):
            other = randomness.randrange(len(among) - place)
            among[other], among[-1 - place] = among[-1 - place], among[other]
        chosen = among[-chunk:]
        del among[-chunk:]
        return chosen

    def from_thread() -> None:
        futures: list[Future[int]] = [submit(item) for item in range(64 + requests)][64:]
        gc.collect()
        for _ in range(repeats):
            start = clock()
            futures += [submit(item) for item in range(chunk)]
            spent["thread submit"] += clock() - start
            chosen = victims(futures)
            start = clock()
            cancelled = [future.cancel() for future in chosen]
            spent["thread cancel"] += clock() - start
            if not all(cancelled):
                raise AssertionError("a waiting request could not be cancelled")
        for future in futures:
            future.cancel()

    await asyncio.to_thread(from_thread)
    tasks = [loop.create_task(caller(item)) for item in range(requests)]
    await settle()
    gc.collect()  # a full collection that the making of all these has brought near is no operation's cost
    for _ in range(repeats):
        start = clock()
        tasks += [loop.create_task(caller(item)) for item in range(chunk)]
        await asyncio.sleep(0)
        spent["task submit"] += clock() - start
        chosen = victims(tasks)
        start = clock()
        for task in chosen:
            task.cancel()
        await asyncio.wait(chosen)
        spent["task cancel"] += clock() - start
    return {name: total / (repeats * chunk) * MICRO for name, total in spent.items()}
