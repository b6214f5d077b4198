"""Wholes: their parts are requests like any other, and none goes on once another has failed."""

import math
import random
from collections.abc import Iterator
from typing import Any

import hypothesis
import hypothesis.stateful as stateful
import pytest
from core_bench import Bench, policies
from hypothesis import settings
from hypothesis import strategies as st

from batchlib._core._batch import Batch
from batchlib._core._protocols import Decision, Group
from batchlib._core._request import Request
from batchlib._core._splitting import Part, SplittingBatcher, Whole
from batchlib._core._transitions import FINAL, State
from batchlib.errors import Closed, DeadlineExceeded, ItemTooLarge, Overloaded, Shed
from batchlib.policies import CostLimit, MaxWaiting, PaddedCost, TenantQuota


class SplitBench(Bench):
    def __init__(self, **options: Any) -> None:
        super().__init__(policies(**{"limits": (CostLimit(4),), "oversize_split": True, **options}))
        self.core: SplittingBatcher = SplittingBatcher(self.policies)
        self.wholes: list[Whole] = []

    def submit_whole(self, rows: int, group: Any = "", *, timeout: float | None = None, **fields: Any) -> Whole:
        request = Request((), group, self.now)
        request.cost = rows
        request.deadline = None if timeout is None else self.now + timeout
        for name, value in fields.items():
            setattr(request, name, value)
        largest = self.core.largest_part(request)
        assert largest is not None
        sizes = [min(largest, rows - start) for start in range(0, rows, largest)]
        whole = Whole(request, [((len(self.requests) + place,), size) for place, size in enumerate(sizes)])
        actions = self.core.submit(whole, self.now)
        self.requests += whole.parts
        self.wholes.append(whole)
        self.perform(actions, submitting=True)
        return whole

    def cancel_whole(self, whole: Whole) -> None:
        self.perform(self.core.cancel(whole, self.now))

    def hold_dispatch(self, batch: Batch) -> None:
        """A whole may fail in the very event in which one of its parts was dispatched, by a later decision."""
        gone = [each for each in batch.requests if isinstance(each, Part) and each.state is State.FAILED]
        for part in gone:
            part.state = State.RUNNING
        super().hold_dispatch(batch)
        for part in gone:
            part.state = State.FAILED

    def hold_always(self) -> None:
        super().hold_always()
        for whole in self.wholes:
            states = [part.state for part in whole.parts]
            assert State.NEW not in states
            if not set(states) <= {State.WAITING, State.RUNNING, State.COMPLETED}:
                assert set(states) <= FINAL
                assert all(part.whole is None for part in whole.parts)
            assert [part.sequence for part in whole.parts if part.sequence] == sorted(
                part.sequence for part in whole.parts if part.sequence
            )


def states(whole: Whole) -> list[str]:
    return [part.state.value for part in whole.parts]


def errors(whole: Whole) -> set[type]:
    return {type(part.outcome) for part in whole.parts}


def test_parts_are_as_large_as_the_limit_and_keep_their_place() -> None:
    bench = SplitBench()
    before = bench.submit(cost=4)
    whole = bench.submit_whole(10, tenant="acme", priority=3, timeout=9, settings={"a": 1})
    after = bench.submit(cost=1)
    bench.wake()
    while bench.running:
        bench.finish(bench.running[0])
    assert bench.items == [[0], [1], [2], [3, 4]]
    assert [batch.cost for batch in bench.batches] == [4, 4, 4, 3]
    assert [part.cost for part in whole.parts] == [4, 4, 2]
    assert {(part.tenant, part.priority, part.deadline, part.group) for part in whole.parts} == {("acme", 3, 9, "")}
    assert all(part.settings == {"a": 1} for part in whole.parts)
    assert states(whole) == ["completed"] * 3
    assert whole.portions == whole.parts
    assert before.portions == (before,)
    assert (before.state, after.state) == (State.COMPLETED, State.COMPLETED)


def cost(rows: float) -> Request:
    request = Request((), "", 0.0)
    request.cost = rows
    return request


def test_the_largest_part_meets_every_limit() -> None:
    core = SplitBench(limits=(CostLimit(10.5), PaddedCost(7.9))).core
    assert core.largest_part(cost(7)) is None
    assert core.largest_part(cost(8)) == 7
    assert core.largest_part(cost(11)) == 7
    assert SplitBench(limits=(CostLimit(0.5),)).core.largest_part(cost(3)) is None


def test_what_no_part_can_fit_is_refused_as_it_is() -> None:
    class Stubborn(CostLimit):
        """Allows what it has just refused."""

        def exceeds(self, request: Request) -> tuple[float, float]:
            return (request.cost, request.cost)

        def start(self) -> Any:
            return self

    bench = SplitBench(limits=(Stubborn(1),))
    assert bench.core.largest_part(cost(3)) is None
    assert isinstance(bench.submit(cost=3).outcome, ItemTooLarge)


