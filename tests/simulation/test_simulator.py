"""The simulator: what it does with options and arrivals, how one instant goes, and that it is the core at work."""

import math
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from core_bench import Bench
from hypothesis import given, settings
from hypothesis import strategies as st

from batchlib import batched
from batchlib._decorator import given_options
from batchlib.policies import CostLimit, Fifo, Greedy, MaxWaiting, SizeOrWait
from batchlib.protocols import Batch, Decision, State
from batchlib.simulation import Affine, Arrival, Simulation, Workload, simulate

UNIT = Affine(1.0, 0.5)  # exact in floats


def times(simulation: Simulation) -> list[tuple[float, float, int]]:
    return [(batch.started, batch.ended, batch.size) for batch in simulation.batches]


def states(simulation: Simulation) -> list[str]:
    return [request.state.value for request in simulation.requests]


# ---- one instant


def test_arrivals_of_one_instant_are_one_tick() -> None:
    simulation = simulate({}, Workload.trace([0.0] * 8), UNIT)
    assert times(simulation) == [(0.0, 5.0, 8)]
    assert simulation.batches[0].reason == "executor_free"


def test_a_batch_that_ends_dispatches_what_waits_before_who_arrives_then() -> None:
    simulation = simulate({}, Workload.trace([0.0, 1.0, 1.5]), UNIT)
    assert times(simulation) == [(0.0, 1.5, 1), (1.5, 3.0, 1), (3.0, 4.5, 1)]
    # Where nothing waits, it is those who arrive then that find the executor free.
    assert times(simulate({}, Workload.trace([0.0, 1.5, 1.5]), UNIT)) == [(0.0, 1.5, 1), (1.5, 3.5, 2)]


def test_a_result_at_the_very_deadline_is_in_time() -> None:
    simulation = simulate({"timeout": 1.5}, Workload.trace([0.0]), UNIT)
    assert states(simulation) == ["completed"]
    assert simulation.goodput == 1
    assert states(simulate({"timeout": 1.25}, Workload.trace([0.0]), UNIT)) == ["expired"]


def test_who_arrives_as_a_wait_is_over_is_in_the_batch() -> None:
    simulation = simulate({"max_wait": 2.0}, Workload.trace([0.0, 2.0]), UNIT)
    assert times(simulation) == [(2.0, 4.0, 2)]
    assert simulation.batches[0].reason == "max_wait"


def test_who_leaves_at_once_is_never_dispatched() -> None:
    simulation = simulate({}, [Arrival(0, cancel_after=0), Arrival(0)], UNIT)
    assert states(simulation) == ["cancelled", "completed"]
    assert times(simulation) == [(0.0, 1.5, 1)]


def test_batches_may_take_no_time() -> None:
    simulation = simulate({"max_batch_size": 2}, Workload.trace([1.0] * 5), lambda batch: 0)
    assert times(simulation) == [(1.0, 1.0, 2), (1.0, 1.0, 2), (1.0, 1.0, 1)]
    assert simulation.mean_latency == 0
    assert math.isnan(simulate({}, Workload.trace([0.0]), lambda batch: 0).throughput)


# ---- what requests carry, and how they end


def test_leaving_and_expiring_while_waiting_and_running() -> None:
    workload = [
        Arrival(0.0),
        Arrival(0.25, cancel_after=0.5),  # waits
        Arrival(0.25, cancel_after=2.0),  # runs
        Arrival(0.25, timeout=1.0),  # waits
        Arrival(0.25, timeout=2.0),  # runs
        Arrival(0.25, cancel_after=9.0),  # has ended by then
    ]
    simulation = simulate({}, workload, UNIT)
    assert states(simulation) == ["completed", "cancelled", "cancelled", "expired", "expired", "completed"]
    assert [request.ended for request in simulation.requests] == [1.5, 0.75, 2.25, 1.25, 2.25, 4.0]
    assert [request.started for request in simulation.requests] == [0.0, None, 1.5, None, 1.5, 1.5]
    assert [request.batch for request in simulation.requests] == [1, None, 2, None, 2, 2]
    assert [request.queue_delay for request in simulation.requests] == [0.0, None, 1.25, None, 1.25, 1.25]
    assert [request.latency for request in simulation.requests] == [1.5, 0.5, 2.0, 1.0, 2.0, 3.75]
    assert [request.in_time for request in simulation.requests] == [True, False, False, False, False, True]
    assert (simulation.completed, simulation.goodput) == (2, 2)
    assert simulation.statistics.cancelled == simulation.statistics.expired == 2


