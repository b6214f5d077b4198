"""Bounds the queue: hold back those who run ahead, or refuse everyone over the limit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ..._core._protocols import WaitingRoom
from ..._core._request import Request
from ...errors import Overloaded, Rejected
from ..structures._counts import checked_count


@dataclass(frozen=True, slots=True)
class MaxWaiting:
    """Keeps the number of waiting requests at `max_waiting`.

    max_waiting: a whole number of at least 1. ValueError otherwise, TypeError for what is not a number.
    overflow: "wait" lets every awaiting or blocking caller join (it holds its item anyway) and holds back whoever runs
        ahead of its results: `submit` in a thread blocks, `map` stops pulling. "reject" refuses everyone over the limit
        with `Overloaded`.

    >>> from batchlib import batched
    >>> from batchlib.policies import MaxWaiting
    >>> double = batched(lambda xs: [2 * x for x in xs], admission=MaxWaiting(64, overflow="reject"))
    >>> double.call(4)
    8
    """

    max_waiting: int
    overflow: Literal["wait", "reject"] = "wait"

    def __post_init__(self) -> None:
        object.__setattr__(self, "max_waiting", checked_count("max_waiting", self.max_waiting))
        if self.overflow not in ("wait", "reject"):
            raise ValueError(f'overflow must be "wait" or "reject", not {self.overflow!r}')

    def start(self) -> MaxWaitingAdmission:
        return MaxWaitingAdmission(self.max_waiting, self.overflow == "reject")


class MaxWaitingAdmission:
    """The room is counted by the core; here are only the limits."""

    def __init__(self, max_waiting: int, reject: bool) -> None:
        self._max_waiting = max_waiting
        self.can_refuse = reject

    def admit(self, request: Request, room: WaitingRoom, now: float) -> Rejected | None:
        if not self.can_refuse or room.waiting < self._max_waiting:
            return None
        return Overloaded(
            f"{room.waiting} requests wait and max_waiting is {self._max_waiting} (tenant={request.tenant!r}): "
            "send it later or elsewhere, or raise max_waiting"
        )

    def holds_back(self, room: WaitingRoom) -> bool:
        return not self.can_refuse and room.waiting >= self._max_waiting
