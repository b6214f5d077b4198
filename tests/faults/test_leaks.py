"""After thousands of calls there is nothing more than before: no thread, task, descriptor, object or reference."""

import asyncio
import gc
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import pytest
import trio
import uvloop
from support.until import until

from batchlib import batched

ROUNDS = 20
SIZE = 100  # calls per round
DESCRIPTORS = Path("/proc/self/fd")


class Refused(Exception):
    """Unlike the built-in ones, it can be watched."""


class Item:
    """An item, or a result, that can be watched; it is refused or raises if it wants."""

    def __init__(self, kind: str = "good") -> None:
        self.kind = kind


def work(items: list[Item]) -> list[Any]:
    if any(item.kind == "raises" for item in items):
        raise Refused("the batch")
    return [Refused("the item") if item.kind == "refused" else Item() for item in items]


async def work_async(items: list[Item]) -> list[Any]:
    return work(items)


FUNCTIONS = pytest.mark.parametrize("function", [work, work_async])


def kind_of(number: int) -> str:
    return ("good", "good", "refused", "good", "raises")[number % 5]


def threads_round(f: Any) -> None:
    futures = [f.submit(Item(kind_of(number))) for number in range(SIZE)]
    for number, future in enumerate(futures):
        if number % 7 == 0:
            future.cancel()
        with suppress(BaseException):
            future.result()
    for number in range(10):
        with suppress(Exception):
            f.options(timeout=[None, 0.0, 60][number % 3]).call(Item(kind_of(number)))
    for _ in f.map([Item() for _ in range(20)]):
        pass


async def call(f: Any, number: int) -> None:
    with suppress(Exception):
        await f.options(timeout=[None, 0.0, 60][number % 3])(Item(kind_of(number)))


async def asyncio_round(f: Any) -> None:
    tasks = [asyncio.create_task(call(f, number)) for number in range(SIZE)]
    await asyncio.sleep(0)
    for task in tasks[::7]:
        task.cancel()
    await asyncio.wait(tasks)
    async for _ in f.map([Item() for _ in range(20)]):
        pass
    assert asyncio.all_tasks() - {asyncio.current_task()} == set() or f.statistics().running_batches


async def trio_round(f: Any) -> None:
    async with trio.open_nursery() as nursery:
        for number in range(SIZE):
            nursery.start_soon(call, f, number)
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            for number in range(SIZE):
                nursery.start_soon(call, f, number)
            await trio.sleep(0)
            scope.cancel()


ROUND: dict[str, Callable[[Any], Any]] = {
    "threads": threads_round,
    "asyncio": lambda f: asyncio.run(asyncio_round(f)),
    "trio": lambda f: trio.run(trio_round, f),
}


def objects(kind: type) -> int:
    return sum(type(found) is kind for found in gc.get_objects())


@FUNCTIONS
@pytest.mark.parametrize("kind", list(ROUND))
def test_thousands_of_calls_leave_nothing_behind(kind: str, function: Any) -> None:
    f = batched(function, max_batch_size=16, max_concurrent_batches=2)
    ROUND[kind](f)
    ROUND[kind](f)
    threads = threading.active_count()
    descriptors = len(os.listdir(DESCRIPTORS)) if DESCRIPTORS.exists() else 0
    gc.collect()
    before = len(gc.get_objects())
    for _ in range(ROUNDS):
        ROUND[kind](f)
    until(lambda: f.statistics().running_batches == 0)
    assert threading.active_count() <= threads + 2  # as many workers as there may be batches
    if descriptors:
        assert len(os.listdir(DESCRIPTORS)) <= descriptors
    gc.collect()
    assert len(gc.get_objects()) - before < SIZE * ROUNDS // 4
    f.close()
    gc.collect()
    assert objects(Item) == 0


def watch(call: Callable[[], Any]) -> weakref.ref[Any]:
    """What a caller got, let go of at once."""
    try:
        return weakref.ref(call())
    except Refused as error:
        return weakref.ref(error)


async def awaiting(f: Any, item: Item) -> weakref.ref[Any]:
    try:
        return weakref.ref(await f(item))
    except Refused as error:
        return weakref.ref(error)


def run_uvloop(f: Any, item: Item) -> weakref.ref[Any]:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(awaiting(f, item))


CALL: dict[str, Callable[[Any, Item], weakref.ref[Any]]] = {
    "thread": lambda f, item: watch(lambda: f.call(item)),
    "future": lambda f, item: watch(lambda: f.submit(item).result()),
    "map": lambda f, item: watch(lambda: [*f.map([item])].pop()),
    "asyncio": lambda f, item: asyncio.run(awaiting(f, item)),
    "uvloop": run_uvloop,
    "trio": lambda f, item: trio.run(awaiting, f, item),
}


