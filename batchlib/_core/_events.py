"""What hooks are told: frozen records of what has happened. Item contents are never in them."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from ._transitions import State


@dataclass(frozen=True, slots=True)
class BatchStarted:
    """A batch was handed to an executor.

    Durations are in seconds; `queue_delays` has one entry per request, in the batch's order. `reason` says why the
    batch left: full, max_wait, executor_free, drain, no_clock, oversize, or what a policy gave. `cost` is the sum of
    the costs of all requests and `longest` the largest: padded to it, the batch would hold `size * longest`.
    """

    name: str
    version: str | None
    batch: int
    size: int
    fill: float
    cost: float
    longest: float
    reason: str
    queue_delays: tuple[float, ...]
    now: float


@dataclass(frozen=True, slots=True)
class BatchEnded:
    """A batch's outcomes are known. `failed` counts outcomes that are errors, whoever still waited for them."""

    name: str
    version: str | None
    batch: int
    size: int
    fill: float
    cost: float
    longest: float
    reason: str
    execution_time: float
    failed: int
    now: float


@dataclass(frozen=True, slots=True)
class RequestEnded:
    """A request ended, in whatever way; `state` says which.

    `error` is the type name of what its caller got, `detail` its text where batchlib itself made the error (why a
    request was refused), None otherwise. `queue_delay` is None if it never ran. `latency` is from submit to now.
    """

    name: str
    version: str | None
    state: State
    tenant: Hashable
    priority: float
    cost: float
    batch: int | None
    queue_delay: float | None
    latency: float
    error: str | None
    detail: str | None
    now: float
