"""The batches that run now, and what is learned from those that ran."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ._batch import Batch
from ._latency_model import LatencyEstimate, LatencyModel


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
        if clean or not all(isinstance(outcome, BaseException) for outcome in outcomes):
            self.latency_model.observe(batch.size, batch.longest, now - batch.started, now)

    def estimate(self) -> LatencyEstimate | None:
        """What has been learned; None if nobody has asked for it."""
        return None if self.model is None else self.model.estimate()