@pytest.mark.parametrize("looked_at", [True, False])
def test_a_part_that_fails_ends_the_others_before_anything_is_dispatched(looked_at: bool) -> None:
    bench = SplitBench(max_concurrent_batches=2)
    whole = bench.submit_whole(16)
    other = bench.submit(cost=4)
    bench.wake()
    assert states(whole) == ["running", "running", "waiting", "waiting"]
    error = ValueError("its own")
    bench.finish(bench.running[0], [error], looked_at=looked_at)
    assert states(whole) == ["failed"] * 4
    assert all(part.outcome is error for part in whole.parts)
    assert bench.abandoned == [bench.batches[1]]  # nobody waits for the one that still runs
    assert other.state is State.RUNNING
    bench.finish(bench.batches[1])
    assert bench.items == [[0], [1], [4]]


def test_a_part_that_has_completed_stays_so() -> None:
    bench = SplitBench()
    whole = bench.submit_whole(12)
    bench.wake()
    bench.finish(bench.running[0])
    bench.finish(bench.running[0], [ValueError()])
    assert states(whole) == ["completed", "failed", "failed"]
    assert bench.items == [[0], [1]]


@pytest.mark.parametrize(
    "admission", [(TenantQuota(max_waiting=2),), (TenantQuota(), MaxWaiting(2, "reject"))], ids=["quota", "max_waiting"]
)
def test_a_whole_is_refused_as_a_whole(admission: Any) -> None:
    bench = SplitBench(admission=admission)
    running = bench.arrive("")
    whole = bench.submit_whole(16)
    assert states(whole) == ["rejected"] * 4
    assert len({id(part.outcome) for part in whole.parts}) == 1
    assert errors(whole) == {Overloaded}
    assert bench.core.statistics(0).rejected == 4
    assert bench.core._states.admissions[0].in_flight == {None: 1}  # type: ignore[attr-defined]
    bench.finish(bench.running[0])
    assert bench.items == [[0]]
    assert running[0].state is State.COMPLETED
    assert states(bench.submit_whole(8)) == ["waiting"] * 2


def test_a_closed_batcher_refuses_all_parts() -> None:
    bench = SplitBench()
    bench.close(drain=False)
    whole = bench.submit_whole(9)
    assert errors(whole) == {Closed}


def test_room_for_one_is_room_for_the_whole_of_one_who_runs_ahead() -> None:
    bench = SplitBench(admission=(MaxWaiting(1),), max_concurrent_batches=1)
    whole = Whole(cost(8), [((0,), 4), ((1,), 4)])
    bench.core.submit(whole, 0, ahead=True)
    assert [part.state for part in whole.parts] == [State.WAITING] * 2
    late = Whole(cost(8), [((0,), 4), ((1,), 4)])
    bench.core.submit(late, 0, ahead=True)
    assert [type(part.outcome) for part in late.parts] == [Overloaded] * 2


def test_a_whole_expires_once_and_all_of_it() -> None:
    bench = SplitBench()
    whole = bench.submit_whole(12, timeout=1)
    bench.wake()
    bench.advance_to(1)
    assert errors(whole) == {DeadlineExceeded}
    assert bench.items == [[0]]


@pytest.mark.parametrize("begun", [False, True])
def test_a_caller_who_leaves_takes_all_parts_along(begun: bool) -> None:
    bench = SplitBench()
    whole = bench.submit_whole(12)
    if begun:
        bench.wake()
        bench.finish(bench.running[0])
    bench.cancel_whole(whole)
    assert states(whole) == (["completed", "cancelled", "cancelled"] if begun else ["cancelled"] * 3)
    assert whole.state is State.CANCELLED
    assert bench.abandoned == bench.batches[1:]
    bench.drain()
    assert bench.items == [[0], [1]][: 2 * begun]


def test_a_lower_limit_refuses_what_still_waits() -> None:
    bench = SplitBench()
    whole = bench.submit_whole(10)
    bench.wake()
    bench.configure(policies(limits=(CostLimit(3),), oversize_split=True))
    assert states(whole) == ["failed", "rejected", "rejected"]
    assert errors(whole) == {ItemTooLarge}
    assert len(bench.abandoned) == 1


@pytest.mark.parametrize("running", [False, True])
@pytest.mark.parametrize("drain", [False, True])
def test_closing_ends_a_whole_or_lets_it_finish(drain: bool, running: bool) -> None:
    bench = SplitBench()
    whole = bench.submit_whole(12)
    bench.wake()
    bench.close(drain=drain, running=running)
    if drain and not running:
        assert states(whole) == ["running", "waiting", "waiting"]
    else:
        assert errors(whole) == {Closed}
    bench.drain()


def test_a_policy_that_gives_up_one_part_cannot_run_another() -> None:
    class Torn:
        def start(self) -> "Torn":
            return self

        def decide(self, group: Group, now: float) -> Decision:
            first, *others = group.in_order()
            return Decision(others[:1], drop=[first] if others else ()) if others else Decision([first])

    bench = SplitBench(dispatch=Torn())
    whole = bench.submit_whole(12)
    bench.wake()
    assert errors(whole) == {Shed}
    assert states(whole) == ["shed", "failed", "failed"]
    assert bench.batches == []
    one, two = bench.arrive("", "")
    assert (one.state, two.state) == (State.SHED, State.RUNNING)


