"""The clock that users get, started away from 0, so that a duration taken for an instant shows."""

from batchlib import simulation


class VirtualClock(simulation.VirtualClock):
    def __init__(self, start: float = 100.0) -> None:
        super().__init__(start)
