"""Which batch is done in time in an order that is not that of the deadlines: one of priorities, or of fair shares.

The obvious rule, to follow the order and cut the batch to its tightest deadline, is metastable: past capacity those in
front are always nearly late, so batches stay small, throughput falls, and soon everybody is nearly late. Here the size
is chosen first, for the most requests in time, and those who cannot make it in a batch of that size are passed over.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import islice

from ..._core._request import Request
from ._deadlines import ExecutionTime, due


def following(order: Iterator[Request], window: int, limit: int, now: float, time: ExecutionTime) -> Sequence[Request]:
    """The batch of at most `limit` that serves most of the first one's priority, and of these the largest.

    Of its size it holds the first in order that are in time. Nobody is looked at who is not needed: `limit` requests
    where all are in time, otherwise `window`. Empty if nobody can make it. O(window log window).

    order: of at least one request.
    """
    first = list(islice(order, limit))
    longest = max([request.cost for request in first])
    if now + time(len(first), longest) <= min([due(request, now) for request in first]):
        return first
    requests = [*first, *islice(order, window - len(first))]
    hopeful = [request for request in requests if now + time(1, request.cost) <= due(request, now)]
    if not hopeful:
        return ()
    urgent = hopeful[0].priority
    # One long item in front would make every batch seem slow, so a batch of none longer than the first is tried too.
    batches = [
        _no_longer_than(longest, hopeful, limit, now, time)
        for longest in {max([request.cost for request in hopeful[:limit]]), hopeful[0].cost}
    ]
    return max(batches, key=lambda batch: (sum([request.priority == urgent for request in batch]), len(batch)))


def _no_longer_than(
    longest: float, requests: Sequence[Request], limit: int, now: float, time: ExecutionTime
) -> Sequence[Request]:
    """The best of those whose costs are at most `longest`."""
    fitting = [request for request in requests if request.cost <= longest]
    everyone = sorted([due(request, now) for request in fitting])
    urgent = sorted([due(request, now) for request in fitting if request.priority == requests[0].priority])
    sizes = range(1, min(limit, len(fitting)) + 1)

    def in_time(dues: Sequence[float], size: int) -> int:
        return len(dues) - bisect_left(dues, now + time(size, longest))

    # The larger a batch, the fewer are in time. `most` of the urgent can be served together; a batch larger than that
    # still serves as many of them for as long as so many are in time for it, and the rest is filled with others.
    most = bisect_left(sizes, True, key=lambda size: in_time(urgent, size) < size)
    size = bisect_left(sizes, True, key=lambda size: in_time(urgent, size) < most or in_time(everyone, size) < size)
    instant = now + time(size, longest)
    return [request for request in fitting if due(request, now) >= instant][:size] if size else ()
