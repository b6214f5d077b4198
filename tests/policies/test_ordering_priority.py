"""What `Priority` promises: how long one class passes over another, and nobody for longer."""

import math
from typing import Any

import pytest
from core_bench import Bench, policies
from hypothesis import given, settings
from hypothesis import strategies as st
from ordering_story import Event, Story, stories

from batchlib._core._request import Request
from batchlib.policies import EarliestDeadline, FairShare, LengthAware, Priority, SizeOrWait

agings = st.sampled_from([0.25, 1.0, 8.0])


def urgency(request: Request, aging: float) -> float:
    return request.arrival + aging * request.priority


@settings(max_examples=150, deadline=None, database=None)
@given(stories(), agings, st.integers(1, 4), st.sampled_from([{}, {"dispatch": SizeOrWait(5.0)}]))
def test_with_fifo_inside_nobody_is_overtaken_by_one_who_came_too_late(
    story: list[Event], aging: float, size: int, options: Any
) -> None:
    """y overtakes x only if it arrived at most aging x (difference of priority) later, also while one of its class in
    another group is older than both."""
    for batch, waited in Story(Priority(aging=aging), size, **options).play(story):
        for place, y in enumerate(batch):
            for x in waited:
                if x.group == y.group and x not in batch[: place + 1]:
                    assert urgency(y, aging) <= urgency(x, aging)


@settings(max_examples=100, deadline=None, database=None)
@given(stories("abc"), agings, st.integers(1, 4))
def test_among_groups_the_same_holds_for_the_first_of_each_batch(story: list[Event], aging: float, size: int) -> None:
    for batch, waited in Story(Priority(aging=aging), size).play(story):
        assert urgency(batch[0], aging) == min(urgency(x, aging) for x in waited)


@settings(max_examples=150, deadline=None, database=None)
@given(
    stories("abc"),
    agings,
    st.integers(1, 4),
    st.sampled_from([EarliestDeadline(), FairShare(), FairShare({"x": 4}, EarliestDeadline()), LengthAware(window=3)]),
)
def test_with_any_policy_inside_no_class_is_passed_over_for_longer(
    story: list[Event], aging: float, size: int, inside: Any
) -> None:
    """A class is as old as its oldest, in whatever group that waits."""
    for batch, waited in Story(Priority(inside, aging=aging), size).play(story):
        for y in batch:
            age = min(urgency(x, aging) for x in waited if x.priority == y.priority)
            here = {x.priority for x in waited if x.group == y.group}
            assert age == min(urgency(x, aging) for x in waited if x.priority in here)
            waited = [x for x in waited if x is not y]


@settings(max_examples=100, deadline=None, database=None)
@given(stories(), st.integers(1, 4), st.sampled_from([Priority(aging=None), Priority(EarliestDeadline(), aging=None)]))
def test_strict_is_strict(story: list[Event], size: int, policy: Priority) -> None:
    for batch, waited in Story(policy, size).play(story):
        assert batch[0].priority == min(x.priority for x in waited)
        for place, y in enumerate(batch):
            rest = [x.priority for x in waited if x.group == y.group and x not in batch[:place]]
            assert y.priority == min(rest)


@pytest.mark.parametrize("aging", [1.0, None])
def test_background_never_ages_and_the_most_urgent_never_waits(aging: float | None) -> None:
    bench = Bench(policies(ordering=Priority(aging=aging), max_batch_size=1))
    bench.arrive("", priority=math.inf)
    for _ in range(2):
        bench.submit("", priority=math.inf)
    bench.now = 1e9
    for priority in (1e6, 0, -math.inf, -1e6, -math.inf):
        bench.submit("", priority=priority)
    while bench.running:
        bench.finish(bench.running[0])
    assert bench.items == [[0], [5], [7], [6], [4], [3], [1], [2]]


def test_of_equally_old_classes_the_more_urgent_goes_first() -> None:
    bench = Bench(policies(ordering=Priority(aging=2.0), max_batch_size=1))
    bench.submit("", priority=1)
    bench.advance_to(2.0)
    bench.submit("", priority=0)
    bench.wake()
    assert bench.items == [[1]]


def test_equal_priorities_are_one_class_whatever_their_type() -> None:
    bench = Bench(policies(ordering=Priority(), max_batch_size=4))
    bench.arrive("", "")
    for priority in (1, 1.0, True):
        bench.submit("", priority=priority)
    (only,) = bench.core._states.ordering._classes.values()
    assert only.arrivals is None  # the queue inside is record enough
    bench.drain()
    assert bench.core._states.ordering._classes == {}


def test_a_priority_too_large_for_the_sum_is_its_callers_error() -> None:
    bench = Bench(policies(ordering=Priority()))
    (refused, kept) = (bench.submit("", priority=10**400), bench.submit(""))
    bench.wake()
    assert [refused.state.value, kept.state.value] == ["rejected", "running"]
    assert isinstance(refused.outcome, OverflowError)
    assert bench.core._states.ordering._classes == {}


def test_tenants_are_counted_through_the_classes() -> None:
    bench = Bench(policies(ordering=Priority(FairShare()), max_batch_size=1))
    bench.arrive("")
    for tenant, priority in [("x", 0), ("y", 0), ("x", 1)]:
        bench.submit("", tenant=tenant, priority=priority)
    assert bench.core._states.ordering.tenants_tracked == 3
    bench.drain()
    assert bench.core._states.ordering.tenants_tracked == 0


def test_the_age_of_a_class_is_that_of_its_oldest_whoever_of_it_went_before() -> None:
    """Inside, the deadlines turn the order of arrival around."""
    bench = Bench(policies(ordering=Priority(EarliestDeadline(), aging=1.0), max_batch_size=8))
    bench.arrive("")
    for instant, priority, timeout in [(1.0, 0, 90.0), (2.0, 0, 50.0), (2.5, 1, None), (3.0, 0, 20.0), (4.0, 0, 99.0)]:
        bench.advance_to(instant)
        bench.submit("", priority=priority, timeout=timeout)
    bench.drain()
    assert bench.items == [[0], [4, 2, 1, 3, 5]]  # the first class is as old as 1 until 1 goes, and then as 5


def test_the_oldest_of_a_class_lends_its_age_to_nobody_in_another_group() -> None:
    """With Fifo inside. Items 1 and 2 keep class 0 old, but what is served of it in group h is 4, which came late."""
    bench = Bench(policies(ordering=Priority(aging=1.0), max_batch_size=2))
    bench.arrive("h")
    bench.submit("h", priority=0)
    bench.submit("g", priority=0)
    bench.advance_to(2.0)
    bench.submit("h", priority=1)
    bench.advance_to(100.0)
    bench.submit("h", priority=0)
    bench.drain()
    assert bench.items == [[0], [1, 3], [2], [4]]
