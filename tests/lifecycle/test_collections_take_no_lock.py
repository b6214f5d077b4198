"""A garbage collection runs wherever an object is made, so also while its own thread holds the driver's lock.

What it ends there (a map that was left, a call or a batch of a loop that is gone) must wait for no lock. A deadlock is
ended by the tests' own limit.
"""

import asyncio
import gc
from collections.abc import Iterator
from typing import Any

import pytest
from support import VirtualClock
from support.until import until

from batchlib import batched

pytestmark = pytest.mark.timeout(30)


class Pairs:
    """A batcher whose batches are of two: an odd request waits. `seen` has the batches that ran."""

    def __init__(self) -> None:
        self.seen: list[list[int]] = []
        self.clock = VirtualClock()
        self.f: Any = batched(self.run, max_batch_size=2, max_wait=60, clock=self.clock)

    def run(self, items: list[int]) -> list[int]:
        self.seen.append(list(items))
        return items


class Cycle:
    """Garbage that only a collection finds."""

    def __init__(self, garbage: Any) -> None:
        self.garbage = garbage
        self.me = self


@pytest.fixture
def pairs() -> Pairs:
    return Pairs()


@pytest.fixture
def eager_collections() -> Iterator[None]:
    before = gc.get_threshold()
    gc.set_threshold(100, 1, 1)
    yield
    gc.set_threshold(*before)


def leave_a_map(pairs: Pairs) -> None:
    results = pairs.f.map(range(3), look_ahead=3)
    assert next(results) == 0
    Cycle(results)


def leave_a_call(pairs: Pairs) -> None:
    """A task would do the same, and log that it was destroyed."""

    async def main() -> None:
        call = pairs.f(2)
        call.send(None)
        Cycle(call)

    asyncio.run(main())


LEFT = pytest.mark.parametrize("leave", [leave_a_map, leave_a_call])


@LEFT
def test_a_collection_under_the_lock_ends_what_was_left_once_somebody_looks(pairs: Pairs, leave: Any) -> None:
    gc.collect()
    gc.disable()  # this test says when
    try:
        leave(pairs)
        assert pairs.f.statistics().waiting == 1
        with pairs.f._driver.lock:
            gc.collect()
    finally:
        gc.enable()
    assert pairs.f.statistics().waiting == 1  # put off
    pairs.clock.advance(0)
    assert (pairs.f.statistics().waiting, pairs.f.statistics().cancelled) == (0, 1)


@LEFT
def test_a_collection_elsewhere_ends_it_at_once(pairs: Pairs, leave: Any) -> None:
    leave(pairs)
    gc.collect()
    assert (pairs.f.statistics().waiting, pairs.f.statistics().cancelled) == (0, 1)


@LEFT
def test_what_was_left_is_not_run_with_those_who_come_next(pairs: Pairs, leave: Any) -> None:
    leave(pairs)
    with pairs.f._driver.lock:
        gc.collect()
    first, second = pairs.f.submit(3), pairs.f.submit(4)
    until(first.done)
    assert (first.result(), second.result()) == (3, 4)
    assert pairs.seen[-1] == [3, 4]


def test_a_batchs_task_collected_under_the_lock_gives_its_place_back() -> None:
    async def for_ever(items: list[int]) -> list[int]:
        if items == [0]:
            await asyncio.Event().wait()
        return items

    clock = VirtualClock()
    f = batched(for_ever, clock=clock)

    async def main() -> None:
        call = f(0)
        call.send(None)
        while not f.statistics().running_batches:
            await asyncio.sleep(0)
        kept.append(call)

    kept: list[Any] = []
    loop = asyncio.new_event_loop()
    loop.run_until_complete(main())
    loop.close()
    (batch,) = f._driver.core.running_batches
    task, batch.handle = batch.handle, None
    task._log_destroy_pending = False
    with f._driver.lock:
        del task
        gc.collect()
    clock.advance(0)
    assert f.statistics().running_batches == 0
    assert f.call(1) == 1
    kept[0].close()


def test_calls_go_on_whatever_collections_find(eager_collections: None) -> None:
    held_back = batched(lambda items: items, max_batch_size=4, max_wait=0.0005)
    for round_ in range(200):
        results = held_back.map(range(100), look_ahead=40)
        assert next(results) == 0
        Cycle(results)
        del results
        assert held_back.options(timeout=20).call(round_) == round_
    held_back.close()


def test_without_a_thread_to_make_it_later_the_next_event_makes_the_call(pairs: Pairs) -> None:
    """A collection must not raise either: nobody would see it."""

    def refuse(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    driver = pairs.f._driver
    future = pairs.f.submit(1)
    with pytest.MonkeyPatch.context() as patch, driver.lock:
        patch.setattr(pairs.clock, "call_at", refuse)
        driver.put_off.call(future.cancel)
    assert not future.done()
    other = pairs.f.submit(2)
    until(future.cancelled)
    pairs.f.configure(max_wait=0)
    assert other.result() == 2
    assert pairs.seen == [[2]]
