"""References against brute force, against each other, and against figures known from elsewhere."""

import itertools
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchlib.simulation import (
    Affine,
    Arrival,
    Table,
    Workload,
    _chain,
    clairvoyant_goodput,
    exact_mean_latency,
    inoue_bounds,
    optimal_mean_latency,
    optimal_partition,
    universal_lower_bound,
)

REGIMES = [(1.887, 0.1438), (5.0, 1.0), (1.0, 1.0)]


@pytest.mark.parametrize(("base", "per_item"), REGIMES)
@pytest.mark.parametrize("load", [0.1, 0.3, 0.5, 0.7, 0.9])
def test_the_bounds_enclose_the_exact_mean_latency(base: float, per_item: float, load: float) -> None:
    rate = load / per_item
    exact = exact_mean_latency(rate, base, per_item, None)
    lower, upper = inoue_bounds(rate, base, per_item)
    assert universal_lower_bound(rate, base, per_item) <= lower <= exact * (1 + 1e-9)
    assert exact <= upper * (1 + 1e-9)


@pytest.mark.parametrize(("base", "per_item"), REGIMES)
@pytest.mark.parametrize("load", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("most", [1, 8, 32])
def test_the_best_policy_lies_between_the_bound_and_greedy(
    base: float, per_item: float, load: float, most: int
) -> None:
    rate = load * Affine(base, per_item).capacity(most)
    best = optimal_mean_latency(rate, base, per_item, most)
    assert universal_lower_bound(rate, base, per_item) <= best
    assert best <= exact_mean_latency(rate, base, per_item, most) * (1 + 1e-9)


@pytest.mark.parametrize(
    ("load", "lower", "exact", "upper"),
    [(0.1, 3.136, 3.145, 3.298), (0.3, 4.221, 4.224, 4.225), (0.5, 5.901, 5.901, 5.901), (0.9, 29.40, 29.40, 29.40)],
)
def test_published_figures_of_unlimited_batches(load: float, lower: float, exact: float, upper: float) -> None:
    base, per_item = REGIMES[0]
    rate = load / per_item
    assert inoue_bounds(rate, base, per_item) == pytest.approx((lower, upper), rel=2e-4)
    assert exact_mean_latency(rate, base, per_item, None) == pytest.approx(exact, rel=2e-4)


@pytest.mark.parametrize(
    ("base", "per_item", "most", "load", "gap"),
    [(5, 1, 32, 0.7, 0.0002), (13, 1, 8, 0.5, 0.0034), (13, 1, 8, 0.95, 0.0003), (1, 0, 4, 0.9, 0.0329)],
)
def test_what_the_best_policy_gains_over_greedy(
    base: float, per_item: float, most: int, load: float, gap: float
) -> None:
    rate = load * Affine(base, per_item).capacity(most)
    greedy = exact_mean_latency(rate, base, per_item, most)
    assert greedy / optimal_mean_latency(rate, base, per_item, most) - 1 == pytest.approx(gap, abs=0.0001)


def test_batches_of_one_are_the_queue_of_every_textbook() -> None:
    """M/D/1: the wait is load / (1 - load) / 2 service times (Pollaczek and Khinchine)."""
    for load in (0.2, 0.6, 0.9):
        assert exact_mean_latency(load, 0.75, 0.25, 1) == pytest.approx(1 + load / (1 - load) / 2, rel=1e-9)


def test_beyond_capacity_latency_is_infinite() -> None:
    assert exact_mean_latency(1.0, 1.0, 0.5, 2) == optimal_mean_latency(1.0, 1.0, 0.5, 2) == math.inf
    assert exact_mean_latency(2.0, 1.0, 0.5, None) == math.inf
    assert universal_lower_bound(2.0, 1.0, 0.5) == math.inf
    assert inoue_bounds(2.0, 1.0, 0.5) == (math.inf, math.inf)


def test_so_close_to_capacity_nothing_is_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_chain, "_MOST_STATES", 500)
    for reference in (exact_mean_latency, optimal_mean_latency):
        assert reference(0.9, 1.0, 0.5, 2) < math.inf
        with pytest.raises(ValueError, match=r"a rate of 0.999 is too close to the capacity"):
            reference(0.999, 1.0, 0.5, 2)


def reachable(arrivals: tuple[float, ...], timeout: float, seconds: list[float]) -> int:
    """Every schedule that takes some of the requests, in any batches and any order."""
    best = 0
    stack: list[tuple[float, frozenset[int]]] = [(0.0, frozenset())]
    while stack:
        free, done = stack.pop()
        best = max(best, len(done))
        left = [number for number in range(len(arrivals)) if number not in done]
        for size in range(1, min(len(left), len(seconds)) + 1):
            for chosen in itertools.combinations(left, size):
                end = max(free, *(arrivals[number] for number in chosen)) + seconds[size - 1]
                if all(end <= arrivals[number] + timeout for number in chosen):
                    stack.append((end, done | set(chosen)))
    return best


