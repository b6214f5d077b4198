"""What a simulation has seen, and the figures that policies are compared by."""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import NamedTuple

from .._context import UNSET, Unset
from .._core._statistics import Statistics
from .._core._transitions import State


class RequestRecord(NamedTuple):
    """One request of a simulation. Instants are on the simulation's clock, in seconds.

    state: how it ended; WAITING or RUNNING where the simulation was cut short. started: instant at which its batch was
    dispatched; None if it never ran. ended: None if it has not. batch: the number of its batch, or None.

    >>> from batchlib.simulation import Affine, Workload, simulate
    >>> request, = simulate({}, Workload.trace([1.0]), Affine(0.5, 0.25)).requests
    >>> request.state.value, request.started, request.ended, request.latency
    ('completed', 1.0, 1.75, 0.75)
    """

    arrival: float
    cost: float
    tenant: Hashable
    priority: float
    deadline: float | None
    group: Hashable
    state: State
    started: float | None
    ended: float | None
    batch: int | None

    @property
    def queue_delay(self) -> float | None:
        """Seconds from arrival to dispatch; None if it never ran."""
        return None if self.started is None else self.started - self.arrival

    @property
    def latency(self) -> float | None:
        """Seconds from arrival to its end, whatever that was; None if it has not ended."""
        return None if self.ended is None else self.ended - self.arrival

    @property
    def in_time(self) -> bool:
        """Whether it got a result by its deadline, or had none."""
        late = self.ended is not None and self.deadline is not None and self.ended > self.deadline
        return self.state is State.COMPLETED and not late


class BatchRecord(NamedTuple):
    """One batch of a simulation. cost: of all its requests; longest: the largest of their costs; reason: why it left.

    ended: when its outcomes are there, which where the simulation was cut short may be after the end.

    >>> from batchlib.simulation import Affine, Workload, simulate
    >>> batch, = simulate({}, Workload.trace([1.0, 1.0]), Affine(0.5, 0.25)).batches
    >>> batch.size, batch.reason, batch.ended
    (2, 'executor_free', 2.0)
    """

    number: int
    size: int
    cost: float
    longest: float
    reason: str
    group: Hashable
    started: float
    ended: float


@dataclass(frozen=True, slots=True)
class Simulation:
    """What happened. A mean or quantile over nothing is NaN.

    requests: in the order of arrival. batches: in the order of dispatch. start, end: the simulation's first instant and
    that of the last event. statistics: the batcher's own, at the end. faults: what policies raised, which where it
    concerns a request is its outcome.

    >>> from batchlib.simulation import Affine, Workload, simulate
    >>> simulation = simulate({}, Workload.trace([0.0, 0.5, 0.5]), Affine(base=1.0, per_item=0.5))
    >>> [batch.size for batch in simulation.batches], simulation.mean_batch_size
    ([1, 2], 1.5)
    >>> simulation.latency(1.0), simulation.execution_time
    (3.0, 3.5)
    """

    requests: tuple[RequestRecord, ...]
    batches: tuple[BatchRecord, ...]
    start: float
    end: float
    statistics: Statistics
    faults: tuple[Exception, ...] = ()

    def where(
        self,
        *,
        tenant: Hashable | Unset = UNSET,
        priority: float | Unset = UNSET,
        group: Hashable | Unset = UNSET,
    ) -> Simulation:
        """The same for some requests only: those that carried these values.

        `batches` are those in which they ran, whoever else was in them; `statistics` and `faults` stay those of all.
        """
        wanted = {"tenant": tenant, "priority": priority, "group": group}
        given = {name: value for name, value in wanted.items() if value is not UNSET}
        requests = [
            request
            for request in self.requests
            if all(getattr(request, name) == value for name, value in given.items())
        ]
        numbers = {request.batch for request in requests}
        batches = [batch for batch in self.batches if batch.number in numbers]
        return replace(self, requests=tuple(requests), batches=tuple(batches))

    @property
    def completed(self) -> int:
        """How many requests got a result."""
        return sum([request.state is State.COMPLETED for request in self.requests])

    @property
    def goodput(self) -> int:
        """How many requests got a result by their deadline, or had none: a count, to be held against a reference's."""
        return sum([request.in_time for request in self.requests])

    @property
    def duration(self) -> float:
        """Seconds from start to end."""
        return self.end - self.start

    @property
    def throughput(self) -> float:
        """Requests completed per second, over the whole duration."""
        return self.completed / self.duration if self.duration else math.nan

    @property
    def mean_latency(self) -> float:
        """Mean seconds from arrival to result, of the requests that got one."""
        latencies = self._latencies()
        return math.fsum(latencies) / len(latencies) if latencies else math.nan

    def latency(self, quantile: float) -> float:
        """The smallest latency that at least this share of the completed requests did not exceed, in seconds.

        quantile: above 0, at most 1: 0.5 for the median, 0.99, 1 for the longest. ValueError otherwise.
        """
        if not 0 < quantile <= 1:
            raise ValueError(f"quantile must be a number above 0 and at most 1, not {quantile!r}")
        latencies = sorted(self._latencies())
        if not latencies:
            return math.nan
        return latencies[math.ceil(round(quantile * len(latencies), 9)) - 1]  # 0.07 * 100 is a little over 7

    @property
    def mean_batch_size(self) -> float:
        """Requests per batch."""
        return sum([batch.size for batch in self.batches]) / len(self.batches) if self.batches else math.nan

    @property
    def execution_time(self) -> float:
        """Seconds that executors spent on batches, added up."""
        return math.fsum([batch.ended - batch.started for batch in self.batches])

    @property
    def waste(self) -> float:
        """The share of padding in what was computed, where every batch is padded to its longest: from 0 to 1."""
        padded = sum([batch.size * batch.longest for batch in self.batches])
        return 1 - sum([batch.cost for batch in self.batches]) / padded if padded else math.nan

    def _latencies(self) -> list[float]:
        return [
            request.ended - request.arrival
            for request in self.requests
            if request.state is State.COMPLETED and request.ended is not None
        ]