def test_options_count_where_an_arrival_carries_nothing() -> None:
    options = {"tenant": "acme", "priority": 3, "timeout": 9.0}
    simulation = simulate(options, [Arrival(0), Arrival(1, tenant="zeta", priority=-1, timeout=5)], UNIT)
    carried = [(request.tenant, request.priority, request.deadline) for request in simulation.requests]
    assert carried == [("acme", 3, 9.0), ("zeta", -1, 6.0)]
    (request,) = simulate({"priority": len}, [Arrival(0)], UNIT).requests
    assert request.priority == 0  # there is no item to call it with


def test_costs_and_groups_are_the_arrivals_own() -> None:
    workload = [Arrival(0, cost=3, group="a"), Arrival(0, cost=3, group="a"), Arrival(0, cost=5, group="b")]
    simulation = simulate({"cost": len, "max_batch_cost": 5, "group_by": len}, workload, Affine(1.0, 0.0, 0.5))
    assert [(batch.cost, batch.group, batch.ended - batch.started) for batch in simulation.batches] == [
        (3, "a", 2.5),
        (3, "a", 2.5),
        (5, "b", 3.5),
    ]
    (request,) = simulate({"cost": len, "max_batch_cost": 5}, [Arrival(0, cost=6)], UNIT).requests
    assert (request.state, request.ended) == (State.REJECTED, 0.0)


def test_a_batched_function_lends_its_options() -> None:
    with batched(lambda xs: xs, max_batch_size=2) as echo:
        assert [batch.size for batch in simulate(echo, Workload.trace([0.0] * 3), UNIT).batches] == [2, 1]
        echo.configure(max_batch_size=3)
        assert [batch.size for batch in simulate(echo, Workload.trace([0.0] * 3), UNIT).batches] == [3]
        assert echo.statistics().submitted == 0


def test_several_executors() -> None:
    simulation = simulate({"max_concurrent_batches": 2, "max_batch_size": 1}, Workload.trace([0.0] * 3), UNIT)
    assert times(simulation) == [(0.0, 1.5, 1), (0.0, 1.5, 1), (1.5, 3.0, 1)]


def test_awaiting_callers_join_and_others_are_rejected() -> None:
    burst = Workload.trace([0.0, 0.5, 0.5, 0.5])
    assert simulate({"max_waiting": 2}, burst, UNIT).completed == 4
    simulation = simulate({"max_waiting": 2, "overflow": "reject"}, burst, UNIT)
    assert states(simulation) == ["completed", "completed", "completed", "rejected"]
    assert simulation.faults == ()  # a refusal is no fault


def test_the_model_sees_the_batch_and_the_arrivals() -> None:
    seen: list[Any] = []

    def model(batch: Batch) -> float:
        seen.append((batch.number, batch.size, [request.args for request in batch.requests]))
        return 1.0

    workload = Workload.trace([0.0, 0.0])
    simulate({}, workload, model)
    assert seen == [(1, 2, [(workload[0],), (workload[1],)])]


# ---- the end


def test_it_goes_on_until_every_request_has_ended() -> None:
    simulation = simulate({"max_wait": 5.0}, Workload.trace([0.0]), UNIT)
    assert (states(simulation), simulation.end) == (["completed"], 6.5)
    assert simulation.statistics.waiting == simulation.statistics.running == 0


def test_or_it_is_cut_short_at_the_last_arrival() -> None:
    simulation = simulate({"max_batch_size": 1}, Workload.trace([0.0, 1.0, 2.0]), UNIT, drain=False)
    assert states(simulation) == ["completed", "running", "waiting"]
    assert simulation.end == 2.0
    assert [request.ended for request in simulation.requests] == [1.5, None, None]
    assert simulation.requests[1].latency is None
    assert (simulation.completed, simulation.goodput, simulation.mean_latency) == (1, 1, 1.5)


def test_nobody_comes() -> None:
    simulation = simulate({}, [], UNIT, start=3.0)
    assert (simulation.requests, simulation.batches, simulation.start, simulation.end) == ((), (), 3.0, 3.0)
    for figure in ("mean_latency", "mean_batch_size", "waste", "throughput"):
        assert math.isnan(getattr(simulation, figure))
    assert math.isnan(simulation.latency(0.5))
    assert simulation.execution_time == 0


# ---- figures


