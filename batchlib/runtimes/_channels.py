"""The loops and runs that a batcher's callers are on: a channel for each, found anew for every call."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ._places import current_loop, in_trio

if TYPE_CHECKING:
    from ._asyncio import LoopChannel
    from ._trio import TrioChannel

    Channel = LoopChannel | TrioChannel


class Channels:
    """Operations: here O(1). `latest` and `running_loop` let a caller check for itself that nothing has changed.

    A loop is remembered until it is closed and another one comes, so at most one closed loop is kept.
    """

    def __init__(self) -> None:
        self.latest: Channel | None = None
        self.running_loop: Callable[[], object] = _no_loop
        self._by_loop: dict[Any, Channel] = {}
        self.several = False  # then a batch of one loop can be in the way of another's callers

    def here(self) -> tuple[Channel, bool]:
        """The channel of the loop or run that the present code is in, and whether it is new."""
        loop = current_loop()
        latest = self.latest
        if latest is not None and latest.loop is loop:
            return latest, False
        channel = self._by_loop.get(loop)
        new = channel is None
        if channel is None:
            channel = self._open(loop)
        self.latest = channel
        return channel, new

    def _open(self, loop: Any) -> Channel:
        for known in [known for known in list(self._by_loop.values()) if known.closed]:
            self._by_loop.pop(known.loop, None)
        if in_trio():
            from ._trio import TrioChannel

            channel: Channel = TrioChannel(loop)
        else:
            from ._asyncio import LoopChannel, get_running_loop

            channel = LoopChannel(loop)
            self.running_loop = get_running_loop
        channel = self._by_loop.setdefault(loop, channel)
        self.several = len(self._by_loop) > 1
        return channel


def _no_loop() -> None:
    return None
