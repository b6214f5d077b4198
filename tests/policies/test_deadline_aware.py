"""DeadlineAware: the largest batch that is done in time, found quickly, learned safely, never idle for nothing."""

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import combinations
from typing import Any, cast

import pytest
from core_bench import Bench, policies
from hypothesis import given, settings
from hypothesis import strategies as st

from batchlib._core._actions import Dispatch, Resolve
from batchlib._core._batcher import Batcher
from batchlib._core._latency_model import LatencyModel
from batchlib._core._protocols import Decision, Filled
from batchlib._core._request import Request
from batchlib._core._transitions import State
from batchlib.errors import BatchFailed
from batchlib.policies import CostLimit, DeadlineAware, EarliestDeadline, Fifo, Greedy
from batchlib.policies.structures._deadlines import due
from batchlib.policies.structures._feasible import largest_run, longest_prefix, within_limits
from batchlib.simulation import Affine, Workload, simulate


def line(size: int, longest: float) -> float:
    return 5.0 + size * longest


class Room:
    """Room for so many requests, and for so much cost."""

    def __init__(self, size: int, cost: float) -> None:
        self.size, self.cost = size, cost

    def add(self, request: Request) -> bool:
        if self.full or request.cost > self.cost:
            self.size = 0
            return False
        self.size -= 1
        self.cost -= request.cost
        return True

    @property
    def full(self) -> bool:
        return self.size <= 0 or self.cost <= 0


class Waiting:
    """A group by hand."""

    def __init__(self, requests: Sequence[Request], size: int = 32, cost: float = math.inf, **given: Any) -> None:
        self.requests, self.max_batch_size, self.max_cost = list(requests), size, cost
        self.running_batches: int = given.get("running", 0)
        self.deadline_order: bool = given.get("deadline_order", True)
        self.latency_model: LatencyModel = given.get("model", LatencyModel())
        self.oldest_arrival = 0.0

    @property
    def waiting(self) -> int:
        return len(self.requests)

    def in_order(self) -> Iterator[Request]:
        return iter(self.requests)

    def due_from(self, instant: float) -> Iterator[Request]:
        return (each for each in self.requests if due(each) >= instant)

    def room(self) -> Room:
        return Room(self.max_batch_size, self.max_cost)

    def fill(self) -> Filled:
        room = self.room()
        taken = []
        for request in self.requests:
            if room.full or not room.add(request):
                break
            taken.append(request)
        return Filled(tuple(taken), room.full)


def request(due: float | None, cost: float = 1, hint: float | None = None) -> Request:
    made = Request((), "", 0.0)
    made.deadline, made.cost, made.hint, made.state = due, cost, hint, State.WAITING
    return made


def requests(*dues: float | None) -> list[Request]:
    return [request(due) for due in dues]


def decide(group: Waiting, now: float = 0.0, **told: Any) -> tuple[list[int], Decision]:
    """Which of them run, by place, and the decision."""
    decision = DeadlineAware(**told).start().decide(group, now)
    return [group.requests.index(each) for each in decision.dispatch], decision


def measured(*sizes: int, seconds: Callable[[int, float], float] = line, at: float = 0.0) -> LatencyModel:
    model = LatencyModel()
    for size in sizes * 3:
        model.observe(size, 1, seconds(size, 1), at)
    return model


# ---- what it is


@pytest.mark.parametrize("window", [0, -1, math.nan])
def test_a_window_of_nobody_is_refused(window: Any) -> None:
    with pytest.raises(ValueError, match="window must be a whole number >= 1, not"):
        DeadlineAware(window)


def test_an_execution_time_has_to_be_callable() -> None:
    with pytest.raises(TypeError, match=r"execution_time must be a callable \(size, longest_cost\) -> seconds, not 3"):
        DeadlineAware(execution_time=3)  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", [-1.0, math.nan, math.inf])
def test_an_execution_time_that_is_none_is_named(wrong: float) -> None:
    with pytest.raises(ValueError, match=r"execution_time\(1, 1\) must give finite seconds >= 0, not"):
        decide(Waiting(requests(9.0)), execution_time=lambda size, longest: wrong)


# ---- the search


def largest_subset(dues: Sequence[float], limit: int) -> int:
    """By trying them all."""
    for size in range(min(limit, len(dues)), 0, -1):
        if any(line(size, 1) <= min(chosen) for chosen in combinations(dues, size)):
            return size
    return 0


instants = st.integers(0, 24).map(float) | st.just(math.inf)


