"""Callers that wait for each answer before they ask again: what an item, a blocking call, a lone request costs."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor

from adapters import Adapter, BatchFunction
from common import MICRO, MILLI, Measured, echo, mean, model, quantile


async def callers(adapter: Adapter, concurrency: int, items: int, seconds: float) -> Measured:
    """A closed loop: so many tasks, each with one call at a time, and what an item costs the whole process."""
    function = BatchFunction(echo)
    opened = adapter.open(function, 64, 0.001)
    acall = opened.acall
    share = max(1, items // concurrency)
    stopped = False

    async def caller(number: int) -> int:
        answered = 0
        for item in range(number * share, (number + 1) * share):
            if await acall(item) != item:
                raise AssertionError(f"item {item} got the answer of another")
            answered += 1
            if stopped:
                break
        return answered

    def stop() -> None:
        nonlocal stopped
        stopped = True

    stop()
    await asyncio.gather(*(caller(number) for number in range(min(concurrency, 64))))
    stopped = False
    function.sizes.clear()
    asyncio.get_running_loop().call_later(seconds, stop)
    cpu = time.process_time()
    answered = sum(await asyncio.gather(*(caller(number) for number in range(concurrency))))
    cpu = time.process_time() - cpu
    await opened.aclose()
    return {"cpu": cpu / answered * MICRO, "batch": mean(function.sizes)}


async def lone(adapter: Adapter, calls: int) -> Measured:
    """One caller's round trips, each timed by itself: their median does not know the turns that others had."""
    opened = adapter.open(BatchFunction(echo), 64, 0.001)
    acall, clock, took = opened.acall, time.perf_counter, list[float]()
    for item in range(100 + calls):
        start = clock()
        if await acall(item) != item:
            raise AssertionError(f"item {item} got the answer of another")
        took.append(clock() - start)
    await opened.aclose()
    return {"wall": quantile(took[100:], 0.5) * MICRO}


async def threads(adapter: Adapter, max_batch_size: int, seconds: float) -> Measured:
    """Eight plain threads, each with one blocking call at a time."""
    function = BatchFunction(echo)
    opened = adapter.open(function, max_batch_size, 0.001)
    call, clock = opened.call, time.perf_counter
    answered = [0] * 8

    def caller(number: int) -> None:
        end, done = clock() + seconds, 0
        while clock() < end:
            if call(number) != number:
                raise AssertionError(f"thread {number} got the answer of another")
            done += 1
        answered[number] = done

    running = [threading.Thread(target=caller, args=(number,), daemon=True) for number in range(len(answered))]

    def run() -> None:
        call(0)  # starts whatever threads the adapter has of its own
        for thread in running:
            thread.start()
        for thread in running:
            thread.join(seconds + 30)

    wall = clock()
    await asyncio.to_thread(run)
    wall = clock() - wall
    if not all(answered):
        raise AssertionError(f"a thread got no answer: {answered}")
    return {"rate": sum(answered) / wall, "batch": mean(function.sizes)}


async def light(adapter: Adapter, pairs: int, idle: float) -> Measured:
    """One request every 50 ms, in turns with `asyncio.to_thread` of the same function; then nothing at all."""
    function = BatchFunction(model(0.002, 0.0), ThreadPoolExecutor(1))
    opened = adapter.open(function, 32, 0.010)
    clock, randomness = time.perf_counter, random.Random(7)

    async def bare(item: int) -> None:
        await asyncio.to_thread(function.plain, [item])

    took: dict[Callable[[int], Awaitable[object]], list[float]] = {bare: [], opened.acall: []}
    await asyncio.gather(bare(0), opened.acall(0))
    for pair in range(pairs):
        for way in (bare, opened.acall) if pair % 2 else (opened.acall, bare):
            await asyncio.sleep(0.040 + 0.020 * randomness.random())  # 50 ms on average, off any timer's beat
            start = clock()
            await way(pair)
            took[way].append(clock() - start)
    await asyncio.sleep(0.2)
    wall, cpu = clock(), time.process_time()
    await asyncio.sleep(idle)
    share = (time.process_time() - cpu) / (clock() - wall)
    delays = {"": took[opened.acall], "bare_": took[bare]}
    measured = {f"{name}p{q}": quantile(some, q / 100) * MILLI for name, some in delays.items() for q in (50, 95)}
    return {**measured, "idle": share * 100}
