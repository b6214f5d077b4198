"""Classes of priority that age: which one is next."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from operator import attrgetter

from ..._core._protocols import Ordering, OrderingPolicy, Queue
from ..._core._request import Request
from ._arrivals import Arrivals
from ._turn_queue import TurnQueue
from ._turns import Key, Line, Turns


class PriorityClass:
    """The requests of one priority, in all groups."""

    __slots__ = ("arrivals", "handicap", "ordering", "priority", "waiting")

    def __init__(self, priority: float, handicap: float, ordering: Ordering) -> None:
        self.priority = priority
        self.handicap = handicap  # added to an arrival; infinite stays infinite
        self.ordering = ordering
        self.arrivals = Arrivals()
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
            each.arrivals.push(request)

    def _record(self, line: Line[PriorityClass]) -> Queue:
        return line.queue if line.queue.arrival_order else line.party.arrivals

    def _key(self, line: Line[PriorityClass], oldest: Request | None) -> Key:
        each = line.party
        if oldest is None:  # it has been served to its end
            return math.inf, each.priority
        return (each.priority if self._aging is None else oldest.arrival + each.handicap), each.priority

    def key(self, line: Line[PriorityClass]) -> Key:
        """Grows as the oldest leave, and stays as others come: they arrive later."""
        return self._key(line, next(self._record(line).in_order(), None))

    def turns(self) -> Turns[PriorityClass]:
        return self._turns

    def _turns(self, line: Line[PriorityClass]) -> Iterator[tuple[Request, Key]]:
        arrivals = self._record(line).in_order()
        oldest = next(arrivals, None)
        gone: set[Request | None] = set()
        for request in line.queue.in_order():
            gone.add(request)
            while oldest in gone:
                oldest = next(arrivals, None)
            yield request, self._key(line, oldest)

    def served(self, line: Line[PriorityClass], request: Request) -> None:
        """Nothing is charged for."""

    def left(self, line: Line[PriorityClass], requests: Sequence[Request]) -> None:
        each = line.party
        each.waiting -= len(requests)
        if not each.waiting:
            del self._classes[each.priority]
        if not line.queue.arrival_order:
            each.arrivals.dispatched(requests, 0.0)
