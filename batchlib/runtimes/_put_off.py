"""Calls that a garbage collection makes: of callers, and of tasks of closed loops, that nobody holds any more.

A collection runs whenever an object is made, so also while its own thread holds the driver's lock. Taking the lock then
would stop that thread for ever.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .._core._protocols import Clock


class PutOff:
    """Makes such calls at once where the lock is free, and otherwise keeps them until it is.

    Whoever looks for work calls `catch_up` first where there are `calls`, so what was given up is not dispatched.
    """

    def __init__(self, lock: threading.Lock, clock: Clock, wake: Callable[[], object]) -> None:
        self._lock = lock
        self._clock = clock
        self._wake = wake  # keeps nothing alive
        self.calls: deque[Callable[[], object]] = deque()  # empty nearly always

    def call(self, call: Callable[[], object]) -> None:
        if self._lock.acquire(blocking=False):
            self._lock.release()  # now it can only be held by another thread
            call()
        else:
            self.calls.append(call)
            try:
                self._clock.call_at(self._clock.now(), self._wake)
            except RuntimeError:  # no thread to be had: then whoever looks for work next
                pass

    def catch_up(self) -> None:
        """To be called without the lock."""
        while self.calls:
            try:
                call = self.calls.popleft()
            except IndexError:  # another thread was faster
                return
            call()
