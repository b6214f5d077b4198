"""What the measurements share: the stand-in for a model, and small statistics."""

from __future__ import annotations

import time
from collections.abc import Callable

Measured = dict[str, float]
MICRO, MILLI = 1e6, 1e3


def echo(items: list[int]) -> list[int]:
    return items


def model(fixed: float, per_item: float) -> Callable[[list[int]], list[int]]:
    """A stand-in for a model on a device: it takes time, and neither the CPU nor the interpreter lock."""

    def run(items: list[int]) -> list[int]:
        time.sleep(fixed + per_item * len(items))
        return items

    return run


def quantile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(round(share * (len(ordered) - 1)), len(ordered) - 1)]


def mean(values: list[int]) -> float:
    return sum(values) / len(values) if values else 0.0
