"""Workloads: what the constructors promise, what the modifiers change, and what is refused."""

import itertools
import math
import statistics
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchlib import RequestEnded, batched
from batchlib.simulation import Arrival, Workload, log_normal

MADE: dict[str, Any] = {
    "poisson": lambda seed: Workload.poisson(100, 4000, seed),
    "bursts": lambda seed: Workload.bursts(8, 100, 4000, seed),
    "on_off": lambda seed: Workload.on_off(100, 4000, seed, on=0.005, off=0.015),
    "uniform": lambda seed: Workload.uniform(100, 4000),
}


def instants(workload: Workload) -> list[float]:
    return [arrival.at for arrival in workload]


@pytest.mark.parametrize("kind", MADE)
def test_arrivals_come_in_order_at_the_rate_that_was_asked_for(kind: str) -> None:
    workload = MADE[kind](seed=3)
    assert len(workload) == 4000
    assert instants(workload) == sorted(instants(workload))
    assert len(workload) / workload[-1].at == pytest.approx(100, rel=0.1)


@pytest.mark.parametrize("kind", MADE)
def test_a_seed_says_it_all(kind: str) -> None:
    assert MADE[kind](seed=3) == MADE[kind](seed=3)
    assert hash(MADE[kind](seed=3)) == hash(MADE[kind](seed=3))
    assert (MADE[kind](seed=3) == MADE[kind](seed=4)) is (kind == "uniform")


def test_poisson_gaps_are_exponential() -> None:
    at = instants(MADE["poisson"](seed=3))
    gaps = [later - earlier for earlier, later in itertools.pairwise(at)]
    assert statistics.stdev(gaps) == pytest.approx(statistics.mean(gaps), rel=0.05)


def test_bursts_share_their_instant() -> None:
    sizes = Counter(instants(Workload.bursts(8, 100, 100, 1)))
    assert list(sizes.values()) == [8] * 12 + [4]


def test_busy_and_quiet_spells_take_turns() -> None:
    at = instants(Workload.on_off(100, 4000, 3, on=0.2, off=0.6))
    gaps = [later - earlier for earlier, later in itertools.pairwise(at)]
    short = [gap for gap in gaps if gap < 0.05]  # a busy spell has 400 a second
    assert statistics.mean(short) == pytest.approx(1 / 400, rel=0.1)
    assert sum(gap for gap in gaps if gap >= 0.05) > at[-1] / 2


def test_a_trace_takes_whatever_was_recorded() -> None:
    events: list[Any] = []
    with batched(lambda xs: xs, tenant="acme", priority=2, hooks=[events.append]) as echo:
        echo.call(1)
    (ended,) = [event for event in events if isinstance(event, RequestEnded)]
    workload = Workload.trace([3.5, Arrival(2, cost=5), {"at": 1, "timeout": 0.5}])
    assert list(workload) == [Arrival(1, timeout=0.5), Arrival(2, cost=5), Arrival(3.5)]
    (arrival,) = Workload.trace([ended])
    assert (arrival.tenant, arrival.priority, arrival.cost) == ("acme", 2, 1)
    assert arrival.at == pytest.approx(ended.now - ended.latency)


def test_modifiers_give_what_they_are_told() -> None:
    plain = Workload.poisson(100, 2000, 1)
    changed = (
        plain.with_costs(lambda random: random.randint(1, 3), seed=2)
        .with_tenants({"a": 3, "b": 1}, seed=2)
        .with_priorities({0: 0.5, -1: 0.5}, seed=2)
        .with_timeouts(0.25)
        .with_groups({"x": 1})
        .with_cancellations({None: 9, 0.5: 1}, seed=2)
    )
    assert instants(changed) == instants(plain)
    assert all(arrival == Arrival(arrival.at) for arrival in plain)
    tenants = Counter(arrival.tenant for arrival in changed)
    assert tenants["a"] + tenants["b"] == 2000
    assert tenants["a"] == pytest.approx(1500, rel=0.05)
    assert Counter(arrival.cost for arrival in changed).keys() == {1, 2, 3}
    assert {arrival.timeout for arrival in changed} == {0.25}
    assert {arrival.group for arrival in changed} == {"x"}
    assert Counter(arrival.cancel_after for arrival in changed)[0.5] == pytest.approx(200, rel=0.25)
    pairs = Counter((arrival.tenant, arrival.priority) for arrival in changed)
    assert pairs["a", 0] == pytest.approx(750, rel=0.1), "equal seeds must not tie fields together"


