"""An executor that a test drives by hand: batches stop in it, to be seen and let go."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

from .._core._request import Request
from ..executors._outcomes import split
from ..runtimes._places import current_loop, in_trio


class Gate:
    """Opens once, from any thread; waited for in threads and on any loop."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._opened = threading.Event()
        self._wakes: list[Callable[[], object]] = []

    def open(self) -> None:
        with self._lock:
            self._opened.set()
        for wake in self._wakes:  # nobody is added to an open gate
            try:
                wake()
            except RuntimeError:  # the loop has been closed, and whoever waited on it is gone
                pass

    def wait(self, timeout: float | None = None) -> bool:
        return self._opened.wait(timeout)

    async def wait_async(self) -> None:
        loop = current_loop()
        event: Any = sys.modules["trio" if in_trio() else "asyncio"].Event()
        soon: Callable[..., object] = loop.run_sync_soon if in_trio() else loop.call_soon_threadsafe
        with self._lock:
            if self._opened.is_set():
                return
            self._wakes.append(lambda: soon(event.set))
        await event.wait()


class HeldBatch:
    """A batch in a ManualExecutor, waiting to be let go. `requests`: what it holds, in order."""

    def __init__(self, executor: ManualExecutor, requests: Sequence[Request]) -> None:
        self.requests = tuple(requests)
        self.cancelled = False
        """Every caller has left and the async batch was cancelled; `finish` and `fail` do nothing any more."""
        self._executor = executor
        self._gate = Gate()
        self._outcomes: Sequence[Any] | None = None
        self._error: BaseException | None = None

    @property
    def items(self) -> list[Any]:
        """The items, in order: what each caller passed; a tuple where it passed several."""
        return [request.args[0] if len(request.args) == 1 else request.args for request in self.requests]

    def finish(self, outcomes: Sequence[Any] | None = None) -> None:
        """Lets the batch end with these outcomes, one per item, an exception among them being that item's error.

        outcomes: None for what the executor's function makes of the items, which without one are the items themselves.

        Raises RuntimeError if the batch has been let go before.
        """
        self._let_go(outcomes, None)

    def fail(self, error: BaseException) -> None:
        """Lets the batch end as if the function had raised `error`. RuntimeError if it has been let go before."""
        self._let_go(None, error)

    def _let_go(self, outcomes: Sequence[Any] | None, error: BaseException | None) -> None:
        if not self._executor._remove(self):  # pyright: ignore[reportPrivateUsage]
            if self.cancelled:
                return
            raise RuntimeError(f"{self!r} has been let go before: a batch ends once")
        self._outcomes, self._error = outcomes, error
        self._gate.open()

    def _end(self, function: Callable[[list[Any]], Any]) -> Sequence[Any]:
        """What the batcher gets."""
        error, self._error = self._error, None
        if error is not None:
            try:
                raise error
            finally:
                del error  # its traceback knows this frame
        return split(function(self.items), len(self.requests)) if self._outcomes is None else self._outcomes

    def __repr__(self) -> str:
        return f"<HeldBatch {self.items!r}>"


class ManualExecutor:
    """Holds every batch until the test lets it go; fits `batched(executor=...)`, in place of the function.

    function: takes a batch's items and gives their outcomes, for batches that are let go without any; None gives each
        caller its own item back.
    is_async: whether batches run as those of an async function do (on their callers' loop, cancelled when all callers
        have left) or as those of a plain one (in a thread of the batcher).

    All methods may be called from any thread. A batch that is never let go keeps its thread until the program ends.

    >>> from batchlib import batched
    >>> from batchlib.simulation import ManualExecutor
    >>> executor = ManualExecutor()
    >>> double = batched(lambda xs: [2 * x for x in xs], executor=executor)
    >>> first = double.submit(1)
    >>> held = executor.wait_for(1)
    >>> second, third = double.submit(2), double.submit(3)
    >>> held.finish(["one"])
    >>> first.result()
    'one'
    >>> executor.wait_for(2).items
    [2, 3]
    >>> executor.release()
    >>> second.result(), third.result()
    (2, 3)
    >>> double.close()
    """

    def __init__(self, function: Callable[[list[Any]], Any] | None = None, *, is_async: bool = False) -> None:
        if function is not None and not callable(function):
            raise TypeError(f"function must be callable or None, not {function!r}")
        self.is_async = is_async
        self._function: Callable[[list[Any]], Any] = function or list
        self._lock = threading.Lock()
        self._holding = True
        self._arrived: list[HeldBatch] = []  # all, in order
        self._held: list[HeldBatch] = []
        self._awaited: list[tuple[int, Gate]] = []  # gates that open when so many have arrived

    @property
    def batches(self) -> list[HeldBatch]:
        """Those that are held now, in the order of their arrival."""
        with self._lock:
            return list(self._held)

    async def arrived(self, count: int) -> HeldBatch:
        """Waits on asyncio or trio until `count` batches have arrived in all, and gives the last of these."""
        await self._gate_of(count).wait_async()
        return self._arrived[count - 1]

    def wait_for(self, count: int, timeout: float = 30.0) -> HeldBatch:
        """The same in a thread. TimeoutError if they have not arrived within `timeout` seconds of real time."""
        if not self._gate_of(count).wait(timeout):
            raise TimeoutError(f"{len(self._arrived)} batches have arrived within {timeout:g} s, not {count}")
        return self._arrived[count - 1]

    def release(self) -> None:
        """Lets all batches go, those held now and those that come, until `hold`."""
        with self._lock:
            self._holding = False
            held, self._held = self._held, []
        for batch in held:
            batch._gate.open()  # pyright: ignore[reportPrivateUsage]

    def hold(self) -> None:
        """Holds those that come from now on."""
        with self._lock:
            self._holding = True

    def run(self, requests: Sequence[Request]) -> Sequence[Any]:
        """Called by the batcher, in a thread of its own."""
        batch = self._arrive(requests)
        batch._gate.wait()  # pyright: ignore[reportPrivateUsage]
        return batch._end(self._function)  # pyright: ignore[reportPrivateUsage]

    async def run_async(self, requests: Sequence[Request]) -> Sequence[Any]:
        """Called by the batcher, on the loop of the callers."""
        batch = self._arrive(requests)
        try:
            await batch._gate.wait_async()  # pyright: ignore[reportPrivateUsage]
        except BaseException:
            batch.cancelled = True  # first: whoever finds it gone looks at this next
            self._remove(batch)
            raise
        return batch._end(self._function)  # pyright: ignore[reportPrivateUsage]

    def _arrive(self, requests: Sequence[Request]) -> HeldBatch:
        batch = HeldBatch(self, requests)
        with self._lock:
            self._arrived.append(batch)
            held = self._holding
            if held:
                self._held.append(batch)
            reached = [gate for count, gate in self._awaited if count <= len(self._arrived)]
            self._awaited = [entry for entry in self._awaited if entry[0] > len(self._arrived)]
        if not held:
            batch._gate.open()  # pyright: ignore[reportPrivateUsage]
        for gate in reached:
            gate.open()
        return batch

    def _remove(self, batch: HeldBatch) -> bool:
        """Takes it out of those that are held; False if it is none of them."""
        with self._lock:
            if batch not in self._held:
                return False
            self._held.remove(batch)
            return True

    def _gate_of(self, count: int) -> Gate:
        gate = Gate()
        with self._lock:
            if count > len(self._arrived):
                self._awaited.append((count, gate))
                return gate
        gate.open()
        return gate
