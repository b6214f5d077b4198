"""Classes of priority that age: which one is next."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import filterfalse
from operator import attrgetter

from ..._core._protocols import Ordering, OrderingPolicy, Queue
from ..._core._request import Request
from ._arrivals import Arrivals
from ._turn_queue import TurnQueue
from ._turns import After, Key, Line


class PriorityClass:
    """The requests of one priority, in all groups."""

    __slots__ = ("arrivals", "handicap", "ordering", "priority", "waiting")

    def __init__(self, priority: float, handicap: float, ordering: Ordering) -> None:
        self.priority = priority
        self.handicap = handicap  # added to an arrival; infinite stays infinite
        self.ordering = ordering
        self.arrivals: Arrivals | None = None  # needed only where the order inside is another
        self.waiting = 0


class Classes:
    """The classes that have requests waiting, for all groups, since what is inside may span them (a tenant's account).

    The age of a class in a group is that of its oldest there, if the order inside is that of arrival: it is the very
    one that is served. Another order may serve a class in this group while its oldest waits in that one, so there it is
    the age of the oldest in any group, and no class is passed over for longer than it may be.
    """

    def __init__(self, within: OrderingPolicy, aging: float | None) -> None:
        self._within = within
        self._aging = aging
        self._classes: dict[float, PriorityClass] = {}

    @property
    def tenants_tracked(self) -> int:
        return sum(getattr(each.ordering, "tenants_tracked", 0) for each in self._classes.values())

    def queue(self) -> TurnQueue[PriorityClass]:
        return TurnQueue(self, attrgetter("priority"))

    def party(self, request: Request) -> PriorityClass:
        found = self._classes.get(request.priority)
        if found is not None:
            return found
        handicap = 0.0 if self._aging is None else self._aging * request.priority
        return PriorityClass(request.priority, handicap, self._within.start())

    def joined(self, line: Line[PriorityClass], request: Request) -> None:
        each = line.party
        self._classes[each.priority] = each
        each.waiting += 1
        if not line.queue.arrival_order:
            each.arrivals = each.arrivals or Arrivals()
            each.arrivals.push(request)

    def _record(self, line: Line[PriorityClass]) -> Queue:
        return line.party.arrivals or line.queue

    def _key(self, each: PriorityClass, oldest: Request | None) -> Key:
        if oldest is None:  # it has been served to its end
            return math.inf, each.priority
        return (each.priority if self._aging is None else oldest.arrival + each.handicap), each.priority

    def key(self, line: Line[PriorityClass]) -> Key:
        """Grows as the oldest leave, and stays as others come: they arrive later."""
        return self._key(line.party, next(self._record(line).in_order(), None))

    def looking(self) -> After[PriorityClass]:
        gone: set[Request | None] = set()
        looks: dict[Line[PriorityClass], tuple[Request | None, Iterator[Request]]] = {}

        def after(line: Line[PriorityClass], key: Key, request: Request) -> Key:
            gone.add(request)
            oldest, others = looks.get(line) or (request, filterfalse(gone.__contains__, self._record(line).in_order()))
            if oldest not in gone:
                return key
            oldest = next(others, None)
            looks[line] = oldest, others
            return self._key(line.party, oldest)

        return after

    def served(self, lines: Sequence[Line[PriorityClass]], requests: Sequence[Request]) -> None:
        """Nothing is charged for."""

    def left(self, leaving: Mapping[Line[PriorityClass], Sequence[Request]]) -> None:
        for line, requests in leaving.items():
            each = line.party
            each.waiting -= len(requests)
            if not each.waiting:
                del self._classes[each.priority]
            if each.arrivals is not None:
                each.arrivals.dispatched(requests, 0.0)
