"""A batch function that records what it gets and waits at a gate, and a wait for requests to be queued."""

import threading
from collections.abc import Callable
from typing import Any

LONG = 30  # seconds after which a test gives up; never waited for when all is well


class Held:
    """A plain batch function. `started` is set when a batch enters; the batch goes on when `gate` is set."""

    def __init__(self, function: Callable[[list[Any]], Any] = list) -> None:
        self.seen: list[list[Any]] = []
        self.started = threading.Event()
        self.gate = threading.Event()
        self._function = function

    def __call__(self, items: list[Any]) -> Any:
        self.seen.append(list(items))
        self.started.set()
        assert self.gate.wait(LONG)
        return self._function(items)


async def waiting_for(batched: Any, count: int, checkpoint: Callable[[], Any]) -> None:
    """Until `count` requests wait in `batched`; `checkpoint` is the runtime's sleep(0)."""
    while batched.statistics().waiting != count:
        await checkpoint()
