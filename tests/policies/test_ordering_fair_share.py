"""What `FairShare` promises: how far tenants may be apart, that idling earns nothing, and what is remembered."""

from collections.abc import Iterator
from itertools import combinations
from typing import Any

import pytest
from core_bench import Bench, policies
from hypothesis import given, settings
from hypothesis import strategies as st
from ordering_story import Event, Story, stories

from batchlib._core._batcher import Batcher
from batchlib._core._request import Request
from batchlib._core._transitions import State
from batchlib.policies import EarliestDeadline, FairShare, Fifo, LengthAware, Priority

LARGEST = 4  # cost in a story
same_priority = st.just(0)
weights = st.dictionaries(st.sampled_from("xyz"), st.sampled_from([0.5, 1.0, 2.0, 4.0]))


class Service(Story):
    """Keeps, for every two tenants, how far apart their service over weight has got since both have had requests."""

    def __init__(self, policy: FairShare, size: int) -> None:
        super().__init__(policy, size)
        self.weight = {tenant: (policy.weights or {}).get(tenant, 1.0) for tenant in "xyz"}
        self.served = dict.fromkeys("xyz", 0.0)
        self.apart: dict[tuple[str, str], list[float]] = {}

    def follow(self, story: list[Event]) -> Iterator[tuple[float, float, float]]:
        """(gap, weight, weight) of two tenants, after every request served."""
        for batch, waited in self.play(story):
            left = list(waited)
            for request in batch:
                left.remove(request)
                self.served[request.tenant] += request.cost / self.weight[request.tenant]
                self.note({each.tenant for each in left})
                for (one, other), differences in self.apart.items():
                    yield max(differences) - min(differences), self.weight[one], self.weight[other]

    def looked_at(self) -> None:
        self.note({each.tenant for each in self.bench.requests if each.state is State.WAITING})

    def note(self, backlogged: set[str]) -> None:
        for pair in combinations("xyz", 2):
            if backlogged.issuperset(pair):
                self.apart.setdefault(pair, []).append(self.served[pair[0]] - self.served[pair[1]])
            else:
                self.apart.pop(pair, None)


@settings(max_examples=250, deadline=None, database=None)
@given(stories("a", priority=same_priority), weights, st.integers(1, 5), st.sampled_from([Fifo(), EarliestDeadline()]))
def test_two_tenants_are_never_further_apart_than_one_request_of_each(
    story: list[Event], weights: dict[Any, float], size: int, inside: Any
) -> None:
    """Also after spells in which all were idle, and with floods that are cancelled."""
    for gap, one, other in Service(FairShare(weights, inside), size).follow(story):
        assert gap <= LARGEST / one + LARGEST / other


@settings(max_examples=250, deadline=None, database=None)
@given(stories("abc", priority=same_priority), weights, st.integers(1, 5))
def test_across_groups_the_cost_of_a_batch_comes_on_top(
    story: list[Event], weights: dict[Any, float], size: int
) -> None:
    service = Service(FairShare(weights), size)
    for gap, one, other in service.follow(story):
        assert gap <= LARGEST / one + LARGEST / other + size * LARGEST / min(service.weight.values())


def test_what_was_served_before_all_were_idle_is_no_debt_and_no_credit() -> None:
    """Lifting a tenant that comes back only to the smallest of those who are there would owe it all of this."""
    bench = Bench(policies(ordering=FairShare(), max_batch_size=1))
    for _ in range(50):
        bench.arrive("", tenant="x")
        bench.finish(bench.running[0])
    bench.arrive("", tenant="z")
    for tenant in "xxxxyyyy":
        bench.submit("", tenant=tenant)
    bench.drain()
    assert [request.tenant for batch in bench.batches[51:] for request in bench.contents[batch]] == list("xyxyxyxy")


def submit(core: Batcher, tenant: Any, group: str = "", cost: float = 1) -> Request:
    request = Request((), group, 0.0)
    request.tenant, request.cost = tenant, cost
    core.submit(request, 0.0)
    return request


def next_batch(core: Batcher) -> list[Request]:
    """Ends the batch that runs; what is dispatched then."""
    for batch in core.running_batches:
        core.finish(batch, [None] * batch.size, 0.0)
    (batch,) = core.running_batches
    return batch.requests


@pytest.mark.parametrize("cost", [1, 7, 0])
@pytest.mark.parametrize("group", ["", "another"])
@pytest.mark.parametrize("policy", [FairShare(), Priority(FairShare())])
def test_a_flood_of_one_tenant_delays_another_by_a_batch(policy: Any, group: str, cost: float) -> None:
    core = Batcher(policies(ordering=policy, max_batch_size=32))
    for _ in range(10_000):
        submit(core, "flood", cost=cost)
    core.wake(0.0)
    for _ in range(100):
        next_batch(core)
    single = submit(core, "single", group, cost=1)
    assert single in next_batch(core)


