"""Closing takes no more, ends what it must, and leaves nobody waiting."""

import threading
from typing import Any

import anyio
import pytest
from support import Held, VirtualClock
from support.callers import Start, outcomes
from support.held_async import HeldAsync
from support.until import until

from batchlib import Closed, batched


def queued(f: Any, held: Any, start: Start, waiting: int) -> list[Any]:
    """One call that runs and some that wait."""
    calls = [start(f, 0)]
    assert held.started.wait()
    for item in range(1, waiting + 1):
        calls.append(start(f, item))
        until(lambda item=item: f.statistics().waiting == item)
    return calls


@pytest.mark.parametrize("kind", [Held, HeldAsync])
def test_closing_without_a_drain_ends_those_that_wait_at_once(start: Start, kind: Any) -> None:
    held = kind()
    f = batched(held, max_batch_size=1)
    running, *waiting = queued(f, held, start, 3)
    f.close(drain=False)
    assert [type(error) for error in outcomes(waiting)] == [Closed] * 3
    assert type(start(f, 9).exception()) is Closed
    assert not running.done()
    held.gate.set()
    assert running.result() == 0
    assert held.seen == [[0]]
    assert f.statistics().rejected == 4


@pytest.mark.parametrize("kind", [Held, HeldAsync])
def test_draining_finishes_what_was_accepted_and_takes_no_more(start: Start, kind: Any) -> None:
    held = kind()
    f = batched(held, max_batch_size=2, max_wait=0.0)
    calls = queued(f, held, start, 5)
    closing = threading.Thread(target=f.close)
    closing.start()
    until(lambda: f.statistics().closed)
    assert type(start(f, 9).exception()) is Closed
    held.gate.set()
    closing.join()
    assert outcomes(calls) == list(range(6))
    assert f.statistics().waiting == f.statistics().running_batches == 0


def test_draining_does_not_wait_for_company(start: Start) -> None:
    f = batched(lambda items: items, max_batch_size=8, max_wait=60, clock=VirtualClock())
    call = start(f, 1)
    until(lambda: f.statistics().waiting == 1)
    f.close()
    assert call.result() == 1
    assert f.statistics().reasons == {"drain": 1}


@pytest.mark.parametrize("kind", [Held, HeldAsync])
def test_a_drain_that_takes_too_long_gives_up_the_rest(start: Start, kind: Any) -> None:
    clock, held = VirtualClock(), kind()
    f = batched(held, max_batch_size=1, clock=clock)
    calls = queued(f, held, start, 2)
    closing = threading.Thread(target=f.close, kwargs={"timeout": 5})
    closing.start()
    until(lambda: f.statistics().closed)
    until(lambda: clock.advance(5) or not closing.is_alive())
    assert [type(error) for error in outcomes(calls)] == [Closed] * 3
    held.gate.set()
    until(lambda: f.statistics().running_batches == 0)
    assert held.seen == [[0]]


@pytest.mark.parametrize("drain", [True, False])
def test_a_second_close_does_nothing(drain: bool) -> None:
    f = batched(lambda items: items)
    f.call(1)
    f.close(drain=drain)
    f.close()
    f.close(drain=False)
    assert f.statistics().closed


@pytest.mark.parametrize("kind", ["asyncio", "trio"])
@pytest.mark.parametrize("drain", [True, False])
def test_closing_on_a_loop(kind: Any, drain: bool) -> None:
    got: list[Any] = []

    async def main() -> None:
        async with batched(lambda items: items, max_batch_size=8, max_wait=60) as f:

            async def call() -> None:
                try:
                    got.append(await f(1))
                except Closed as error:
                    got.append(type(error))

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(call)
                while not f.statistics().waiting:
                    await anyio.sleep(0)
                await f.aclose(drain=drain)
            with pytest.raises(Closed):
                await f(2)

    anyio.run(main, backend=kind)
    assert got == [1 if drain else Closed]


def test_a_submit_that_is_held_back_is_let_go_by_the_close() -> None:
    held = Held()
    f = batched(held, max_batch_size=1, max_waiting=1)
    running = f.submit(0)
    assert held.started.wait()
    waiting = f.submit(1)
    got: list[Any] = []

    def submit() -> None:
        got.append(f.submit(2).exception())

    thread = threading.Thread(target=submit)
    thread.start()
    f.close(drain=False)
    thread.join()
    assert type(got[0]) is type(waiting.exception()) is Closed
    held.gate.set()
    assert running.result() == 0


@pytest.mark.parametrize("asynchronous", [False, True])
def test_the_threads_end_with_the_close(start: Start, asynchronous: bool) -> None:
    async def run_async(items: list[int]) -> list[int]:
        return items

    def mine() -> list[threading.Thread]:
        return [thread for thread in threading.enumerate() if "closing-of-threads" in thread.name]

    f = batched(run_async if asynchronous else lambda items: items, name="closing-of-threads")
    assert start(f, 1).result() == 1
    assert f.submit(1).result() == 1
    assert mine()
    f.close()
    assert not mine()
