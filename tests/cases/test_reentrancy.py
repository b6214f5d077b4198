"""A batch function that calls its own batcher is told so, instead of waiting for itself for ever."""

import asyncio
import contextvars
import threading
from typing import Any

import anyio
import pytest
from support.callers import Start, outcomes

from batchlib import ReentrantCallError, batched


def tens(items: list[int]) -> list[int]:
    return [item * 10 for item in items]


ten = batched(tens)

WAYS = {
    "call": lambda f, item: f.call(item),
    "submit": lambda f, item: f.submit(item).result(),
    "options": lambda f, item: f.options(timeout=None, tenant="inside").call(item),
    "map": lambda f, item: next(iter(f.map([item]))),
    "a loop of its own": lambda f, item: asyncio.run(awaiting(f, item)),
    "a thread with the context": lambda f, item: in_thread(f, item),
    "another batched function": lambda f, item: batched(lambda items: [f.call(item) for item in items]).call(item),
}


async def awaiting(f: Any, item: int) -> Any:
    return await f(item)


def in_thread(f: Any, item: int) -> Any:
    got: list[Any] = []

    def run() -> None:
        try:
            got.append(f.call(item))
        except ReentrantCallError as error:
            got.append(error)

    thread = threading.Thread(target=contextvars.copy_context().run, args=(run,))
    thread.start()
    thread.join()
    if isinstance(got[0], Exception):
        raise got[0]
    return got[0]


@pytest.mark.parametrize("concurrent", [1, 2, None])
@pytest.mark.parametrize("way", list(WAYS))
def test_a_call_to_oneself_is_refused_and_others_are_not(start: Start, way: str, concurrent: int | None) -> None:
    """With room for several batches too: room is no promise."""

    def function(items: list[int]) -> list[Any]:
        return [item if item < 0 else WAYS[way](f if item == 1 else ten, item) for item in items]

    f = batched(function, max_batch_size=1, max_concurrent_batches=concurrent)
    error = start(f, 1).exception()
    assert type(error) is ReentrantCallError
    assert "direct" in str(error)
    assert outcomes([start(f, 2), start(f, -5)]) == [20, -5]
    assert f.statistics().waiting == f.statistics().running == 0


@pytest.mark.parametrize("way", ["await", "task"])
def test_an_async_function_is_refused_too(start: Start, way: str) -> None:
    async def other(items: list[int]) -> list[int]:
        return tens(items)

    async def function(items: list[int]) -> list[Any]:
        results: list[Any] = []

        async def ask(item: int) -> None:
            try:
                results.append(await (f if item == 1 else g)(item))
            except ReentrantCallError as error:
                results.append(error)

        async with anyio.create_task_group() as tasks:
            for item in items:
                if way == "await":
                    await ask(item)
                else:
                    tasks.start_soon(ask, item)
        return results

    f, g = batched(function, max_batch_size=1), batched(other)
    assert type(start(f, 1).exception()) is ReentrantCallError
    assert start(f, -5).result() == -50


def test_a_longer_way_round_is_refused_at_its_end(start: Start) -> None:
    """f asks g, g asks h, h asks f: only the last call closes the circle."""
    f = batched(lambda items: [g.call(item) for item in items])
    g = batched(lambda items: [h.call(item) for item in items])
    h = batched(lambda items: [f.call(item) if item == 1 else item for item in items])
    assert type(start(f, 1).exception()) is ReentrantCallError
    assert start(f, 2).result() == 2


def test_instances_are_batchers_of_their_own(start: Start) -> None:
    class Node:
        def __init__(self, below: "Node | None" = None) -> None:
            self.below = below

        @batched
        def depth(self, items: list[int]) -> list[Any]:
            return [1 + self.below.depth.call(item) if self.below else 1 for item in items]

    bottom = Node()
    top = Node(Node(bottom))
    assert start(top.depth, 0).result() == 3
    bottom.below = top
    assert type(start(top.depth, 0).exception()) is ReentrantCallError


def test_what_a_batch_leaves_behind_may_call_it_once_it_is_over() -> None:
    """The marker is of the batch that runs, not of everything that it ever started."""
    inherited: list[contextvars.Context] = []

    def function(items: list[int]) -> list[int]:
        inherited.append(contextvars.copy_context())
        return items

    f = batched(function)
    assert f.call(1) == 1
    assert inherited[0].run(f.call, 2) == 2


def test_the_undecorated_function_is_always_free_to_call() -> None:
    f = batched(lambda items: [sum(f.direct([item - 1])) + item if item else 0 for item in items])
    assert f.call(3) == 6
