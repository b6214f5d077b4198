"""Hypothesis strategies for workloads, executor models, policies and the decorator's options.

Instants and durations are drawn in quarters of a second and costs are small whole numbers, so that sums are exact and
what fails shrinks to a story that can be read. A new policy joins the functions below, and with that every property
test that draws policies.
"""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from .._core._protocols import AdmissionPolicy, DispatchPolicy, Limit, OrderingPolicy
from ..policies import (
    AimdBatchSize,
    CostLimit,
    DeadlineAware,
    DeadlineFeasible,
    EarliestDeadline,
    FairShare,
    Fifo,
    Greedy,
    LengthAware,
    MaxWaiting,
    PaddedCost,
    Priority,
    SizeOrWait,
    TenantQuota,
)
from ..simulation import Affine, Arrival, ExecutorModel, Workload

TENANTS = (None, "x", "y")


def seconds(least: float = 0.0, most: float = 4.0) -> st.SearchStrategy[float]:
    """Durations from `least` to `most` seconds, in quarters of a second."""
    return st.integers(int(least * 4), int(most * 4)).map(lambda quarters: quarters / 4)


def arrivals(*, most: float = 8.0, max_cost: int = 4) -> st.SearchStrategy[Arrival]:
    """Single arrivals. most: the latest instant, in seconds. max_cost: costs are whole numbers from 1 to this."""
    return st.builds(
        Arrival,
        at=seconds(0, most),
        cost=st.integers(1, max_cost),
        tenant=st.sampled_from(TENANTS),
        priority=st.integers(-2, 2),
        timeout=st.none() | seconds(),
        group=st.sampled_from("aab"),
        cancel_after=st.none() | seconds(),
    )


def workloads(*, max_size: int = 30, most: float = 8.0, max_cost: int = 4) -> st.SearchStrategy[Workload]:
    """Workloads of up to `max_size` arrivals, many of them at the same instants; see `arrivals` for the rest.

    They shrink to few and early arrivals that carry nothing.
    """
    return st.lists(arrivals(most=most, max_cost=max_cost), max_size=max_size).map(Workload)


def executor_models() -> st.SearchStrategy[ExecutorModel]:
    """Affine models, with stragglers or without."""
    affine = st.builds(Affine, base=seconds(0.25, 2), per_item=seconds(0, 1), per_cost=seconds(0, 0.5))
    slow = st.builds(Affine.with_stragglers, affine, st.sampled_from([0.25, 1.0]), st.integers(2, 5), st.integers(0, 9))
    return affine | slow


def admissions() -> st.SearchStrategy[AdmissionPolicy]:
    """Every built-in admission policy."""
    few = st.integers(1, 5)
    return st.one_of(
        st.builds(MaxWaiting, few, st.sampled_from(["wait", "reject"])),
        st.builds(TenantQuota, st.none() | few, st.none() | few),
        st.just(DeadlineFeasible()),
    )


def orderings() -> st.SearchStrategy[OrderingPolicy]:
    """Every built-in ordering policy, nested in one another as far as they can be."""
    aging = st.none() | seconds(0.25, 2)
    weights = st.none() | st.fixed_dictionaries({}, optional={"x": st.integers(1, 3), "y": st.integers(1, 3)})
    simple = st.sampled_from([Fifo(), EarliestDeadline()])
    nested = st.recursive(
        simple,
        lambda inner: st.builds(Priority, inner, aging) | st.builds(FairShare, weights, inner),
        max_leaves=3,
    )
    runs = st.builds(LengthAware, nested, st.integers(1, 8))
    return st.one_of(nested, runs, st.builds(Priority, runs, aging))


def dispatches() -> st.SearchStrategy[DispatchPolicy]:
    """Every built-in dispatch policy."""
    return st.one_of(
        st.just(Greedy()), st.builds(SizeOrWait, seconds()), st.builds(DeadlineAware, window=st.integers(1, 256))
    )


def limits(*, max_cost: int = 4) -> st.SearchStrategy[Limit]:
    """Every built-in limit. max_cost: of a single item, which always fits."""
    costs = st.integers(max_cost, 3 * max_cost)
    return st.one_of(st.builds(CostLimit, costs), st.builds(PaddedCost, costs), st.builds(AimdBatchSize, seconds(0.25)))


def options() -> st.SearchStrategy[dict[str, Any]]:
    """Options for the decorator and for `simulate`: legal together, and any of them may be missing.

    The policies are drawn with `max_batch_size` and the like; `cost` is there, as some limits need it.
    """
    policies = st.fixed_dictionaries(
        {"cost": st.just(abs)},
        optional={
            "max_batch_size": st.integers(1, 8),
            "max_concurrent_batches": st.integers(1, 3),
            "timeout": seconds(0.25),
            "oversize": st.sampled_from(["reject", "alone"]),
            "admission": st.lists(admissions(), max_size=2),
            "ordering": orderings(),
        },
    )
    short = st.fixed_dictionaries({}, optional={"max_wait": seconds(), "max_batch_cost": st.integers(4, 12)})
    full = st.fixed_dictionaries({"dispatch": st.tuples(dispatches()) | st.tuples(dispatches(), limits())})
    return st.builds(lambda one, other: {**one, **other}, policies, st.one_of(short, full))
