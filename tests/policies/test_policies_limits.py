"""The policies themselves: what they accept, and the edges that the core's tests do not show plainly."""

import math
import pickle
import re
from typing import Any

import pytest

from batchlib._core._request import Request
from batchlib._core._transitions import State
from batchlib.policies import CostLimit, Fifo, Greedy, MaxWaiting, SizeOrWait


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: CostLimit(0), "max_cost must be a finite number above 0, not 0"),
        (lambda: CostLimit(-1), "not -1"),
        (lambda: CostLimit(math.inf), "not inf"),
        (lambda: CostLimit(math.nan), "not nan"),
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


@pytest.mark.parametrize("policy", [Fifo(), Greedy(), SizeOrWait(0.5), CostLimit(7), MaxWaiting(3, "reject")])
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
