"""DeadlineAware where the order is one of priorities or of fair shares: the batch follows it, and does not shrink."""

import math
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchlib._core._request import Request
from batchlib._core._transitions import State
from batchlib.policies.structures._deadlines import due
from batchlib.policies.structures._following import following
from batchlib.simulation import Affine, Workload, simulate

instants = st.integers(5, 14).map(float)
COSTS = [0.0, 1.0, 3.0]


def line(size: int, longest: float) -> float:
    return 5.0 + size * longest


def request(deadline: float, priority: float = 0, cost: float = 1.0) -> Request:
    made = Request((), "", 0.0)
    made.deadline, made.priority, made.cost, made.state = deadline, priority, cost, State.WAITING
    return made


def chosen(waiting: list[Request], limit: int = 8, window: int = 99) -> list[int]:
    return [waiting.index(each) for each in following(iter(waiting), window, limit, 0.0, line)]


def in_time(batch: Any) -> bool:
    return line(len(batch), max(each.cost for each in batch)) <= min(map(due, batch))


def worth(batch: Any, urgent: float) -> tuple[int, int]:
    return sum(each.priority == urgent for each in batch), len(batch)


@given(st.lists(st.tuples(instants, st.sampled_from([-1.0, 0.0])), min_size=1, max_size=9), st.integers(1, 9))
def test_no_choice_serves_more_of_the_first_ones_class_or_as_many_in_a_larger_batch(
    pairs: list[tuple[float, float]], limit: int
) -> None:
    waiting = sorted([request(*each) for each in pairs], key=lambda each: each.priority)  # as a policy of priorities
    batch = following(iter(waiting), 99, limit, 0.0, line)
    hopeful = [each for each in waiting if in_time([each])]
    choices = [some for size in range(1, limit + 1) for some in combinations(hopeful, size) if in_time(some)]
    if not choices:
        assert not batch
        return
    assert in_time(batch)
    urgent = hopeful[0].priority
    assert worth(batch, urgent) == max(worth(some, urgent) for some in choices)


@given(
    st.lists(st.tuples(instants, st.sampled_from([-1.0, 0.0]), st.sampled_from(COSTS)), min_size=1, max_size=9),
    st.integers(1, 9),
)
def test_whatever_the_costs_it_follows_the_order_and_serves_somebody_in_time_if_anybody_can_be(
    triples: list[tuple[float, float, float]], limit: int
) -> None:
    waiting = [request(*each) for each in triples]
    places = chosen(waiting, limit)
    assert places == sorted(set(places))
    assert len(places) <= limit
    assert bool(places) is any(in_time([each]) for each in waiting)
    if not places:
        return
    batch = [waiting[place] for place in places]
    assert in_time(batch)
    # Nobody behind the last of them is as good as one who was passed over: passed over is who would be late.
    longest = max(each.cost for each in batch)
    for place in set(range(places[-1])) - set(places):
        passed = waiting[place]
        assert passed.cost > longest or due(passed) < line(len(batch), max(COSTS))


def test_one_long_item_does_not_make_every_batch_seem_slow() -> None:
    waiting = [request(9.0), request(9.0), request(99.0, cost=50.0), request(9.0), request(9.0)]
    assert chosen(waiting) == [0, 1, 3, 4]
    waiting = [request(99.0, cost=50.0), *(request(9.0) for _ in range(4))]
    assert chosen(waiting) == [0]  # it is first, and nobody can be with it


def test_who_is_first_is_not_passed_over_for_the_sake_of_a_less_urgent_one() -> None:
    waiting = [request(6.0, priority=-1), *(request(9.0) for _ in range(4))]
    assert chosen(waiting) == [0]
    waiting = [request(6.0), *(request(9.0) for _ in range(4))]
    assert chosen(waiting) == [1, 2, 3, 4]


def test_whoever_cannot_make_it_even_alone_has_no_say() -> None:
    waiting = [request(5.5, priority=-1), *(request(9.0) for _ in range(4))]
    assert chosen(waiting) == [1, 2, 3, 4]


def test_more_than_the_first_are_looked_at_only_where_one_of_them_would_be_late() -> None:
    looked_at: list[Request] = []

    def order(waiting: list[Request]) -> Any:
        for each in waiting:
            looked_at.append(each)
            yield each

    easy = [request(math.inf) for _ in range(20)]
    assert len(following(order(easy), 16, 4, 0.0, line)) == 4
    assert len(looked_at) == 4
    looked_at.clear()
    hard = [request(5.5), *easy]
    assert len(following(order(hard), 16, 4, 0.0, line)) == 4
    assert len(looked_at) == 16


MODEL = Affine(0.005, 0.001)


def share(load: float, **carried: Any) -> tuple[float, dict[float, float]]:
    """Of all, and of each priority, the share that is done in time."""
    workload = Workload.poisson(load * MODEL.capacity(32), 2_000, 1)
    if "tenants" in carried:
        workload = workload.with_tenants(carried["tenants"], 1)
    if "priorities" in carried:
        workload = workload.with_priorities(carried["priorities"], 1)
    run = simulate({"max_batch_size": 32, "target_latency": 2 * MODEL.seconds(32)}, workload, MODEL)
    classes = {
        priority: sum(each.state is State.COMPLETED for each in run.requests if each.priority == priority)
        / sum(each.priority == priority for each in run.requests)
        for priority in {each.priority for each in run.requests}
    }
    return run.goodput / len(run.requests), classes


@pytest.mark.parametrize("load", [1.0, 1.25])
@pytest.mark.parametrize("tenants", [{"a": 1.0}, {"a": 0.5, "b": 0.5}, {str(number): 0.05 for number in range(20)}])
def test_a_target_for_the_latency_does_not_collapse_when_requests_carry_tenants(load: float, tenants: Any) -> None:
    """To follow the order and cut the batch to its tightest deadline keeps a third of what can be kept."""
    assert share(load, tenants=tenants)[0] >= 0.97 * share(load)[0]


def test_in_overload_the_urgent_are_in_time_and_the_others_get_what_is_left() -> None:
    everyone, classes = share(1.25, priorities={0: 0.5, -1: 0.5})
    assert classes[-1] >= 0.99
    assert everyone >= 0.97 * share(1.25)[0]
