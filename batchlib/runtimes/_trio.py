"""One trio run as a batcher sees it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine, Sequence
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, Literal

import trio

from .._core._batch import Batch
from .._core._request import Request
from ._running import context, fail, run_async
from ._threads import outcome_of

if TYPE_CHECKING:
    from ._driver import Driver


class TrioWaiter:
    """What one trio task waits on; touched on trio's thread only."""

    __slots__ = ("callback", "done", "task")

    def __init__(self) -> None:
        self.done = False
        self.task: trio.lowlevel.Task | None = None
        self.callback: Callable[[Request], object] | None = None


class TrioChannel:
    """Delivers to waiting tasks of one trio run and runs async batches in it."""

    runs_batches = True
    interrupts = (trio.Cancelled,)
    has_futures: Literal[False] = False

    def __init__(self, token: trio.lowlevel.TrioToken) -> None:
        self.loop = token
        self.ticking = False

    @property
    def closed(self) -> bool:
        try:
            self.loop.run_sync_soon(_nothing, idempotent=True)
        except trio.RunFinishedError:
            return True
        return False

    def attach(self, request: Request) -> None:
        request.channel = self
        request.waiter = TrioWaiter()

    def attach_callback(self, request: Request, callback: Callable[[Request], object]) -> None:
        """Instead of a caller that waits: `callback` gets the request on trio's thread when it has ended."""
        self.attach(request)
        request.waiter.callback = callback

    def event(self) -> trio.Event:
        return trio.Event()

    def spawn(self, function: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], object]:
        """Runs `function` beside the present task, in its context; what this gives cancels it."""
        scope = trio.CancelScope()

        async def run() -> None:
            with scope:
                await function()

        trio.lowlevel.spawn_system_task(run, context=copy_context())
        return scope.cancel

    async def wait(self, driver: Driver, request: Request) -> Any:
        """Waits for the outcome: a checkpoint; on cancellation the caller leaves and the request is cancelled."""
        waiter: TrioWaiter = request.waiter
        if waiter.done:
            await trio.lowlevel.cancel_shielded_checkpoint()
        else:
            waiter.task = trio.lowlevel.current_task()
            await trio.lowlevel.wait_task_rescheduled(functools.partial(self._abort, driver, request))
        return outcome_of(request)

    def _abort(self, driver: Driver, request: Request, _: object) -> trio.lowlevel.Abort:
        request.waiter.task = None
        driver.cancel(request)
        return trio.lowlevel.Abort.SUCCEEDED

    def soon(self, driver: Driver) -> None:
        """Ticks when the tasks that are already scheduled have run; once, however often it is asked before."""
        if not self.ticking:
            self.ticking = True
            self.loop.run_sync_soon(driver.tick, self)

    def deliver(self, requests: Sequence[Request]) -> None:
        if trio.lowlevel.in_trio_run() and trio.lowlevel.current_trio_token() is self.loop:
            _settle(requests)
        else:
            self._elsewhere(_settle, requests)

    def start(self, driver: Driver, batch: Batch) -> None:
        """Runs an async batch in a system task. RuntimeError if the run has finished."""
        try:
            self.loop.run_sync_soon(self._start, driver, batch)
        except trio.RunFinishedError as error:
            raise RuntimeError("the trio run has finished") from error

    def _start(self, driver: Driver, batch: Batch) -> None:
        if batch.done:
            return  # given up before this run came to it
        batch.handle = scope = trio.CancelScope()
        batch_context = context(driver, batch)
        try:
            trio.lowlevel.spawn_system_task(self._run, driver, batch, scope, name="batchlib", context=batch_context)
        except RuntimeError as error:  # the run is ending and takes no more tasks
            fail(driver, batch, error)

    async def _run(self, driver: Driver, batch: Batch, scope: trio.CancelScope) -> None:
        # A system task that raised would crash the whole run, so nothing but trio's own cancellation leaves this one.
        with scope:
            try:
                await run_async(driver, batch, self.interrupts)
            except trio.Cancelled:
                if trio.current_effective_deadline() == float("-inf"):
                    raise

    def stop(self, batch: Batch) -> None:
        self._elsewhere(self._stop, batch)

    def _stop(self, batch: Batch) -> None:
        if batch.handle is not None:
            batch.handle.cancel()

    def _elsewhere(self, call: Callable[..., object], *args: object) -> None:
        try:
            self.loop.run_sync_soon(call, *args)
        except trio.RunFinishedError:  # its tasks are gone with it
            pass


def _nothing() -> None:
    return None


def _settle(requests: Sequence[Request]) -> None:
    for request in requests:
        waiter: TrioWaiter = request.waiter
        waiter.done = True
        if waiter.callback is not None:
            waiter.callback(request)
        elif waiter.task is not None:
            trio.lowlevel.reschedule(waiter.task)
            waiter.task = None
