"""A future's callback runs where its batch ended, which is often a thread of the batcher itself."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest
from support import Held

from batchlib import Overloaded, ReentrantCallError, batched


def same(items: list[int]) -> list[int]:
    return items


BLOCKING: dict[str, Callable[[Any], object]] = {
    "call": lambda f: f.call(2),
    "map": lambda f: list(f.map([2, 3])),
    "close": lambda f: f.close(),
}


@pytest.mark.parametrize("how", BLOCKING)
def test_blocking_in_a_futures_callback_is_refused_and_wedges_nothing(how: str) -> None:
    held = Held()
    function = batched(held)
    told: list[BaseException] = []
    done = threading.Event()

    def callback(_: Future[Any]) -> None:
        try:
            BLOCKING[how](function)
        except ReentrantCallError as error:
            told.append(error)
        finally:
            done.set()

    first = function.submit(1)
    first.add_done_callback(callback)
    held.gate.set()
    assert done.wait(30)
    assert "thread of the batcher" in str(told[0])
    assert function.call(4) == 4


def test_submitting_in_a_futures_callback_is_legal() -> None:
    function = batched(same)
    answers: list[Future[Any]] = []
    submitted = threading.Event()

    def callback(_: Future[Any]) -> None:
        answers.append(function.submit(2))
        submitted.set()

    function.submit(1).add_done_callback(callback)
    assert submitted.wait(30)
    assert answers[0].result(30) == 2


def test_a_callback_may_block_on_another_batcher() -> None:
    function, other = batched(same), batched(same)
    answers: list[int] = []
    done = threading.Event()

    def callback(_: Future[Any]) -> None:
        answers.append(other.call(2))
        done.set()

    function.submit(1).add_done_callback(callback)
    assert done.wait(30)
    assert answers == [2]


def test_a_callback_that_ends_its_thread_harms_no_neighbour(monkeypatch: pytest.MonkeyPatch) -> None:
    reported: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", reported.append)
    held = Held()
    function = batched(held)

    def leave(_: Future[Any]) -> None:
        raise SystemExit

    blocker = function.submit(0)
    assert held.started.wait(30)
    first, second, third = (function.submit(item) for item in (1, 2, 3))
    first.add_done_callback(leave)
    second.set_result("by its owner")  # nobody should, but then it is nobody else's loss
    held.gate.set()
    assert (blocker.result(30), third.result(30)) == (0, 3)
    assert function.call(4) == 4
    assert [report.exc_type.__name__ for report in reported] == ["SystemExit", "InvalidStateError"]


def test_the_result_of_a_future_on_a_loops_own_thread_needs_no_tick() -> None:
    function = batched(same)

    async def main() -> int:
        return function.submit(1).result(30)  # blocks the loop, as anywhere else; but it comes

    assert asyncio.run(main()) == 1


def test_awaiting_a_future_for_threads_says_what_to_await() -> None:
    function = batched(same)

    async def main() -> None:
        with pytest.raises(TypeError, match="await the function itself"):
            await function.submit(1)

    asyncio.run(main())


def test_a_future_without_room_on_a_loop_is_refused_with_its_numbers_and_counted() -> None:
    held, events = Held(), list[Any]()
    function = batched(held, max_waiting=1, hooks=[events.append])

    async def main() -> None:
        function.submit(1)
        with pytest.raises(Overloaded, match=r"1 requests wait.*tenant='acme'.*max_waiting"):
            function.options(tenant="acme").submit(2)

    running = function.submit(0)
    assert held.started.wait(30)
    asyncio.run(main())
    assert function.statistics().rejected == 1
    held.gate.set()
    assert running.result(30) == 0
    assert [event.detail for event in events if getattr(event, "error", None) == "Overloaded"]
