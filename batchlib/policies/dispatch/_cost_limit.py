"""Bounds the sum of costs in a batch: tokens, pixels, rows."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..._context import number
from ..._core._request import Request


@dataclass(frozen=True, slots=True)
class CostLimit:
    """Allows requests to share a batch while their costs add up to at most `max_cost`.

    max_cost: in the unit of `cost=`, finite and above 0. ValueError otherwise, TypeError for what is not a number.

    >>> from batchlib import batched
    >>> from batchlib.policies import CostLimit, Greedy
    >>> upper = batched(lambda ts: [t.upper() for t in ts], cost=len, dispatch=(Greedy(), CostLimit(100)))
    >>> upper.call("ab")
    'AB'
    """

    max_cost: float

    def __post_init__(self) -> None:
        legal = "a finite number above 0"
        if not 0 < number("max_cost", self.max_cost, legal) < math.inf:
            raise ValueError(f"max_cost must be {legal}, not {self.max_cost!r}")

    def start(self) -> CostLimiter:
        return CostLimiter(self.max_cost)


class CostLimiter:
    """Nothing is remembered from batch to batch."""

    def __init__(self, max_cost: float) -> None:
        self.max_cost = max_cost

    def open(self) -> CostRoom:
        return CostRoom(self.max_cost)

    def exceeds(self, request: Request) -> tuple[float, float] | None:
        return (request.cost, self.max_cost) if request.cost > self.max_cost else None


class CostRoom:
    """Counts up instead of down, so that float costs which add up to the limit exactly still fit."""

    __slots__ = ("_max_cost", "_used")

    def __init__(self, max_cost: float) -> None:
        self._max_cost = max_cost
        self._used: float = 0

    def add(self, request: Request) -> bool:
        used = self._used + request.cost
        if used > self._max_cost:
            return False
        self._used = used
        return True

    @property
    def full(self) -> bool:
        return self._used >= self._max_cost
