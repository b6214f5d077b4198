"""Finds the batch size that keeps to an execution time, for functions whose time nothing predicts.

Additive increase, multiplicative decrease, as Clipper has it (NSDI 2017). It looks at execution times and not at how
long requests wait, so it is no deadline policy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import timedelta

from ..._context import number
from ..._core._batch import Batch
from ..._core._request import Request


@dataclass(frozen=True, slots=True)
class AimdBatchSize:
    """Adapts the batch size so that a batch takes at most `target` seconds.

    The cap begins at 1. A batch that used all of it and kept to the target raises it; one that took longer lowers it.
    A batch of one is always allowed, however long it takes.

    target: seconds (or a timedelta), finite, above 0.
    increase: what is added to the cap, above 0.
    backoff: what the cap is multiplied by, between 0 and 1.

    Raises ValueError for a value out of range, TypeError for what is not a number.

    >>> from batchlib import batched
    >>> from batchlib.policies import AimdBatchSize, Greedy
    >>> double = batched(lambda xs: [2 * x for x in xs], dispatch=(Greedy(), AimdBatchSize(target=0.05)))
    >>> double.call(4)
    8
    """

    target: float | timedelta
    increase: float = 1.0
    backoff: float = 0.9

    def __post_init__(self) -> None:
        _between("target", self._seconds, math.inf, "a finite number of seconds above 0")
        _between("increase", self.increase, math.inf, "a finite number above 0")
        _between("backoff", self.backoff, 1, "a number between 0 and 1")

    @property
    def _seconds(self) -> float:
        return self.target.total_seconds() if isinstance(self.target, timedelta) else self.target

    def start(self) -> AimdLimiter:
        return AimdLimiter(self._seconds, self.increase, self.backoff)


def _between(name: str, value: float, end: float, legal: str) -> None:
    if not 0 < number(name, value, legal) < end:
        raise ValueError(f"{name} must be {legal}, not {value!r}")


class AimdLimiter:
    """The cap of one batcher, a fraction: what counts is its whole part."""

    def __init__(self, target: float, increase: float, backoff: float) -> None:
        self._target = target
        self._increase = increase
        self._backoff = backoff
        self.cap = 1.0

    def open(self) -> SizeRoom:
        return SizeRoom(int(self.cap))

    def exceeds(self, request: Request) -> tuple[float, float] | None:
        return None

    def observe(self, batch: Batch, execution_time: float) -> None:
        if execution_time > self._target:
            self.cap = max(1.0, self.cap * self._backoff)
        elif batch.size >= int(self.cap):  # a smaller one does not show that a larger one would keep to the target
            self.cap += self._increase


class SizeRoom:
    """Counts down."""

    __slots__ = ("_left",)

    def __init__(self, size: int) -> None:
        self._left = size

    def add(self, request: Request) -> bool:
        self._left -= 1
        return self._left >= 0

    @property
    def full(self) -> bool:
        return self._left <= 0
