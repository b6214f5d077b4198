"""What `LengthAware` promises: the first is always taken, and little of a batch is padding."""

import math
import random
from typing import Any

import pytest
from core_bench import Bench, policies
from hypothesis import given, settings
from hypothesis import strategies as st
from ordering_story import Event, Story, stories

from batchlib._core._batcher import Batcher
from batchlib._core._request import Request
from batchlib._core._transitions import State
from batchlib.policies import EarliestDeadline, FairShare, Fifo, LengthAware, PaddedCost, Priority


@settings(max_examples=100, deadline=None, database=None)
@given(stories(), st.integers(1, 4), st.integers(1, 6))
def test_the_oldest_is_always_taken(story: list[Event], size: int, window: int) -> None:
    for batch, waited in Story(LengthAware(window=window), size).play(story):
        assert batch[0] is waited[0]


@settings(max_examples=100, deadline=None, database=None)
@given(stories(), st.sampled_from([Priority(EarliestDeadline()), FairShare(), EarliestDeadline()]))
def test_one_at_a_time_the_lengths_change_nothing(story: list[Event], inside: Any) -> None:
    plain, aware = Story(inside, 1), Story(LengthAware(inside), 1)
    for each in (plain, aware):
        list(each.play(story))
    assert plain.bench.items == aware.bench.items


def in_order(costs: list[Any], window: int = 256) -> list[int]:
    queue = LengthAware(window=window).start().queue()
    for place, cost in enumerate(costs):
        request = Request((place,), "", 0.0)
        request.cost, request.sequence, request.state = cost, place, State.WAITING
        queue.push(request)
    return [request.args[0] for request in queue.in_order()]


@pytest.mark.parametrize(
    ("costs", "order"),
    [
        ([8, 100, 4, 9, 16, 8, 1], [0, 5, 3, 2, 4, 6, 1]),
        ([0, 5, 0, 1], [0, 2, 3, 1]),
        ([2, 0, 1, 0, 3], [0, 4, 2, 1, 3]),
        ([1e-200, 0.5e-200, 1], [0, 1, 2]),
        ([10**400, 1, 10**399], [0, 2, 1]),
        ([3, 1, 1, 3, 9, 9], [0, 3, 1, 2, 4, 5]),
        ([], []),
    ],
)
def test_the_nearest_come_first_and_of_equally_near_ones_the_shorter_then_the_older(
    costs: list[Any], order: list[int]
) -> None:
    assert in_order(costs) == order


def test_who_is_behind_the_window_comes_after_it() -> None:
    assert in_order([5, 50, 6, 5, 5], window=3) == [0, 2, 1, 3, 4]
    assert in_order([5, 50, 6, 5], window=1) == [0, 1, 2, 3]


BUDGET, SIZE = 6400, 32


def lengths(sigma: float) -> list[int]:
    draws = random.Random(3)
    return [max(1, round(draws.lognormvariate(4.5, sigma))) for _ in range(3000)]


def seconds(batches: list[list[int]]) -> float:
    """5 ms for each batch, 0.01 ms for each place in its rectangle."""
    return sum(0.005 + 1e-5 * len(batch) * max(batch) for batch in batches)


def waste(batches: list[list[int]]) -> float:
    return 1 - sum(map(sum, batches)) / sum(len(batch) * max(batch) for batch in batches)


def with_a_standing_backlog(ordering: Any, sizes: list[int], backlog: int) -> list[list[int]]:
    """Whoever leaves is replaced at once, until nobody is left to come."""
    core = Batcher(policies(ordering=ordering, limits=(PaddedCost(BUDGET),), max_batch_size=SIZE))
    coming = iter(sizes)
    batches = []
    while True:
        for cost in coming:
            request = Request((), "", 0.0)
            request.cost = cost
            core.submit(request, 0.0)
            if core.waiting >= backlog:
                break
        else:
            return batches  # the rest is no standing backlog any more
        for batch in core.running_batches:
            core.finish(batch, [None] * batch.size, 0.0)
        core.wake(0.0)
        (batch,) = core.running_batches
        batches.append([int(request.cost) for request in batch.requests])


def fully_sorted(sizes: list[int]) -> list[list[int]]:
    batches: list[list[int]] = [[]]
    for each in sorted(sizes):
        if len(batches[-1]) == SIZE or each * (len(batches[-1]) + 1) > BUDGET:
            batches.append([])
        batches[-1].append(each)
    return batches


@pytest.mark.parametrize("sigma", [0.8, 1.0])
@pytest.mark.parametrize("backlog", [256, 512])
def test_with_padded_cost_little_is_padding(sigma: float, backlog: int) -> None:
    batches = with_a_standing_backlog(LengthAware(), lengths(sigma), backlog)
    by_arrival = with_a_standing_backlog(Fifo(), lengths(sigma), backlog)
    assert waste(by_arrival) > 0.6
    assert waste(batches) <= 0.15
    assert seconds(batches) <= 1.25 * seconds(fully_sorted([each for batch in batches for each in batch]))


@pytest.mark.parametrize("window", [0, -1, 2.5, math.inf])
def test_a_window_is_a_whole_number(window: Any) -> None:
    with pytest.raises(ValueError, match=f"window must be a whole number >= 1, not {window}"):
        LengthAware(window=window)


def test_tenants_are_counted_inside() -> None:
    bench = Bench(policies(ordering=LengthAware(FairShare()), max_batch_size=1))
    bench.arrive("", "")
    bench.submit("", tenant="x")
    assert bench.core._states.ordering.tenants_tracked == 2
    bench.drain()
    assert bench.core._states.ordering.tenants_tracked == 0
    assert LengthAware().start().tenants_tracked == 0
