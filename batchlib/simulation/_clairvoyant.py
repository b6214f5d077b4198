"""The most requests that any schedule, knowing the future, completes in time on one executor."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def most_in_time(arrivals: Sequence[float], deadlines: Sequence[float], seconds: Sequence[float]) -> int:
    """How many of the requests can be completed by their deadlines.

    arrivals, deadlines: both in ascending order, so that some best schedule takes the requests in that order and every
    batch is a run of them (exchange two that are not). seconds: the execution time of a batch of 1, 2, ..., ascending.

    `free[j][k]` is the earliest instant at which the executor can be free after k of the first j requests have been
    completed in time, the others given up. A last batch of m that holds request j starts when the executor is free and
    j has arrived, and must end by the deadline of its first. Ascending in k, so instants that are out of reach are at
    the end and are cut off. At the front everything is cut off that leaves the executor idle when the next request
    arrives, except for the largest such k: having completed fewer is no better. What is left is a window of as many k
    as can be completed within a timeout, which makes it O(requests * max_batch_size) vector operations of that length.
    """
    window = _Window(0, np.zeros(1))
    windows = [window]
    for served, (arrival, deadline) in enumerate(zip(arrivals, deadlines, strict=True)):
        lowest = window.least + int(np.searchsorted(window.free, arrival, side="right")) - 1
        window = window.above(max(lowest, window.least))
        windows[-1] = window
        free = np.full(len(window.free) + 1, np.inf)
        free[:-1] = window.free
        for size, time in enumerate(seconds[: served + 1], 1):
            if arrival + time > deadline:
                break  # all larger batches with this request take even longer
            _extend(free, window.least, windows[-size], size, arrival, time, deadlines[served + 1 - size])
        window = _Window(window.least, free[: int(np.searchsorted(free, np.inf))])
        windows.append(window)
        if len(windows) > len(seconds):
            del windows[0]
    return window.least + len(window.free) - 1


class _Window:
    """`free[i]` belongs to k = least + i."""

    __slots__ = ("free", "least")

    def __init__(self, least: int, free: Floats) -> None:
        self.least = least
        self.free = free

    def above(self, least: int) -> _Window:
        return _Window(least, self.free[least - self.least :])


def _extend(free: Floats, least: int, before: _Window, size: int, arrival: float, time: float, deadline: float) -> None:
    """Lowers `free`, which begins at k = least, by a last batch of `size` on top of what was there `before`."""
    ends = np.maximum(before.free, arrival) + time
    place = before.least + size - least
    if place < 0:
        ends, place = ends[-place:], 0
    within = int(np.searchsorted(ends, deadline, side="right"))
    if within:
        np.minimum(free[place : place + within], ends[:within], out=free[place : place + within])
