"""The groups that have waiting requests, and which of them to ask next.

A group exists from its first waiting request to its last. It is *ready* (in a heap by the rank of its first request)
or *asleep* (its policy has named an instant to look again). An arrival wakes it. Departures can only make a rank grow,
so they touch no heap: a rank that is out of date is put right when it comes up. Picking a group costs O(log groups),
and each question to a policy is paid for by an arrival, a departure or a wake-up of that group.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Hashable, Iterable, Iterator, Sequence
from itertools import count, islice
from operator import attrgetter
from typing import Any, cast

from ._latency_model import LatencyModel
from ._protocols import Decision, Filled, Limiter, Ordering, Room
from ._request import Request
from ._running import Running
from ._transitions import State

_SLACK = 64  # stale entries that are never worth a clean-up


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
        if self.full:
            return False
        for room in self._rooms:
            if not room.add(request):
                self.full = True
                return False
        self._left -= 1
        self.full = self._left == 0
        for room in self._rooms:
            if room.full:
                self.full = True
        return True


class WaitingGroup:
    """Requests that may share a batch; what a dispatch policy sees as `Group`."""

    __slots__ = (
        "_arrivals",  # a record of our own where the ordering policy's cannot be relied on; None otherwise
        "_filled",  # what `fill` gave during the present decision: needs no second check
        "_limits",
        "_running",
        "alert",  # an arrival may change the rank, or has to wake the group
        "asleep",
        "key",
        "oversize",  # the decision just judged is a single request that is over a limit
        "push",
        "queue",
        "rank",  # of the first request when it was last asked for; by now it may have grown
        "ticket",  # of its only valid heap entry; 0 means none
        "waiting",
    )

    def __init__(self, key: Hashable, ordering: Ordering, limits: Limits, running: Running) -> None:
        self.key = key
        self.queue = ordering.queue()
        self._limits = limits
        self._running = running
        self._arrivals: deque[Request] | None = None if self.queue.arrival_order else deque()
        self.push = self.queue.push if self._arrivals is None else self._push_recorded
        self.waiting = 0
        self.asleep = self.oversize = False
        self.alert = self._arrivals is not None
        self.rank: Any = None
        self.ticket = 0
        self._filled: Sequence[Request] | None = None

    def _push_recorded(self, request: Request) -> None:
        self.queue.push(request)
        assert self._arrivals is not None
        if len(self._arrivals) > 2 * self.waiting + _SLACK:
            self._arrivals = deque(self.by_arrival())
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

    @property
    def max_batch_size(self) -> int:
        return self._limits.max_batch_size

    @property
    def running_batches(self) -> int:
        return len(self._running.batches)

    @property
    def deadline_order(self) -> bool:
        return hasattr(self.queue, "due_from")

    def due_from(self, instant: float) -> Iterator[Request]:
        found: Iterator[Request] = cast("Any", self.queue).due_from(instant)
        return found

    @property
    def latency_model(self) -> LatencyModel:
        return self._running.latency_model

    def room(self) -> Room:
        return LimitedRoom(self._limits)

    def fill(self) -> Filled:
        size = self._limits.max_batch_size
        self.oversize = False
        if not self._limits.limiters:
            requests = tuple(islice(self.queue.in_order(), size))
            full = len(requests) == size
        else:
            requests, full = self._fill_limited()
        self._filled = requests
        return Filled(requests, full)

    def _fill_limited(self) -> tuple[tuple[Request, ...], bool]:
        room = LimitedRoom(self._limits)
        requests: list[Request] = []
        for request in self.queue.in_order():
            if not room.add(request):
                # Only `oversize="alone"` admits a request that an empty room refuses.
                self.oversize = not requests
                return tuple(requests) or (request,), True
            requests.append(request)
            if room.full:
                break
        return tuple(requests), room.full

    def first_up(self) -> list[Request]:
        """Those who have to take the blame when a policy fails, so that it cannot strand anybody: who would have been
        next, or everyone, where the ordering itself is broken."""
        try:
            first = [request for request in self.fill().requests if self._wait_here((request,))]
        except Exception:  # which is the cause of the policy's fault, or would be of its next one
            first = []
        return first or list(self.by_arrival())

    def can_follow(self, decision: Decision, now: float) -> bool:
        """Whether this is a decision: it dispatches what may leave as one batch, or names an instant that lies ahead,
        or drops somebody. A drop of one who has left is allowed beside the others, and ignored."""
        filled, self._filled = self._filled, None
        if not decision.drop and decision.dispatch and decision.dispatch is filled and self._arrivals is None:
            return True  # what nearly every decision is
        dropped = {request for request in decision.drop if request.state is State.WAITING}
        if not self._wait_here(dropped):
            return False
        if decision.dispatch:
            return self._may_leave(decision.dispatch, filled) and dropped.isdisjoint(decision.dispatch)
        if decision.wake_at is not None:
            return now < decision.wake_at < math.inf
        return bool(dropped)

    def _wait_here(self, requests: Iterable[Request]) -> bool:
        """A request of another batcher may have the same key; one that was never submitted has no limits at all."""
        limits, waiting, key = self._limits, State.WAITING, self.key
        for request in requests:
            if getattr(request, "limits", None) is not limits or request.state is not waiting or request.group != key:
                return False
        return True

    def _may_leave(self, requests: Sequence[Request], filled: Sequence[Request] | None) -> bool:
        """Each waits here, once, and together they are within the limits."""
        if not self._wait_here(requests) or len(set(requests)) < len(requests):
            return False
        if requests is filled:
            return True
        fit = len(requests) <= self._limits.max_batch_size
        if fit and self._limits.limiters:
            room = LimitedRoom(self._limits)
            fit = all([room.add(request) for request in requests])  # `map` takes a StopIteration for its end
        self.oversize = not fit and len(requests) == 1 and self._limits.oversize_alone
        return fit or self.oversize


class GroupHeap:
    """Groups by a key, smallest first. Operations: push, first, pop O(log groups) amortised.

    Entries are never searched for: each carries a ticket, and one whose ticket is no longer its group's is stale. It
    goes when it comes up, or with all others when stale ones are the larger half.
    """

    __slots__ = ("entries",)

    def __init__(self) -> None:
        self.entries: list[tuple[Any, int, WaitingGroup]] = []

    def push(self, key: Any, group: WaitingGroup, ticket: int, groups: int) -> None:
        """`groups`: how many there are, all told."""
        if len(self.entries) > 2 * groups + _SLACK:
            self.entries = [entry for entry in self.entries if entry[2].ticket == entry[1]]
            heapq.heapify(self.entries)
        group.ticket = ticket
        heapq.heappush(self.entries, (key, ticket, group))

    def first(self) -> tuple[Any, int, WaitingGroup] | None:
        while self.entries and self.entries[0][2].ticket != self.entries[0][1]:
            heapq.heappop(self.entries)
        return self.entries[0] if self.entries else None

    def pop(self) -> WaitingGroup | None:
        """Takes out the first group."""
        return heapq.heappop(self.entries)[2] if self.first() is not None else None


class Groups:
    """Operations: find O(1), touch, ready, sleep, pick and rouse O(log groups)."""

    def __init__(self, ordering: Ordering, limits: Limits, running: Running) -> None:
        self._ordering = ordering
        self._limits = limits
        self._running = running
        self.by_key: dict[Hashable, WaitingGroup] = {}
        self._ready = GroupHeap()
        self.asleep = GroupHeap()
        self._tickets = count(1)
        self._spare: WaitingGroup | None = None

    def open(self, key: Hashable) -> WaitingGroup:
        group = self._spare or WaitingGroup(key, self._ordering, self._limits, self._running)
        self._spare = None
        group.key = key
        self.by_key[key] = group
        return group

    def forget(self, group: WaitingGroup) -> None:
        group.ticket = 0
        self.by_key.pop(group.key, None)

    def discard(self, group: WaitingGroup) -> None:
        """Forgets a group that has become empty; `forget`, written out."""
        group.ticket = 0
        self.by_key.pop(group.key, None)
        if group.queue.arrival_order:  # nothing is left in it: the next group, most often the same, can have it
            group.key = None
            self._spare = group

    def everyone(self) -> Iterator[Request]:
        """All that wait, group by group."""
        return (request for group in self.by_key.values() for request in group.by_arrival())

    def ordered_by(self, ordering: Ordering) -> Groups:
        """The same requests in the order of another policy, every group ready. O(n log n)."""
        groups = Groups(ordering, self._limits, self._running)
        for request in sorted(self.everyone(), key=attrgetter("sequence")):
            group = groups.by_key.get(request.group) or groups.open(request.group)
            group.push(request)
            group.waiting += 1
        for group in groups.by_key.values():
            groups.touch(group)
        return groups

    def touch(self, group: WaitingGroup) -> None:
        """Makes a group ready after an arrival, at the rank of its present first request.

        One that is ready at a smaller rank stays there, so that a group has few stale entries however many arrive.
        """
        rank = group.queue.rank()
        if group.asleep or not group.ticket or rank < group.rank:
            group.rank = rank
            self.ready(group)

    def ready(self, group: WaitingGroup) -> None:
        """Makes a group ready at the rank it had last; asks no policy."""
        group.asleep = False
        group.alert = not group.queue.arrival_order
        self._ready.push(group.rank, group, next(self._tickets), len(self.by_key))

    def pick(self) -> WaitingGroup | None:
        """Takes out the ready group that holds the first request in order."""
        entries = self._ready.entries
        if len(entries) == 1 and entries[0][1] == entries[0][2].ticket:
            return entries.pop()[2]  # the usual case: all requests are of one group
        outdated = len(self.by_key)  # at most; a rank that grows with every look must not keep us here
        while (group := self._ready.pop()) is not None:
            following = self._ready.first()
            if following is None or not outdated:
                return group
            # Its first request has left, or service in another group has put it back (a tenant's account is shared).
            group.rank = group.queue.rank()
            if not following[0] < group.rank:
                return group
            outdated -= 1
            self.ready(group)
        return None

    def sleep(self, group: WaitingGroup, until: float) -> None:
        group.asleep = group.alert = True
        self.asleep.push(until, group, next(self._tickets), len(self.by_key))

    def rouse(self, now: float) -> None:
        """Makes those ready that were to sleep until `now` or earlier."""
        while (sleeper := self.asleep.first()) is not None and sleeper[0] <= now:
            self.ready(sleeper[2])

    def rouse_all(self) -> None:
        """Makes every sleeper due: limits or the rules have changed."""
        for group in self.by_key.values():
            if group.asleep:
                self.sleep(group, -math.inf)

    def next_wake(self) -> float:
        """When the first sleeper is due; infinity if none is."""
        sleeper = self.asleep.first()
        return math.inf if sleeper is None else sleeper[0]
