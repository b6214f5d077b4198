"""The policies themselves: what they accept, and the edges that the core's tests do not show plainly."""

import math
import pickle
import re
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchlib import batched
from batchlib._core._batch import Batch
from batchlib._core._request import Request
from batchlib._core._transitions import State
from batchlib.policies import (
    AimdBatchSize,
    CostLimit,
    DeadlineAware,
    Fifo,
    Greedy,
    LengthAware,
    MaxWaiting,
    PaddedCost,
    SizeOrWait,
    TenantQuota,
)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: CostLimit(0), "max_cost must be a finite number above 0, not 0"),
        (lambda: CostLimit(-1), "not -1"),
        (lambda: CostLimit(math.inf), "not inf"),
        (lambda: CostLimit(math.nan), "not nan"),
        (lambda: PaddedCost(0), "max_cost must be a finite number above 0, not 0"),
        (lambda: PaddedCost(math.inf), "not inf"),
        (lambda: PaddedCost(math.nan), "not nan"),
        (lambda: AimdBatchSize(0), "target must be a finite number of seconds above 0, not 0"),
        (lambda: AimdBatchSize(timedelta(seconds=-1)), "not -1.0"),
        (lambda: AimdBatchSize(math.inf), "not inf"),
        (lambda: AimdBatchSize(1, increase=0), "increase must be a finite number above 0, not 0"),
        (lambda: AimdBatchSize(1, backoff=1), "backoff must be a number between 0 and 1, not 1"),
        (lambda: AimdBatchSize(1, backoff=-0.5), "not -0.5"),
        (lambda: SizeOrWait(-0.1), "max_wait must be a finite number of seconds >= 0, not -0.1"),
        (lambda: SizeOrWait(math.inf), "not inf"),
        (lambda: SizeOrWait(math.nan), "not nan"),
        (lambda: MaxWaiting(0), "max_waiting must be a whole number >= 1, not 0"),
        (lambda: MaxWaiting(1, "drop"), 'overflow must be "wait" or "reject", not \'drop\''),  # type: ignore[arg-type]
    ],
)
def test_a_value_that_makes_no_sense_is_named_with_what_is_legal(make: Any, words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        make()


@pytest.mark.parametrize(
    "make",
    [
        lambda: PaddedCost("9"),
        lambda: PaddedCost(True),
        lambda: CostLimit("9"),  # type: ignore[arg-type]
        lambda: AimdBatchSize("1 s"),
        lambda: AimdBatchSize(None),
        lambda: SizeOrWait(None),  # type: ignore[arg-type]
        lambda: MaxWaiting("9"),  # type: ignore[arg-type]
        lambda: DeadlineAware("9"),  # type: ignore[arg-type]
        lambda: LengthAware(window=True),
    ],
)
def test_what_is_no_number_is_named_as_such(make: Any) -> None:
    with pytest.raises(TypeError, match=r"must be a (finite number.* (above|>=) 0|whole number >= 1), not"):
        make()


@pytest.mark.parametrize("make", [MaxWaiting, DeadlineAware, lambda count: LengthAware(window=count)])
@pytest.mark.parametrize("count", [0, 1.5, math.inf, math.nan])
def test_a_count_is_a_whole_number(make: Any, count: Any) -> None:
    with pytest.raises(ValueError, match=f"must be a whole number >= 1, not {count}"):
        make(count)


@pytest.mark.parametrize(
    "policy",
    [
        Fifo(),
        Greedy(),
        SizeOrWait(0.5),
        CostLimit(7),
        PaddedCost(7),
        AimdBatchSize(timedelta(seconds=1)),
        MaxWaiting(3, "reject"),
        TenantQuota(3, overrides={"acme": TenantQuota(max_in_flight=7)}),
    ],
)
def test_a_policy_is_a_description_that_can_be_shared_pickled_and_compared(policy: Any) -> None:
    assert pickle.loads(pickle.dumps(policy)) == policy
    assert hash(policy) == hash(pickle.loads(pickle.dumps(policy)))
    assert policy.start() is not policy.start()
    with pytest.raises((AttributeError, TypeError)):  # a frozen class with slots raises the one or the other
        policy.something = 1


def request(cost: float = 1) -> Request:
    made = Request((), "", 0.0)
    made.cost = cost
    made.state = State.WAITING
    return made


def test_costs_that_add_up_to_the_limit_exactly_still_fit() -> None:
    room = CostLimit(0.3).start().open()
    assert room.add(request(0.1))
    assert not room.full
    assert room.add(request(0.2)) is (0.1 + 0.2 <= 0.3)
    whole = CostLimit(3).start().open()
    assert [whole.add(request(1)) for _ in range(4)] == [True, True, True, False]
    assert whole.full


def test_a_cost_of_nothing_always_fits() -> None:
    room = CostLimit(1).start().open()
    assert room.add(request(1))
    assert room.full
    assert room.add(request(0))


@given(costs=st.lists(st.integers(0, 9), max_size=12), limit=st.integers(1, 40))
def test_a_padded_batch_costs_its_size_times_its_longest(costs: list[int], limit: int) -> None:
    room = PaddedCost(limit).start().open()
    taken: list[int] = []
    for cost in costs:
        fits = (len(taken) + 1) * max([*taken, cost]) <= limit
        shortest_fits = (len(taken) + 1) * max(taken, default=0) <= limit
        assert room.full is not shortest_fits
        assert room.add(request(cost)) is fits
        taken += [cost] * fits


def test_an_item_longer_than_the_padded_limit_can_never_fit() -> None:
    limiter = PaddedCost(8).start()
    assert limiter.exceeds(request(8)) is None
    assert limiter.exceeds(request(9)) == (9, 8)


def test_padded_cost_needs_a_cost() -> None:
    with pytest.raises(TypeError, match="needs cost=, a function that gives an item's cost, such as cost=len"):
        batched(list, dispatch=PaddedCost(8))


def test_items_are_padded_together_only_up_to_the_limit() -> None:
    sizes = []

    def longest(texts: list[str]) -> list[int]:
        sizes.append([len(text) for text in texts])
        return [max(map(len, texts))] * len(texts)

    pad = batched(longest, cost=len, dispatch=(Greedy(), PaddedCost(8)))
    assert list(pad.map(["a", "bb", "cc", "dddd", "e", "ffff"])) == [2, 2, 2, 4, 4, 4]
    assert sizes == [[1, 2, 2], [4, 1], [4]]


def run(limiter: Any, waiting: int, execution_time: float) -> None:
    """One batch of as many as wait and fit."""
    room = limiter.open()
    requests: list[Request] = []
    while not room.full and len(requests) < waiting:
        requests.append(request())
        assert room.add(requests[-1])
    assert room.full is (len(requests) == int(limiter.cap))
    assert room.add(request()) is not room.full or len(requests) < int(limiter.cap)
    limiter.observe(Batch(1, "", requests, "full", 0.0), execution_time)


@settings(deadline=None, database=None)
@given(base=st.floats(0, 10), each=st.floats(0.5, 5), target=st.floats(0.01, 20))
def test_a_saturated_constant_device_keeps_the_size_near_the_largest_that_meets_the_target(
    base: float, each: float, target: float
) -> None:
    """scheduling: cap in [0.9 (b0 + 1), b0 + 2) with b0 the largest size in time; invariant V31."""

    def takes(size: int) -> float:
        return base + each * size

    hypothetical = int((target - base) / each) + 2
    b0 = max([size for size in range(1, hypothetical) if takes(size) <= target], default=0)
    limiter = AimdBatchSize(target).start()
    for _ in range(b0):  # one step up per batch, from 1
        run(limiter, math.inf, takes(int(limiter.cap)))  # type: ignore[arg-type]
    for _ in range(50):
        assert 0.9 * (b0 + 1) <= limiter.cap < b0 + 2
        assert limiter.cap >= 1
        run(limiter, math.inf, takes(int(limiter.cap)))  # type: ignore[arg-type]


@given(times=st.lists(st.tuples(st.integers(1, 9), st.floats(0, 3)), max_size=50))
def test_the_size_is_never_below_one_whatever_the_times(times: list[tuple[int, float]]) -> None:
    limiter = AimdBatchSize(timedelta(seconds=1), increase=2.5, backoff=0.5).start()
    for waiting, execution_time in times:
        before, used_up = limiter.cap, waiting >= int(limiter.cap)
        run(limiter, waiting, execution_time)
        if execution_time > 1:
            assert limiter.cap == max(1, before / 2)
        else:
            assert limiter.cap == before + 2.5 * used_up
        assert limiter.cap >= 1


def test_nothing_is_too_large_for_an_adaptive_size_and_each_batcher_finds_its_own() -> None:
    policy = AimdBatchSize(1)
    one, other = policy.start(), policy.start()
    assert one.exceeds(request(1e9)) is None
    run(one, 1, 0.5)
    assert (one.cap, other.cap) == (2, 1)


def test_a_queue_keeps_few_of_those_who_left_from_its_middle() -> None:
    queue = Fifo().start().queue()
    first, last = request(), request()
    queue.push(first)
    middle = [request() for _ in range(1_000)]
    for each in middle:
        queue.push(each)
    queue.push(last)
    for number, each in enumerate(middle):
        each.state = State.CANCELLED
        queue.removed(each)
        assert len(queue._requests) <= 2 * (len(middle) - number + 1) + 2
    assert list(queue.in_order()) == [first, last]
    assert len(queue._requests) <= 4


def test_a_queue_gives_out_those_who_wait_in_the_order_they_came() -> None:
    queue = Fifo().start().queue()
    requests = [request() for _ in range(6)]
    for sequence, each in enumerate(requests):
        each.sequence = sequence
        queue.push(each)
    requests[2].state = State.CANCELLED
    queue.removed(requests[2])
    assert queue.rank() == 0
    for each in requests[:2]:
        each.state = State.RUNNING
    queue.dispatched(requests[:2], 0.0)
    assert queue.rank() == 3
    assert list(queue.in_order()) == requests[3:]
