"""Outcomes go back with one wake-up per batch and loop, never one per item."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
from support import Held, waiting_for

from batchlib import batched

LONG = 30


class Loop:
    """An asyncio loop in a thread of its own whose wake-ups from other threads are counted."""

    def __init__(self, main: Callable[["Loop"], Any]) -> None:
        self.woken = 0
        self._main = main
        self.thread = threading.Thread(target=asyncio.run, args=(self._run(),))
        self.thread.start()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        wake = loop.call_soon_threadsafe

        def counted(*args: Any, **kwargs: Any) -> Any:
            self.woken += 1
            return wake(*args, **kwargs)

        loop.call_soon_threadsafe = counted  # type: ignore[method-assign]
        await self._main(self)


@pytest.mark.parametrize("loops", [1, 2])
def test_a_batch_wakes_each_of_its_loops_once(loops: int) -> None:
    held = Held()
    function = batched(held, max_batch_size=40)
    running = function.submit(0)
    assert held.started.wait(LONG)

    async def twenty(_: Loop) -> None:
        assert await asyncio.gather(*(function(item) for item in range(20))) == list(range(20))

    places = [Loop(twenty) for _ in range(loops)]
    asyncio.run(waiting_for(function, 20 * loops, lambda: asyncio.sleep(0)))
    held.gate.set()
    for place in places:
        place.thread.join(LONG)
        assert not place.thread.is_alive()
    assert running.result(LONG) == 0
    assert [len(items) for items in held.seen] == [1, 20 * loops]
    assert [place.woken for place in places] == [1] * loops
