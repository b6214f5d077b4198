"""Where threads wait for a batcher: for room, or for the end of all work."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from ._clock import LONG

if TYPE_CHECKING:
    from .._core._batcher import Batcher
    from .._core._protocols import Clock
    from .._core._request import Request


class Gate:
    """A condition on the driver's own lock, told about changes only while somebody waits for one.

    `lock` is held by whoever calls `notify`, and must not be held by whoever waits.
    """

    def __init__(self, lock: threading.Lock, core: Batcher, clock: Clock, later: Callable[[], object]) -> None:
        self._changed = threading.Condition(lock)
        self._core = core
        self._clock = clock
        self._later = later  # a timed call of `notify` that keeps nothing alive
        self.watchers = 0

    def notify(self) -> None:
        if self.watchers:
            self._changed.notify_all()

    def wait_for_room(self, request: Request) -> None:
        """Until those who run ahead need not pause any more, the batcher is closed, or the deadline has passed."""
        deadline = math.inf if request.deadline is None else request.deadline
        self._wait(lambda: not self._core.held_back or self._core.closed, deadline)

    def wait_for_end(self, timeout: float | None) -> None:
        """Until nothing waits and nothing runs, at most `timeout` seconds."""
        self._wait(lambda: self._core.idle, math.inf if timeout is None else self._clock.now() + timeout)

    def _wait(self, done: Callable[[], bool], end: float) -> None:
        with self._changed:
            if done():
                return
            watched = end == math.inf or self._call_at(end)
            self.watchers += 1
            try:
                while not done() and (now := self._clock.now()) < end:
                    self._changed.wait(None if watched else min(end - now, LONG))
            finally:
                self.watchers -= 1

    def _call_at(self, end: float) -> bool:
        try:
            self._clock.call_at(end, self._later)
        except RuntimeError:  # no thread to be had: the one that waits looks at the time itself
            return False
        return True
