"""The classic rule: go when full, or when the oldest has waited long enough."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..._context import number
from ..._core._protocols import Decision, Group


@dataclass(frozen=True, slots=True)
class SizeOrWait:
    """Holds an incomplete batch back for company for at most `max_wait` seconds.

    The wait counts from the group's oldest request, and only while an executor is free: under a backlog batches leave
    full and nothing is ever held back.

    max_wait: seconds, finite, at least 0. ValueError otherwise, TypeError for what is not a number.

    >>> from batchlib import batched
    >>> from batchlib.policies import SizeOrWait
    >>> double = batched(lambda xs: [2 * x for x in xs], dispatch=SizeOrWait(max_wait=0.001))
    >>> double.call(4)
    8
    """

    max_wait: float

    def __post_init__(self) -> None:
        legal = "a finite number of seconds >= 0"
        if not 0 <= number("max_wait", self.max_wait, legal) < math.inf:
            raise ValueError(f"max_wait must be {legal}, not {self.max_wait!r}")

    def start(self) -> SizeOrWaitDispatcher:
        return SizeOrWaitDispatcher(self.max_wait)


class SizeOrWaitDispatcher:
    """Remembers its limit only; the instants are the group's."""

    def __init__(self, max_wait: float) -> None:
        self.max_wait = max_wait

    def decide(self, group: Group, now: float) -> Decision:
        filled = group.fill()
        if filled.full:
            return Decision(filled.requests, reason="full")
        due = group.oldest_arrival + self.max_wait
        if now >= due:
            return Decision(filled.requests, reason="max_wait")
        return Decision(wake_at=due)
