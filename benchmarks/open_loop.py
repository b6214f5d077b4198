"""Arrivals that do not care whether answers come: the tail of the latency, and batch sizes under a backlog.

Run as a program it is the process that the arrivals come from: `python open_loop.py RATE SECONDS SEED START`.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
import time
from concurrent.futures import ThreadPoolExecutor

from adapters import Adapter, BatchFunction
from common import MILLI, Measured, mean, model, quantile


def schedule(rate: float, seconds: float, seed: int) -> list[float]:
    """The instants of Poisson arrivals."""
    randomness, instant, instants = random.Random(seed), 0.0, list[float]()
    while (instant := instant + randomness.expovariate(rate)) < seconds:
        instants.append(instant)
    return instants


def arrivals(rate: float, seconds: float, seed: int, start: float) -> None:
    """Runs as a process of its own, so that a loop that stalls cannot slow the arrivals: one byte for each."""
    instants, sent = schedule(rate, seconds, seed), 0
    while sent < len(instants):
        now, due = time.monotonic() - start, sent
        while due < len(instants) and instants[due] <= now:
            due += 1
        if due > sent:
            os.write(1, b"." * (due - sent))
            sent = due
        else:
            time.sleep(instants[sent] - now)


async def tail(adapter: Adapter, load: float, seconds: float, seed: int) -> Measured:
    """An open loop at a share of the capacity of 32 items in 5.2 ms: latency counts from the scheduled arrival."""
    function = BatchFunction(model(0.002, 0.0001), ThreadPoolExecutor(1))
    acall = adapter.open(function, 32, 0.005).acall
    loop, clock, lead_in = asyncio.get_running_loop(), time.monotonic, 0.5
    rate = load * 32 / 0.0052
    instants = schedule(rate, lead_in + seconds, seed)
    latencies = [float("inf")] * len(instants)  # until it is answered
    open_tasks: set[asyncio.Task[None]] = set()
    arrived, all_arrived = 0, asyncio.Event()

    async def caller(number: int) -> None:
        await acall(number)
        latencies[number] = clock() - start - instants[number]

    def on_arrival() -> None:
        nonlocal arrived
        data = os.read(pipe, 65536)
        if not data:
            loop.remove_reader(pipe)
            all_arrived.set()
        for _ in data:
            task = loop.create_task(caller(arrived))
            open_tasks.add(task)
            task.add_done_callback(open_tasks.discard)
            arrived += 1

    await asyncio.gather(*(acall(item) for item in range(8)))
    start = clock() + 0.5
    pipe, theirs = os.pipe()
    given = [str(value) for value in (rate, lead_in + seconds, seed, start)]
    process = await asyncio.create_subprocess_exec(sys.executable, __file__, *given, stdout=theirs)
    os.close(theirs)
    loop.add_reader(pipe, on_arrival)
    await all_arrived.wait()
    await process.wait()
    if open_tasks:
        await asyncio.wait(open_tasks, timeout=2.0)
    if arrived != len(instants):
        raise AssertionError(f"{arrived} arrivals, {len(instants)} were due")
    measured = latencies[sum(instant < lead_in for instant in instants) :]
    return {f"p{q}": quantile(measured, q / 100) * MILLI for q in (50, 99)}


async def backlog(adapter: Adapter, rate: float, arrivals: int) -> Measured:
    """Arrivals above capacity at a function of 200 ms a batch and a wait of 10 ms: how full are its batches?"""
    function = BatchFunction(model(0.200, 0.0), ThreadPoolExecutor(1))
    acall = adapter.open(function, 32, 0.010).acall
    loop, start = asyncio.get_running_loop(), time.monotonic()
    tasks: list[asyncio.Task[int]] = []

    async def caller(item: int) -> int:
        return await acall(item)

    while len(tasks) < arrivals:
        due = min(arrivals, int((time.monotonic() - start) * rate) + 1)
        tasks += [loop.create_task(caller(item)) for item in range(len(tasks), due)]
        await asyncio.sleep(1 / rate)
    await asyncio.wait(tasks, timeout=1.0)  # a batcher that closes its batches too early is not done by then
    return {"batch": mean(function.sizes[1:-1]), "batches": len(function.sizes)}


if __name__ == "__main__":
    arrivals(float(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]))
