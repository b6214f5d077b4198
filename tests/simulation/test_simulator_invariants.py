"""What must be true of every schedule, on random traces; and that the simulated mean is the exact one."""

import math
import statistics
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchlib.policies import (
    AimdBatchSize,
    CostLimit,
    DeadlineAware,
    DeadlineFeasible,
    EarliestDeadline,
    FairShare,
    Greedy,
    LengthAware,
    MaxWaiting,
    PaddedCost,
    Priority,
    SizeOrWait,
    TenantQuota,
)
from batchlib.protocols import State
from batchlib.simulation import (
    Affine,
    Arrival,
    Simulation,
    Workload,
    clairvoyant_goodput,
    exact_mean_latency,
    optimal_mean_latency,
    simulate,
)

BASE, ITEM = 1.0, 0.25  # exact in floats, as all instants below are
MODEL = Affine(BASE, ITEM)

EIGHTHS = st.integers(0, 200).map(lambda number: number / 8)
plain_traces = st.lists(EIGHTHS, min_size=1, max_size=60).map(Workload.trace)
rich_traces = st.lists(
    st.builds(
        Arrival,
        EIGHTHS,
        cost=st.integers(1, 5),
        tenant=st.sampled_from([None, "a", "b"]),
        priority=st.sampled_from([0, 0, -1, 2]),
        timeout=st.none() | st.integers(0, 64).map(lambda number: number / 8),
        group=st.sampled_from([None, "x"]),
        cancel_after=st.none() | st.integers(0, 64).map(lambda number: number / 8),
    ),
    max_size=40,
).map(Workload)


def several(second: float = 1.0) -> dict[str, dict[str, Any]]:
    """Options by name; what they hold of time is given in units of `second`."""
    model = Affine(BASE * second, ITEM * second)
    told = DeadlineAware(execution_time=lambda size, _: model.seconds(size))
    return {
        "greedy": {},
        "single": {"max_batch_size": 1},
        "small": {"max_batch_size": 3},
        "wait": {"max_batch_size": 4, "dispatch": SizeOrWait(0.5 * second)},
        "cost": {"max_batch_size": 8, "cost": len, "dispatch": (Greedy(), CostLimit(7))},
        "padded": {"max_batch_size": 8, "cost": len, "ordering": LengthAware(), "dispatch": (Greedy(), PaddedCost(12))},
        "shares": {"max_batch_size": 4, "ordering": FairShare({"a": 2.0})},
        "aging": {"max_batch_size": 4, "ordering": Priority(within=FairShare(), aging=second)},
        "strict": {"max_batch_size": 4, "ordering": Priority(within=EarliestDeadline(), aging=None)},
        "reject": {"max_batch_size": 4, "admission": MaxWaiting(4, "reject")},
        "quota": {"max_batch_size": 4, "admission": TenantQuota(max_waiting=2)},
        "feasible": {"max_batch_size": 4, "admission": DeadlineFeasible()},
        "deadlines": {"max_batch_size": 4, "dispatch": DeadlineAware()},
        "told": {"max_batch_size": 8, "dispatch": told},
        "adaptive": {"dispatch": (Greedy(), AimdBatchSize(1.5 * second))},
        "several executors": {"max_batch_size": 2, "max_concurrent_batches": 3},
    }


policies = pytest.mark.parametrize("name", several())


def members(simulation: Simulation) -> dict[int, list[int]]:
    """The places of each batch's requests in the order of arrival."""
    found: dict[int, list[int]] = defaultdict(list)
    for place, request in enumerate(simulation.requests):
        if request.batch is not None:
            found[request.batch].append(place)
    return found


@policies
@settings(max_examples=60, deadline=None, database=None)
@given(workload=rich_traces)
def test_every_request_ends_once_and_every_batch_is_one(name: str, workload: Workload) -> None:
    options = several()[name]
    simulation = simulate(options, workload, MODEL)
    final = {State.COMPLETED, State.CANCELLED, State.EXPIRED, State.SHED, State.REJECTED}
    assert all(request.state in final for request in simulation.requests)
    assert len(simulation.requests) == len(workload)
    assert all(request.ended is not None and request.ended >= request.arrival for request in simulation.requests)
    assert simulation.faults == ()
    counts = simulation.statistics
    assert counts.submitted == len(workload)
    assert counts.completed == simulation.completed
    assert sum([counts.completed, counts.cancelled, counts.expired, counts.shed, counts.rejected]) == len(workload)
    groups = members(simulation)
    for batch in simulation.batches:
        inside = [simulation.requests[place] for place in groups[batch.number]]
        assert len(inside) == batch.size <= options.get("max_batch_size", 32)
        assert {request.started for request in inside} == {batch.started}
        assert {request.group for request in inside} == {batch.group}
        assert sum(request.cost for request in inside) == batch.cost
        assert max(request.cost for request in inside) == batch.longest
        assert all(request.arrival <= batch.started for request in inside)
        assert batch.ended == batch.started + MODEL.seconds(batch.size)


