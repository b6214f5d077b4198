"""An async batch function that records what it gets and waits at a gate, on whatever loop it runs."""

import threading
from collections.abc import Callable
from typing import Any

import anyio


class HeldAsync:
    """The async sister of Held. `ended` says how its runs ended: "returned", "raised" or "cancelled"."""

    def __init__(self, function: Callable[[list[Any]], Any] = list) -> None:
        self.seen: list[list[Any]] = []
        self.ended: list[str] = []
        self.started = threading.Event()
        self.gate = threading.Event()
        self._function = function

    async def __call__(self, items: list[Any]) -> Any:
        self.seen.append(list(items))
        self.started.set()
        how = "cancelled"
        try:
            while not self.gate.is_set():
                await anyio.sleep(0)
            how = "raised"
            result = self._function(items)
            how = "returned"
            return result
        finally:
            self.ended.append(how)