def test_figures_of_a_run_by_hand() -> None:
    workload = [Arrival(0, cost=4, tenant="a"), Arrival(1, cost=1, tenant="b", priority=2), Arrival(1, cost=3)]
    simulation = simulate({}, workload, UNIT)  # batches: 0 to 1.5, and two requests from 1.5 to 3.5
    assert simulation.latency(0.01) == 1.5
    assert simulation.latency(1 / 3) == 1.5
    assert simulation.latency(0.34) == simulation.latency(1) == 2.5
    hundred = simulate({"max_batch_size": 1}, Workload.trace([0.0] * 100), UNIT)
    assert [hundred.latency(share / 100) for share in range(1, 101)] == [1.5 * place for place in range(1, 101)]
    assert simulation.mean_latency == pytest.approx(6.5 / 3)
    assert simulation.mean_batch_size == 1.5
    assert simulation.execution_time == simulation.duration == 3.5
    assert simulation.throughput == pytest.approx(3 / 3.5)
    assert simulation.waste == pytest.approx(1 - (4 + 4) / (4 + 2 * 3))
    mine = simulation.where(tenant="b")
    assert [request.tenant for request in mine.requests] == ["b"]
    assert [batch.number for batch in mine.batches] == [2]
    assert simulation.where(tenant=None, priority=0).requests == (simulation.requests[2],)
    assert simulation.where(group=None) == simulation
    assert simulation.where(group="x").requests == ()
    for quantile in (0, 1.01, math.nan):
        with pytest.raises(ValueError, match="quantile must be a number above 0 and at most 1"):
            simulation.latency(quantile)


