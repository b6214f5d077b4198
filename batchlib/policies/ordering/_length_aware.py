"""Requests of near lengths share a batch, so that little of it is padding."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, islice
from operator import attrgetter

from ..._core._protocols import Ordering, OrderingPolicy, Queue
from ..._core._request import Request
from ..structures._counts import checked_count
from ..structures._turns import checked_inside
from ._fifo import FIFO


@dataclass(frozen=True, slots=True)
class LengthAware:
    """Serves the first request of the order inside together with those of nearest length; a length is a `cost`.

    The first one inside is always taken; then come the others of the first `window`, by the ratio of their lengths to
    its own; then whoever is behind the window. For batches that are padded to their longest: see `PaddedCost`.

    within: the ordering policy that says who is first. TypeError if it is none.
    window: how many to choose from, a whole number of at least 1; ValueError otherwise. A decision costs as much time.

    >>> from batchlib import batched
    >>> from batchlib.policies import LengthAware
    >>> upper = batched(lambda ts: [t.upper() for t in ts], cost=len, ordering=LengthAware(window=64))
    >>> upper.call("ab")
    'AB'
    """

    within: OrderingPolicy = FIFO
    window: int = 256

    needs_runs = True

    def __post_init__(self) -> None:
        checked_inside(self.within)
        object.__setattr__(self, "window", checked_count("window", self.window))

    def start(self) -> LengthAwareOrdering:
        return LengthAwareOrdering(self.within.start(), self.window)


class LengthAwareOrdering:
    """Remembers nothing: what spans the groups is inside."""

    def __init__(self, inside: Ordering, window: int) -> None:
        self._inside = inside
        self._window = window

    @property
    def tenants_tracked(self) -> int:
        return getattr(self._inside, "tenants_tracked", 0)

    def queue(self) -> LengthAwareQueue:
        return LengthAwareQueue(self._inside.queue(), self._window)


class LengthAwareQueue:
    """Operations: those of the queue inside; in_order O(window log window) more."""

    arrival_order = False

    def __init__(self, inside: Queue, window: int) -> None:
        self._inside = inside
        self._window = window
        self.push = inside.push
        self.rank = inside.rank
        self.dispatched = inside.dispatched
        self.removed = inside.removed

    def in_order(self) -> Iterator[Request]:
        inside = self._inside.in_order()
        window = list(islice(inside, self._window))
        return chain(_nearest(window), inside) if window else inside


def _nearest(window: list[Request]) -> Iterator[Request]:
    """The first, then the others by the ratio of their lengths to its own, merged from both sides while asked for."""
    length, by_length = window[0].cost, attrgetter("cost")
    longer = sorted([each for each in window if each.cost >= length], key=by_length)  # begins with the first
    shorter = sorted([each for each in window if each.cost < length], key=by_length, reverse=True)
    yield longer[0]
    above, below = 1, 0
    while above < len(longer) and below < len(shorter):
        # length / shorter <= longer / length, but nothing is divided by a length of 0
        if shorter[below].cost * longer[above].cost >= length * length:
            yield shorter[below]
            below += 1
        else:
            yield longer[above]
            above += 1
    yield from longer[above:]
    yield from shorter[below:]
