"""The batches that run now, and what is learned from those that ran."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ._batch import Batch
from ._latency_model import LatencyModel


class Running:
    """One per batcher, shared with its groups. Learns how long batches take once somebody has asked for it."""

    __slots__ = ("batches", "model")

    def __init__(self) -> None:
        self.batches: dict[int, Batch] = {}  # by number, in the order of dispatch
        self.model: LatencyModel | None = None

    @property
    def latency_model(self) -> LatencyModel:
        if self.model is None:
            self.model = LatencyModel()
        return self.model

    def learn(self, batch: Batch, outcomes: Sequence[Any], clean: bool, now: float) -> None:
        """Takes the batch, which has not been ended yet, as a sample. One in which everything failed says nothing."""
        if self.model is not None and (clean or not all(isinstance(outcome, BaseException) for outcome in outcomes)):
            self.model.observe(batch.size, batch.longest, now - batch.started, now)