@given(st.lists(instants, min_size=1, max_size=9).map(sorted), st.integers(1, 10))
def test_no_subset_that_is_feasible_is_larger(dues: list[float], limit: int) -> None:
    waiting = requests(*dues)
    start, size = largest_run(waiting, limit, 0.0, line)
    assert size == largest_subset(dues, limit)
    assert not size or line(size, 1) <= dues[start]
    earlier = [place for place in range(start) if place + size <= len(dues) and line(size, 1) <= dues[place]]
    assert not size or not earlier  # of those as large it is the first


@given(
    st.lists(st.tuples(instants, st.sampled_from([0.0, 0.5, 1.0, 2.0, 3.0])), min_size=1, max_size=12),
    st.integers(1, 13),
)
def test_with_costs_that_differ_no_run_of_neighbours_is_larger(pairs: list[tuple[float, float]], limit: int) -> None:
    waiting = [request(due, cost) for due, cost in sorted(pairs)]
    runs = {
        (start, size)
        for start in range(len(waiting))
        for size in range(1, min(limit, len(waiting) - start) + 1)
        if line(size, max(each.cost for each in waiting[start : start + size])) <= waiting[start].deadline  # type: ignore[operator]
    }
    size = max((size for _, size in runs), default=0)
    start = min((start for start, each in runs if each == size), default=0)
    found = largest_run(waiting, limit, 0.0, line)
    assert found[1] == size
    assert not size or found == (start, size)


@given(st.lists(st.tuples(instants, st.sampled_from([0.0, 1.0, 3.0])), max_size=12), st.integers(1, 13))
def test_a_prefix_passes_over_the_hopeless_only(pairs: list[tuple[float, float]], limit: int) -> None:
    waiting = [request(due, cost) for due, cost in pairs]
    hopeful = [each for each in waiting if line(1, each.cost) <= each.deadline]  # type: ignore[operator]
    feasible = [
        hopeful[:size]
        for size in range(1, min(limit, len(hopeful)) + 1)
        if line(size, max(each.cost for each in hopeful[:size])) <= min(each.deadline for each in hopeful[:size])  # type: ignore[type-var, operator]
    ]
    assert longest_prefix(waiting, limit, 0.0, line) == max(feasible, key=len, default=[])


# ---- told the time


def test_heads_that_hold_the_batch_small_are_passed_over() -> None:
    assert decide(Waiting(requests(6, 9, 9, 9)), execution_time=line)[0] == [1, 2, 3]


def test_in_another_order_the_batch_follows_it_and_passes_over_who_is_late_in_a_batch_of_that_size() -> None:
    places, decision = decide(Waiting(requests(3, 9, 7, 9, 9), deadline_order=False), execution_time=line)
    assert (places, decision.reason) == ([1, 3, 4], "deadline")


@pytest.mark.parametrize(
    ("dues", "places", "reason"),
    [
        ((9, 9), [0, 1], "executor_free"),
        ((None, None), [0, 1], "executor_free"),
        ((99, 99, 99, 99, 99), [0, 1, 2], "full"),
        ((7, 7, 7), [0, 1], "deadline"),
        ((1, 9), [1], "deadline"),
    ],
)
def test_the_reason_says_what_decided_the_size(dues: Any, places: list[int], reason: str) -> None:
    found, decision = decide(Waiting(requests(*dues), size=3), execution_time=line)
    assert (found, decision.reason) == (places, reason)


def test_the_end_of_the_callers_scope_counts_as_a_deadline() -> None:
    group = Waiting([request(None, hint=6.0), request(20.0, hint=7.0), request(8.0, hint=99.0)])
    assert decide(group, execution_time=line)[0] == [1, 2]


def test_a_scope_whose_end_has_passed_has_been_extended_and_counts_no_more() -> None:
    """Otherwise its caller would be passed over for as long as the others can be served."""
    group = Waiting([request(None, hint=1.0), request(9.0, hint=1.0), request(20.0), request(20.0, hint=21.0)])
    assert decide(group, now=2.0, execution_time=line)[0] == [2, 3, 0]
    group.deadline_order = False
    assert decide(group, now=2.0, execution_time=line)[0] == [0, 2, 3]
    assert decide(Waiting([request(None, hint=2.0)]), now=2.0, execution_time=line)[0] == [0]


