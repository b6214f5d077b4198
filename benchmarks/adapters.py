"""Every way of serving single calls that the benchmark compares: batchlib, its peers, and floors without any policy.

Nothing here is imported before it is used, so that no row pays for another row's imports.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import queue
import threading
import types
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

Body = Callable[[list[int]], list[int]]


class BatchFunction:
    """One body as the plain and as the async function that a batcher is given; `sizes` holds every batch size.

    With a thread pool the async function runs the body there, without one on the loop's thread.
    """

    def __init__(self, body: Body, thread_pool: ThreadPoolExecutor | None = None) -> None:
        self.sizes: list[int] = []
        sizes = self.sizes

        def plain(items: list[int]) -> list[int]:
            sizes.append(len(items))
            return body(items)

        async def inline(items: list[int]) -> list[int]:
            return plain(items)

        async def in_thread(items: list[int]) -> list[int]:
            return await asyncio.get_running_loop().run_in_executor(thread_pool, plain, items)

        self.plain = plain
        self.coroutine = inline if thread_pool is None else in_thread


async def nothing_to_close() -> None:
    pass


def no_blocking_call(item: int) -> int:
    raise TypeError(f"this adapter serves asyncio callers only, not item {item} from a thread")


@dataclass(frozen=True)
class Opened:
    acall: Callable[[int], Awaitable[int]]
    call: Callable[[int], int] = no_blocking_call
    submit: Callable[[int], Future[int]] | None = None
    aclose: Callable[[], Awaitable[object]] = nothing_to_close


def floor(function: BatchFunction, max_batch_size: int, max_wait: float) -> Opened:
    """One bare future per item; one `call_soon` a loop turn runs all that came, in chunks. No policy at all."""
    loop = asyncio.get_running_loop()
    waiting: list[tuple[int, asyncio.Future[int]]] = []

    def run_all() -> None:
        nonlocal waiting
        taken, waiting = waiting, []
        for start in range(0, len(taken), max_batch_size):
            chunk = taken[start : start + max_batch_size]
            results = function.plain([item for item, _ in chunk])
            for (_, future), result in zip(chunk, results, strict=True):
                if not future.done():
                    future.set_result(result)

    def acall(item: int) -> asyncio.Future[int]:
        future: asyncio.Future[int] = loop.create_future()
        if not waiting:
            loop.call_soon(run_all)
        waiting.append((item, future))
        return future

    return Opened(acall)


def floor_held(function: BatchFunction, max_batch_size: int, max_wait: float) -> Opened:
    """A bare future per caller that nobody ever resolves: the caller's own task, and what any await needs."""
    loop = asyncio.get_running_loop()
    return Opened(lambda item: loop.create_future())


def floor_queue(function: BatchFunction, max_batch_size: int, max_wait: float) -> Opened:
    """A bare queue with one concurrent future per item; the worker takes what is there and never waits for more."""
    waiting: queue.SimpleQueue[tuple[int, Future[int]]] = queue.SimpleQueue()

    def work() -> None:
        while True:
            batch = [waiting.get()]
            try:
                while len(batch) < max_batch_size:
                    batch.append(waiting.get_nowait())
            except queue.Empty:
                pass
            for (_, future), result in zip(batch, function.plain([item for item, _ in batch]), strict=True):
                future.set_result(result)

    def call(item: int) -> int:
        future: Future[int] = Future()
        waiting.put((item, future))
        return future.result()

    async def acall(item: int) -> int:
        raise TypeError(f"the queue serves threads only, not item {item} from a task")

    threading.Thread(target=work, daemon=True).start()
    return Opened(acall, call)


def batchlib_async(function: BatchFunction, max_batch_size: int, max_wait: float) -> Opened:
    return _batchlib(function.coroutine, max_batch_size=max_batch_size)


def batchlib_plain(function: BatchFunction, max_batch_size: int, max_wait: float) -> Opened:
    return _batchlib(function.plain, max_batch_size=max_batch_size)


def batchlib_async_wait(function: BatchFunction, max_batch_size: int, max_wait: float) -> Opened:
    return _batchlib(function.coroutine, max_batch_size=max_batch_size, max_wait=max_wait)


def batchlib_plain_wait(function: BatchFunction, max_batch_size: int, max_wait: float) -> Opened:
    return _batchlib(function.plain, max_batch_size=max_batch_size, max_wait=max_wait)


