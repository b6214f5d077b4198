"""A batch: the requests of one execution, and what is known of it while it runs."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

from ._request import Request
from ._transitions import TRANSITIONS, Event, State

# The hot loops assign these; they are looked up in the table so that the table stays the only truth.
_DISPATCHED = TRANSITIONS[State.WAITING, Event.DISPATCH]
_COMPLETED = TRANSITIONS[State.RUNNING, Event.COMPLETE]
_FAILED = TRANSITIONS[State.RUNNING, Event.FAIL]


class Batch:
    """Requests that an executor has taken; closed at that moment and never topped up.

    Making one moves its requests from WAITING to RUNNING, `end` moves them on.
    """

    __slots__ = (
        "_cost",
        "_longest",
        "batcher",  # the runtime's: whose batch it is, None before its start; opaque here
        "done",  # the core has its outcomes; nothing more will be delivered
        "fill",  # size / max_batch_size at dispatch
        "group",  # the group key that all its requests share
        "handle",  # the runtime's: what cancels it; opaque here
        "longest_delay",  # the longest time that one of its requests waited
        "live",  # how many callers still wait for it; 0 means nobody is interested any more
        "number",  # 1, 2, 3, ... per batcher
        "queue_delay",  # the time that its requests waited, added up
        "reason",  # why it left: full, max_wait, executor_free, drain, no_clock, oversize, ...
        "requests",
        "size",
        "started",  # instant of dispatch
    )

    def __init__(self, number: int, group: Hashable, requests: list[Request], reason: str, now: float) -> None:
        self.number = number
        self.group = group
        self.requests = requests
        self.size = self.live = len(requests)
        self.reason = reason
        self.started = now
        self._cost: float | None = None
        self._longest: float | None = None
        self.fill: float = 0
        self.done = False
        self.batcher: Any = None
        self.handle: Any = None
        total = longest = 0.0
        for request in requests:
            request.state = _DISPATCHED
            request.batch = self
            delay = now - request.arrival
            total += delay
            if delay > longest:
                longest = delay
        self.queue_delay = total
        self.longest_delay = longest

    @property
    def cost(self) -> float:
        """Sum of its requests' costs; to be read first while it runs, since few want it and it costs a pass."""
        if self._cost is None:
            self._cost = sum([request.cost for request in self.requests])
        return self._cost

    @property
    def longest(self) -> float:
        """The largest cost among its requests, what padding rounds all others up to; to be read first likewise."""
        if self._longest is None:
            self._longest = max([request.cost for request in self.requests])
        return self._longest

    def end(self, outcomes: Sequence[Any], clean: bool) -> list[Request]:
        """Gives each request whose caller is still there its outcome and final state, and returns those.

        clean: there is no exception among the outcomes.
        """
        self.done = True
        everyone_is_there = self.live == self.size
        self.live = 0
        requests, self.requests = self.requests, []  # a request knows its batch; the other way would make a cycle
        if clean and everyone_is_there:  # the usual end, in the shortest loop
            for request, outcome in zip(requests, outcomes, strict=True):
                request.state = _COMPLETED
                request.outcome = outcome
            return requests
        ended = []
        for request, outcome in zip(requests, outcomes, strict=True):
            if request.state is _DISPATCHED:
                request.state = _FAILED if isinstance(outcome, BaseException) else _COMPLETED
                request.outcome = outcome
                ended.append(request)
        return ended

    @property
    def abandoned(self) -> bool:
        """Whether every caller has left while it runs."""
        return self.live == 0 and not self.done

    def __repr__(self) -> str:
        return f"<Batch {self.number} size={self.size} reason={self.reason}>"