@pytest.mark.parametrize("ordering", [EarliestDeadline(), Fifo()])
def test_who_has_had_a_scope_extended_is_served_among_others_in_time(ordering: Any) -> None:
    bench = Bench(policies(ordering=ordering, dispatch=DeadlineAware(execution_time=lambda size, longest: 1.0)))
    extended = bench.submit(hint=0.5)
    for _ in range(3):
        bench.arrive("", timeout=5.0)
        bench.advance_to(bench.now + 1.0)
        bench.finish(bench.running[0])
    assert extended.state is State.COMPLETED


def test_those_who_cannot_make_it_any_more_do_not_fill_the_window() -> None:
    """Far past capacity there are more of them than any window holds, and more who could make it alone only."""
    late, alone, easy = [1.0] * 300, [6.0] * 300, [9.0] * 300
    assert decide(Waiting(requests(*late, *easy), size=4), window=8, execution_time=line)[0] == [300, 301, 302, 303]
    assert decide(Waiting(requests(*alone, *easy), size=4), window=8, execution_time=line)[0] == [300, 301, 302, 303]
    assert decide(Waiting(requests(*late, *alone, *easy), size=4), window=8, execution_time=line)[0][0] == 600
    assert decide(Waiting(requests(*late, *alone), size=4), window=8, execution_time=line)[0] == [300]
    assert decide(Waiting(requests(*late), size=4), window=8, execution_time=line)[1].dispatch == ()


def test_the_window_is_never_less_than_two_batches() -> None:
    dues = [7.0] * 2 + [9.0] * 4
    assert decide(Waiting(requests(*dues), size=4), window=1, execution_time=line)[0] == [2, 3, 4, 5]
    assert decide(Waiting(requests(*dues), size=10**18), window=1, execution_time=line)[0] == [2, 3, 4, 5]


def test_far_past_capacity_it_keeps_what_it_keeps_just_past_it() -> None:
    model = Affine(0.005, 0.001)

    def goodput(load: float) -> float:
        workload = Workload.poisson(load * model.capacity(32), round(load * 500), 1)
        options = {"dispatch": DeadlineAware(execution_time=model.seconds), "timeout": 2 * model.seconds(32)}
        return simulate(options, workload, model).goodput

    assert goodput(50.0) >= 0.98 * goodput(5.0)


def test_a_limit_closes_the_batch() -> None:
    places, decision = decide(Waiting(requests(9, 9, 9, 9), cost=3), execution_time=line)
    assert (places, decision.reason) == ([0, 1, 2], "full")


def test_a_batch_that_a_limit_keeps_small_passes_over_no_more_than_it_has_to() -> None:
    assert decide(Waiting(requests(6, 7, 8, 9, 9), cost=2), execution_time=line)[0] == [1, 2]


def test_a_limit_that_would_make_the_earlier_batch_smaller_leaves_the_larger() -> None:
    group = Waiting([request(20.0, 5.0), *[request(20.0 + place, 1.0) for place in range(8)]], cost=5.5)
    places, decision = decide(group, execution_time=lambda size, longest: 12.0 + size)
    assert (places, decision.reason) == ([0], "full")
    small = Waiting([request(14.0, 5.0), *[request(20.0, 1.0) for _ in range(8)]], cost=5.5)
    assert decide(small, execution_time=lambda size, longest: 11.0 + size)[0] == [1, 2, 3, 4, 5]


def test_whoever_fits_into_no_room_runs_alone() -> None:
    group = Waiting([request(99.0, 7.0), request(99.0, 1.0)], cost=5)
    places, decision = decide(group, execution_time=line)
    assert (places, decision.reason) == ([0], "full")


def test_told_the_time_it_never_probes_and_looks_again_after_a_batch_time() -> None:
    places, decision = decide(Waiting(requests(1, 2)), execution_time=line)
    assert (places, decision.wake_at) == ([], 6.0)


@pytest.mark.parametrize("now", [0.0, 1e300])
def test_the_next_look_lies_ahead_whatever_the_numbers(now: float) -> None:
    group = Waiting(requests(-1.0))
    _, decision = decide(group, now, execution_time=lambda size, longest: 0.0)
    assert decision.wake_at is not None
    assert now < decision.wake_at < math.inf


# ---- learning


def test_while_nothing_is_known_it_takes_what_waits() -> None:
    assert decide(Waiting(requests(0.1, 0.2, 0.3)))[0] == [0, 1, 2]
    places, decision = decide(Waiting(requests(*[0.1] * 5), size=4))
    assert (places, decision.reason) == ([0, 1, 2, 3], "full")


