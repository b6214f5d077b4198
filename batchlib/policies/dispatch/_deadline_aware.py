"""The largest batch that is done in time: past capacity it alone keeps nearly all of the goodput there is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from functools import partial
from itertools import islice

from ..._core._latency_model import LatencyModel
from ..._core._protocols import Decision, Group
from ..._core._request import Request
from ..structures._counts import checked_count
from ..structures._deadlines import PROBE_AFTER, ExecutionTime, checked, due, require_callable
from ..structures._feasible import best_batch, within_limits

_SIZES = 3  # to be measured before predictions count
_PAUSE = 0.001  # seconds between two looks at requests that nothing can be done for, at the least


@dataclass(frozen=True, slots=True)
class DeadlineAware:
    """Runs the largest batch that is done before the first of its deadlines, and never waits for a larger one.

    Whoever would be late in that batch is passed over, and fails when due, so that the others do not. Use it with
    `EarliestDeadline`. In any other order it serves as many as can be of the first one's priority, then of all, and of
    these the first in order: following the order to the letter would leave small batches of the nearly late.

    How long a batch takes is learned, as the 90th percentile. Until three sizes are measured it takes what waits, going
    by the quickest batches so far only, and half of that if this size is measured twice, so that full batches alone do
    not keep it from learning. Afterwards no batch is over twice the largest measured. If nobody can make it and no
    batch has told anything for ten batch times, an idle batcher runs one request as a probe.

    window: of those that wait so many are looked at, and at least twice `max_batch_size`; ValueError unless a
        whole number of at least 1.
    execution_time: `(size, longest_cost) -> seconds`, never falling, instead of learning. TypeError if not callable.

    >>> from batchlib import batched
    >>> from batchlib.policies import DeadlineAware, EarliestDeadline
    >>> double = batched(lambda xs: [2 * x for x in xs], dispatch=DeadlineAware(), ordering=EarliestDeadline())
    >>> double.options(timeout=5).call(4)
    8
    """

    window: int = 256
    _: KW_ONLY
    execution_time: ExecutionTime | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "window", checked_count("window", self.window))
        require_callable(self.execution_time)

    def start(self) -> DeadlineAwareDispatcher:
        return DeadlineAwareDispatcher(self.window, checked(self.execution_time))


class DeadlineAwareDispatcher:
    """What it learns is the batcher's; nothing else is remembered."""

    def __init__(self, window: int, execution_time: ExecutionTime | None) -> None:
        self._window = window
        self._told = execution_time

    def decide(self, group: Group, now: float) -> Decision:
        limit, time, learning = group.max_batch_size, self._told, False
        window = min(max(self._window, 2 * limit), group.waiting)
        if time is None:
            model = group.latency_model
            learning = len(model.sizes) < min(_SIZES, limit)
            limit = _to_learn(group, model) if learning else min(limit, 2 * model.largest)
            time = model.bound if learning else model.predict
        run, full = best_batch(group, window, limit, now, time)
        if not run:
            requests = list(islice(group.in_order(), window))
            if not learning:
                return self._wait(group, requests, now, time)
            run, full = within_limits(group, requests[:limit])
        cut = len(run) < min(limit, group.waiting)
        return Decision(run, reason="full" if full else "deadline" if cut else "executor_free")

    def _wait(self, group: Group, requests: Sequence[Request], now: float, time: ExecutionTime) -> Decision:
        last = max(requests, key=partial(due, now=now))
        alone = time(1, last.cost)
        wake_at = now + max(alone, _PAUSE)
        if self._told is None and not group.running_batches:
            probe_at = group.latency_model.last_sample + PROBE_AFTER * alone
            if probe_at <= now:
                return Decision((last,), reason="probe")
            wake_at = min(wake_at, probe_at)
        return Decision(wake_at=max(wake_at, math.nextafter(now, math.inf)))


def _to_learn(group: Group, model: LatencyModel) -> int:
    """How many to take of those that could go: all, or a half, a quarter, ... if only that is a size to measure."""
    size = whole = len(group.fill().requests)
    while size > 1 and model.measured(size) > 1:
        size = (size + 1) // 2
    return whole if model.measured(size) > 1 else size
