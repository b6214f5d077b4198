"""The instants at which requests are given up."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator

from ._request import Request
from ._transitions import FINAL

_SLACK = 64  # stale entries that are never worth a clean-up


class Deadlines:
    """Operations: add O(log n), due O(log n) each; requests that have ended are dropped lazily.

    Most requests end long before their deadline. Their entries go when they reach the top, or all at once when they
    are the larger half, so that memory follows the requests in flight and not the timeouts granted.
    """

    __slots__ = ("heap",)

    def __init__(self) -> None:
        self.heap: list[tuple[float, int, Request]] = []  # empty: certainly nothing to wait for

    def add(self, request: Request, in_flight: int) -> None:
        """`in_flight`: how many requests can still need their deadline."""
        assert request.deadline is not None
        if len(self.heap) > 2 * in_flight + _SLACK:
            self.heap = [entry for entry in self.heap if entry[2].state not in FINAL]
            heapq.heapify(self.heap)
        heapq.heappush(self.heap, (request.deadline, request.sequence, request))

    def due(self, now: float) -> Iterator[Request]:
        """Takes out those whose deadline is at or before `now` and who have not ended."""
        while self.heap and self.heap[0][0] <= now:
            request = heapq.heappop(self.heap)[2]
            if request.state not in FINAL:
                yield request

    def next(self) -> float:
        """The earliest deadline of a request that has not ended; infinity if there is none."""
        while self.heap and self.heap[0][2].state in FINAL:
            heapq.heappop(self.heap)
        return self.heap[0][0] if self.heap else math.inf
