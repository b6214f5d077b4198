"""No call leaves garbage that only a collection finds: neither results, nor errors, nor leaving callers.

A traceback knows its frames and the frames know the requests, so an error that is kept where a frame can see it makes
a cycle, which holds items (tensors, perhaps) until the collector happens to come by.
"""

import asyncio
import gc
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
import trio
from support.until import until

from batchlib import batched

CALLS = 2000
SIZE = 10
FEW = CALLS // SIZE // 2  # of one type: a cycle per batch would leave twice as many, one per call many more


def work(items: list[int]) -> list[Any]:
    """Answers, refuses an item, or raises for a whole batch, by the items' own wish."""
    if items[0] % 3 == 2:
        raise ValueError(items[0])
    return [KeyError(item) if item % 3 == 1 else item for item in items]


async def work_async(items: list[int]) -> list[Any]:
    await asyncio.sleep(0)
    return work(items)


async def work_anywhere(items: list[int]) -> list[Any]:
    return work(items)


def bisected(items: list[int]) -> list[int]:
    if any(item % 7 == 0 for item in items):
        raise ValueError("one of them")
    return items


def call(f: Any) -> None:
    for item in range(CALLS):
        with suppress(Exception):
            f.call(item)


def submit(f: Any) -> None:
    for first in range(0, CALLS, SIZE):
        for future in [f.submit(item) for item in range(first, first + SIZE)]:
            future.cancel()
            with suppress(BaseException):
                future.result()


def run_map(f: Any) -> None:
    for _ in f.map(range(CALLS), return_exceptions=True):
        pass


def gather(f: Any) -> None:
    """Also calls that are cancelled while they wait, and while they run."""

    async def main() -> None:
        for first in range(0, CALLS, SIZE):
            tasks = [asyncio.ensure_future(one(f, item)) for item in range(first, first + SIZE)]
            for _ in range(first % 4):
                await asyncio.sleep(0)
            tasks[first % SIZE].cancel()
            await asyncio.wait(tasks)

    asyncio.run(main())


async def one(f: Any, item: int) -> None:
    with suppress(Exception):
        await f(item)


def run_map_async(f: Any) -> None:
    async def main() -> None:
        async for _ in f.map(range(CALLS), return_exceptions=True):
            pass

    asyncio.run(main())


def nursery(f: Any) -> None:
    async def main() -> None:
        for first in range(0, CALLS, SIZE):
            async with trio.open_nursery() as tasks:
                for item in range(first, first + SIZE):
                    tasks.start_soon(quiet, item)

    async def quiet(item: int) -> None:
        with suppress(Exception), trio.CancelScope() as scope:
            if item % 10 == 0:
                scope.cancel()
            await f(item)

    trio.run(main)


def garbage(run: Callable[[Any], None], f: Any) -> dict[str, int]:
    """What a collection finds plenty of after `run`. Once to warm up, since a first time makes caches.

    What calls leave is there each time; what is there once may be some earlier test's, let go of only now.
    """
    run(f)
    found = left(run, f)
    return found and left(run, f) and left(run, f)


def left(run: Callable[[Any], None], f: Any) -> dict[str, int]:
    gc.collect()
    gc.disable()
    try:
        run(f)
        until(lambda: f.statistics().running_batches == 0)
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        found = Counter(type(found).__name__ for found in gc.garbage)
        return {name: number for name, number in found.items() if number >= FEW}
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


PLAIN = {"call": call, "submit": submit, "map": run_map, "gather": gather, "map_async": run_map_async, "trio": nursery}


@pytest.mark.parametrize("on_error", ["fail", "bisect"])
@pytest.mark.parametrize("run", list(PLAIN))
def test_a_plain_function_leaves_no_garbage(run: str, on_error: Any) -> None:
    assert not garbage(PLAIN[run], batched(work, max_batch_size=SIZE, on_error=on_error))


@pytest.mark.parametrize("run", list(PLAIN))
def test_an_async_function_leaves_no_garbage(run: str) -> None:
    function = work_anywhere if run == "trio" else work_async
    assert not garbage(PLAIN[run], batched(function, max_batch_size=SIZE))


@pytest.mark.parametrize("run", ["gather", "submit"])
def test_looking_for_culprits_leaves_no_garbage(run: str) -> None:
    assert not garbage(PLAIN[run], batched(bisected, max_batch_size=SIZE, on_error="bisect"))


@pytest.mark.parametrize("run", list(PLAIN))
@pytest.mark.parametrize("wrong", [dict.fromkeys, lambda items: items[1:], lambda items: sys.exit(1)])
def test_a_broken_contract_leaves_no_garbage(run: str, wrong: Any) -> None:
    def quietly(f: Any) -> None:
        with suppress(Exception):
            PLAIN[run](f)

    assert not garbage(quietly, batched(lambda items: wrong(items), max_batch_size=SIZE))


@pytest.mark.parametrize("timeout", [0.0, 1e-4])
@pytest.mark.parametrize("run", ["call", "submit", "gather", "trio"])
def test_a_deadline_leaves_no_garbage(run: str, timeout: float) -> None:
    def patiently(f: Any) -> None:
        with suppress(TimeoutError):
            PLAIN[run](f)

    assert not garbage(patiently, batched(work, max_batch_size=SIZE, timeout=timeout))


def test_a_closed_batcher_leaves_no_garbage() -> None:
    def refused(f: Any) -> None:
        for item in range(CALLS):
            with suppress(Exception):
                f.call(item)

    f = batched(work)
    f.close()
    assert not garbage(refused, f)


class Owner:
    @batched(max_batch_size=SIZE)
    def method(self, items: list[int]) -> list[Any]:
        return work(items)


@pytest.mark.parametrize("run", ["call", "gather"])
def test_a_method_leaves_no_garbage(run: str) -> None:
    owner = Owner()
    assert not garbage(PLAIN[run], owner.method)


class InRows:
    """Calls with as many rows as the item's last digit, most of them in parts."""

    def __init__(self, f: Any) -> None:
        self.f = f
        self.statistics = f.statistics

    def __call__(self, item: int) -> Any:
        return self.f(range(item, item + item % 10))

    def call(self, item: int) -> Any:
        return self.f.call(range(item, item + item % 10))

    def submit(self, item: int) -> Any:
        return self.f.submit(range(item, item + item % 10))

    def map(self, items: Any, **options: Any) -> Any:
        return self.f.map([range(item, item + item % 10) for item in items], **options)


def rows(calls: list[range]) -> list[Any]:
    """Answers, refuses an item, or raises for a whole batch, by the items' own wish."""
    outcomes = work([call.start for call in calls])
    return [
        outcome if isinstance(outcome, KeyError) else list(call) for outcome, call in zip(outcomes, calls, strict=True)
    ]


@pytest.mark.parametrize("run", list(PLAIN))
def test_split_calls_leave_no_garbage(run: str) -> None:
    f = batched(rows, max_batch_size=SIZE, cost=len, max_batch_cost=3, oversize="split")
    assert not garbage(PLAIN[run], InRows(f))