def test_lengths_are_whole_and_within_bounds() -> None:
    workload = Workload.uniform(1, 2000).with_costs(log_normal(4.5, 0.8, low=10, high=512), seed=1)
    costs = [arrival.cost for arrival in workload]
    assert all(isinstance(cost, int) and 10 <= cost <= 512 for cost in costs)
    assert statistics.median(costs) == pytest.approx(math.exp(4.5), rel=0.1)
    assert max(Workload.uniform(1, 2000).with_costs(log_normal(4.5, 0.8)), key=lambda arrival: arrival.cost).cost > 512


quarters = st.integers(0, 400).map(lambda number: number / 4)
arrivals = st.lists(st.builds(Arrival, quarters, timeout=st.none() | quarters, cancel_after=st.none() | quarters))


@settings(max_examples=50, deadline=None, database=None)
@given(arrivals, arrivals, st.integers(-1000, 1000), st.sampled_from([0.25, 2.0, 8.0]))
def test_merging_shifting_and_scaling(first: list[Arrival], second: list[Arrival], shift: int, factor: float) -> None:
    one, other = Workload(first), Workload(second)
    both = one.merged(other)
    assert Counter(map(repr, both)) == Counter(map(repr, [*first, *second]))
    assert instants(both) == sorted(instants(both))
    assert both.shifted(shift).shifted(-shift) == both
    assert both.scaled(factor).scaled(1 / factor) == both
    assert instants(both.scaled(factor)) == [factor * at for at in instants(both)]
    assert [arrival.timeout for arrival in both.shifted(shift)] == [arrival.timeout for arrival in both]


def test_it_is_a_sequence_that_does_not_change() -> None:
    workload = Workload.uniform(2, 3)
    assert instants(workload) == [0, 0.5, 1]
    assert isinstance(workload[1:], Workload)
    assert workload[1:] == Workload([Arrival(1), Arrival(0.5)])
    assert workload[-1] in workload
    assert workload != [Arrival(0), Arrival(0.5), Arrival(1)]
    assert repr(workload) == "<Workload of 3 arrivals from 0 s to 1 s>"
    assert repr(Workload()) == "<Workload of 0 arrivals>"
    with pytest.raises(TypeError):
        workload[0] = Arrival(0)  # type: ignore[index]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"at": math.inf}, "at must be a finite number of seconds, not inf"),
        ({"at": "soon"}, "at must be a number, not 'soon'"),
        ({"at": 0, "cost": -1}, "cost must be a finite number >= 0, not -1"),
        ({"at": 0, "priority": math.nan}, "priority must be a number, not nan"),
        ({"at": 0, "timeout": -0.5}, "timeout must be a number of seconds >= 0, or None, not -0.5"),
        ({"at": 0, "cancel_after": -1}, "cancel_after must be a number of seconds >= 0, or None, not -1"),
        ({"at": 0, "tenant": []}, r"tenant must be hashable, not \[\]"),
        ({"at": 0, "group": {}}, "group must be hashable, not {}"),
    ],
)
def test_what_an_arrival_cannot_carry(fields: dict[str, Any], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        Arrival(**fields)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Workload.poisson(0, 5), "rate must be a finite number > 0, not 0"),
        (lambda: Workload.poisson(1, 0), "n must be a whole number >= 1, not 0"),
        (lambda: Workload.poisson(1, 2.5), "n must be a whole number >= 1, not 2.5"),
        (lambda: Workload.uniform(math.nan, 5), "rate must be a number, not nan"),
        (lambda: Workload.bursts(0, 1, 5), "size must be a whole number >= 1, not 0"),
        (lambda: Workload.on_off(1, 5, on=0, off=1), "on must be a finite number > 0, not 0"),
        (lambda: Workload.on_off(1, 5, on=1, off=math.inf), "off must be a finite number > 0, not inf"),
        (lambda: Workload([1.0]), "a Workload is made of Arrivals"),
        (lambda: Workload.trace(["now"]), "an instant, an Arrival, a mapping of its fields or a RequestEnded"),
        (lambda: Workload.uniform(1, 2).scaled(0), "factor must be a finite number > 0, not 0"),
        (lambda: Workload.uniform(1, 2).with_tenants({}), "shares must be finite numbers >= 0"),
        (lambda: Workload.uniform(1, 2).with_tenants({"a": -1, "b": 2}), "shares must be finite numbers >= 0"),
        (lambda: Workload.uniform(1, 2).with_costs(math.inf), "cost must be a finite number >= 0, not inf"),
        (lambda: log_normal(math.nan, 1), "mu must be a number, not nan"),
        (lambda: log_normal(1, -1), "sigma must be a number >= 0, not -1"),
        (lambda: log_normal(1, 1, low=5, high=4), "low must be at most high, not 5 with high=4"),
    ],
)
def test_what_is_no_workload(make: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        make()
