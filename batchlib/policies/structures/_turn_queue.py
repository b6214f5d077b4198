"""A queue made of lines that take turns: one for each tenant or class, each with a queue of the policy inside."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from heapq import heappop, heappush
from typing import Any, Generic

from ..._core._request import Request
from ._sorted import Sorted
from ._turns import Key, Line, P, Parties


class TurnQueue(Generic[P]):
    """Operations: push, leave O(log lines); in_order O(log lines) for each request that is looked at.

    A key only grows, by service here or in another group, so what stands in the order is never too large. It is put
    right when it comes to the front; while looking ahead, a line is held back until its true key comes up. So only a
    push makes the rank smaller, which is the first line's key and then the rank inside it.
    """

    arrival_order = False

    def __init__(self, parties: Parties[P], name: Callable[[Request], Hashable]) -> None:
        self._parties = parties
        self._name = name  # of a request's party
        self._lines: dict[Hashable, Line[P]] = {}
        self._order: Sorted[tuple[float, float, Line[P]]] = Sorted()

    def push(self, request: Request) -> None:
        name = self._name(request)
        line = self._lines.get(name) or Line(name, self._parties.party(request))
        line.queue.push(request)  # the last that can raise: of a new line nothing is remembered yet
        self._parties.joined(line, request)
        if not line.waiting:
            self._lines[name] = line
            line.key = self._parties.key(line)
            self._order.add((*line.key, line))
        line.waiting += 1

    def _first(self) -> Line[P]:
        while True:
            line = self._order.first()[2]
            key = self._parties.key(line)
            if key <= line.key:
                return line
            self._order.remove((*line.key, line))
            line.key = key
            self._order.add((*key, line))

    def in_order(self) -> Iterator[Request]:
        if self._lines:
            self._first()  # what is put right stays so: a second look moves nothing under the first one's feet
        return self._look_ahead()

    def _look_ahead(self) -> Iterator[Request]:
        turns, order = self._parties.turns(), iter(self._order)
        following = next(order, None)
        again: list[tuple[float, float, Line[P], Iterator[tuple[Request, Key]]]] = []  # a heap
        while following is not None or again:
            if following is None or (again and again[0] < following):
                line, turn = heappop(again)[2:]
            else:
                line, turn = following[2], turns(following[2])
                following = next(order, None)
                if (key := self._parties.key(line)) > line.key:
                    heappush(again, (*key, line, turn))
                    continue
            for request, key in turn:
                yield request
                if line.waiting == 1:
                    break
                if (following is not None and following < key) or (again and again[0] < key):
                    heappush(again, (*key, line, turn))
                    break

    def rank(self) -> Any:
        return (*(line := self._first()).key, line.queue.rank())

    def dispatched(self, requests: Sequence[Request], now: float) -> None:
        served: dict[Line[P], list[Request]] = {}
        for request in requests:
            line = self._lines[self._name(request)]
            self._parties.served(line, request)
            served.setdefault(line, []).append(request)
        self._leave(served)
        for line, gone in served.items():
            line.queue.dispatched(gone, now)

    def removed(self, request: Request) -> None:
        self._leave({(line := self._lines[self._name(request)]): [request]})
        line.queue.removed(request)

    def _leave(self, leaving: dict[Line[P], list[Request]]) -> None:
        for line, requests in leaving.items():
            self._parties.left(line, requests)
            line.waiting -= len(requests)
            if not line.waiting:
                del self._lines[line.name]
        self._order.remove_all([(*line.key, line) for line in leaving if not line.waiting])
