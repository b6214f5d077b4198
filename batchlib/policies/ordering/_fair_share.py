"""Start-time fair queueing over tenants: fair whatever a batch holds and however long it takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count, islice
from operator import attrgetter
from typing import Any

from ..._core._protocols import OrderingPolicy
from ..._core._request import Request
from ..structures._accounts import Account, Accounts
from ..structures._turn_queue import TurnQueue
from ..structures._turns import After, Key, Line, checked_inside
from ..structures._weights import checked_weight, checked_weights
from ._fifo import FIFO


@dataclass(frozen=True, slots=True)
class FairShare:
    """Shares the executors by weight among the tenants that have requests waiting, and charges each for their `cost`.

    Within a group two such tenants are never further apart than the cost of a request of each over its weight; in
    groups of their own, by a batch's cost of each more. Being idle earns nothing. A cost of 0 is charged like the
    smallest other one of late. (Start-time fair queueing: Goyal, Vin and Cheng, 1996.)

    weights: from tenant to weight, finite and above 0 (ValueError otherwise); None gives all the `default_weight`.
    within: the ordering policy for the requests of a tenant; TypeError if it is none, or `LengthAware`.
    default_weight: of tenants not in `weights`; None makes such a tenant a ValueError for its caller.

    >>> from batchlib import batched
    >>> from batchlib.policies import FairShare
    >>> double = batched(lambda xs: [2 * x for x in xs], ordering=FairShare({"acme": 3}))
    >>> double.options(tenant="acme").call(4)
    8
    """

    weights: Mapping[Any, float] | None = field(default=None, hash=False)
    within: OrderingPolicy = FIFO
    default_weight: float | None = field(default=1.0, kw_only=True)

    def __post_init__(self) -> None:
        if getattr(checked_inside(self.within), "needs_runs", False):
            raise TypeError(f"FairShare would break the runs of {self.within!r}: put LengthAware outside of FairShare")
        if self.weights is not None:
            object.__setattr__(self, "weights", checked_weights(self.weights))
        if self.default_weight is not None:
            object.__setattr__(self, "default_weight", checked_weight("default_weight", self.default_weight))

    def start(self) -> FairShareOrdering:
        return FairShareOrdering(self)


class FairShareOrdering(Accounts):
    """The accounts, for all groups, and what a queue whose lines take turns asks of them."""

    def __init__(self, policy: FairShare) -> None:
        super().__init__()
        self._weights = policy.weights or {}
        self._default_weight = policy.default_weight
        self._within = policy.within

    def queue(self) -> TurnQueue[Account]:
        return TurnQueue(self, attrgetter("tenant"))

    def party(self, request: Request) -> Account:
        tenant = request.tenant
        account = self.by_tenant.get(tenant)
        if account is None:
            weight = self._weights.get(tenant, self._default_weight)
            if weight is None:
                known = ", ".join([repr(tenant) for tenant in islice(self._weights, 10)]) or "none"
                raise ValueError(f"tenant {tenant!r} has no weight (known: {known}): add it, or set default_weight")
            return Account(tenant, weight, self._within.start())
        if not account.waiting:
            account.ordering = self._within.start()
        return account

    def joined(self, line: Line[Account], request: Request) -> None:
        self.enter(line.party, request.cost)

    def key(self, line: Line[Account]) -> Key:
        account = line.party
        return account.tag, account.ticket

    def looking(self) -> After[Account]:
        tickets, least = count(self.ticket + 1), self.least

        def after(line: Line[Account], key: Key, request: Request) -> Key:
            return key[0] + (request.cost or least) / line.party.weight, next(tickets)

        return after

    def served(self, lines: Sequence[Line[Account]], requests: Sequence[Request]) -> None:
        self.charge([(line.party, request.cost) for line, request in zip(lines, requests, strict=True)])

    def left(self, leaving: Mapping[Line[Account], Sequence[Request]]) -> None:
        self.leave([(line.party, len(requests)) for line, requests in leaving.items()])
