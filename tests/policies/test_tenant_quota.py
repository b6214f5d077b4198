"""TenantQuota in the real core: what it counts is what there is, whatever becomes of the requests."""

import random
import re
from collections import Counter
from typing import Any

import hypothesis
import hypothesis.stateful as stateful
import pytest
from core_bench import Bench, policies
from hypothesis import settings
from hypothesis import strategies as st
from support import Held

from batchlib import Overloaded, batched
from batchlib._core._protocols import Decision, Group
from batchlib._core._request import Request
from batchlib._core._transitions import State
from batchlib.policies import CostLimit, Fifo, MaxWaiting, TenantQuota

TENANTS = ["a", "b", "c", None]
quotas = st.none() | st.integers(0, 4)
overrides = st.dictionaries(st.sampled_from(TENANTS), st.builds(TenantQuota, quotas, quotas), max_size=2)


class Moody:
    """Admits, sheds, or fails, as the next draw has it."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def start(self) -> "Moody":
        return self

    def admit(self, request: Request, room: Any, now: float) -> Any:
        if self.random.random() < 0.1:
            raise ValueError("moody")
        return Overloaded("moody") if self.random.random() < 0.2 else None

    def decide(self, group: Group, now: float) -> Decision:
        mood = self.random.random()
        if mood < 0.1:
            raise ValueError("moody")
        if mood < 0.3:
            return Decision(drop=list(group.in_order())[:2], wake_at=now + 1)
        return Decision(group.fill().requests)


class MoodyOrdering(Moody):
    """First in, first out, but for a push that fails now and then."""

    def queue(self) -> Any:
        queue = Fifo().start().queue()
        queue.arrival_order = False
        push = queue.push

        def moody_push(request: Request) -> None:
            if self.random.random() < 0.1:
                raise ValueError("moody")
            push(request)

        queue.push = moody_push
        return queue


def counts(bench: Bench, *states: State) -> dict[Any, int]:
    """From scratch."""
    return dict(Counter(request.tenant for request in bench.requests if request.state in states))


class QuotaMachine(stateful.RuleBasedStateMachine):
    @stateful.initialize(
        quota=st.builds(TenantQuota, quotas, quotas, overrides | st.none()),
        seed=st.integers(0, 9999),
        moody=st.booleans(),
    )
    def begin(self, quota: TenantQuota, seed: int, moody: bool) -> None:
        self.quota = quota
        self.moody = moody
        options: dict[str, Any] = {"dispatch": Moody(seed), "ordering": MoodyOrdering(seed)} if moody else {}
        others = (Moody(seed),) if moody else ()
        self.options = {
            **options,
            "admission": (quota, *others),
            "limits": (CostLimit(4),),
            "max_concurrent_batches": 2,
        }
        self.bench = Bench(policies(**self.options))
        self.max_cost = 4
        self.admission: Any = self.bench.core._states.admissions[0]

    @stateful.rule(
        tenant=st.sampled_from(TENANTS),
        timeout=st.none() | st.integers(0, 3),
        cost=st.integers(1, 5),
        group=st.sampled_from("xy"),
    )
    def submit(self, tenant: Any, timeout: float | None, cost: float, group: str) -> None:
        waiting = counts(self.bench, State.WAITING).get(tenant, 0)
        in_flight = waiting + counts(self.bench, State.RUNNING).get(tenant, 0)
        quota = (self.quota.overrides or {}).get(tenant, self.quota)
        over = [
            name
            for name, count in (("max_waiting", waiting), ("max_in_flight", in_flight))
            if (limit := getattr(quota, name)) is not None and count >= limit
        ]
        request = self.bench.submit(group, tenant=tenant, timeout=timeout, cost=cost)
        if self.bench.core.closed or cost > self.max_cost:
            assert request.state is State.REJECTED
        elif over:
            assert isinstance(request.outcome, Overloaded)
            assert re.match(rf"tenant {tenant!r}: \d requests wait.* and {over[0]} is \d: ", str(request.outcome))
        else:
            assert request.state is State.WAITING or self.moody

    @stateful.precondition(lambda self: self.bench.requests)
    @stateful.rule(which=st.integers(0))
    def cancel(self, which: int) -> None:
        self.bench.cancel(self.bench.requests[which % len(self.bench.requests)])

    @stateful.rule()
    def end_of_tick(self) -> None:
        self.bench.wake()

    @stateful.rule(seconds=st.sampled_from([0.5, 1, 2]))
    def pass_time(self, seconds: float) -> None:
        self.bench.advance_to(self.bench.now + seconds)

    @stateful.precondition(lambda self: self.bench.running)
    @stateful.rule(which=st.integers(0), failing=st.booleans())
    def finish(self, which: int, failing: bool) -> None:
        batch = self.bench.running[which % len(self.bench.running)]
        self.bench.finish(batch, [ValueError("failed") if failing else 1] * batch.size)

    @stateful.rule(max_cost=st.integers(1, 4))
    def configure(self, max_cost: int) -> None:
        self.max_cost = max_cost
        self.bench.configure(policies(**{**self.options, "limits": (CostLimit(max_cost),)}))

    @stateful.precondition(lambda self: len(self.bench.requests) > 15)
    @stateful.rule(drain=st.booleans(), running=st.booleans())
    def close(self, drain: bool, running: bool) -> None:
        self.bench.close(drain=drain, running=running and not drain)

    @stateful.invariant()
    def counts_what_there_is(self) -> None:
        assert self.admission.waiting == counts(self.bench, State.WAITING)
        assert self.admission.in_flight == counts(self.bench, State.WAITING, State.RUNNING)
        assert self.admission.tenants_tracked == len(self.admission.in_flight)

    def teardown(self) -> None:
        if hasattr(self, "bench"):
            self.bench.drain()
            assert self.admission.tenants_tracked == 0
            assert self.bench.reports == []


def test_it_counts_what_there_is_whatever_becomes_of_the_requests(seed: int) -> None:
    hypothesis.seed(seed)(QuotaMachine)
    stateful.run_state_machine_as_test(
        QuotaMachine, settings=settings(max_examples=200, stateful_step_count=40, deadline=None, database=None)
    )


def test_one_tenants_flood_is_refused_and_nobody_else() -> None:
    held = Held()
    f = batched(held, max_batch_size=4, admission=TenantQuota(max_waiting=3, max_in_flight=5))
    running = [f.options(tenant="flood").submit(0)]
    assert held.started.wait(30)
    waiting = [f.options(tenant="flood").submit(number) for number in range(3)]
    words = r"tenant 'flood': 3 requests wait and max_waiting is 3: send it later or elsewhere, or raise the"
    with pytest.raises(Overloaded, match=words):
        f.options(tenant="flood").submit(9).result()
    other = f.options(tenant="small").submit(7)
    held.gate.set()
    assert [future.result() for future in [*running, *waiting, other]] == [0, 0, 1, 2, 7]
    assert f.options(tenant="flood").call(8) == 8
    f.close()


def test_a_tenant_whose_quota_is_none_at_all_is_not_served() -> None:
    quota = TenantQuota(max_waiting=0, overrides={"known": TenantQuota(), "limited": TenantQuota(max_in_flight=1)})
    f = batched(lambda xs: xs, admission=(quota, MaxWaiting(100)))
    for tenant in ["stranger", None]:
        with pytest.raises(Overloaded, match=f"tenant {tenant!r}: 0 requests wait and max_waiting is 0"):
            f.options(tenant=tenant).call(1)
    assert f.options(tenant="known").call(1) == f.options(tenant="limited").call(1) == 1
    f.close()


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: TenantQuota(-1), ValueError, "max_waiting must be a whole number >= 0, or None for no limit, not -1"),
        (lambda: TenantQuota(max_in_flight=-1), ValueError, "max_in_flight must be"),
        (lambda: TenantQuota("3"), TypeError, "not '3'"),  # type: ignore[arg-type]
        (lambda: TenantQuota(True), TypeError, "not True"),
        (lambda: TenantQuota(1.5), TypeError, "not 1.5"),  # type: ignore[arg-type]
        (lambda: TenantQuota(overrides=[]), TypeError, "overrides must map tenants to TenantQuota without overrides"),  # type: ignore[arg-type]
        (lambda: TenantQuota(overrides={"a": 3}), TypeError, "not {'a': 3}"),  # type: ignore[dict-item]
        (lambda: TenantQuota(overrides={"a": TenantQuota(overrides={})}), TypeError, "without overrides, not"),
    ],
)
def test_a_quota_that_makes_no_sense_is_named_with_what_is_legal(make: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=re.escape(words)):
        make()


def test_a_mapping_that_changes_later_changes_no_quota() -> None:
    given = {"a": TenantQuota(0)}
    quota = TenantQuota(overrides=given)
    given.clear()
    assert quota == TenantQuota(overrides={"a": TenantQuota(0)})
