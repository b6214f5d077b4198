"""How long a batch takes, learned from those that ran."""

from __future__ import annotations

import math


class LatencyModel:
    """Placeholder shape; see the class docstring once it is written."""

    def __init__(self) -> None:
        self.last_sample = -math.inf

    def observe(self, size: int, longest: float, seconds: float, now: float) -> None:
        raise NotImplementedError

    def predict(self, size: int, longest: float = 1) -> float:
        raise NotImplementedError

    def estimate(self) -> LatencyEstimate:
        raise NotImplementedError


class LatencyEstimate:
    """Placeholder."""
