"""What the core is told once (Policies), and the states that the policies have started for it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from ._groups import Limits
from ._protocols import AdmissionPolicy, DispatchPolicy, Limit, OrderingPolicy


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


class PolicyStates:
    """One batcher's policy states, with their optional methods looked up once.

    `told` passes an event on to such a method; what it raises cannot be any caller's, so it is kept for a report.
    """

    def __init__(self, policies: Policies) -> None:
        self.policies = policies
        self.reports: list[Exception] = []
        self.ordering = policies.ordering.start()
        self._start_admission()
        self.dispatcher = policies.dispatch.start()
        self.limits = Limits(
            policies.max_batch_size, [limit.start() for limit in policies.limits], policies.oversize_alone
        )
        self._look_up_observers()

    def _start_admission(self) -> None:
        self.admissions = [policy.start() for policy in self.policies.admission]
        self.holds_back = _optional(self.admissions, "holds_back")
        self.on_dispatched = _optional(self.admissions, "dispatched")
        self.on_ended = _optional(self.admissions, "ended")

    def _look_up_observers(self) -> None:
        self.observers = _optional([self.dispatcher, *self.limits.limiters], "observe")

    def configure(self, policies: Policies) -> bool:
        """Takes over new limits, keeping the state of what stays the same; says whether items may fit no longer."""
        old, self.policies = self.policies, policies
        if policies.admission != old.admission:
            self._start_admission()
        if policies.dispatch != old.dispatch:
            self.dispatcher = policies.dispatch.start()
        self.limits.max_batch_size = policies.max_batch_size
        if policies.limits != old.limits:
            self.limits.limiters = tuple(limit.start() for limit in policies.limits)
        self._look_up_observers()
        return policies.limits != old.limits and not policies.oversize_alone

    def told(self, methods: Iterable[Callable[..., Any]], *args: object) -> None:
        for method in methods:
            try:
                method(*args)
            except Exception as error:
                self.reports.append(error)


def _optional(states: Iterable[object], method: str) -> list[Callable[..., Any]]:
    return [getattr(state, method) for state in states if hasattr(state, method)]
