"""One asyncio loop as a batcher sees it: asyncio's own or any other that keeps its interface, such as uvloop's."""

from __future__ import annotations

import asyncio
import functools
import weakref
from asyncio import get_running_loop as get_running_loop
from collections.abc import Callable, Coroutine, Sequence
from contextvars import Context
from typing import TYPE_CHECKING, Any, Literal

from .._context import enter
from .._core._batch import Batch
from .._core._request import Request
from .._core._transitions import State
from ._running import context, run_async, task_ended

if TYPE_CHECKING:
    from ._driver import Driver

_COMPLETED = State.COMPLETED
_NAME = "batchlib"  # of the task that ticks: numbering each would cost as much as two calls


class LoopChannel:
    """Delivers to waiters of one loop and runs async batches on it. Waiters are that loop's futures."""

    runs_batches = True
    has_futures: Literal[True] = True  # a waiter can be awaited as it is
    interrupts: tuple[type[BaseException], ...] = (asyncio.CancelledError, KeyboardInterrupt)  # what a task lets out

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.future = loop.create_future
        self._ticker: asyncio.Task[None] | None = None
        self._if_lost: Callable[[object], None] | None = None
        self.ticking = False  # a wake-up at the end of the present tick is out

    @property
    def closed(self) -> bool:
        return self.loop.is_closed()

    def attach(self, request: Request) -> None:
        request.channel = self
        request.waiter = self.future()

    def attach_callback(self, request: Request, callback: Callable[[Request], object]) -> None:
        """Instead of a caller that waits: `callback` gets the request on this loop when it has ended."""
        self.attach(request)
        request.waiter.add_done_callback(functools.partial(_tell, request, callback))

    def event(self) -> asyncio.Event:
        return asyncio.Event()

    def spawn(self, function: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], object]:
        """Runs `function` beside the present task, which must hold on to what this gives: it cancels."""
        return self.loop.create_task(function()).cancel

    def soon(self, driver: Driver) -> None:
        """Ticks after the callbacks that are already ready; once, however often it is asked in a tick."""
        if self.ticking:
            return
        self.ticking = True
        if driver.per_loop and self.loop.get_task_factory() is None:
            # A task begins where a callback would have run, and can go on to run the batch.
            self._ticker = task = self.loop.create_task(self._tick_and_run(driver), name=_NAME, context=Context())
            if self._if_lost is None:
                self._if_lost = functools.partial(self._lost, weakref.ref(driver))
            task.add_done_callback(self._if_lost)
        else:
            self.loop.call_soon(driver.tick, self)

    async def _tick_and_run(self, driver: Driver) -> None:
        """A tick in a task of its own, with an empty context, which then runs the batch: one turn of the loop less."""
        self.ticking = False
        ticker, self._ticker = self._ticker, None
        if ticker is not None and self._if_lost is not None:
            ticker.remove_done_callback(self._if_lost)
        if driver.put_off.calls:
            driver.put_off.catch_up()
        with driver.lock:
            actions = driver.core.wake(driver.now())
        mine = driver.perform(actions, self, keep=self)
        if mine is not None:
            mine.handle = ticker
            enter(mine, driver.nested)
            await run_async(driver, mine, self.interrupts)

    def _lost(self, driver: weakref.ref[Driver], _: object) -> None:
        # Somebody cancelled all tasks of the loop, this one before it began; whoever stays still wants the tick.
        self.ticking = False
        alive = driver()
        if alive is not None:
            self.soon(alive)

    def deliver(self, requests: Sequence[Request]) -> None:
        """Resolves the waiters: at once on the loop's own thread, with one wake-up of the loop from any other."""
        try:
            here = get_running_loop() is self.loop
        except RuntimeError:
            here = False
        if here:
            _settle(requests)
            return
        try:
            self.loop.call_soon_threadsafe(_settle, requests)
        except RuntimeError:  # the loop is closed: its waiters are gone with it
            pass

    def start(self, driver: Driver, batch: Batch) -> None:
        """Runs an async batch in a task of its own. RuntimeError if the loop is closed."""
        if _running_loop() is self.loop:
            self._start(driver, batch)
        else:
            self.loop.call_soon_threadsafe(self._start, driver, batch)

    def _start(self, driver: Driver, batch: Batch) -> None:
        if batch.done:
            return  # given up before this loop came to it
        # The batch is held by the core until it is done and holds its task: asyncio itself keeps only a weak reference.
        batch.handle = task = self.loop.create_task(
            run_async(driver, batch, self.interrupts), context=context(driver, batch)
        )
        task.add_done_callback(lambda _: task_ended(driver, batch))
        if batch.abandoned:
            batch.handle.cancel()

    def stop(self, batch: Batch) -> None:
        """Cancels a running batch's task."""
        if _running_loop() is self.loop:
            self._stop(batch)
        else:
            self.deliver_call(self._stop, batch)

    def _stop(self, batch: Batch) -> None:
        if batch.handle is not None:
            batch.handle.cancel()

    def call(self, call: Callable[..., object], *args: object) -> None:
        """Calls back on the loop, from any thread. RuntimeError if it is closed."""
        self.loop.call_soon_threadsafe(call, *args)

    def deliver_call(self, call: Callable[..., object], *args: object) -> None:
        try:
            self.loop.call_soon_threadsafe(call, *args)
        except RuntimeError:  # closed, and its tasks with it
            pass


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _settle(requests: Sequence[Request]) -> None:
    for request in requests:
        waiter = request.waiter
        left = waiter.done()  # cancelled in the meantime
        if request.state is _COMPLETED:
            if not left:
                waiter.set_result(request.outcome)
            continue
        if not left:
            waiter.set_exception(request.outcome)
        request.outcome = request.waiter = None  # an error's traceback knows the request: no cycle


def _tell(request: Request, callback: Callable[[Request], object], waiter: asyncio.Future[Any]) -> None:
    if request.state is not State.COMPLETED:
        request.outcome = waiter.exception()
    callback(request)