@policies
@settings(max_examples=40, deadline=None, database=None)
@given(workload=rich_traces)
def test_executors_never_overlap(name: str, workload: Workload) -> None:
    options = several()[name]
    batches = simulate(options, workload, MODEL).batches
    limit = options.get("max_concurrent_batches", 1)
    for batch in batches:
        assert sum(other.started <= batch.started < other.ended for other in batches) <= limit


@policies
@settings(max_examples=30, deadline=None, database=None)
@given(workload=rich_traces, shift=st.integers(-4096, 4096), factor=st.sampled_from([0.25, 0.5, 2.0, 16.0]))
def test_the_same_trace_gives_the_same_schedule_whenever_and_however_fast(
    name: str, workload: Workload, shift: int, factor: float
) -> None:
    def schedule(simulation: Simulation, zero: float = 0.0, speed: float = 1.0) -> list[Any]:
        def since(time: float | None) -> float | None:
            return None if time is None else (time - zero) / speed  # zero is a time like any other

        return [
            [(r.state, r.batch, since(r.ended)) for r in simulation.requests],
            [(b.size, b.reason, since(b.started), since(b.ended)) for b in simulation.batches],
        ]

    options = several()[name]
    once = simulate(options, workload, MODEL)
    assert simulate(options, workload, MODEL) == once
    expected = schedule(once)
    assert schedule(simulate(options, workload.shifted(shift), MODEL), shift) == expected
    assert schedule(simulate(options, workload, MODEL, start=float(shift)), shift) == expected
    if "ordering" not in options:  # by default priorities age by the second, whatever a second is to the rest
        workload = workload.with_priorities(0)
        expected = schedule(simulate(options, workload, MODEL))
    scaled = simulate(several(factor)[name], workload.scaled(factor), Affine(BASE * factor, ITEM * factor))
    assert schedule(scaled, speed=factor) == expected


@settings(max_examples=100, deadline=None, database=None)
@given(plain_traces, st.integers(1, 6), st.sampled_from([0.0, 0.75]))
def test_fifo_batches_are_runs_of_arrivals(workload: Workload, most: int, wait: float) -> None:
    simulation = simulate({"max_batch_size": most, "dispatch": SizeOrWait(wait)}, workload, MODEL)
    assert [place for places in members(simulation).values() for place in places] == list(range(len(workload)))


@settings(max_examples=100, deadline=None, database=None)
@given(plain_traces, st.integers(1, 6))
def test_greedy_never_idles_while_something_waits(workload: Workload, most: int) -> None:
    simulation = simulate({"max_batch_size": most}, workload, MODEL)
    free = -math.inf
    for batch, places in zip(simulation.batches, members(simulation).values(), strict=True):
        assert batch.started == max(free, simulation.requests[places[0]].arrival)
        free = batch.ended


@settings(max_examples=100, deadline=None, database=None)
@given(plain_traces, st.integers(1, 6))
def test_after_an_emptied_queue_latency_is_two_batches_at_most(workload: Workload, most: int) -> None:
    simulation = simulate({"max_batch_size": most}, workload, MODEL)
    groups = members(simulation)
    for before, batch in zip(simulation.batches, simulation.batches[1:], strict=False):
        left = [r for r in simulation.requests if r.arrival < before.started and r.started > before.started]
        if not left:  # the one before took all that waited
            for place in groups[batch.number]:
                latency = simulation.requests[place].latency
                assert latency <= (before.ended - before.started) + (batch.ended - batch.started)
                assert latency <= 2 * MODEL.seconds(most)


@settings(max_examples=100, deadline=None, database=None)
@given(plain_traces, st.integers(1, 4), st.integers(1, 9))
def test_a_bounded_queue_bounds_latency(workload: Workload, most: int, waiting: int) -> None:
    options = {"max_batch_size": most, "admission": MaxWaiting(waiting, "reject")}
    simulation = simulate(options, workload, MODEL)
    bound = (1 + math.ceil(waiting / most)) * MODEL.seconds(most)
    assert simulation.completed + simulation.statistics.rejected == len(workload)
    assert max(r.latency for r in simulation.requests if r.state is State.COMPLETED) <= bound


