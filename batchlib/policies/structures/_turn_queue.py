"""A queue made of lines that take turns: one for each tenant or class, each with a queue of the policy inside."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from heapq import heappop, heappush
from typing import Any, Generic

from ..._core._request import Request
from ._sorted import Sorted
from ._turns import Line, P, Parties


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
            self._order.take_first()
            line.key = key
            self._order.add((*key, line))

    def in_order(self) -> Iterator[Request]:
        if len(self._lines) == 1:
            (line,) = self._lines.values()
            return line.queue.in_order()
        if self._lines:
            self._first()  # what is put right stays so: a second look moves nothing under the first one's feet
        return self._look_ahead()

    def _look_ahead(self) -> Iterator[Request]:
        true_key, after, order = self._parties.key, self._parties.looking(), iter(self._order)
        following = next(order, None)
        again: list[tuple[float, float, Line[P], Iterator[Request] | None]] = []  # a heap
        while following is not None or again:
            if following is None or (again and again[0] < following):
                tag, tie, line, requests = heappop(again)
                key = tag, tie
            else:
                line, requests = following[2], None
                following = next(order, None)
                if (key := true_key(line)) > line.key:
                    heappush(again, (*key, line, requests))
                    continue
            if line.waiting == 1:
                yield from line.queue.in_order()
                continue
            requests = requests or line.queue.in_order()
            rival = again[0] if again and (following is None or again[0] < following) else following
            for request in requests:
                yield request
                tag, tie = key = after(line, key, request)
                if rival is not None and rival < key:
                    heappush(again, (tag, tie, line, requests))
                    break

    def rank(self) -> Any:
        return (*(line := self._first()).key, line.queue.rank())

    def dispatched(self, requests: Sequence[Request], now: float) -> None:
        lines = list(map(self._lines.__getitem__, map(self._name, requests)))
        self._parties.served(lines, requests)
        served: dict[Line[P], list[Request]] = {}
        if lines and lines.count(lines[0]) == len(lines):
            served[lines[0]] = list(requests)
        else:
            for line, request in zip(lines, requests, strict=True):
                served.setdefault(line, []).append(request)
        self._leave(served)
        for line, gone in served.items():
            line.queue.dispatched(gone, now)

    def removed(self, request: Request) -> None:
        self._leave({(line := self._lines[self._name(request)]): [request]})
        line.queue.removed(request)

    def _leave(self, leaving: Mapping[Line[P], Sequence[Request]]) -> None:
        self._parties.left(leaving)
        empty: list[tuple[float, float, Line[P]]] = []
        for line, requests in leaving.items():
            line.waiting -= len(requests)
            if not line.waiting:
                del self._lines[line.name]
                tag, tie = line.key
                empty.append((tag, tie, line))
        self._order.remove_all(empty)
