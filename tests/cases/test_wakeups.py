"""Every caller hears of its outcome, however asleep its loop or thread is, and no loop is held up."""

import asyncio
import logging
import selectors
import threading
from collections.abc import Callable
from typing import Any

import anyio
import pytest
import trio
from support import Held, VirtualClock
from support.callers import Start, outcomes
from support.until import until

from batchlib import Closed, DeadlineExceeded, batched


class Watched(selectors.DefaultSelector):  # type: ignore[misc, valid-type]
    """Tells when its loop goes to sleep for as long as nothing wakes it."""

    def __init__(self, asleep: threading.Event) -> None:
        super().__init__()
        self._asleep = asleep

    def select(self, timeout: float | None = None) -> Any:
        if timeout is None:
            self._asleep.set()
        return super().select(timeout)


class Asleep(trio.abc.Instrument):
    """The same for trio, which never sleeps for ever but for an hour and more."""

    def __init__(self, asleep: threading.Event) -> None:
        self._asleep = asleep

    def before_io_wait(self, timeout: float) -> None:
        if timeout > 1000:
            self._asleep.set()


def run_asyncio(main: Callable[[], Any], asleep: threading.Event) -> Any:
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(Watched(asleep))) as runner:
        return runner.run(main())


def run_trio(main: Callable[[], Any], asleep: threading.Event) -> Any:
    return trio.run(main, instruments=[Asleep(asleep)])


def fail(_: list[Any]) -> list[Any]:
    raise ValueError("no")


ENDINGS: dict[str, tuple[Any, Any]] = {
    "value": (list.copy, 1),
    "error": (fail, ValueError),
    "timeout": (list.copy, DeadlineExceeded),
    "close": (list.copy, Closed),
}


@pytest.mark.parametrize("ending", list(ENDINGS))
@pytest.mark.parametrize("run", [run_asyncio, run_trio])
def test_a_sleeping_loop_is_woken_for_every_ending(run: Any, ending: str) -> None:
    """The loop has nothing else to do, no timer and no other task: only a proper wake-up ends its sleep."""
    function, expected = ENDINGS[ending]
    clock, held, asleep = VirtualClock(), Held(function), threading.Event()
    f = batched(held, max_batch_size=1, clock=clock)
    blocker = f.submit(0) if ending in {"timeout", "close"} else None
    if blocker is not None:
        assert held.started.wait()
    got: list[Any] = []

    async def main() -> None:
        asleep.clear()
        try:
            got.append(await f.options(timeout=1)(1))
        except Exception as error:
            got.append(type(error))

    thread = threading.Thread(target=run, args=(main, asleep))
    thread.start()
    until(lambda: f.statistics().submitted == 1 + (blocker is not None))
    assert asleep.wait()
    if ending == "timeout":
        clock.advance(1)
    elif ending == "close":
        f.close(drain=False)
    else:
        held.gate.set()
    thread.join()
    assert got == [expected]
    held.gate.set()
    f.close()


@pytest.mark.parametrize("asynchronous", [False, True])
def test_leaving_from_another_thread_wakes_a_future(asynchronous: bool) -> None:
    held = Held()
    f = batched(held, max_batch_size=1)
    running, waiting = f.submit(1), f.submit(2)
    assert held.started.wait()
    done = threading.Event()
    waiting.add_done_callback(lambda _: done.set())
    thread = threading.Thread(target=waiting.cancel)
    thread.start()
    assert done.wait()
    thread.join()
    assert waiting.cancelled()
    held.gate.set()
    assert running.result() == 1


def test_the_end_of_a_loop_is_no_error_of_the_worker(caplog: pytest.LogCaptureFixture) -> None:
    """The outcome comes when its loop is closed already."""
    held = Held()
    f = batched(held, max_batch_size=1)

    async def leave_one_behind() -> None:
        task = asyncio.ensure_future(f(1))
        while not held.started.is_set():
            await asyncio.sleep(0)
        task.cancel()

    asyncio.run(leave_one_behind())
    held.gate.set()
    assert f.call(2) == 2
    f.close()
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize("kind", ["asyncio", "trio"])
def test_a_plain_function_never_holds_up_a_loop(kind: Any) -> None:
    """While it is held, the loop turns, and a timeout on it ends its call. On the loop it would never come back."""
    clock, held = VirtualClock(), Held()
    threads: list[threading.Thread] = []

    def function(items: list[int]) -> list[int]:
        threads.append(threading.current_thread())
        held(items)
        return items

    f = batched(function, max_batch_size=1, clock=clock)

    async def slow() -> None:
        assert await f(1) == 1

    async def main() -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(slow)
            while not held.started.is_set():
                await anyio.sleep(0)
            for _ in range(100):
                await anyio.sleep(0)
            async with anyio.create_task_group() as others:
                others.start_soon(expire)
                while f.statistics().waiting != 1:
                    await anyio.sleep(0)
                clock.advance(0.05)
            assert not held.gate.is_set()
            held.gate.set()

    async def expire() -> None:
        with pytest.raises(TimeoutError):
            await f.options(timeout=0.05)(2)

    anyio.run(main, backend=kind)
    assert threads[0] is not threading.current_thread()


def test_those_left_over_need_no_new_arrival(start: Start) -> None:
    f = batched(lambda items: items, max_batch_size=4)
    for number in (5, 7, 8, 9, 13):
        assert outcomes([start(f, item) for item in range(number)]) == list(range(number))


@pytest.mark.parametrize("kind", ["thread", "future"])
def test_many_threads_that_come_and_go_lose_nothing(kind: str) -> None:
    f = batched(lambda items: items, max_batch_size=4, max_wait=0.0)
    wrong: list[Any] = []

    def hammer(number: int) -> None:
        for item in range(200):
            got = f.call((number, item)) if kind == "thread" else f.submit((number, item)).result()
            if got != (number, item):
                wrong.append(got)

    threads = [threading.Thread(target=hammer, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert f.statistics().completed == 16 * 200


def test_loops_of_every_kind_lose_nothing(start_each: list[Start]) -> None:
    f = batched(lambda items: items, max_batch_size=4)
    calls = [(item, start(f, item)) for item in range(100) for start in start_each]
    assert all(call.result() == item for item, call in calls)