@FUNCTIONS
@pytest.mark.parametrize("timeout", [None, 60])
@pytest.mark.parametrize("ending", ["good", "refused", "raises"])
@pytest.mark.parametrize("caller", list(CALL))
def test_items_results_and_contexts_go_without_a_collection(
    caller: str, ending: str, timeout: float | None, function: Any
) -> None:
    """As soon as the caller has let go: an item may be the better part of a device's memory."""
    variable: ContextVar[Any] = ContextVar("variable")
    f = batched(function, max_batch_size=1)
    watched: list[weakref.ref[Any]] = []

    def use() -> None:
        item, value = Item(ending), Item()
        variable.set(value if caller != "trio" else None)  # trio's own runs keep their contexts until a collection
        watched.extend([weakref.ref(item), weakref.ref(value)])
        watched.append(CALL[caller](f.options(timeout=timeout), item))
        variable.set(None)

    gc.collect()
    gc.disable()
    try:
        use()
        until(lambda: all(reference() is None for reference in watched))
    finally:
        gc.enable()
    assert len(watched) == 3


def watched_items(watched: list[weakref.ref[Any]]) -> Iterator[Item]:
    """The twentieth of forty is refused."""

    def item(kind: str) -> Item:
        made = Item(kind)
        watched.append(weakref.ref(made))
        return made

    for number in range(40):
        yield item("refused" if number == 19 else "good")


async def error_of_map(f: Any, items: Iterator[Item], returned: bool, gathered: bool) -> Any:
    try:
        results = f.map(list(items) if gathered else items, return_exceptions=returned)
        return [each async for each in results if isinstance(each, Refused)].pop()
    except Refused as error:
        return error
    finally:
        del results


def error_of_iteration(results: Any) -> Any:
    try:
        return [each for each in results if isinstance(each, Refused)].pop()
    except Refused as error:
        return error
    finally:
        del results


def error_of_next(results: Any) -> Any:
    try:
        while not isinstance(each := next(results), Refused):
            pass
        return [each, *results][0]
    except Refused as error:
        return error
    finally:
        del results


def error_of_calls(f: Any, items: Iterator[Item]) -> Any:
    error: Any = None
    for item in items:
        try:
            f.call(item)
        except Refused as raised:
            error = raised
        del item
    return error


KEEP: dict[str, Callable[[Any, Iterator[Item], bool], Any]] = {
    "call": lambda f, items, returned: error_of_calls(f, items),
    "map": lambda f, items, returned: error_of_iteration(f.map(items, return_exceptions=returned)),
    "map of a list": lambda f, items, returned: error_of_iteration(f.map(list(items), return_exceptions=returned)),
    "next": lambda f, items, returned: error_of_next(f.map(list(items), return_exceptions=returned)),
    "asyncio": lambda f, items, returned: asyncio.run(error_of_map(f, items, returned, False)),
    "asyncio, a list": lambda f, items, returned: asyncio.run(error_of_map(f, items, returned, True)),
    "trio": lambda f, items, returned: trio.run(error_of_map, f, items, returned, False),
    "trio, a list": lambda f, items, returned: trio.run(error_of_map, f, items, returned, True),
}


def judge(items: list[Item]) -> list[Any]:
    return [Refused("the item") if item.kind == "refused" else item.kind for item in items]


async def judge_async(items: list[Item]) -> list[Any]:
    return judge(items)


@pytest.mark.parametrize("function", [judge, judge_async])
@pytest.mark.parametrize("returned", [False, True])
@pytest.mark.parametrize("way", list(KEEP))
def test_an_error_that_is_kept_keeps_no_item(way: str, returned: bool, function: Any) -> None:
    """A list of what went wrong in a job must not be a list of all its items."""
    f = batched(function, max_batch_size=4)
    watched: list[weakref.ref[Any]] = []
    kept = KEEP[way](f, watched_items(watched), returned)
    assert isinstance(kept, Refused)
    until(lambda: f.statistics().running_batches == 0)
    until(lambda: gc.collect() >= 0 and not any(reference() for reference in watched))
    assert len(watched) > 19


@pytest.mark.parametrize("timeout", [1000.0, 2000.0])
def test_deadlines_that_never_come_keep_few_requests(timeout: float) -> None:
    """Most requests end long before their deadline; what is remembered follows those in flight."""
    f = batched(lambda items: [None for _ in items], max_batch_size=16, timeout=timeout)
    items = [Item() for _ in range(2000)]
    watched = [weakref.ref(item) for item in items]
    for item in items:
        f.call(item)
    del items, item
    gc.collect()
    assert sum(reference() is not None for reference in watched) < 100


def test_groups_tenants_and_settings_leave_no_state() -> None:
    f = batched(lambda items, *, setting: items, group_by=lambda item: item)
    f.call(0, setting=0)
    gc.collect()
    before = len(gc.get_objects())
    for number in range(2000):
        assert f.options(tenant=f"tenant {number}").call(number, setting=number) == number
    assert f.statistics().groups == 0
    gc.collect()
    assert len(gc.get_objects()) - before < 200


def test_thousands_of_functions_leave_no_thread() -> None:
    before = threading.active_count()
    for number in range(300):
        f = batched(lambda items: items)
        assert f.call(number) == number
        del f
    until(lambda: threading.active_count() <= before)


def test_thousands_of_instances_leave_nothing() -> None:
    class Model:
        @batched
        def run(self, items: list[int]) -> list[int]:
            return items

    before = threading.active_count()
    watched = []
    for number in range(300):
        model = Model()
        watched.append(weakref.ref(model))
        assert model.run.call(number) == number
        del model
    until(lambda: all(reference() is None for reference in watched))
    until(lambda: threading.active_count() <= before)
    assert Model.run._table == {}