# ---- what goes wrong


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"max_batchsize": 4}, TypeError, "max_batchsize: batched has no such option; it has max_batch_size, "),
        ({"max_batch_size": 0}, ValueError, "max_batch_size must be a whole number >= 1, not 0"),
        ({"max_batch_cost": 5}, TypeError, "cost="),
        ({"max_batch_cost": 5, "cost": len, "oversize": "split"}, ValueError, "let its parts arrive at one instant"),
    ],
)
def test_options_are_checked_as_the_decorator_checks_them(
    options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        simulate(options, Workload.trace([0.0]), UNIT)


@pytest.mark.parametrize("seconds", [-1, math.inf, math.nan, "long"])
def test_a_model_gives_seconds(seconds: Any) -> None:
    with pytest.raises((TypeError, ValueError), match=r"executor_model (gives|must give).* a finite number of seconds"):
        simulate({}, Workload.trace([0.0]), lambda batch: seconds)


def test_arrivals_come_in_order() -> None:
    with pytest.raises(ValueError, match="arrivals must come in the order of their instants: 1 after 2"):
        simulate({}, [Arrival(2), Arrival(1)], UNIT)


class Faulty:
    """Raises where it is told to; its own policy and state."""

    def __init__(self, *where: str) -> None:
        self._where = where

    def start(self) -> "Faulty":
        return self

    def _maybe(self, where: str) -> None:
        if where in self._where:
            raise ArithmeticError(where)

    def decide(self, group: Any, now: float) -> Decision:
        self._maybe("decide")
        return Decision(group.fill().requests)

    def observe(self, batch: Batch, execution_time: float) -> None:
        self._maybe("observe")

    def admit(self, request: Any, room: Any, now: float) -> None:
        self._maybe("admit")


@pytest.mark.parametrize("where", ["decide", "observe", "admit"])
def test_faults_of_policies_are_shown(where: str) -> None:
    faulty = Faulty(where)
    (fault,) = simulate({"dispatch": faulty, "admission": faulty}, Workload.trace([0.0]), UNIT).faults
    assert isinstance(fault if isinstance(fault, ArithmeticError) else fault.__cause__, ArithmeticError)


class Never:
    def start(self) -> "Never":
        return self

    def decide(self, group: Any, now: float) -> Decision:
        return Decision(wake_at=now + 1)


def test_a_policy_that_never_comes_to_an_end_is_found_out() -> None:
    with pytest.raises(RuntimeError, match="the dispatch policy leaves 2 requests to wait and has asked 100000 times"):
        simulate({"dispatch": Never()}, Workload.trace([0.0, 1.0]), UNIT)


# ---- the production core


events = st.lists(
    st.builds(
        Arrival,
        st.integers(0, 40).map(lambda number: number / 4),
        cost=st.integers(1, 4),
        timeout=st.none() | st.integers(0, 20).map(lambda number: number / 4),
        group=st.integers(0, 1),
        cancel_after=st.none() | st.integers(0, 20).map(lambda number: number / 4),
    ),
    max_size=25,
)
all_options = st.fixed_dictionaries(
    {
        "max_batch_size": st.integers(1, 5),
        "max_concurrent_batches": st.integers(1, 3),
        "dispatch": st.sampled_from(
            [Greedy(), SizeOrWait(0.75), (Greedy(), CostLimit(6)), (SizeOrWait(2), CostLimit(4))]
        ),
        "admission": st.sampled_from([(), MaxWaiting(3, "reject"), MaxWaiting(3)]),
        "cost": st.just(len),
    }
)


def by_hand(options: dict[str, Any], workload: Workload) -> Bench:
    """The same on the test bench of the core, which holds its invariants at every step."""
    bench = Bench(given_options(options).resolve("bench").policies)
    ends: dict[Any, float] = {}
    leaving: dict[Any, float] = {}
    coming = list(workload)
    while True:
        ends |= {batch: bench.now + UNIT(batch) for batch in bench.running if batch not in ends}
        instants = [*(ends[batch] for batch in bench.running), *leaving.values(), *bench.wakes]
        instants += [arrival.at for arrival in coming[:1]]
        if not instants:
            return bench
        bench.now = min(instants)
        due = [batch for batch in bench.running if ends[batch] == bench.now]
        for batch in due:
            bench.finish(batch)
        while coming and coming[0].at == bench.now:
            arrival = coming.pop(0)
            request = bench.submit(arrival.group, timeout=arrival.timeout, cost=arrival.cost)
            if arrival.cancel_after is not None:
                leaving[request] = bench.now + arrival.cancel_after
        for request in [request for request, instant in leaving.items() if instant == bench.now]:
            bench.cancel(request)
            del leaving[request]
        if bench.soon or any(instant <= bench.now for instant in bench.wakes):
            bench.wake()


@settings(max_examples=200, deadline=None, database=None)
@given(all_options, events)
def test_it_is_the_core_on_the_test_bench(options: dict[str, Any], arrivals: list[Arrival]) -> None:
    workload = Workload(arrivals)
    simulation, bench = simulate(options, workload, UNIT), by_hand(options, workload)
    assert states(simulation) == bench.states
    assert [batch.reason for batch in simulation.batches] == bench.reasons
    assert [(batch.started, batch.size, batch.cost) for batch in simulation.batches] == [
        (batch.started, batch.size, batch.cost) for batch in bench.batches
    ]
    numbers = [{request.args[0] for request in bench.contents[batch]} for batch in bench.batches]
    assert [
        {place for place, request in enumerate(simulation.requests) if request.batch == batch.number}
        for batch in simulation.batches
    ] == numbers
    assert simulation.end == bench.now
    assert simulation.statistics == bench.core.statistics(bench.now)


def test_it_works_without_numpy() -> None:
    script = (
        "import sys; sys.modules['numpy'] = None\n"
        "from batchlib.simulation import *\n"
        "simulation = simulate({}, Workload.poisson(1, 5).with_costs(log_normal(1, 1)), Affine(1, 1))\n"
        "print(simulation.completed, optimal_partition([1, 2], Affine(1, 1).seconds, 2).batches)\n"
        "VirtualClock(), ManualExecutor()\n"
    )
    root = Path(__file__).resolve().parents[2]
    run = subprocess.run([sys.executable, "-c", script], cwd=root, capture_output=True, text=True, check=True)
    assert run.stdout == "5 [[0, 1]]\n"


def test_what_the_options_say_of_policies_is_what_the_decorator_makes() -> None:
    options = {"max_wait": 0.5, "max_batch_size": 4, "ordering": Fifo()}
    with batched(lambda xs: xs, **options) as echo:
        assert given_options(options).resolve("x").policies == given_options(echo).resolve("x").policies


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((len, [], Affine(1, 1)), "options must be a mapping of the decorator's options or a batched function"),
        (({}, [1.0, 2.0], Affine(1, 1)), "a workload holds arrivals, Arrival(at, ...), and not 1.0"),
        (({}, [], 0.5), "executor_model must be called with a batch and give seconds, as Affine does: 0.5"),
    ],
)
def test_what_cannot_be_simulated_is_named_with_what_was_needed(arguments: Any, words: str) -> None:
    with pytest.raises(TypeError, match=re.escape(words)):
        simulate(*arguments)