@pytest.mark.parametrize(
    ("size", "known", "taken"),
    [(8, (8,), 4), (8, (8, 4), 2), (3, (3,), 2), (3, (3, 2), 1), (5, (), 5), (2, (2,), 1)],
)
def test_a_size_measured_twice_is_halved_until_three_are(size: int, known: tuple[int, ...], taken: int) -> None:
    places, decision = decide(Waiting(requests(*[99.0] * 9), size=size, model=measured(*known)))
    assert (len(places), decision.reason) == (taken, "full" if taken == size else "executor_free")


def test_where_fewer_sizes_are_possible_fewer_are_enough() -> None:
    alone = Waiting(requests(5.5, 9.0), size=1, model=measured(1))
    assert decide(alone)[0] == [1]
    two = Waiting(requests(5.5, 9.0), size=2, model=measured(1, 2))
    assert decide(two)[0] == [1]


def test_where_two_callers_are_all_there_are_they_stay_together() -> None:
    assert decide(Waiting(requests(99.0, 99.0), model=measured(1, 2)))[0] == [0, 1]


def test_while_it_learns_the_quickest_batch_tells_who_is_late_already() -> None:
    group = Waiting(requests(20.0, 20.0, 38.0, 99.0), model=LatencyModel())
    group.latency_model.observe(32, 1, 37.0, 0.0)
    places, decision = decide(group)
    assert (places, decision.reason) == ([2, 3], "deadline")
    group.requests = requests(20.0, 20.0)
    assert decide(group)[0] == [0, 1]  # nobody can make it for all that is known, which is little


def test_an_unseen_size_is_at_most_twice_the_largest_measured() -> None:
    group = Waiting(requests(*[999.0] * 40), model=measured(1, 2, 3))
    places, decision = decide(group)
    assert (len(places), decision.reason) == (6, "executor_free")


def test_what_it_has_learned_decides() -> None:
    places, decision = decide(Waiting(requests(5.9, 8.1, 8.1, 8.1, 8.1), model=measured(1, 2, 4)))
    assert (places, decision.reason) == ([1, 2, 3], "deadline")


def test_if_nobody_can_make_it_the_last_one_finds_out_whether_that_is_still_so() -> None:
    group = Waiting(requests(102.0, 103.0, 103.0), model=measured(1, 2, 4, at=100.0))
    places, decision = decide(group, now=100.0)
    assert (places, decision.wake_at) == ([], pytest.approx(106.0))
    group.requests = requests(161.0, 162.0, 162.0)
    probe_at = decide(group, now=158.0)[1].wake_at
    assert probe_at == pytest.approx(160.0)
    assert decide(group, now=probe_at)[1].reason == "probe"
    places, decision = decide(group, now=160.1)
    assert (places, decision.reason) == ([1], "probe")
    group.running_batches = 1
    assert decide(group, now=160.1)[1].wake_at == pytest.approx(166.1)


# ---- in the core


class Machine:
    """The core on virtual time: batches end after their time, and every wake-up is served."""

    def __init__(self, time: Callable[[int, float], float], **options: Any) -> None:
        self.core = Batcher(policies(**{"ordering": EarliestDeadline(), **options}))
        self.time = time
        self.now = 0.0
        self.ends: list[tuple[float, Any, int]] = []
        self.late = 0
        self.exact = True  # what the policy knows of `time` is what it is
        self.requests: list[Request] = []
        self.batches: list[Any] = []

    def perform(self, actions: Sequence[Any]) -> None:
        for action in actions:
            match action:
                case Dispatch(batch):
                    end = self.now + self.time(batch.size, max(each.cost for each in batch.requests))
                    self.late += sum(
                        end > (math.inf if each.deadline is None else each.deadline) for each in batch.requests
                    )
                    self.batches.append(batch)
                    self.ends.append((end, batch, batch.size))
                case Resolve(gone):
                    assert not any(isinstance(each.outcome, BatchFailed) for each in gone)

    def run(self, arrivals: Sequence[tuple[float, float | None, float]]) -> None:
        """arrivals: (instant, timeout, cost), in order."""
        for instant, timeout, cost in [*arrivals, (math.inf, None, 1.0)]:
            while self.core.waiting or self.ends:
                following = min([end for end, _, _ in self.ends] + [self.next_look()])
                if following > instant:
                    break
                self.step(following)
            if instant < math.inf:
                self.now = instant
                made = Request((), "", instant)
                made.deadline, made.cost = (None if timeout is None else instant + timeout), cost
                self.requests.append(made)
                self.perform(self.core.submit(made, instant))
                self.perform(self.core.wake(instant))

    def next_look(self) -> float:
        """When the core wants to be woken. An executor is free only if nobody who waits could make it alone."""
        deadlines = {each: each.deadline for each in self.requests if each.state is State.WAITING and each.deadline}
        if len(self.ends) == self.core.max_concurrent_batches or not self.core.waiting:
            return min(deadlines.values(), default=math.inf)
        for each in self.requests:
            if self.exact and each.state is State.WAITING:
                assert self.now + self.time(1, each.cost) > deadlines[each]
        return min([self.core._groups.next_wake(), *deadlines.values()])

    def step(self, instant: float) -> None:
        assert instant > self.now or any(end <= instant for end, _, _ in self.ends)
        self.now = instant
        done = [entry for entry in self.ends if entry[0] <= instant]
        self.ends = [entry for entry in self.ends if entry[0] > instant]
        for _, batch, size in done:
            self.perform(self.core.finish(batch, [None] * size, instant, clean=True))
        if not done:
            self.perform(self.core.wake(instant))


