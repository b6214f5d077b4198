"""Whole numbers of at least 1, as policies are given them."""

from __future__ import annotations

import math

from ..._context import number


def checked_count(name: str, value: object) -> int:
    """TypeError if it is no number, ValueError if it is none of these."""
    legal = "a whole number >= 1"
    count = number(name, value, legal)
    if not 1 <= count < math.inf or count % 1:
        raise ValueError(f"{name} must be {legal}, not {value!r}")
    return int(count)
