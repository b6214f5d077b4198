"""A refusal at once instead of an expiry later, so that the caller can still go elsewhere."""

from __future__ import annotations

import math
import sys
from dataclasses import KW_ONLY, dataclass

from ..._core._protocols import WaitingRoom
from ..._core._request import Request
from ...errors import Overloaded, Rejected
from ..structures._deadlines import PROBE_AFTER, ExecutionTime, checked, due, require_callable


@dataclass(frozen=True, slots=True)
class DeadlineFeasible:
    """Refuses, with `Overloaded`, whoever might miss its deadline. Who has none is always admitted.

    The request's own batch counts as full, since later arrivals may fill it. So with `Fifo`, `Greedy`, one group, equal
    costs and exact times everyone admitted is in time, whatever arrives later. For deadlines below twice the time of a
    full batch that is too careful: use `DeadlineAware` there.

    How long a batch takes is learned, as the 90th percentile; until something is measured everyone is admitted. Sizes
    above twice the largest measured are not reckoned with. Who finds the batcher idle, after ten batch times that told
    nothing, is admitted as a probe, so that a slow spell does not close the door for ever.

    execution_time: `(size, longest_cost) -> seconds`, never falling, instead of learning. TypeError if not callable.

    >>> from batchlib import batched
    >>> from batchlib.policies import DeadlineFeasible
    >>> double = batched(lambda xs: [2 * x for x in xs], admission=DeadlineFeasible())
    >>> double.options(timeout=5).call(4)
    8
    """

    _: KW_ONLY
    execution_time: ExecutionTime | None = None

    def __post_init__(self) -> None:
        require_callable(self.execution_time)

    def start(self) -> DeadlineFeasibleAdmission:
        return DeadlineFeasibleAdmission(checked(self.execution_time))


class DeadlineFeasibleAdmission:
    """What it learns is the batcher's; nothing else is remembered."""

    def __init__(self, execution_time: ExecutionTime | None) -> None:
        self._told = execution_time

    def admit(self, request: Request, room: WaitingRoom, now: float) -> Rejected | None:
        instant = due(request)
        if instant == math.inf:
            return None
        full, time = room.max_batch_size, self._told
        if full == sys.maxsize:
            full = room.waiting + 1
        if time is None:
            model = room.latency_model
            if not model.largest:
                return None if instant > now else _refusal(request, room, 0.0, instant - now)
            full, time = min(full, 2 * model.largest), model.predict
            idle = not room.waiting and not room.running_batches
            if idle and now < instant and now - model.last_sample >= PROBE_AFTER * time(1, request.cost):
                return None
        needed = _start(room, now, full, time, request.cost) + time(full, request.cost) - now
        if now < instant and now + needed <= instant:
            return None
        return _refusal(request, room, needed, instant - now)


def _start(room: WaitingRoom, now: float, full: int, time: ExecutionTime, longest: float) -> float:
    """When the request's batch starts at the latest: batches ahead of it are full, and executors take them in turns.

    An executor becomes free within one full batch, so each turn is complete before the next one begins.
    """
    turns, place = divmod(room.waiting // full, room.max_concurrent_batches)
    running = room.running_batches
    place -= room.max_concurrent_batches - len(running)  # those that are free take theirs now
    free_at = now
    if place >= 0:
        ends = [batch.started + time(batch.size, batch.longest) for batch in running]
        free_at = max(now, sorted(ends)[place])
    return free_at + turns * time(full, longest)


def _refusal(request: Request, room: WaitingRoom, needed: float, granted: float) -> Overloaded:
    return Overloaded(
        f"done after up to {needed:.3g} s, due in {max(granted, 0.0):.3g} s, {room.waiting} requests wait "
        f"(tenant={request.tenant!r}): send it elsewhere or with a longer timeout, or add capacity"
    )
