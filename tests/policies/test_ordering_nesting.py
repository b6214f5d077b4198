"""What all orderings have in common: descriptions, what may be nested, time that shifts, and failures inside."""

import gc
import pickle
from itertools import islice
from typing import Any

import pytest
from core_bench import Bench, policies
from hypothesis import given, settings
from hypothesis import strategies as st
from ordering_story import Event, Story, stories

from batchlib import batched
from batchlib._core._request import Request
from batchlib._core._transitions import State
from batchlib.policies import EarliestDeadline, FairShare, Fifo, Greedy, LengthAware, Priority
from batchlib.policies.structures._accounts import Account
from batchlib.policies.structures._classes import PriorityClass
from batchlib.policies.structures._turns import Line

NESTED = [
    EarliestDeadline(),
    Priority(),
    Priority(FairShare(within=EarliestDeadline()), aging=None),
    FairShare({"x": 3, "y": 0.5}, Priority(aging=2), default_weight=2),
    FairShare(within=FairShare()),
    LengthAware(Priority(FairShare({"x": 2})), window=8),
    Priority(LengthAware(EarliestDeadline())),
]


@pytest.mark.parametrize("policy", NESTED, ids=repr)
def test_a_policy_is_a_description_that_can_be_shared_pickled_and_compared(policy: Any) -> None:
    again = pickle.loads(pickle.dumps(policy))
    assert again == policy
    assert hash(again) == hash(policy)
    assert len({repr(each) for each in NESTED}) == len(set(NESTED))
    assert policy.start() is not policy.start()
    with pytest.raises((AttributeError, TypeError)):
        policy.within = Fifo()


@pytest.mark.parametrize("make", [Priority, LengthAware, lambda within: FairShare(within=within)])
@pytest.mark.parametrize("within", [None, Fifo, "fifo", 3, Greedy()])
def test_only_an_ordering_policy_can_be_nested(make: Any, within: Any) -> None:
    with pytest.raises(TypeError, match=r"within must be an ordering policy, such as Fifo\(\), not "):
        make(within)


@pytest.mark.parametrize(
    ("make", "kind", "words"),
    [
        (lambda: Priority(aging=0), ValueError, "aging must be a finite number of seconds above 0, or None"),
        (lambda: Priority(aging=-1), ValueError, "not -1"),
        (lambda: Priority(aging=float("inf")), ValueError, "not inf"),
        (lambda: Priority(aging=float("nan")), ValueError, "not nan"),
        (lambda: Priority(aging=True), TypeError, "not True"),
        (lambda: Priority(aging="1"), TypeError, "not '1'"),  # type: ignore[arg-type]
        (lambda: FairShare({"acme": 0}), ValueError, "the weight of 'acme' must be a finite number above 0, not 0"),
        (lambda: FairShare({"acme": -2}), ValueError, "not -2"),
        (lambda: FairShare({"acme": float("inf")}), ValueError, "not inf"),
        (lambda: FairShare({"acme": float("nan")}), ValueError, "not nan"),
        (
            lambda: FairShare({"acme": True}),
            TypeError,
            "the weight of 'acme' must be a finite number above 0, not True",
        ),
        (lambda: FairShare({"acme": None}), TypeError, "not None"),  # type: ignore[dict-item]
        (lambda: FairShare(["acme"]), TypeError, "weights must map tenants to numbers"),  # type: ignore[arg-type]
        (lambda: FairShare(default_weight=0), ValueError, "default_weight must be a finite number above 0, not 0"),
        (lambda: LengthAware(window="9"), TypeError, "window must be a whole number >= 1"),  # type: ignore[arg-type]
    ],
)
def test_a_value_that_makes_no_sense_is_named_with_what_is_legal(make: Any, kind: Any, words: str) -> None:
    with pytest.raises(kind, match=words):
        make()


@settings(max_examples=60, deadline=None, database=None)
@given(stories("abc"), st.integers(1, 1 << 20), st.sampled_from(NESTED), st.integers(1, 4))
def test_a_shift_of_time_changes_nothing(story: list[Event], shift: int, policy: Any, size: int) -> None:
    told = []
    for start in (0.0, float(shift)):
        bench = (played := Story(policy, size, start)).bench
        list(played.play(story))
        told.append((bench.items, bench.states, [batch.started - start for batch in bench.batches]))
    assert told[0] == told[1]


