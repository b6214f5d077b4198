"""Bounds what a padded batch costs: every item counts as much as the longest one."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..._context import number
from ..._core._request import Request
from ..structures._lengths import longest


@dataclass(frozen=True, slots=True)
class PaddedCost:
    """Allows requests to share a batch while items x longest cost is at most `max_cost`.

    For functions that pad: eight texts of 3 tokens and one of 500 are computed as nine of 500.

    max_cost: in the unit of `cost=`, finite and above 0. ValueError otherwise, TypeError for what is not a number.

    >>> from batchlib import batched
    >>> from batchlib.policies import Greedy, PaddedCost
    >>> upper = batched(lambda ts: [t.upper() for t in ts], cost=len, dispatch=(Greedy(), PaddedCost(100)))
    >>> upper.call("ab")
    'AB'
    """

    max_cost: float

    def __post_init__(self) -> None:
        legal = "a finite number above 0"
        if not 0 < number("max_cost", self.max_cost, legal) < math.inf:
            raise ValueError(f"max_cost must be {legal}, not {self.max_cost!r}")

    def start(self) -> PaddedCostLimiter:
        return PaddedCostLimiter(self.max_cost)


class PaddedCostLimiter:
    """Nothing is remembered from batch to batch."""

    def __init__(self, max_cost: float) -> None:
        self.max_cost = max_cost

    def open(self) -> PaddedCostRoom:
        return PaddedCostRoom(self.max_cost)

    def exceeds(self, request: Request) -> tuple[float, float] | None:
        return (request.cost, self.max_cost) if request.cost > self.max_cost else None


class PaddedCostRoom:
    """Knows how many there are and how long the longest is, on each of several lengths."""

    __slots__ = ("_longest", "_max_cost", "_size")

    def __init__(self, max_cost: float) -> None:
        self._max_cost = max_cost
        self._longest: float = 0
        self._size = 0

    def add(self, request: Request) -> bool:
        row = longest(self._longest, request.cost)
        if (self._size + 1) * row > self._max_cost:
            return False
        self._longest = row
        self._size += 1
        return True

    @property
    def full(self) -> bool:
        """Even an item of no length would be padded to the longest."""
        return (self._size + 1) * self._longest > self._max_cost
