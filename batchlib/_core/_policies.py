"""What the core is told once (Policies), and the states that the policies have started for it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, repeat
from typing import Any, NamedTuple

from ..errors import BatchFailed
from . import _refusals as refusals
from ._groups import Limits, WaitingGroup
from ._protocols import (
    Admission,
    AdmissionPolicy,
    Decision,
    DispatchPolicy,
    Limit,
    Ordering,
    OrderingPolicy,
    WaitingRoom,
)
from ._request import Request


@dataclass(frozen=True, slots=True)
class Policies:
    """Policies, and the limits that they work within."""

    admission: tuple[AdmissionPolicy, ...]
    ordering: OrderingPolicy
    dispatch: DispatchPolicy
    limits: tuple[Limit, ...]
    max_batch_size: int
    max_concurrent_batches: int
    oversize_alone: bool = False
    oversize_split: bool = False
    carried_ordering: OrderingPolicy | None = None
    """Takes over from `ordering` as soon as a request carries a priority or a tenant; None: nothing does."""


class Refusal(NamedTuple):
    """Why a request may not join, by whom, and which admission policies had said yes before."""

    error: Exception
    by: object
    admitted: Sequence[Admission]


class PolicyStates:
    """One batcher's policy states, with their optional methods looked up once.

    `told` passes an event on to such a method; what it raises cannot be any caller's, so it is kept for a report.
    """

    def __init__(self, policies: Policies) -> None:
        self.policies = policies
        self.reports: list[Exception] = []
        self.ordering = policies.ordering.start()
        self.carried_ordering = policies.carried_ordering
        self.dispatcher = policies.dispatch.start()
        self.admissions = [policy.start() for policy in policies.admission]
        self.limits = Limits(
            policies.max_batch_size, [limit.start() for limit in policies.limits], policies.oversize_alone
        )
        self._look_up()

    def _look_up(self) -> None:
        self.refusers = [admission for admission in self.admissions if getattr(admission, "can_refuse", True)]
        self.holds_back = optional(self.admissions, "holds_back")
        self.on_dispatched = optional(self.admissions, "dispatched")
        self.on_ended = optional(self.admissions, "ended")
        self.observers = optional([self.dispatcher, *self.limits.limiters], "observe")

    def take_over(self) -> Ordering:
        """The state of the ordering that takes over from now on."""
        assert self.carried_ordering is not None
        self.ordering, self.carried_ordering = self.carried_ordering.start(), None
        return self.ordering

    @property
    def tenants_tracked(self) -> int:
        """How many tenants the policies keep an account for."""
        return sum(getattr(state, "tenants_tracked", 0) for state in (self.ordering, *self.admissions))

    @property
    def can_refuse(self) -> bool:
        """Whether a request has to be looked at before it joins."""
        return bool(self.refusers) or (bool(self.limits.limiters) and not self.limits.oversize_alone)

    def configure(self, policies: Policies) -> bool:
        """Takes over new limits, keeping the state of what stays the same; says whether items may fit no longer."""
        old = self.policies
        dispatcher = self.dispatcher if policies.dispatch == old.dispatch else policies.dispatch.start()
        admissions = _kept(policies.admission, old.admission, self.admissions)
        limiters = _kept(policies.limits, old.limits, self.limits.limiters)
        # All that can raise has been done: from here on everything changes, or nothing has.
        self.policies, self.dispatcher, self.admissions = policies, dispatcher, admissions
        self.limits.limiters = tuple(limiters)
        self.limits.max_batch_size = policies.max_batch_size
        self._look_up()
        return policies.limits != old.limits and not policies.oversize_alone

    def refusal(self, request: Request, room: WaitingRoom, now: float, ahead: bool) -> Refusal | None:
        """Why the request may not join; None if it may. A policy that raises fails its caller with what it raised.

        ahead: whoever submits runs ahead of its results, and cannot be held back in any other way.
        """
        if ahead and any(holds_back(room) for holds_back in self.holds_back):
            return Refusal(refusals.no_room(request, room.waiting), room, ())
        if not self.limits.oversize_alone:
            too_large = self.too_large(request)
            if too_large is not None:
                return Refusal(too_large, self.limits, ())
        for place, admission in enumerate(self.refusers):
            error: Exception | None
            try:
                error = admission.admit(request, room, now)
            except Exception as raised:
                error = raised
            if error is not None:
                return Refusal(error, admission, self.refusers[:place])
        return None

    def too_large(self, request: Request) -> Exception | None:
        """Why no batch can ever hold the request; None if one can."""
        try:
            excess = self.limits.exceeds(request)
            return None if excess is None else refusals.too_large(*excess)
        except Exception as error:  # a user's limit: its failure is its caller's
            return error

    def decide(self, group: WaitingGroup, now: float, release: str) -> Decision | BatchFailed:
        """The dispatch policy's decision, or why it is none. `release`: why nobody is held back now; usually empty."""
        cause: Exception | None = None
        try:
            if release:
                decision = Decision(group.fill().requests, reason=release)
            else:
                decision = self.dispatcher.decide(group, now)
            if group.can_follow(decision, now):
                decision.reason = str(decision.reason) or "policy"
                return decision
            problem = f"decided what cannot be done now (t={now:g}): {decision!r}"
        except Exception as error:
            problem, cause = f"raised {type(error).__name__}: {error}", error
        return refusals.policy_fault(self.dispatcher, problem, cause)

    def told(self, methods: Iterable[Callable[..., Any]], *args: object) -> None:
        for method in methods:
            try:
                method(*args)
            except Exception as error:
                self.reports.append(error)

    def told_each(self, methods: Sequence[Callable[..., Any]], requests: Sequence[Request]) -> None:
        if methods:
            for request in requests:
                self.told(methods, request)


def _kept(policies: Iterable[Any], old: Iterable[Any], states: Iterable[Any]) -> list[Any]:
    """A state for each policy: the one it has, where the policy in its place is still the same."""
    before = chain(zip(old, states, strict=True), repeat((None, None)))
    return [
        state if policy == known else policy.start() for policy, (known, state) in zip(policies, before, strict=False)
    ]


def optional(states: Iterable[object], method: str) -> list[Callable[..., Any]]:
    return [getattr(state, method) for state in states if hasattr(state, method)]