@settings(max_examples=60, deadline=None, database=None)
@given(stories("abc"), st.sampled_from(NESTED), st.integers(1, 4))
def test_no_policy_leaves_anybody_or_anything_behind(story: list[Event], policy: Any, size: int) -> None:
    played = Story(policy, size)
    list(played.play(story))
    assert played.bench.core.idle
    assert played.bench.reports == []
    assert not {"new", "waiting", "running", "failed", "rejected"} & set(played.bench.states)
    assert getattr(played.bench.core._states.ordering, "tenants_tracked", 0) == 0


class Picky:
    """A user's ordering that fails on odd costs."""

    def start(self) -> "Picky":
        return self

    def queue(self) -> Any:
        queue: Any = Fifo().start().queue()
        accept = queue.push

        def push(request: Any) -> None:
            if request.cost % 2:
                raise ZeroDivisionError
            accept(request)

        queue.push = push
        return queue


@pytest.mark.parametrize("policy", [Priority(Picky()), FairShare(within=Picky()), LengthAware(Picky())])
def test_what_raises_inside_fails_its_caller_and_leaves_nothing(policy: Any) -> None:
    bench = Bench(policies(ordering=policy, max_batch_size=1))
    for cost, tenant in [(1, "x"), (2, "x"), (2, "x"), (3, "x"), (5, "y")]:
        bench.submit("", cost=cost, tenant=tenant, priority=cost)
    assert bench.states == ["rejected", "waiting", "waiting", "rejected", "rejected"]
    bench.drain()
    assert bench.items == [[1], [2]]
    assert bench.reports == []
    assert getattr(bench.core._states.ordering, "tenants_tracked", 0) == 0


def test_a_batched_function_takes_them() -> None:
    double = batched(lambda xs: [2 * x for x in xs], cost=float, ordering=LengthAware(Priority(FairShare())))
    futures = [double.options(priority=n % 3, tenant=n % 5).submit(n) for n in range(20)]
    assert [future.result(10) for future in futures] == [2 * n for n in range(20)]
    double.close(drain=True)


@pytest.mark.parametrize("policy", [Priority(), FairShare()])
def test_only_those_are_looked_at_whose_turn_may_come(policy: Any) -> None:
    """Also after all of them have had turns, and their places in the order have to be put right."""
    ordering = policy.start()
    queue = ordering.queue()
    for number in range(1_000):
        request = Request((), "", float(number))
        request.sequence, request.state = number, State.WAITING
        request.tenant = request.priority = number % 500
        queue.push(request)
    asked: list[object] = []
    key = ordering.key
    ordering.key = lambda line: asked.append(line) or key(line)
    for _ in range(80):
        batch = list(islice(queue.in_order(), 10))
        for request in batch:
            request.state = State.RUNNING
        queue.dispatched(batch, 0.0)
        assert len(asked) <= 40
        asked.clear()


class Counting:
    """A user's ordering that counts how often it is begun anew."""

    def __init__(self) -> None:
        self.started = 0

    def start(self) -> Any:
        self.started += 1
        return Fifo().start()


@pytest.mark.parametrize("make", [Priority, lambda within: FairShare(within=within)])
def test_what_is_inside_begins_anew_when_a_tenant_or_a_class_comes_back(make: Any) -> None:
    inside = Counting()
    bench = Bench(policies(ordering=make(inside), max_batch_size=1))
    inside.started = 0  # whether it is a policy has been looked at
    for tenant in "xyy":
        bench.submit("", tenant=tenant, cost=9, priority="xy".index(tenant))
    bench.wake()
    assert inside.started == 2
    bench.submit("", tenant="x")
    bench.submit("", tenant="x")
    assert inside.started == 3
    bench.drain()
    assert bench.core.idle


@pytest.mark.parametrize("policy", NESTED, ids=repr)
def test_what_has_left_is_freed_without_a_collection(policy: Any) -> None:
    def kept() -> int:
        # Not isinstance, which asks foreign objects what they are, and those of torch warn.
        return sum(issubclass(type(each), Line | Account | PriorityClass) for each in gc.get_objects())

    gc.collect()
    gc.disable()
    try:
        before = kept()
        queue = policy.start().queue()
        requests = []
        for number in range(30):
            request = Request((), "", float(number))
            request.sequence, request.state = number, State.WAITING
            request.tenant, request.priority = number % 3, number % 2
            queue.push(request)
            requests.append(request)
        for request in requests[:10]:
            request.state = State.CANCELLED
            queue.removed(request)
        for request in requests[10:]:
            request.state = State.RUNNING
        queue.dispatched(requests[10:], 0.0)
        assert kept() == before
    finally:
        gc.enable()
