"""Which requests can share a batch and all be done in time: what policies that look at deadlines search with."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import islice

from ..._core._protocols import Group
from ..._core._request import Request
from ._deadlines import ExecutionTime, due
from ._following import following


def best_batch(
    group: Group, window: int, limit: int, now: float, time: ExecutionTime
) -> tuple[Sequence[Request], bool]:
    """The largest batch of at most `limit` that is done in time and within the limits, and whether these closed it.

    window: so many of the first in the order of the group are looked at; if that gives no full batch and there are
    more, so many of those as well that could make it alone, and of those that could in a full batch. In an order other
    than that of the deadlines the batch is one that follows it. Empty if nobody can make it.
    """
    if not group.deadline_order:
        return within_limits(group, following(group.in_order(), window, limit, now, time))
    requests = list(islice(group.in_order(), window))
    if due(requests[0]) <= now:  # by the end of a scope that has been extended, so it is due later than it stands here
        requests.sort(key=partial(due, now=now))
    start, size = largest_run(requests, limit, now, time)
    if size < limit and window < group.waiting:
        # Far past capacity those who are late already fill the window, and then those who could make it alone only.
        least = min([request.cost for request in requests])
        for least_size in (1, min(limit, window)):
            later = list(islice(group.due_from(now + time(least_size, least)), window))
            if (other := largest_run(later, limit, now, time))[1] > size:
                requests, (start, size) = later, other
    run, full = within_limits(group, requests[start : start + size])
    if len(run) == size:
        return run, full
    # A limit closed it early: then as many may be possible from an earlier request on.
    start, _ = largest_run(requests, len(run), now, time)
    earlier, closed = within_limits(group, longest_prefix(requests[start:], limit, now, time))
    return (earlier, closed) if len(earlier) >= len(run) else (run, full)


def within_limits(group: Group, run: Sequence[Request]) -> tuple[Sequence[Request], bool]:
    """As much of it as the limits allow, and whether they closed it. Who fits into no room at all may run alone."""
    room, fitting = group.room(), 0
    while fitting < len(run) and room.add(run[fitting]):  # `takewhile` takes a StopIteration of a limit's for its end
        fitting += 1
    return (run, room.full) if fitting == len(run) else (run[: max(fitting, 1)], True)


def largest_run(requests: Sequence[Request], limit: int, now: float, time: ExecutionTime) -> tuple[int, int]:
    """(start, size) of the largest run of neighbours that can all be done in time; size 0 if nobody can.

    requests: in the order of their deadlines. Among runs of one size the earliest. Where all costs are equal no other
    choice of requests, neighbours or not, is larger. O(requests); for equal costs O(log requests) questions to `time`.
    """
    if not requests:
        return 0, 0
    instant = partial(due, now=now)
    costs = {request.cost for request in requests}
    if len(costs) > 1:
        hopeless = bisect_left(requests, now + time(1, min(costs)), key=instant)  # so many could not make it even alone
        return _scan(requests, hopeless, limit, now, time)
    (cost,) = costs
    count = len(requests)
    # A batch of any size is best placed at the end, where the deadlines are latest; there it becomes infeasible once,
    # as it grows. So the largest is found by bisection over sizes, then its earliest place by bisection over requests.
    size = bisect_left(
        range(1, min(limit, count) + 1), True, key=lambda size: now + time(size, cost) > instant(requests[count - size])
    )
    if not size:
        return 0, 0
    return bisect_left(requests, now + time(size, cost), hi=count - size, key=instant), size


def _scan(requests: Sequence[Request], begin: int, limit: int, now: float, time: ExecutionTime) -> tuple[int, int]:
    """For costs that differ. Only a run one longer than the best so far is worth a question, so both its ends move to
    the right only: at most `requests + limit` questions."""
    best_start, best, start, entered = 0, 0, begin, begin
    peaks: deque[int] = deque()  # places in the run whose cost nobody behind them reaches: the first is the longest
    while best < limit and start + best < len(requests):
        while entered <= start + best:
            while peaks and requests[peaks[-1]].cost <= requests[entered].cost:
                peaks.pop()
            peaks.append(entered)
            entered += 1
        while peaks[0] < start:
            peaks.popleft()
        if now + time(best + 1, requests[peaks[0]].cost) <= due(requests[start], now):
            best_start, best = start, best + 1
        else:
            start += 1
    return best_start, best


def longest_prefix(requests: Iterable[Request], limit: int, now: float, time: ExecutionTime) -> list[Request]:
    """The first in an order of whatever kind that can all be done in time, without those who could not even alone."""
    chosen: list[Request] = []
    longest, tightest = 0.0, math.inf
    for request in requests:
        instant = due(request, now)
        if now + time(1, request.cost) > instant:
            continue
        longest, tightest = max(longest, request.cost), min(tightest, instant)
        if len(chosen) == limit or now + time(len(chosen) + 1, longest) > tightest:
            break
        chosen.append(request)
    return chosen
