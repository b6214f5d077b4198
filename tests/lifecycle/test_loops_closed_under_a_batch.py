"""A loop that is closed under a running async batch takes no place away from callers elsewhere, known or new."""

import asyncio
from typing import Any

import pytest
from support import VirtualClock
from support.callers import Start
from support.held import LONG

from batchlib import DeadlineExceeded, batched

pytestmark = pytest.mark.timeout(60)


async def for_ever(items: list[Any]) -> list[Any]:
    """Once it has said that it has begun; anything but an event it gives back."""
    for item in items:
        if isinstance(item, asyncio.Event):
            item.set()
            await asyncio.Event().wait()
    return items


def left_running(f: Any, calls: int = 1) -> list[asyncio.Task[Any]]:
    """Calls on a loop that is closed when the first of them runs."""
    loop = asyncio.new_event_loop()

    async def main() -> None:
        while f.statistics().submitted - before != calls:
            await asyncio.sleep(0)
        await begun.wait()  # a task that has not begun would leave a coroutine that was never awaited

    before = f.statistics().submitted
    begun = asyncio.Event()
    tasks = [loop.create_task(f(begun)) for _ in range(calls)]
    loop.run_until_complete(main())
    loop.close()
    for task in tasks:
        task._log_destroy_pending = False  # type: ignore[attr-defined]  (that is what this is about)
    return tasks


def test_callers_that_are_known_already_get_their_place(start: Start) -> None:
    f = batched(for_ever, max_batch_size=4)
    assert start(f, 1).result(LONG) == 1
    tasks = left_running(f)
    assert start(f, 2).result(LONG) == 2
    assert f.statistics().running_batches == 0
    del tasks


def test_callers_that_are_new_get_their_place(start: Start) -> None:
    f = batched(for_ever, max_batch_size=4)
    tasks = left_running(f)
    assert start(f, 2).result(LONG) == 2
    assert f.statistics().running_batches == 0
    del tasks


def test_one_loop_after_the_other_is_closed_under_its_batch(start: Start) -> None:
    f = batched(for_ever, max_batch_size=4)
    for item in range(5):
        tasks = left_running(f)
        assert start(f, item).result(LONG) == item
        del tasks
    assert f.statistics().completed == 5


def test_a_timed_wake_up_gives_its_place_to_those_who_wait_already() -> None:
    """Nobody has to call again."""
    clock = VirtualClock()
    f: Any = batched(for_ever, clock=clock)
    loop = asyncio.new_event_loop()

    async def main() -> None:
        await begun.wait()

    begun = asyncio.Event()
    task = loop.create_task(f(begun))
    loop.run_until_complete(main())
    waiting = f.submit(1)
    timed = f.options(timeout=5).submit(2)
    loop.close()
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    clock.advance(5)
    assert waiting.result(LONG) == 1
    assert isinstance(timed.exception(LONG), DeadlineExceeded)  # at its deadline itself a request no longer runs
    del task


def test_thousands_that_wait_on_the_closed_loop_are_ended_one_by_one() -> None:
    """None of their batches can run, and each end makes room for the next, deeper than any stack."""
    f = batched(for_ever, max_batch_size=1)
    tasks = left_running(f, 2000)
    assert asyncio.run(asyncio.wait_for(f(1), LONG)) == 1
    now = f.statistics()
    assert (now.waiting, now.running_batches, now.completed, now.failed) == (0, 0, 1, 2000)
    del tasks
