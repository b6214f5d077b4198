"""Whole numbers of at least 1, as policies are given them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from ..._context import number


def checked_count(name: str, value: object) -> int:
    """TypeError if it is no number, ValueError if it is none of these."""
    legal = "a whole number >= 1"
    count = number(name, value, legal)
    if not 1 <= count < math.inf or count % 1:
        raise ValueError(f"{name} must be {legal}, not {value!r}")
    return int(count)


def checked_counts(name: str, values: Any) -> tuple[int, ...]:
    """Each once, the smallest first. TypeError if they cannot be counted through, ValueError if there is none."""
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise TypeError(f"{name} must be whole numbers >= 1, or None for any, not {values!r}")
    counts = tuple(sorted({checked_count(name, value) for value in values}))
    if not counts:
        raise ValueError(f"{name} must be at least one whole number >= 1, or None for any, not {values!r}")
    return counts
