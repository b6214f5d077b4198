"""The core against the reference model, event by event; the invariants hold after each one (core_bench.py)."""

import hypothesis
import hypothesis.stateful as stateful
from core_bench import Bench, policies
from core_reference import Reference, Rules, Step
from hypothesis import settings
from hypothesis import strategies as st

from batchlib._core._policies import Policies
from batchlib.policies import CostLimit, Greedy, MaxWaiting, SizeOrWait

QUARTER = 0.25  # instants and waits are whole numbers of it, so that sums are exact

costs = st.integers(1, 4)
timeouts = st.none() | st.integers(0, 16).map(lambda quarters: quarters * QUARTER)
limits = {
    "max_batch_size": st.integers(1, 7),
    "max_concurrent_batches": st.integers(1, 3),
    "max_cost": st.none() | st.integers(2, 12),
    "max_wait": st.integers(0, 6).map(lambda quarters: quarters * QUARTER) | st.none(),
    "max_waiting": st.none() | st.integers(1, 9),
}
all_rules = st.builds(Rules, oversize_alone=st.booleans(), reject=st.booleans(), **limits)


def as_policies(rules: Rules) -> Policies:
    overflow = "reject" if rules.reject else "wait"
    return policies(
        admission=() if rules.max_waiting is None else (MaxWaiting(rules.max_waiting, overflow),),
        dispatch=Greedy() if rules.max_wait is None else SizeOrWait(rules.max_wait),
        limits=() if rules.max_cost is None else (CostLimit(rules.max_cost),),
        max_batch_size=rules.max_batch_size,
        max_concurrent_batches=rules.max_concurrent_batches,
        oversize_alone=rules.oversize_alone,
    )


class CoreMachine(stateful.RuleBasedStateMachine):
    @stateful.initialize(
        rules=all_rules, start=st.sampled_from([0.0, 1000.0]), close_after=st.sampled_from([1000, 30, 15, 5])
    )
    def begin(self, rules: Rules, start: float, close_after: int) -> None:
        self.rules = rules
        self.close_after = close_after
        self.bench = Bench(as_policies(rules), start)
        self.reference = Reference(rules)
        self.told = self.dispatched = self.left = 0

    def agree(self, step: Step) -> None:
        """What the core has just done is what the reference says."""
        bench = self.bench
        if bench.unwatched:
            bench.unwatched = False
            self.reference.unwatched(bench.now, step)
        told = dict([(request.args[0], request.state.value) for request in bench.resolved][self.told :])
        assert told == step.ended
        batches = bench.batches[self.dispatched :]
        assert [([r.args[0] for r in bench.contents[batch]], batch.reason) for batch in batches] == step.batches
        assert sorted(batch.number for batch in bench.abandoned[self.left :]) == sorted(step.abandoned)
        self.told, self.dispatched, self.left = len(bench.resolved), len(bench.batches), len(bench.abandoned)
        assert bench.states == [call.state for call in self.reference.calls]
        assert bench.core.held_back is self.reference.held_back
        assert bench.reports == []

    # ---- the callers

    @stateful.rule(
        groups=st.text("abc", min_size=1, max_size=4),
        cost=costs,
        timeout=timeouts,
        priority=costs,
        tenant=st.sampled_from("xy"),
    )
    def submit(self, groups: str, cost: float, timeout: float | None, priority: float, tenant: str) -> None:
        bench = self.bench
        for group in groups:
            request = bench.submit(group, cost=cost, timeout=timeout, priority=priority, tenant=tenant)
            self.agree(self.reference.submit(group, cost, bench.now, request.deadline))

    @stateful.precondition(lambda self: self.bench.requests)
    @stateful.rule(which=st.integers(0))
    def cancel(self, which: int) -> None:
        number = which % len(self.bench.requests)
        self.bench.cancel(self.bench.requests[number])
        self.agree(self.reference.cancel(number))

    # ---- the time

    @stateful.rule()
    def end_of_tick(self) -> None:
        """The wake-up that an arrival asked for; at other times one that nobody asked for."""
        self.bench.wake()
        self.agree(self.reference.wake(self.bench.now))

    @stateful.rule(quarters=st.integers(1, 6))
    def pass_time(self, quarters: int) -> None:
        """Every wake-up comes at its instant."""
        end = self.bench.now + quarters * QUARTER
        while self.bench.wakes and min(self.bench.wakes) <= end:
            self.bench.now = max(self.bench.now, min(self.bench.wakes))
            self.end_of_tick()
        self.bench.now = end

    @stateful.rule(quarters=st.integers(1, 6))
    def stall(self, quarters: int) -> None:
        """The runtime is late: time has passed, wake-ups that were due come with the next one."""
        self.bench.stall(quarters * QUARTER)

    @stateful.rule(scarce=st.booleans())
    def let_wakeups_be(self, scarce: bool) -> None:
        """Whether the runtime has any to give."""
        self.bench.scarce = scarce

    # ---- the executors

    @stateful.precondition(lambda self: self.bench.running)
    @stateful.rule(which=st.integers(0), failing=st.sets(st.integers(0, 6)), looked_at=st.booleans())
    def finish(self, which: int, failing: set[int], looked_at: bool) -> None:
        batch = self.bench.running[which % len(self.bench.running)]
        failed = [place in failing for place in range(batch.size)]
        self.bench.finish(
            batch, [ValueError(place) if fails else place for place, fails in enumerate(failed)], looked_at=looked_at
        )
        self.agree(self.reference.finish(batch.number - 1, failed, self.bench.now))

    # ---- the owner

    @stateful.precondition(lambda self: len(self.bench.requests) >= self.close_after)
    @stateful.rule(drain=st.booleans(), running=st.booleans())
    def close(self, drain: bool, running: bool) -> None:
        self.bench.close(drain=drain, running=running and not drain)
        self.agree(self.reference.close(drain, running and not drain, self.bench.now))

    @stateful.rule(values=st.fixed_dictionaries({}, optional=limits))
    def configure(self, values: dict[str, float | None]) -> None:
        self.rules = Rules(**{**self.rules.__dict__, **values})
        self.bench.configure(as_policies(self.rules))
        self.agree(self.reference.configure(self.rules, self.bench.now))

    def teardown(self) -> None:
        if hasattr(self, "bench"):
            self.bench.drain()
            assert self.bench.core.idle
            assert not {"new", "waiting", "running"} & set(self.bench.states)


def test_the_core_does_what_the_reference_says(seed: int) -> None:
    hypothesis.seed(seed)(CoreMachine)
    stateful.run_state_machine_as_test(
        CoreMachine, settings=settings(max_examples=600, stateful_step_count=50, deadline=None, database=None)
    )