@settings(max_examples=150, deadline=None, database=None)
@given(
    st.lists(st.integers(0, 12), min_size=1, max_size=6),
    st.integers(1, 12),
    st.lists(st.integers(1, 6), min_size=1, max_size=4).map(sorted),
)
def test_nobody_completes_more_than_the_clairvoyant(arrivals: list[int], timeout: int, seconds: list[int]) -> None:
    instants = tuple(float(at) for at in sorted(arrivals))
    best = reachable(instants, timeout, [float(time) for time in seconds])
    assert clairvoyant_goodput(arrivals, timeout, lambda size: seconds[size - 1], len(seconds)) == best


def straightforward(instants: list[float], timeout: float, seconds: list[float]) -> int:
    """The recursion as it is defined, with nothing cut off."""
    count = len(instants)
    free = [[math.inf] * (count + 1) for _ in range(count + 1)]
    free[0][0] = 0.0
    for seen in range(1, count + 1):
        for done in range(seen + 1):
            best = free[seen - 1][done]
            for size in range(1, min(done, len(seconds)) + 1):
                end = max(free[seen - size][done - size], instants[seen - 1]) + seconds[size - 1]
                if end <= instants[seen - size] + timeout:
                    best = min(best, end)
            free[seen][done] = best
    return max(done for done in range(count + 1) if free[count][done] < math.inf)


@pytest.mark.parametrize("load", [0.5, 0.9, 1.2, 2.0])
@pytest.mark.parametrize("target", [1.2, 2.0, 5.0])
def test_cutting_off_changes_nothing(load: float, target: float) -> None:
    model = Affine(5.0, 1.0)
    workload = Workload.on_off(load * model.capacity(8), 150, 1, on=50, off=50)
    instants, seconds = [arrival.at for arrival in workload], [model.seconds(size) for size in range(1, 9)]
    timeout = target * model.seconds(8)
    assert clairvoyant_goodput(workload, timeout, model.seconds, 8) == straightforward(instants, timeout, seconds)


def test_a_trace_of_nothing_and_one_of_ease() -> None:
    assert clairvoyant_goodput([], 1.0, Affine(1.0, 0.0).seconds, 4) == 0
    assert clairvoyant_goodput([Arrival(0), Arrival(9)], 0.5, Affine(1.0, 0.0).seconds, 4) == 0
    assert clairvoyant_goodput(Workload.uniform(1, 50), 1.0, Table({1: 0.5}).seconds, 1) == 50


def divisions(count: int) -> list[list[list[int]]]:
    """All divisions of 0, ..., count - 1 into sets."""
    if count == 0:
        return [[]]
    fewer = divisions(count - 1)
    alone = [[*division, [count - 1]] for division in fewer]
    joined = [
        [*division[:place], [*division[place], count - 1], *division[place + 1 :]]
        for division in fewer
        for place in range(len(division))
    ]
    return alone + joined


@settings(max_examples=60, deadline=None, database=None)
@given(
    st.lists(st.integers(1, 9), min_size=1, max_size=7),
    st.integers(1, 4),
    st.integers(0, 8),
    st.integers(0, 3),
    st.integers(0, 2),
)
def test_no_division_beats_the_recursion(lengths: list[int], most: int, base: int, item: int, padding: int) -> None:
    def seconds(size: int, longest: float) -> float:
        return base + item * size + padding * size * longest

    def total(division: list[list[int]]) -> float:
        return sum(seconds(len(batch), max(lengths[place] for place in batch)) for batch in division)

    best = optimal_partition(lengths, seconds, most)
    assert sorted(place for batch in best.batches for place in batch) == list(range(len(lengths)))
    assert all(len(batch) <= most for batch in best.batches)
    assert best.execution_time == total(best.batches)
    legal = [division for division in divisions(len(lengths)) if all(len(batch) <= most for batch in division)]
    assert best.execution_time == min(map(total, legal))


def test_nothing_to_divide() -> None:
    assert optimal_partition([], Affine(1.0, 1.0).seconds, 4) == (0.0, [])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: universal_lower_bound(0, 1, 1), "rate, and one of base and per_item, must be above 0"),
        (lambda: inoue_bounds(1, 0, 0), "rate, and one of base and per_item, must be above 0"),
        (lambda: exact_mean_latency(1, -1, 1, 4), "base must be a finite number >= 0, not -1"),
        (lambda: optimal_mean_latency(1, 0.1, 0.1, 0), "max_batch_size must be a whole number >= 1"),
        (lambda: clairvoyant_goodput([1.0], -1, Affine(1, 1).seconds, 4), "timeout must be a number of seconds >= 0"),
        (lambda: clairvoyant_goodput([1.0], 1, Affine(1, 1).seconds, 0), "max_batch_size must be a whole number >= 1"),
        (lambda: clairvoyant_goodput([1.0], 1, lambda size: 3 - size, 2), "never less for a larger batch"),
        (lambda: optimal_partition([1], Affine(1, 1).seconds, 0), "max_batch_size must be a whole number >= 1"),
    ],
)
def test_what_has_no_answer(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
