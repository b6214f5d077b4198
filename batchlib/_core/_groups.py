"""The groups that have waiting requests, and which of them to ask next.

A group exists from its first waiting request to its last. It is *ready* (in a heap by the rank of its first request)
or *asleep* (its policy has named an instant to look again). An arrival wakes it. Heap entries are never searched for:
each carries a ticket, and one whose ticket is no longer its group's is skipped when it comes up. So picking a group
costs O(log groups), and each question to a policy is paid for by an arrival, a departure or a wake-up of that group.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Hashable, Iterator, Sequence
from itertools import count, islice
from typing import Any

from ._protocols import Filled, Limiter, Ordering, Room
from ._request import Request
from ._transitions import State


class Limits:
    """What bounds every batch: the size, and any further limits. Shared by all groups of a batcher."""

    __slots__ = ("limiters", "max_batch_size", "oversize_alone")

    def __init__(self, max_batch_size: int, limiters: Sequence[Limiter], oversize_alone: bool) -> None:
        self.max_batch_size = max_batch_size
        self.limiters = tuple(limiters)
        self.oversize_alone = oversize_alone

    def exceeds(self, request: Request) -> tuple[float, float] | None:
        """(needed, allowed) of the first limit that the request can never meet."""
        for limiter in self.limiters:
            excess = limiter.exceeds(request)
            if excess is not None:
                return excess
        return None


class LimitedRoom:
    """Room of one batch under all limits. Once it has refused a request it stays closed."""

    __slots__ = ("_left", "_rooms", "full")

    def __init__(self, limits: Limits) -> None:
        self._left = limits.max_batch_size
        self._rooms: list[Room] = [limiter.open() for limiter in limits.limiters]
        self.full = False

    def add(self, request: Request) -> bool:
        # A refusal half way may have used up room of the earlier limits, so nothing can be added after it.
        if self.full or not all(room.add(request) for room in self._rooms):
            self.full = True
            return False
        self._left -= 1
        self.full = self._left == 0 or any(room.full for room in self._rooms)
        return True


class WaitingGroup:
    """Requests that may share a batch; what a dispatch policy sees as `Group`."""

    __slots__ = ("_arrivals", "_filled", "_limits", "alert", "asleep", "key", "push", "queue", "ticket", "waiting")

    def __init__(self, key: Hashable, ordering: Ordering, limits: Limits) -> None:
        self.key = key
        self.queue = ordering.queue()
        self._limits = limits
        self._arrivals: deque[Request] | None = None if self.queue.arrival_order else deque()
        self.push = self.queue.push if self._arrivals is None else self._push_recorded
        self.waiting = 0
        self.asleep = False
        self.alert = self._arrivals is not None  # an arrival may change the rank, or has to wake the group
        self.ticket = 0
        self._filled: list[Request] | None = None

    def _push_recorded(self, request: Request) -> None:
        self.queue.push(request)
        assert self._arrivals is not None
        self._arrivals.append(request)

    def in_order(self) -> Iterator[Request]:
        return self.queue.in_order()

    def by_arrival(self) -> Iterator[Request]:
        """All that wait, oldest first; never asks a policy that could fail."""
        if self._arrivals is None:
            return self.queue.in_order()
        while self._arrivals and self._arrivals[0].state is not State.WAITING:
            self._arrivals.popleft()
        return (request for request in self._arrivals if request.state is State.WAITING)

    @property
    def oldest_arrival(self) -> float:
        return next(self.by_arrival()).arrival

    def room(self) -> Room:
        return LimitedRoom(self._limits)

    def fill(self) -> Filled:
        size = self._limits.max_batch_size
        if not self._limits.limiters:
            requests = list(islice(self.queue.in_order(), size))
            full = len(requests) == size
        else:
            requests, full = self._fill_limited()
        self._filled = requests
        return Filled(requests, full)

    def _fill_limited(self) -> tuple[list[Request], bool]:
        room = LimitedRoom(self._limits)
        requests: list[Request] = []
        for request in self.queue.in_order():
            if not room.add(request):
                # Only `oversize="alone"` admits a request that an empty room refuses.
                return requests or [request], True
            requests.append(request)
            if room.full:
                break
        return requests, room.full

    def allows(self, requests: Sequence[Request]) -> bool:
        """Whether these may leave as one batch: each waits here, once, and together they are within the limits."""
        if requests is self._filled:
            return True
        here = all(request.state is State.WAITING and request.group == self.key for request in requests)
        if not here or len({id(request) for request in requests}) < len(requests):
            return False
        room = LimitedRoom(self._limits)
        alone = len(requests) == 1 and self._limits.oversize_alone
        return alone or all(room.add(request) for request in requests)


class Groups:
    """Operations: find O(1), touch and pick O(log groups), sleep and rouse O(log groups)."""

    def __init__(self, ordering: Ordering, limits: Limits) -> None:
        self._ordering = ordering
        self._limits = limits
        self.by_key: dict[Hashable, WaitingGroup] = {}
        self._ready: list[tuple[Any, int, WaitingGroup]] = []
        self._asleep: list[tuple[float, int, WaitingGroup]] = []
        self._tickets = count(1)

    def open(self, key: Hashable) -> WaitingGroup:
        group = self.by_key[key] = WaitingGroup(key, self._ordering, self._limits)
        return group

    def discard(self, group: WaitingGroup) -> None:
        """Forgets a group that has become empty."""
        group.ticket = 0
        self.by_key.pop(group.key, None)

    def touch(self, group: WaitingGroup) -> None:
        """Makes a group ready, at the rank of its present first request."""
        self._push(group, group.queue.rank())

    def _push(self, group: WaitingGroup, rank: Any) -> None:
        group.ticket = next(self._tickets)
        group.asleep = False
        group.alert = not group.queue.arrival_order
        heapq.heappush(self._ready, (rank, group.ticket, group))

    def pick(self) -> WaitingGroup | None:
        """Takes out the ready group that holds the first request in order."""
        ready = self._ready
        while ready:
            rank, ticket, group = heapq.heappop(ready)
            if group.ticket != ticket:
                continue
            now_rank = group.queue.rank()
            # Service in another group can have put this one's first request back (a tenant's account is shared).
            if ready and rank < now_rank and ready[0][0] < now_rank:
                self._push(group, now_rank)
                continue
            return group
        return None

    def sleep(self, group: WaitingGroup, until: float) -> None:
        group.ticket = next(self._tickets)
        group.asleep = group.alert = True
        heapq.heappush(self._asleep, (until, group.ticket, group))

    def rouse(self, now: float) -> None:
        """Makes those ready that were to sleep until `now` or earlier."""
        while self._asleep and self._asleep[0][0] <= now:
            _, ticket, group = heapq.heappop(self._asleep)
            if group.ticket == ticket:
                self.touch(group)

    def rouse_all(self) -> None:
        """Makes every group ready: limits or the rules have changed."""
        self.rouse(math.inf)
        for group in self.by_key.values():
            self.touch(group)

    def next_wake(self) -> float:
        """When the first sleeper is due; infinity if none is."""
        while self._asleep and self._asleep[0][2].ticket != self._asleep[0][1]:
            heapq.heappop(self._asleep)
        return self._asleep[0][0] if self._asleep else math.inf