@pytest.mark.parametrize("name", [name for name in several() if name != "several executors"])
@settings(max_examples=60, deadline=None, database=None)
@given(workload=plain_traces, timeout=st.integers(1, 80).map(lambda number: number / 8))
def test_no_policy_beats_the_clairvoyant(name: str, workload: Workload, timeout: float) -> None:
    options = several()[name]
    most = options.get("max_batch_size", 32)
    simulation = simulate({**options, "timeout": timeout}, workload, MODEL)
    assert simulation.goodput <= clairvoyant_goodput(workload, timeout, MODEL.seconds, most)


@pytest.mark.parametrize("kind", ["poisson", "bursts", "on_off"])
@pytest.mark.parametrize("load", [0.7, 1.0, 1.3])
def test_no_policy_beats_the_clairvoyant_on_long_traces(kind: str, load: float) -> None:
    model = Affine(0.005, 0.001)
    rate = load * model.capacity(16)
    makers: dict[str, Callable[[], Workload]] = {
        "poisson": lambda: Workload.poisson(rate, 1500, 1),
        "bursts": lambda: Workload.bursts(8, rate, 1500, 1),
        "on_off": lambda: Workload.on_off(rate, 1500, 1, on=0.1, off=0.1),
    }
    workload, timeout = makers[kind](), 2 * model.seconds(16)
    best = clairvoyant_goodput(workload, timeout, model.seconds, 16)
    goodputs = [
        simulate({**options, "max_batch_size": 16, "timeout": timeout}, workload, model).goodput
        for options in ({}, {"dispatch": SizeOrWait(0.002)}, {"max_waiting": 16, "overflow": "reject"})
    ]
    assert max(goodputs) <= best <= len(workload)
    assert goodputs[2] > 0.9 * best, "a bounded queue keeps nearly all that can be kept"


@pytest.mark.parametrize(("base", "per_item", "most"), [(5.0, 1.0, 32), (13.0, 1.0, 8), (1.0, 1.0, 8)])
@pytest.mark.parametrize("load", [0.3, 0.7])
def test_the_simulated_mean_is_the_exact_one(base: float, per_item: float, most: int, load: float) -> None:
    """Within three standard errors, of independent runs."""
    model = Affine(base, per_item)
    rate = load * model.capacity(most)
    means = [
        simulate({"max_batch_size": most}, Workload.poisson(rate, 6000, seed), model).mean_latency for seed in range(10)
    ]
    mean, error = statistics.mean(means), statistics.stdev(means) / math.sqrt(len(means))
    assert abs(mean - exact_mean_latency(rate, base, per_item, most)) < 3 * error
    assert error < 0.02 * mean


@pytest.mark.parametrize(
    "options",
    [
        {"dispatch": SizeOrWait(2.0)},
        {"dispatch": SizeOrWait(10.0)},
        {"dispatch": (Greedy(), AimdBatchSize(20.0))},
        {"dispatch": DeadlineAware(), "ordering": EarliestDeadline()},
        {"ordering": Priority(within=FairShare(), aging=None)},
    ],
    ids=str,
)
@pytest.mark.parametrize("load", [0.3, 0.7])
def test_no_policy_that_serves_everybody_beats_the_best_mean(options: dict[str, Any], load: float) -> None:
    """Within three standard errors, of independent runs."""
    model = Affine(5.0, 1.0)
    rate = load * model.capacity(32)
    means = []
    for seed in range(10):
        workload = Workload.poisson(rate, 3000, seed).with_tenants({"a": 0.5, "b": 0.5}, seed)
        run = simulate(options, workload.with_priorities({0: 0.5, 1: 0.5}, seed), model)
        assert run.completed == 3000
        means.append(run.mean_latency)
    error = statistics.stdev(means) / math.sqrt(len(means))
    assert statistics.mean(means) + 3 * error > optimal_mean_latency(rate, 5.0, 1.0, 32)


def test_records_say_what_was_asked_for() -> None:
    """Guards the guards: a schedule that breaks a rule would be seen."""
    simulation = simulate({}, Workload.trace([0.0, 0.5, 0.5]), MODEL)
    assert members(simulation) == {1: [0], 2: [1, 2]}
    late = replace(simulation, requests=tuple(r._replace(deadline=0.5) for r in simulation.requests))
    assert (simulation.goodput, late.goodput) == (3, 0)
