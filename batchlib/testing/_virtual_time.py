"""Virtual time for a service's own tests: a clock in the test's hands, and the wait until its batchers are at rest.

At rest: whatever could be dispatched has been, and no batch runs but those that a ManualExecutor holds, and those that
wait for a call that is itself held or held back. Functions take no virtual time: the clock stands still until they have
returned, on whatever thread that happens.
"""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Callable, Generator
from functools import partial
from typing import Any, TypeVar

from .._core._batch import Batch
from .._core._request import Request
from ..errors import BlockingCallError
from ..runtimes._driver import Driver
from ..runtimes._places import current_loop, in_trio, on_loop
from ..simulation import ManualExecutor, VirtualClock

T = TypeVar("T")

_TURNS = 4  # of a loop without a task that could run, after which nothing is on its way by callbacks alone


class Rest:
    """Whether batchers are at rest, and the wait for it.

    A batch leaves the core before its outcomes are delivered, so the calls in which that happens are counted: at rest
    nobody is in the middle of one.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._inside = 0
        self._alarms: list[Callable[[], object]] = []
        self.drivers: list[Driver] = []

    def watch(self, driver: Driver) -> None:
        self.drivers.append(driver)
        for name in ("finish", "take", "wake"):
            setattr(driver, name, self._counted(getattr(driver, name)))
        if isinstance(driver.executor, ManualExecutor):
            driver.executor.__dict__["_arrive"] = self._counted(driver.executor.__getattribute__("_arrive"))

    def _counted(self, call: Callable[..., T]) -> Callable[..., T]:
        def counted(*args: Any, **kwargs: Any) -> T:
            with self._changed:
                self._inside += 1
            try:
                return call(*args, **kwargs)
            finally:
                with self._changed:
                    self._inside -= 1
                    self._changed.notify_all()
                    alarms, self._alarms = self._alarms, []
                for alarm in alarms:
                    try:
                        alarm()
                    except RuntimeError:  # its loop has ended, and whoever waited with it
                        pass

        return counted

    @property
    def reached(self) -> bool:
        stuck: set[Request] = set()  # those that wait for the time, or for the test
        running: list[Batch] = []
        for driver in self.drivers:
            if isinstance(driver.executor, ManualExecutor):
                stuck.update(request for batch in driver.executor.batches for request in batch.requests)
            with driver.lock:  # so that a batch that has just left the core is seen in one of the two
                if self._inside:
                    return False
                running += driver.core.running_batches
                stuck.update(vars(driver.core)["_groups"].everyone())
        # A batch is as stuck as a call that was made inside it.
        batches = {batch for request in stuck for batch in request.chain}
        return all(batch in batches or stuck.intersection(batch.requests) for batch in running)

    def wait(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self.reached)

    async def wait_async(self) -> None:
        loop = current_loop()
        soon: Callable[..., object] = loop.run_sync_soon if in_trio() else loop.call_soon_threadsafe
        while True:
            event: Any = sys.modules["trio" if in_trio() else "asyncio"].Event()
            with self._changed:
                if self.reached:
                    return
                self._alarms.append(partial(soon, event.set))
            await event.wait()

    def books(self) -> list[object]:
        """Everything that has happened so far, to be compared."""
        return [driver.statistics() for driver in self.drivers]

    def wake(self) -> None:
        """The end of a tick, for all."""
        for driver in list(self.drivers):
            driver.wake()


class VirtualTime(VirtualClock):
    """The clock of a `virtual_time` block. Each move waits until the batchers are at rest, before and after.

    In a thread: `advance`, `advance_to`, `settle`. On asyncio or trio: `await aadvance(seconds)`, `await asettle()`.
    """

    def __init__(self, start: float = 0.0) -> None:
        super().__init__(start)
        self.rest = Rest()

    def advance_to(self, instant: float) -> None:
        """Moves on to `instant`. What becomes due on the way is served at its own instant, and functions return before
        the time goes on. BlockingCallError on an event loop's thread: await `aadvance` there."""
        self.settle()
        for due in self._stops(instant):
            super().advance_to(due)
            self.settle()

    async def aadvance(self, seconds: float) -> None:
        """Moves on by so many seconds, likewise, and lets the tasks of this loop run until they all wait."""
        instant = self.now() + seconds
        await self.asettle()
        for due in self._stops(instant):
            super().advance_to(due)
            await self.asettle()

    def _stops(self, instant: float) -> Generator[float]:
        while (due := self.next_due) is not None and due <= instant:
            yield max(due, self.now())
        yield instant

    def settle(self) -> None:
        """Waits until the batchers are at rest. BlockingCallError on an event loop's thread: await `asettle` there.

        Other threads of a service are not waited for: what they are about to call has not been called.
        """
        if on_loop():
            raise BlockingCallError("waiting here would stop this event loop: await aadvance(...) or asettle()")
        self.rest.wait()
        while True:
            before = self.rest.books()
            self.rest.wake()
            self.rest.wait()
            if self.rest.books() == before:
                return

    async def asettle(self) -> None:
        """Lets the tasks of this loop run until all of them wait and the batchers are at rest.

        Sockets, real sleeps and other threads are not waited for, unless a batched function is what waits for them.
        """
        while True:
            await self.rest.wait_async()  # first: what has been delivered is now on its way to its tasks
            before = self.rest.books()
            await _all_tasks_wait()
            self.rest.wake()
            if self.rest.books() == before:
                return


async def _all_tasks_wait() -> None:
    if in_trio():
        await importlib.import_module("trio.testing").wait_all_tasks_blocked()
        return
    asyncio = sys.modules["asyncio"]
    here = asyncio.current_task()
    turns = 0
    while turns < _TURNS:
        await asyncio.sleep(0)
        turns += 1
        for task in asyncio.all_tasks():
            waiter = getattr(task, "_fut_waiter", None)  # what it waits for; None while it is ready to run
            if task is not here and (waiter is None or waiter.done()):
                turns = 0
