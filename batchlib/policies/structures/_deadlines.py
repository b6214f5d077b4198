"""When a request is due and how long a batch takes, for policies that may be told that instead of learning it."""

from __future__ import annotations

import math
from collections.abc import Callable

from ..._core._request import Request

ExecutionTime = Callable[[int, float], float]
"""(batch size, longest cost in it) -> seconds. Must not fall as either grows."""

PROBE_AFTER = 10
"""Predicted batch times without a sample, after which one request may find out whether a slow spell is over.

Without it a model that has become too slow to let anybody in would never see the batch that puts it right.
"""


def due(request: Request, now: float = -math.inf) -> float:
    """When it must be done: its deadline or the end of its caller's cancel scope, infinity without either.

    A scope that should have ended by `now` counts no more: whoever still waits has had it extended.
    """
    deadline, hint = request.deadline, request.hint
    if hint is not None and now < hint and (deadline is None or hint < deadline):
        return hint
    return math.inf if deadline is None else deadline


def checked(execution_time: ExecutionTime | None) -> ExecutionTime | None:
    """The same, with a clear error when it gives what is no time."""
    if execution_time is None:
        return None
    told = execution_time

    def seconds(size: int, longest: float) -> float:
        given = told(size, longest)
        if not 0 <= given < math.inf:
            raise ValueError(f"execution_time({size}, {longest:g}) must give finite seconds >= 0, not {given!r}")
        return given

    return seconds


def require_callable(execution_time: object) -> None:
    """TypeError for what is neither a callable nor None."""
    if execution_time is not None and not callable(execution_time):
        raise TypeError(f"execution_time must be a callable (size, longest_cost) -> seconds, not {execution_time!r}")
