"""What the best, and the greedy, policy can reach: figures to hold a simulation against.

One executor throughout; a batch of n takes base + per_item * n seconds, or what a function of its size says.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from .._context import number
from ._workloads import Arrival


def universal_lower_bound(rate: float, base: float, per_item: float) -> float:
    """The mean latency, in seconds, that no policy gets below, whatever its batch size.

    rate: Poisson arrivals per second. Infinite where even endless batches cannot keep up (rate * per_item >= 1).

    The executor is busy at most all the time, so batches hold at least rate * base / (1 - rate * per_item) requests in
    the mean; a request waits at least for its own batch, and large batches have more of them (size biasing). So it is
    max(base + per_item, base / (1 - rate * per_item)).

    >>> from batchlib.simulation import universal_lower_bound
    >>> round(universal_lower_bound(rate=100, base=0.005, per_item=0.001), 6)
    0.006
    """
    _check(rate, base, per_item)
    load = rate * per_item
    return math.inf if load >= 1 else max(base + per_item, base / (1 - load))


def inoue_bounds(rate: float, base: float, per_item: float) -> tuple[float, float]:
    """A lower and an upper bound, in seconds, of the mean latency of greedy batches without a size limit.

    rate: Poisson arrivals per second. Infinite where rate * per_item >= 1.

    With p the probability that nobody arrives during a batch, the mean latency has a closed form that falls with p. The
    upper bound is the smaller of those for p = 0 and for a mean batch size of 1 (Inoue, "Queueing analysis of GPU-based
    inference servers with dynamic batching", Performance Evaluation 2021, arXiv 1912.06322); the lower one takes
    p = exp(-rate * (base + per_item)), since no batch is shorter than one of a single request.

    >>> from batchlib.simulation import inoue_bounds
    >>> lower, upper = inoue_bounds(rate=500, base=0.005, per_item=0.001)
    >>> round(lower, 5), round(upper, 5)
    (0.0166, 0.01667)
    """
    _check(rate, base, per_item)
    x, work = rate * per_item, rate * base
    if x >= 1:
        return math.inf, math.inf
    idle = math.exp(-rate * (base + per_item))
    size = (work + idle) / (1 - x)
    squared = (work + x * size + work**2 + 2 * work * x * size + idle) / (1 - x**2)
    time_squared = base**2 + 2 * base * per_item * size + per_item**2 * squared
    lower = (base * size + per_item * squared + rate / 2 * time_squared) / size
    never_idle = 1.5 * base / (1 - x) + per_item / 2 * (x + 2) / (1 - x**2)
    single = (base + per_item) / (2 * (1 - x)) * (1 + 2 * work + (1 - work) / (1 + x))
    return lower, min(never_idle, single)


def exact_mean_latency(rate: float, base: float, per_item: float, max_batch_size: int | None) -> float:
    """The mean latency of greedy batches, in seconds; needs NumPy.

    rate: Poisson arrivals per second. max_batch_size: None for no limit. Infinite at and above capacity. Raises
    ValueError so close to capacity that it cannot be computed.

    The queue lengths at which an executor is free form a Markov chain; the mean number in the system follows from its
    linear equations by renewal reward, the mean latency by Little's law. Truncated so far out that the answer changes
    by less than 1e-9.

    >>> from batchlib.simulation import exact_mean_latency
    >>> round(exact_mean_latency(rate=500, base=0.005, per_item=0.001, max_batch_size=32), 5)
    0.01665
    """
    return _mean_latency(rate, base, per_item, max_batch_size, optimal=False)


def optimal_mean_latency(rate: float, base: float, per_item: float, max_batch_size: int) -> float:
    """The lowest mean latency that any policy can have, in seconds; needs NumPy.

    Arguments, range and errors as in `exact_mean_latency`, but there has to be a max_batch_size.

    The same chain with a choice, whenever the executor is free, between waiting for one more arrival and a batch of any
    size: a semi-Markov decision process, solved by policy iteration from greedy.

    >>> from batchlib.simulation import exact_mean_latency, optimal_mean_latency
    >>> free_batches = dict(rate=3600, base=0.001, per_item=0, max_batch_size=4)
    >>> round(exact_mean_latency(**free_batches) / optimal_mean_latency(**free_batches), 4)
    1.0329
    """
    return _mean_latency(rate, base, per_item, max_batch_size, optimal=True)


def _mean_latency(rate: float, base: float, per_item: float, max_batch_size: int | None, *, optimal: bool) -> float:
    _check(rate, base, per_item)
    if max_batch_size is not None and max_batch_size < 1:
        raise ValueError(f"max_batch_size must be a whole number >= 1, or None for no limit, not {max_batch_size!r}")
    per_request = per_item if max_batch_size is None else base / max_batch_size + per_item
    if rate * per_request >= 1:
        return math.inf
    from ._chain import mean_latency

    return mean_latency(rate, base, per_item, max_batch_size, optimal=optimal)


def clairvoyant_goodput(
    arrivals: Iterable[Arrival | float],
    timeout: float,
    execution_time: Callable[[int], float],
    max_batch_size: int,
) -> int:
    """How many requests of a trace any schedule at all can complete in time, knowing the future; needs NumPy.

    arrivals: a workload, of which only the instants count, or instants. timeout: seconds that every request is granted.
    execution_time: seconds by batch size, never less for a larger batch; such as `Affine(...).seconds`. Compares with
    `Simulation.goodput`, which no policy can bring above it.

    With one timeout for all there is a best schedule that takes requests in the order of arrival, in batches of
    neighbours, so an exact recursion over (requests seen, requests completed) finds it. Requests of the same kind with
    deadlines of their own: Baptiste, "Batching identical jobs", Mathematical Methods of Operations Research 2000.

    >>> from batchlib.simulation import Affine, clairvoyant_goodput
    >>> clairvoyant_goodput([0.0, 0.1, 0.2, 0.3], 1.5, Affine(base=1.0, per_item=0.1).seconds, max_batch_size=2)
    2
    """
    instants = sorted([record.at if isinstance(record, Arrival) else record for record in arrivals])
    if not number("timeout", timeout) >= 0:
        raise ValueError(f"timeout must be a number of seconds >= 0, not {timeout!r}")
    if max_batch_size < 1:
        raise ValueError(f"max_batch_size must be a whole number >= 1, not {max_batch_size!r}")
    seconds = [execution_time(size) for size in range(1, max_batch_size + 1)]
    if seconds != sorted(seconds) or not seconds[0] > 0:
        raise ValueError("execution_time must be above 0 and never less for a larger batch")
    from ._clairvoyant import most_in_time

    return most_in_time(instants, [instant + timeout for instant in instants], seconds)


class Partition(NamedTuple):
    """Requests divided into batches. execution_time: of all batches, in seconds; batches: places in what was given.

    >>> from batchlib.simulation import optimal_partition
    >>> optimal_partition([9, 1, 1], lambda size, longest: 1 + size * longest, max_batch_size=2).batches
    [[1, 2], [0]]
    """

    execution_time: float
    batches: list[list[int]]


def optimal_partition(
    lengths: Sequence[float], execution_time: Callable[[int, float], float], max_batch_size: int
) -> Partition:
    """The division into batches that takes the least time in all, where every batch is padded to its longest.

    lengths: the cost of each request. execution_time: seconds by batch size and longest length, never less for a larger
    or longer batch; such as `Affine(...).seconds`.

    Some best division has batches of neighbours in the order of length, so a recursion over the sorted lengths finds it
    (Fang et al., "TurboTransformers", PPoPP 2021). O(len(lengths) * max_batch_size).

    >>> from batchlib.simulation import Affine, optimal_partition
    >>> model = Affine(base=5.0, per_item=0.0, per_cost=0.25)
    >>> optimal_partition([1, 50, 2, 48], model.seconds, max_batch_size=4)
    Partition(execution_time=36.0, batches=[[0, 2], [3, 1]])
    """
    if max_batch_size < 1:
        raise ValueError(f"max_batch_size must be a whole number >= 1, not {max_batch_size!r}")
    order = sorted(range(len(lengths)), key=lengths.__getitem__)
    best, last = [0.0], [0]  # of the first 0, 1, ... in order: the least time, and the size of the last batch
    for count, place in enumerate(order, 1):
        time, size = min(
            (best[count - size] + execution_time(size, lengths[place]), size)
            for size in range(1, min(count, max_batch_size) + 1)
        )
        best.append(time)
        last.append(size)
    batches: list[list[int]] = []
    end = len(order)
    while end:
        batches.append(order[end - last[end] : end])
        end -= last[end]
    return Partition(best[-1], batches[::-1])


def _check(rate: float, base: float, per_item: float) -> None:
    for name, value in (("rate", rate), ("base", base), ("per_item", per_item)):
        if not 0 <= number(name, value) < math.inf:
            raise ValueError(f"{name} must be a finite number >= 0, not {value!r}")
    if not rate or not base + per_item:
        raise ValueError("rate, and one of base and per_item, must be above 0")
