"""The order of arrival: a queue by itself, and the record that other orders keep beside their own."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

from ..._core._request import Request
from ..._core._transitions import State

_WAITING = State.WAITING
_FEW = 128  # stale entries that are not worth a pass in a long queue


class Arrivals:
    """Operations: push O(1), first O(1), leave O(1) amortised, iterate at C speed while nobody left from the middle.

    A request that leaves from the middle stays as a stale entry until it comes to the front, or until a pass drops it.
    A pass begins when stale entries are the larger half, or many more than the last one left behind; it looks at twice
    as many entries as there are stale ones, from the front, where they are in the way. So those who have left since
    the last one pay for it.
    """

    __slots__ = ("_enough", "_requests", "_stale", "push")

    arrival_order = True

    def __init__(self) -> None:
        self._requests: deque[Request] = deque()
        self._stale = 0
        self._enough = _FEW  # stale entries for a pass
        self.push = self._requests.append

    def in_order(self) -> Iterator[Request]:
        if not self._stale:
            return iter(self._requests)
        return (request for request in self._requests if request.state is State.WAITING)

    def rank(self) -> int:
        return self._requests[0].sequence  # a stale entry never stays at the front

    def dispatched(self, requests: Sequence[Request], now: float) -> None:
        waiting, queue = _WAITING, self._requests
        stale = self._stale + len(requests)
        while stale and queue[0].state is not waiting:
            queue.popleft()
            stale -= 1
        if stale and (stale >= self._enough or stale * 2 > len(queue)):
            front = [queue.popleft() for _ in range(min(2 * stale, len(queue)))]
            alive = [request for request in front if request.state is waiting]
            queue.extendleft(reversed(alive))
            stale -= len(front) - len(alive)
            self._enough = 2 * stale + _FEW
        self._stale = stale

    def removed(self, request: Request) -> None:
        self.dispatched((request,), 0.0)  # nothing is charged for here, so leaving is leaving
