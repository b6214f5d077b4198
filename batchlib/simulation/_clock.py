"""Time that a test or a simulation holds in its own hands."""

from __future__ import annotations

import heapq
import math
import threading
from collections.abc import Callable
from itertools import count

from .._context import number


class VirtualClock:
    """A clock that moves only when it is told to; fits `batched(clock=...)`.

    start: the instant that it shows at first, in seconds.

    `call_at` may be called from any thread; one thread at a time advances. Raises ValueError for an instant that is not
    finite or lies in the past.

    >>> from batchlib import batched
    >>> from batchlib.simulation import VirtualClock
    >>> clock = VirtualClock()
    >>> double = batched(lambda xs: [2 * x for x in xs], max_wait=0.5, clock=clock)
    >>> future = double.submit(4)
    >>> while clock.next_due is None:
    ...     pass  # a thread of the batcher has yet to look at what waits
    >>> clock.advance(0.25)
    >>> double.statistics().waiting
    1
    >>> clock.advance(0.25)
    >>> future.result()
    8
    >>> double.close()
    """

    def __init__(self, start: float = 0.0) -> None:
        self._now = _instant("start", start)
        # Re-entrant: a garbage collection in here may collect a caller, whose leaving asks for a wake-up.
        self._lock = threading.RLock()
        self._due: list[tuple[float, int, Callable[[], object]]] = []
        self._tickets = count()

    def now(self) -> float:
        """The present instant, in seconds."""
        return self._now

    def call_at(self, instant: float, callback: Callable[[], object]) -> None:
        """Has `callback` called once when the clock is advanced to `instant` or beyond it, in the advancing thread.

        For an instant that has been reached already, that is the next advance, even one by 0.
        """
        entry = (instant, next(self._tickets), callback)
        with self._lock:
            heapq.heappush(self._due, entry)

    @property
    def next_due(self) -> float | None:
        """The earliest instant for which a callback is due; None if there is none."""
        with self._lock:
            return self._due[0][0] if self._due else None

    def advance(self, seconds: float) -> None:
        """Moves on by so many seconds, at least 0; see `advance_to`."""
        self.advance_to(self._now + seconds)

    def advance_to(self, instant: float) -> None:
        """Moves on to `instant`, running what becomes due in order, each callback at its own instant, in this thread.

        What callbacks raise stops neither the others nor the clock: it is raised at the end, several together as an
        ExceptionGroup.
        """
        if _instant("instant", instant) < self._now:
            raise ValueError(f"time never goes back: it is {self._now:g}, so it cannot become {instant:g}")
        errors: list[Exception] = []
        while (callback := self._take(instant)) is not None:
            try:
                callback()
            except Exception as error:
                errors.append(error)
        self._now = max(self._now, instant)
        if len(errors) == 1:
            raise errors[0]
        if errors:
            raise ExceptionGroup(f"{len(errors)} callbacks of the clock raised", errors)

    def _take(self, instant: float) -> Callable[[], object] | None:
        """The next callback due by `instant`, with the time moved on to it."""
        with self._lock:
            if not self._due or self._due[0][0] > instant:
                return None
            due, _, callback = heapq.heappop(self._due)
            self._now = max(self._now, due)
            return callback

    def __repr__(self) -> str:
        return f"<{type(self).__name__} now={self._now:g}>"


def _instant(name: str, value: float) -> float:
    legal = "a finite number of seconds"
    if not math.isfinite(number(name, value, legal)):
        raise ValueError(f"{name} must be {legal}, not {value!r}")
    return value