class Moody:
    """Admits, sheds and fails as the next draw has it."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def start(self) -> "Moody":
        return self

    def admit(self, request: Request, room: Any, now: float) -> Any:
        return Overloaded("moody") if self.random.random() < 0.1 else None

    def decide(self, group: Group, now: float) -> Decision:
        mood = self.random.random()
        waiting = list(group.in_order())
        if mood < 0.1:
            raise ValueError("moody")
        if mood < 0.2:
            return Decision(waiting[1:2], drop=waiting[:1], wake_at=now + 1)
        if mood < 0.3:
            return Decision(drop=waiting[-1:], wake_at=now + 1)
        return Decision(group.fill().requests)


class SplittingMachine(stateful.RuleBasedStateMachine):
    @stateful.initialize(seed=st.integers(0, 9999), moody=st.booleans(), at_once=st.integers(1, 3))
    def begin(self, seed: int, moody: bool, at_once: int) -> None:
        mood = Moody(seed)
        self.options: dict[str, Any] = {"max_concurrent_batches": at_once, "oversize_split": True}
        if moody:
            self.options |= {"admission": (TenantQuota(max_waiting=6), mood), "dispatch": mood}
        self.bench = SplitBench(**self.options)

    @stateful.rule(cost=st.integers(1, 5), timeout=st.none() | st.integers(0, 3), group=st.sampled_from("xy"))
    def submit(self, cost: int, timeout: float | None, group: str) -> None:
        self.bench.submit(group, cost=cost, timeout=timeout)

    @stateful.rule(rows=st.integers(5, 20), timeout=st.none() | st.integers(0, 3), group=st.sampled_from("xy"))
    def submit_whole(self, rows: int, timeout: float | None, group: str) -> None:
        whole = self.bench.submit_whole(rows, group, timeout=timeout)
        assert set(states(whole)) in ({"waiting"}, {"rejected"})

    def pick(self, those: list[Any], which: int) -> Iterator[Any]:
        if those:
            yield those[which % len(those)]

    @stateful.rule(which=st.integers(0))
    def cancel(self, which: int) -> None:
        for request in self.pick([each for each in self.bench.requests if not isinstance(each, Part)], which):
            self.bench.cancel(request)

    @stateful.rule(which=st.integers(0))
    def cancel_whole(self, which: int) -> None:
        for whole in self.pick(self.bench.wholes, which):
            self.bench.cancel_whole(whole)
            assert all(part.state in FINAL for part in whole.parts)

    @stateful.rule()
    def end_of_tick(self) -> None:
        self.bench.wake()

    @stateful.rule(seconds=st.sampled_from([0.5, 1, 2]))
    def pass_time(self, seconds: float) -> None:
        self.bench.advance_to(self.bench.now + seconds)

    @stateful.rule(which=st.integers(0), failing=st.sets(st.integers(0, 3)), looked_at=st.booleans())
    def finish(self, which: int, failing: set[int], looked_at: bool) -> None:
        for batch in self.pick(self.bench.running, which):
            outcomes = [ValueError(place) if place in failing else place for place in range(batch.size)]
            self.bench.finish(batch, outcomes, looked_at=looked_at)

    @stateful.rule(max_cost=st.integers(2, 4))
    def configure(self, max_cost: int) -> None:
        self.bench.configure(policies(**self.options, limits=(CostLimit(max_cost),)))

    @stateful.precondition(lambda self: len(self.bench.requests) > 20)
    @stateful.rule(drain=st.booleans(), running=st.booleans())
    def close(self, drain: bool, running: bool) -> None:
        self.bench.close(drain=drain, running=running and not drain)

    def teardown(self) -> None:
        if hasattr(self, "bench"):
            self.bench.drain()
            for whole in self.bench.wholes:
                ended = {part.state for part in whole.parts}
                assert ended <= FINAL
                assert ended == {State.COMPLETED} or State.COMPLETED not in ended or len(ended) > 1


def test_wholes_end_as_wholes_whatever_happens(seed: int) -> None:
    hypothesis.seed(seed)(SplittingMachine)
    stateful.run_state_machine_as_test(
        SplittingMachine, settings=settings(max_examples=150, stateful_step_count=40, deadline=None, database=None)
    )


def test_neither_a_part_nor_its_place_is_counted_twice() -> None:
    bench = SplitBench()
    whole = bench.submit_whole(4 * 1_000)  # no recursion, however many there are
    bench.wake()
    bench.finish(bench.running[0], [ValueError()])
    assert set(states(whole)) == {"failed"}
    assert bench.core.statistics(0).submitted == 1_000
    assert bench.core.idle
    assert math.isinf(min(bench.wakes, default=math.inf))