def test_a_flood_without_cost_is_charged_like_the_smallest_request_of_late() -> None:
    core = Batcher(policies(ordering=FairShare(), max_batch_size=4))
    submit(core, "flood", cost=0.5)
    for _ in range(10):
        submit(core, "flood", cost=0)
    for _ in range(3):
        submit(core, "other", cost=0.5)
    core.wake(0.0)
    assert [request.tenant for request in core.running_batches[0].requests] == ["flood", "other"] * 2


def test_who_is_idle_is_remembered_until_the_others_have_caught_up_and_no_longer() -> None:
    bench = Bench(policies(ordering=FairShare(), max_batch_size=1))
    ordering = bench.core._states.ordering
    bench.arrive("", tenant="x", cost=3)
    bench.finish(bench.running[0])
    assert ordering.tenants_tracked == 0  # nobody waits
    bench.submit("", tenant="x", cost=3)
    for _ in range(6):
        bench.submit("", tenant="y", cost=1)
    bench.wake()  # x, whose tag is 3 now
    tracked = []
    while bench.running:
        tracked.append(ordering.tenants_tracked)
        bench.finish(bench.running[0])
    assert tracked == [2, 2, 2, 2, 1, 1, 0]


@pytest.mark.parametrize("size", [1, 8])
@pytest.mark.parametrize("weight", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("cost", [0, 1, 3])
def test_strangers_without_end_starve_nobody_and_are_forgotten(size: int, weight: float, cost: float) -> None:
    """Each comes once, and past capacity there is always a next one."""
    core = Batcher(policies(ordering=FairShare({"known": weight}), max_batch_size=size))
    known = [submit(core, "known", cost=cost) for _ in range(5)]
    strangers = tracked = 0
    core.wake(0.0)
    steps = 4  # of half the smallest price, in a stranger's: the heaviest weight is 2
    for _ in range(50 * 5 * 3 * steps):
        while core.waiting < 50:
            submit(core, strangers)
            strangers += 1
        next_batch(core)
        tracked = max(tracked, core.statistics(0.0).tenants_tracked)
    assert all(request.state is State.COMPLETED for request in known)
    assert tracked <= (steps + 2) * 50


def test_a_newcomer_goes_before_whoever_was_served_while_the_virtual_time_moves() -> None:
    bench = Bench(policies(ordering=FairShare(), max_batch_size=1))
    for tenant, cost in [("x", 1), ("y", 0.75), ("y", 0.75), ("y", 0.75), ("x", 1)]:
        bench.submit("", tenant=tenant, cost=cost)
    bench.wake()
    for _ in range(2):
        bench.finish(bench.running[0])
    bench.submit("", tenant="new")  # y runs, at 0.75; x is to be next at 1, and half of the smallest price is 0.375
    bench.drain()
    assert [bench.requests[number].tenant for (number,) in bench.items] == ["x", "y", "y", "new", "x", "y"]


def test_a_newcomer_goes_before_whoever_was_served_while_it_stands_still() -> None:
    """However little the one who was served pays."""
    bench = Bench(policies(ordering=FairShare({"heavy": 4}), max_batch_size=1))
    for tenant in ["x", *["heavy"] * 3]:
        bench.submit("", tenant=tenant)
    bench.wake()
    bench.submit("", tenant="new")
    bench.drain()
    assert [bench.requests[number].tenant for (number,) in bench.items] == ["x", "heavy", "new", "heavy", "heavy"]


def test_coming_back_early_pays_what_was_left_to_pay() -> None:
    bench = Bench(policies(ordering=FairShare(), max_batch_size=1))
    bench.submit("", tenant="x", cost=3)
    for _ in range(5):
        bench.submit("", tenant="y", cost=1)
    bench.wake()
    bench.submit("", tenant="x", cost=1)
    bench.drain()
    assert [bench.requests[number].tenant for (number,) in bench.items] == list("xyyyxyy")


def test_a_tenant_without_a_weight_is_its_callers_error_and_leaves_nothing() -> None:
    bench = Bench(policies(ordering=FairShare({"acme": 2, None: 1}, default_weight=None)))
    stranger, *_ = (bench.submit("", tenant=tenant) for tenant in ("stranger", "acme", None))
    bench.wake()
    assert bench.states == ["rejected", "running", "running"]
    assert isinstance(stranger.outcome, ValueError)
    assert "tenant 'stranger' has no weight (known: 'acme', None)" in str(stranger.outcome)
    assert bench.core._states.ordering.tenants_tracked == 0
    nobody = Bench(policies(ordering=FairShare(default_weight=None))).submit("")
    assert "(known: none)" in str(nobody.outcome)


@pytest.mark.parametrize("inside", [LengthAware(), Priority(LengthAware())])
def test_runs_are_not_torn_apart(inside: Any) -> None:
    with pytest.raises(TypeError, match="put LengthAware outside of FairShare"):
        FairShare(within=inside)


def test_weights_are_copied() -> None:
    weights = {"acme": 2.0}
    policy = FairShare(weights)
    weights["acme"] = 3.0
    assert policy == FairShare({"acme": 2.0}) != FairShare(weights)
