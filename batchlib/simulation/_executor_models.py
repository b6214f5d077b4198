"""How long a batch takes, told to the simulator instead of measured."""

from __future__ import annotations

import bisect
import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from .._context import number
from .._core._batch import Batch

ExecutorModel = Callable[[Batch], float]
"""Gives the seconds that a batch takes. It may look at `number`, `size`, `cost`, `group` and `requests`."""


class SizedModel(Protocol):
    """What models that know a batch by its size and longest cost have in common."""

    __slots__ = ()

    def seconds(self, size: int, longest: float = 1) -> float:
        """The execution time of a batch of `size` requests whose longest costs `longest`."""
        ...

    def __call__(self, batch: Batch) -> float:
        """The execution time of a batch, in seconds."""
        return self.seconds(batch.size, max([request.cost for request in batch.requests]))

    def capacity(self, max_batch_size: int, longest: float = 1) -> float:
        """Requests per second that one executor completes in full batches."""
        return max_batch_size / self.seconds(max_batch_size, longest)

    def with_stragglers(self, share: float, factor: float, seed: int = 0) -> Stragglers:
        """The same, but a share of the batches takes `factor` times as long; see `Stragglers`."""
        return Stragglers(self, share, factor, seed)


@dataclass(frozen=True, slots=True)
class Affine(SizedModel):
    """Execution time in seconds: base + per_item * size + per_cost * size * longest cost.

    base: of every batch, above 0 or 0. per_item: for each request. per_cost: for each unit of padded cost, which is
    size * longest. All finite, at least 0, not all 0. ValueError otherwise.

    >>> from batchlib.simulation import Affine
    >>> model = Affine(base=0.005, per_item=0.001)
    >>> model.seconds(32)
    0.037
    >>> round(model.capacity(32))
    865
    """

    base: float
    per_item: float
    per_cost: float = 0.0

    def __post_init__(self) -> None:
        for name in ("base", "per_item", "per_cost"):
            _seconds(name, getattr(self, name))
        if not (self.base or self.per_item or self.per_cost):
            raise ValueError("one of base, per_item and per_cost must be above 0: a batch takes some time")

    def seconds(self, size: int, longest: float = 1) -> float:
        """The execution time of a batch of `size` requests whose longest costs `longest`."""
        return self.base + self.per_item * size + self.per_cost * size * longest

    def __call__(self, batch: Batch) -> float:
        """The execution time of a batch, in seconds."""
        if not self.per_cost:  # the longest need not be looked for
            return self.base + self.per_item * batch.size
        return self.seconds(batch.size, max([request.cost for request in batch.requests]))


@dataclass(frozen=True, slots=True)
class Table(SizedModel):
    """Execution times that were measured at some batch sizes.

    times: seconds by size; sizes at least 1, seconds finite and above 0.
    step: whether a batch takes as long as the next size that was measured, as where batches are padded up to it;
        otherwise times in between lie on a straight line. Below the smallest size its time counts.

    Raises ValueError for other times, and for a batch larger than the largest size.

    >>> from batchlib.simulation import Table
    >>> Table({1: 2.0, 8: 9.0}).seconds(4)
    5.0
    >>> Table({1: 2.0, 8: 9.0}, step=True).seconds(4)
    9.0
    """

    times: Mapping[int, float]
    step: bool = False
    _sizes: list[int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.times:
            raise ValueError("times must have the seconds of at least one batch size")
        for size, seconds in self.times.items():
            if not number("size", size, "a whole number >= 1") >= 1:
                raise ValueError(f"size must be a whole number >= 1, not {size!r}")
            if not _seconds(f"times[{size}]", seconds):
                raise ValueError(f"times[{size}] must be above 0: a batch takes some time")
        object.__setattr__(self, "times", dict(self.times))
        object.__setattr__(self, "_sizes", sorted(self.times))

    def seconds(self, size: int, longest: float = 1) -> float:
        """The execution time of a batch of `size` requests; their costs do not matter."""
        place = bisect.bisect_left(self._sizes, size)
        if place == len(self._sizes):
            raise ValueError(f"the largest size in the table is {self._sizes[-1]}; there is no time for {size}")
        above = self._sizes[place]
        if self.step or place == 0 or above == size:
            return self.times[above]
        below = self._sizes[place - 1]
        share = (size - below) / (above - below)
        return self.times[below] + share * (self.times[above] - self.times[below])


@dataclass(frozen=True, slots=True)
class Stragglers:
    """A model some of whose batches take longer, drawn by the number of the batch.

    The draw depends on nothing else, so every policy meets the same stragglers.

    model: the execution time without them. share: of the batches, from 0 to 1. factor: how many times as long they
    take, finite, at least 1. ValueError otherwise.

    >>> from batchlib.simulation import Affine
    >>> model = Affine(base=0.005, per_item=0.001).with_stragglers(share=0.05, factor=5, seed=1)
    >>> [number for number in range(1, 1001) if model.straggles(number)][:5]
    [19, 111, 216, 228, 247]
    """

    model: ExecutorModel
    share: float
    factor: float
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= number("share", self.share) <= 1:
            raise ValueError(f"share must be a number from 0 to 1, not {self.share!r}")
        if not 1 <= number("factor", self.factor) < math.inf:
            raise ValueError(f"factor must be a finite number >= 1, not {self.factor!r}")

    def straggles(self, number: int) -> bool:
        """Whether the batch of this number is one of them."""
        return random.Random(f"{self.seed} {number}").random() < self.share

    def __call__(self, batch: Batch) -> float:
        """The execution time of a batch, in seconds."""
        return self.model(batch) * (self.factor if self.straggles(batch.number) else 1)


def _seconds(name: str, value: float) -> float:
    legal = "a finite number of seconds >= 0"
    if not 0 <= number(name, value, legal) < math.inf:
        raise ValueError(f"{name} must be {legal}, not {value!r}")
    return value
