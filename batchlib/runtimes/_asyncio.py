"""One asyncio loop as a batcher sees it: asyncio's own or any other that keeps its interface, such as uvloop's."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any

from .._context import inside
from .._core._batch import Batch
from .._core._request import Request
from .._core._transitions import State

if TYPE_CHECKING:
    from ._driver import Driver


class LoopChannel:
    """Delivers to waiters of one loop and runs async batches on it. Waiters are that loop's futures."""

    runs_batches = True

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.ticking = False  # a wake-up at the end of the present tick is out

    @property
    def closed(self) -> bool:
        return self.loop.is_closed()

    def attach(self, request: Request) -> None:
        request.channel = self
        request.waiter = self.loop.create_future()

    async def wait(self, driver: Driver, request: Request) -> Any:
        try:
            return await request.waiter
        except BaseException:  # the caller leaves, however it does
            driver.cancel(request)
            del request  # an error's traceback knows this frame, which must not know the error
            raise

    def attach_callback(self, request: Request, callback: Callable[[Request], object]) -> None:
        """Instead of a caller that waits: `callback` gets the request on this loop when it has ended."""
        self.attach(request)
        request.waiter.add_done_callback(lambda _: callback(request))

    def result(self, request: Request) -> Any:
        """The outcome of a request that has ended, or raises its error."""
        return request.waiter.result()

    def event(self) -> asyncio.Event:
        return asyncio.Event()

    def spawn(self, function: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], object]:
        """Runs `function` beside the present task, which must hold on to what this gives: it cancels."""
        return self.loop.create_task(function()).cancel

    def soon(self, callback: Callable[[LoopChannel], object]) -> None:
        """Calls back after the callbacks that are already ready; once, however often it is asked in a tick."""
        if not self.ticking:
            self.ticking = True
            self.loop.call_soon(callback, self)

    def deliver(self, requests: Sequence[Request]) -> None:
        """Resolves the waiters: at once on the loop's own thread, with one wake-up of the loop from any other."""
        if _running_loop() is self.loop:
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
        # The batch is held by the core until it is done and holds its task: asyncio itself keeps only a weak reference.
        batch.handle = self.loop.create_task(
            driver.run_async(batch), context=inside(batch), name=f"batchlib-{batch.number}"
        )
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
    completed = State.COMPLETED
    for request in requests:
        waiter = request.waiter
        if waiter.done():
            continue  # cancelled in the meantime
        if request.state is completed:
            waiter.set_result(request.outcome)
        else:
            waiter.set_exception(request.outcome)
            request.outcome = None
