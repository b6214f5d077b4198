"""A clock that moves only when it is told to."""

import heapq
from collections.abc import Callable
from itertools import count


class VirtualClock:
    """Fits `batched(clock=...)`. `advance` runs what becomes due, in order, each at its own instant, in this thread."""

    def __init__(self, start: float = 100.0) -> None:
        self._now = start
        self._due: list[tuple[float, int, Callable[[], object]]] = []
        self._tickets = count()

    def now(self) -> float:
        return self._now

    def call_at(self, instant: float, callback: Callable[[], object]) -> None:
        heapq.heappush(self._due, (instant, next(self._tickets), callback))

    def advance(self, seconds: float) -> None:
        self.advance_to(self._now + seconds)

    def advance_to(self, instant: float) -> None:
        while self._due and self._due[0][0] <= instant:
            due, _, callback = heapq.heappop(self._due)
            self._now = max(self._now, due)
            callback()
        self._now = max(self._now, instant)