arrivals = st.lists(
    st.tuples(st.integers(0, 3), st.none() | st.integers(1, 30).map(float), st.sampled_from([1.0, 1.0, 2.0])),
    max_size=30,
)


@settings(deadline=None)
@given(
    arrivals,
    st.booleans(),
    st.sampled_from([EarliestDeadline(), Fifo()]),
    st.sampled_from([(), (CostLimit(3),)]),
    st.integers(1, 5),
    st.integers(1, 2),
)
def test_with_exact_times_nobody_is_served_late_and_nobody_waits_who_could_be_served(
    gaps: list[tuple[int, float | None, float]], equal: bool, ordering: Any, limits: Any, size: int, at_once: int
) -> None:
    now, told = 0.0, []
    for gap, timeout, cost in gaps:
        now += gap
        told.append((now, timeout, 1.0 if equal else cost))
    machine = Machine(
        line,
        ordering=ordering,
        dispatch=DeadlineAware(execution_time=line),
        limits=limits,
        max_batch_size=size,
        max_concurrent_batches=at_once,
    )
    machine.run(told)
    assert machine.late == 0
    assert {each.state for each in machine.requests} <= {State.COMPLETED, State.EXPIRED}
    assert all(each.state is State.COMPLETED for each in machine.requests if each.deadline is None)


def test_learning_ends_under_saturation_too() -> None:
    machine = Machine(line, dispatch=DeadlineAware(), max_batch_size=8)
    machine.exact = False
    machine.run([(0.0, 1e6, 1.0)] * 120)
    model = machine.core.latency_model
    assert len(model.sizes) >= 3
    assert [batch.size for batch in machine.batches][-6:-1] == [8] * 5
    assert all(each.state is State.COMPLETED for each in machine.requests)


def test_past_capacity_it_serves_nearly_as_many_as_one_that_is_told() -> None:
    """Twice the capacity, and deadlines of two full batches: greedy in the order of arrival serves next to nobody."""
    arriving = [(0.8 * number, 26.0, 1.0) for number in range(1_000)]

    def served(dispatch: Any, ordering: Any) -> int:
        machine = Machine(line, dispatch=dispatch, ordering=ordering, max_batch_size=8)
        machine.exact = False
        machine.run(arriving)
        in_time = sum(each.state is State.COMPLETED for each in machine.requests)
        return in_time

    told = served(DeadlineAware(execution_time=line), EarliestDeadline())
    assert told >= 0.98 * 8 / 13 * 800  # the capacity in the time given
    assert served(DeadlineAware(), EarliestDeadline()) >= 0.95 * told
    assert served(Greedy(), Fifo()) < 0.5 * told


def test_a_slow_spell_and_its_end_are_survived() -> None:
    slow = [1.0]
    machine = Machine(lambda size, longest: slow[0] * line(size, longest), dispatch=DeadlineAware())
    machine.exact = False
    for factor, since in [(1.0, 0.0), (20.0, 4_000.0), (1.0, 16_000.0)]:
        slow[0] = factor
        machine.run([(since + 6.0 * number, 25.0, 1.0) for number in range(600)])
    assert "probe" in [batch.reason for batch in machine.batches]
    assert all(each.state is State.COMPLETED for each in machine.requests[-100:])


def test_what_ends_a_loop_is_a_limits_failure_and_not_the_end_of_a_batch() -> None:
    class Ends:
        full = False

        def room(self) -> "Ends":
            return self

        def add(self, request: Request) -> bool:
            raise StopIteration

    with pytest.raises(StopIteration):
        within_limits(cast(Any, Ends()), requests(1, 2))
