"""Weights of tenants: what may be one."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping

from ..._context import number

_LEGAL = "a finite number above 0"


def checked_weight(name: str, value: object) -> float:
    """TypeError if it is no number, ValueError if it is none above 0."""
    weight = number(name, value, _LEGAL)
    if not 0 < weight < math.inf:
        raise ValueError(f"{name} must be {_LEGAL}, not {value!r}")
    return weight


def checked_weights(weights: object) -> dict[Hashable, float]:
    """A copy, which nobody else can change. TypeError if it is no mapping."""
    if not isinstance(weights, Mapping):
        raise TypeError(f"weights must map tenants to numbers, or be None, not {weights!r}")
    return {tenant: checked_weight(f"the weight of {tenant!r}", value) for tenant, value in weights.items()}