def batchlib_unlimited(function: BatchFunction, max_batch_size: int, max_wait: float) -> Opened:
    """No limit on waiting requests, so that a plain thread can submit any number and go on."""
    return _batchlib(function.plain, max_batch_size=max_batch_size, max_waiting=None)


def _batchlib(function: Any, **options: Any) -> Opened:
    batched = importlib.import_module("batchlib").batched(**options)(function)
    return Opened(batched, batched.call, batched.submit, batched.aclose)


def batched_aio(function: BatchFunction, max_batch_size: int, max_wait: float) -> Opened:
    module = importlib.import_module("batched.aio")
    return Opened(module.dynamically(function.coroutine, batch_size=max_batch_size, timeout_ms=max_wait * 1000))


def batched_thread(function: BatchFunction, max_batch_size: int, max_wait: float) -> Opened:
    module = importlib.import_module("batched")
    processor = module.dynamically(function.plain, batch_size=max_batch_size, timeout_ms=max_wait * 1000)
    return Opened(processor.acall, processor)


def async_batcher(function: BatchFunction, max_batch_size: int, max_wait: float) -> Opened:
    base: Any = importlib.import_module("async_batcher.batcher").AsyncBatcher
    base.logger.setLevel(logging.CRITICAL)  # it logs each stop as an error

    async def process_batch(self: object, batch: list[int]) -> list[int]:
        return await function.coroutine(batch)

    batcher = type("Batcher", (base,), {"process_batch": process_batch})(
        max_batch_size=max_batch_size, max_queue_time=max_wait
    )
    return Opened(batcher.process, aclose=lambda: batcher.stop(force=True))


def ray_serve(function: BatchFunction, max_batch_size: int, max_wait: float) -> Opened:
    """`@serve.batch` runs inside a replica only, so it is shown a replica context. Its metrics then go nowhere."""
    context: Any = importlib.import_module("ray.serve.context")
    context._INTERNAL_REPLICA_CONTEXT = types.SimpleNamespace(
        deployment="benchmark",
        replica_id="benchmark",
        replica_tag="benchmark",
        app_name="benchmark",
        _deployment_config=types.SimpleNamespace(max_ongoing_requests=1_000_000_000),
    )
    serve = importlib.import_module("ray.serve")
    return Opened(serve.batch(max_batch_size=max_batch_size, batch_wait_timeout_s=max_wait)(function.coroutine))


def aiodataloader(function: BatchFunction, max_batch_size: int, max_wait: float) -> Opened:
    loader: Any = importlib.import_module("aiodataloader").DataLoader
    return Opened(loader(function.coroutine, max_batch_size=max_batch_size, cache=False).load)


@dataclass(frozen=True)
class Adapter:
    open: Callable[[BatchFunction, int, float], Opened]
    distribution: str | None = None  # what has to be installed; None: the standard library is enough
    module: str | None = None  # imported before the clock starts
    extra_module: str | None = None  # a neighbour in the process whose presence changes what batchlib does


ADAPTERS = {
    "floor: bare futures": Adapter(floor),
    "floor: futures, held": Adapter(floor_held),
    "floor: bare queue": Adapter(floor_queue),
    "batchlib, async function": Adapter(batchlib_async, "batchlib", "batchlib"),
    "batchlib, plain function": Adapter(batchlib_plain, "batchlib", "batchlib"),
    "batchlib, async, anyio imported": Adapter(batchlib_async, "batchlib", "batchlib", "anyio"),
    "batchlib, plain, anyio imported": Adapter(batchlib_plain, "batchlib", "batchlib", "anyio"),
    "batchlib, async, max_wait": Adapter(batchlib_async_wait, "batchlib", "batchlib"),
    "batchlib, plain, max_wait": Adapter(batchlib_plain_wait, "batchlib", "batchlib"),
    "batchlib, no limit on waiting": Adapter(batchlib_unlimited, "batchlib", "batchlib"),
    "batched.aio": Adapter(batched_aio, "batched", "batched.aio"),
    "batched (thread)": Adapter(batched_thread, "batched", "batched"),
    "async-batcher": Adapter(async_batcher, "async-batcher", "async_batcher.batcher"),
    "ray @serve.batch": Adapter(ray_serve, "ray", "ray.serve"),
    "aiodataloader": Adapter(aiodataloader, "aiodataloader", "aiodataloader"),
}
ASYNC_PEERS = ("batched.aio", "async-batcher", "ray @serve.batch", "aiodataloader")
