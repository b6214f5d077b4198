"""A batch: the requests of one execution, and what is known of it while it runs."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from ._request import Request


class Batch:
    """Requests that an executor has taken; closed at that moment and never topped up."""

    __slots__ = (
        "_cost",
        "batcher",  # the runtime's: whose batch it is; opaque here
        "done",  # the core has its outcomes; nothing more will be delivered
        "fill",  # size / max_batch_size at dispatch
        "group",  # the group key that all its requests share
        "handle",  # the runtime's: what cancels it; opaque here
        "live",  # how many callers still wait for it; 0 means nobody is interested any more
        "number",  # 1, 2, 3, ... per batcher
        "reason",  # why it left: full, max_wait, executor_free, drain, oversize, ...
        "requests",
        "size",
        "started",  # instant of dispatch
    )

    def __init__(self, number: int, group: Hashable, requests: list[Request], reason: str, now: float) -> None:
        self.number = number
        self.group = group
        self.requests = requests
        self.size = self.live = len(requests)
        self.reason = reason
        self.started = now
        self._cost: float | None = None
        self.fill: float = 0
        self.done = False
        self.batcher: Any = None
        self.handle: Any = None

    @property
    def cost(self) -> float:
        """Sum of its requests' costs; to be read first while it runs, since few want it and it costs a pass."""
        if self._cost is None:
            self._cost = sum([request.cost for request in self.requests])
        return self._cost

    @property
    def abandoned(self) -> bool:
        """Whether every caller has left while it runs."""
        return self.live == 0 and not self.done

    def __repr__(self) -> str:
        return f"<Batch {self.number} size={self.size} reason={self.reason}>"
