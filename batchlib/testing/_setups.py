"""What the contract draws around a policy: its neighbours in a batcher, and the calls that come."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from hypothesis import strategies as st

from .._core._policies import Policies
from .._core._protocols import AdmissionPolicy, DispatchPolicy, Limit, OrderingPolicy
from ..policies import FairShare, Priority
from . import strategies


class Call(NamedTuple):
    """What a request carries; `timeout` and `hint` are seconds from its arrival."""

    group: str = "a"
    cost: float = 1
    timeout: float | None = None
    priority: float = 0
    tenant: str | None = None
    hint: float | None = None


def calls() -> st.SearchStrategy[Call]:
    return st.builds(
        Call,
        group=st.sampled_from("aab"),
        cost=st.integers(1, 4),
        timeout=st.none() | strategies.seconds(),
        priority=st.integers(-2, 2),
        tenant=st.sampled_from(strategies.TENANTS),
        hint=st.none() | strategies.seconds(),
    )


@dataclass(frozen=True)
class Setup:
    """A batcher's policies and limits."""

    ordering: OrderingPolicy
    dispatch: DispatchPolicy
    limits: tuple[Limit, ...]
    max_batch_size: int
    max_concurrent_batches: int
    oversize_alone: bool
    admission: tuple[AdmissionPolicy, ...] = ()

    def policies(self, **others: Any) -> Policies:
        """As the core is told them, with `others` in their places."""
        return Policies(**{**vars(self), **others})

    def sized(self, max_batch_size: int, max_concurrent_batches: int) -> Setup:
        return replace(self, max_batch_size=max_batch_size, max_concurrent_batches=max_concurrent_batches)


def setups() -> st.SearchStrategy[Setup]:
    return st.builds(
        Setup,
        ordering=strategies.orderings(),
        dispatch=strategies.dispatches(),
        limits=st.just(()) | st.tuples(strategies.limits()),
        max_batch_size=st.integers(1, 5),
        max_concurrent_batches=st.integers(1, 3),
        oversize_alone=st.booleans(),
    )


def alone(policy: Any) -> Any:
    return policy


def by_priority(policy: Any) -> Priority:
    return Priority(within=policy)


def by_tenant(policy: Any) -> FairShare:
    return FairShare(within=policy)


def by_both(policy: Any) -> Priority:
    return Priority(within=FairShare(within=policy))


NESTINGS: list[Callable[[Any], Any]] = [alone, by_priority, by_tenant, by_both]
"""Places in which an ordering policy can be."""
