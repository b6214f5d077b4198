"""The books of a batcher: counters that the core keeps, and the frozen snapshot that users see."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ._batch import Batch
from ._latency_model import LatencyEstimate
from ._protocols import WaitingRoom
from ._request import Request
from ._transitions import State

_COMPLETED = State.COMPLETED


@dataclass(frozen=True, slots=True)
class Statistics:
    """A snapshot of one batcher.

    Always true: submitted = completed + failed + cancelled + expired + shed + rejected + waiting + running. `Closed`
    counts as rejected; a caller who leaves a running batch counts at once; each part of an item that `oversize="split"`
    has cut counts as a request. Ages and times are seconds; a mean over nothing is None.
    """

    submitted: int = 0
    completed: int = 0
    failed: int = 0
    cancelled: int = 0
    expired: int = 0
    shed: int = 0
    rejected: int = 0
    waiting: int = 0
    running: int = 0
    batches: int = 0
    """Batches dispatched so far, running ones included."""
    running_batches: int = 0
    groups: int = 0
    """Groups that have waiting requests; an empty one leaves no state."""
    mean_batch_size: float | None = None
    mean_fill: float | None = None
    mean_queue_delay: float | None = None
    max_queue_delay: float | None = None
    execution_time: float = 0.0
    """Seconds that ended batches took, added up."""
    reasons: Mapping[str, int] = field(default_factory=dict[str, int])
    """Why batches left, with how often."""
    oldest_waiting_age: float | None = None
    oldest_running_age: float | None = None
    tenants_tracked: int = 0
    """Tenants that the policies keep an account for; none once nothing waits or runs."""
    latency_model: LatencyEstimate | None = None
    """What has been learned of how long batches take; None where no policy asks for it."""
    healthy: bool = True
    """False once a running batch is older than `max_execution_time`."""
    closed: bool = False
    executor: Mapping[str, int] = field(default_factory=dict[str, int])
    """What the executor has counted; empty for one that counts nothing."""


class Books:
    """Counters behind a Statistics. One per core, written under its lock."""

    __slots__ = (
        "batches",
        "ended",
        "execution_time",
        "fill",
        "max_queue_delay",
        "queue_delay",
        "reasons",
        "size",
        "submitted",
    )

    def __init__(self) -> None:
        self.submitted = 0
        self.ended: dict[State, int] = dict.fromkeys(State, 0)
        self.batches = 0
        self.size = 0
        self.fill = 0.0
        self.queue_delay = 0.0
        self.max_queue_delay = 0.0
        self.execution_time = 0.0
        self.reasons: dict[str, int] = {}

    def dispatched(self, batch: Batch) -> None:
        self.batches += 1
        self.size += batch.size
        self.fill += batch.fill
        self.reasons[batch.reason] = self.reasons.get(batch.reason, 0) + 1
        self.queue_delay += batch.queue_delay
        if batch.longest_delay > self.max_queue_delay:
            self.max_queue_delay = batch.longest_delay

    def finished(self, requests: Sequence[Request], clean: bool, execution_time: float) -> None:
        """`requests`: those whose callers were still there. `clean`: none of them failed."""
        self.execution_time += execution_time
        if clean:
            self.ended[_COMPLETED] += len(requests)
        else:
            for request in requests:
                self.ended[request.state] += 1

    def time_to_clear(self, room: WaitingRoom) -> float | None:
        """How long those who wait will take, going by the mean batch so far; None before the first has ended."""
        ended = self.batches - len(room.running_batches)
        batches = max(1.0, math.ceil(room.waiting / room.max_batch_size) / room.max_concurrent_batches)
        return self.execution_time / ended * batches if ended else None

    def snapshot(
        self,
        now: float,
        max_execution_time: float | None,
        room: WaitingRoom,
        waiting_since: Sequence[float],
        *,
        tenants_tracked: int,
        latency_model: LatencyEstimate | None,
        closed: bool,
    ) -> Statistics:
        ended, batches = self.ended, self.batches
        running = room.running_batches
        oldest_running = now - min([batch.started for batch in running]) if running else None
        late = oldest_running is not None and max_execution_time is not None and oldest_running > max_execution_time
        return Statistics(
            submitted=self.submitted,
            completed=ended[State.COMPLETED],
            failed=ended[State.FAILED],
            cancelled=ended[State.CANCELLED],
            expired=ended[State.EXPIRED],
            shed=ended[State.SHED],
            rejected=ended[State.REJECTED],
            waiting=room.waiting,
            running=room.running,
            batches=batches,
            running_batches=len(running),
            groups=len(waiting_since),
            mean_batch_size=self.size / batches if batches else None,
            mean_fill=self.fill / batches if batches else None,
            mean_queue_delay=self.queue_delay / self.size if batches else None,
            max_queue_delay=self.max_queue_delay if batches else None,
            execution_time=self.execution_time,
            reasons=dict(self.reasons),
            oldest_waiting_age=now - min(waiting_since) if waiting_since else None,
            oldest_running_age=oldest_running,
            tenants_tracked=tenants_tracked,
            latency_model=latency_model,
            healthy=not late,
            closed=closed,
        )
