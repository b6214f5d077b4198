"""What outlives a batcher or comes before it: collection, fork, interpreter exit.

The registry below is the one piece of module state: `os.register_at_fork` and `atexit` cannot be undone, so each is
registered once, for whatever batchers are alive when it happens. It keeps none of them alive.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from contextvars import copy_context
from typing import TYPE_CHECKING

from ._clock import SystemClock
from ._places import in_trio
from ._running import reap
from ._threads import PrivateLoop, Workers

if TYPE_CHECKING:
    import asyncio

    from .._core._protocols import Clock
    from ._driver import Driver

_EXIT_TIMEOUT = 5.0  # seconds that all threads together get at interpreter exit
_LAST = 0.5  # of them, for async batches to take note that they are cancelled

_drivers: weakref.WeakSet[Driver] = weakref.WeakSet()


class Resources:
    """The threads of one batcher. Knows nothing of the batcher itself, so that it can end them after it is gone.

    stop_executor: ends what the executor has of its own, None if it has nothing.
    """

    def hold(
        self, workers: Workers, private: PrivateLoop, clock: Clock, stop_executor: Callable[[], object] | None
    ) -> None:
        self._stop_executor = stop_executor
        self._workers = workers
        self._private = private
        self._clock = clock if isinstance(clock, SystemClock) else None

    def stop(self) -> None:
        """Tells all threads to end once they are through; does not wait."""
        self._workers.stop()
        self._private.stop()
        if self._clock is not None:
            self._clock.stop()
        if self._stop_executor is not None:
            self._stop_executor()

    def join(self, timeout: float) -> None:
        """Waits for the threads, at most `timeout` seconds for all together."""
        end = time.monotonic() + timeout

        def left() -> float:
            return max(0.0, end - time.monotonic())

        self._workers.join(left)
        self._private.join(left())
        if self._clock is not None:
            self._clock.join(left())


class Wake:
    """A timed callback that does not keep its batcher alive."""

    __slots__ = ("_driver",)

    def __init__(self, driver: Driver) -> None:
        self._driver = weakref.ref(driver)

    def __call__(self) -> None:
        driver = self._driver()
        if driver is not None:
            reap(driver)
            driver.wake()


class Notify(Wake):
    """Likewise, for threads that wait for room or for the end."""

    __slots__ = ()

    def __call__(self) -> None:
        driver = self._driver()
        if driver is not None:
            driver.notify()


def register(driver: Driver, resources: Resources) -> None:
    """From now on `driver` is reset in a forked child, closed at exit, and its threads end when it is collected."""
    _drivers.add(driver)
    weakref.finalize(driver, resources.stop).atexit = False


async def aclose(driver: Driver, drain: bool, timeout: float | None) -> None:
    """`close` in a thread that nobody has to wait for: cancelled, the closing goes on.

    RuntimeError if there is no thread to be had for draining; nothing has been closed then.
    """
    if driver.closing:
        return  # a second call does nothing, and needs no thread for that
    loop = None if in_trio() else sys.modules["asyncio"].get_running_loop()
    try:
        await _close_in_thread(driver, drain, timeout, loop)
    except RuntimeError as error:
        if driver.closing:
            raise  # not for want of a thread
        if drain:
            raise RuntimeError(
                "no thread can be started to wait for the drain, and nothing has been closed: await aclose() again "
                "later, or aclose(drain=False), which needs none"
            ) from error
        driver.close(drain=False, timeout=None)


async def _close_in_thread(
    driver: Driver, drain: bool, timeout: float | None, loop: asyncio.AbstractEventLoop | None
) -> None:
    """A daemon thread, as trio's are: asyncio's own pool is joined when the loop ends, and a batch may hang.

    loop: asyncio's; None on trio.
    """
    if loop is None:
        await sys.modules["trio"].to_thread.run_sync(driver.close, drain, timeout, abandon_on_cancel=True)
        return
    closed: Future[None] = Future()
    closed.set_running_or_notify_cancel()  # so that a caller who leaves does not cancel it

    def close() -> None:
        try:
            driver.close(drain, timeout)
        except BaseException as error:
            closed.set_exception(error)
        else:
            closed.set_result(None)

    threading.Thread(target=copy_context().run, args=(close,), name="batchlib-close", daemon=True).start()
    await sys.modules["asyncio"].wrap_future(closed, loop=loop)


def _reset_in_child() -> None:
    """Threads do not survive a fork, locks may be held by one that is gone, and requests belong to the parent."""
    for driver in list(_drivers):
        driver.start()


def _close_at_exit() -> None:
    end = time.monotonic() + _EXIT_TIMEOUT
    drivers = list(_drivers)
    for driver in drivers:
        driver.close(drain=False, timeout=None)
    for driver in drivers:
        driver.join(max(0.0, end - _LAST - time.monotonic()))
    for driver in drivers:
        driver.stop()
        driver.join(max(0.0, end - time.monotonic()))


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_in_child)
atexit.register(_close_at_exit)
