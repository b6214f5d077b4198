"""Batch functions, plain and async, whose batches are seen and held by hand on whatever runtime they run."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any, Literal

import trio

from .runtimes import LONG

Kind = Literal["plain", "async"]


class Gate:
    """Opens once, from any thread; waited for in threads and on any loop."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._opened = threading.Event()
        self._wakes: list[Callable[[], Any]] = []

    def open(self) -> None:
        with self._lock:
            self._opened.set()
        for wake in self._wakes:
            try:
                wake()
            except RuntimeError:  # its loop has ended (trio's error for that is a RuntimeError too)
                pass

    def wait(self) -> None:
        assert self._opened.wait(LONG)

    async def wait_async(self) -> None:
        event: Any
        if trio.lowlevel.in_trio_run():
            event = trio.Event()
            soon: Callable[..., Any] = trio.lowlevel.current_trio_token().run_sync_soon
        else:
            event = asyncio.Event()
            soon = asyncio.get_running_loop().call_soon_threadsafe
        with self._lock:
            if self._opened.is_set():
                return
            self._wakes.append(lambda: soon(event.set))
        await event.wait()


class Held:
    """A batch function of one kind. `seen`: the batches that have begun; they end once `gate` is open.

    work: what makes the outcomes of a batch, when it has passed the gate.
    """

    def __init__(self, kind: Kind, work: Callable[[list[Any]], Any] = list) -> None:
        self.seen: list[list[Any]] = []
        self.ended: list[list[Any]] = []
        self.cancelled: list[list[Any]] = []
        self.gate = Gate()
        self.work = work
        self.function: Any = self._plain if kind == "plain" else self._async

    @property
    def sizes(self) -> list[int]:
        return [len(batch) for batch in self.seen]

    @property
    def items(self) -> list[Any]:
        """All that was seen."""
        return [item for batch in self.seen for item in batch]

    def _plain(self, items: list[Any]) -> Any:
        self.seen.append(list(items))
        self.gate.wait()
        self.ended.append(list(items))
        return self.work(items)

    async def _async(self, items: list[Any]) -> Any:
        self.seen.append(list(items))
        try:
            await self.gate.wait_async()
        except BaseException:
            self.cancelled.append(list(items))
            raise
        self.ended.append(list(items))
        return self.work(items)


def of_kind(kind: Kind, work: Callable[..., Any]) -> Any:
    """`work`, a plain batch function, as one of the kind."""
    if kind == "plain":
        return work

    async def function(items: list[Any]) -> Any:
        return work(items)

    return function
