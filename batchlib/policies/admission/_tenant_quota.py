"""Bounds what each tenant may have in the queue and at work, so that none can take it all."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..._core._protocols import WaitingRoom
from ..._core._request import Request
from ...errors import Overloaded, Rejected


@dataclass(frozen=True, slots=True)
class TenantQuota:
    """Refuses, with `Overloaded`, a tenant's request over what that tenant may have. Nobody else's is touched.

    max_waiting: requests of one tenant that wait; None for no limit, 0 to serve none.
    max_in_flight: likewise those that wait and those that run, together.
    overrides: for single tenants, a quota in place of this one. All requests without a tenant count as those of None.

    Raises ValueError for a number below 0 and TypeError for what is not a whole number or not a quota.

    >>> from batchlib import batched
    >>> from batchlib.policies import TenantQuota
    >>> quota = TenantQuota(max_waiting=100, overrides={"acme": TenantQuota(max_waiting=1000)})
    >>> double = batched(lambda xs: [2 * x for x in xs], admission=quota)
    >>> double.options(tenant="acme").call(4)
    8
    """

    max_waiting: int | None = None
    max_in_flight: int | None = None
    overrides: Mapping[Any, TenantQuota] | None = field(default=None, hash=False)

    def __post_init__(self) -> None:
        _check("max_waiting", self.max_waiting)
        _check("max_in_flight", self.max_in_flight)
        if self.overrides is not None:
            object.__setattr__(self, "overrides", _own(self.overrides))

    def start(self) -> TenantQuotaAdmission:
        return TenantQuotaAdmission(self)


class TenantQuotaAdmission:
    """Counts by tenant, gone at zero, so that memory follows what is in flight. Every method is O(1)."""

    def __init__(self, quota: TenantQuota) -> None:
        self._default = quota
        self._overrides = quota.overrides or {}
        self.waiting: dict[Hashable, int] = {}
        self.in_flight: dict[Hashable, int] = {}

    @property
    def tenants_tracked(self) -> int:
        return len(self.in_flight)

    def admit(self, request: Request, room: WaitingRoom, now: float) -> Rejected | None:
        quota = self._overrides.get(tenant := request.tenant, self._default)
        waiting, in_flight = self.waiting.get(tenant, 0), self.in_flight.get(tenant, 0)
        if quota.max_waiting is not None and waiting >= quota.max_waiting:
            numbers = f"{waiting} requests wait and max_waiting is {quota.max_waiting}"
        elif quota.max_in_flight is not None and in_flight >= quota.max_in_flight:
            numbers = f"{in_flight} requests wait or run and max_in_flight is {quota.max_in_flight}"
        else:
            self.waiting[tenant] = waiting + 1
            self.in_flight[tenant] = in_flight + 1
            return None
        return Overloaded(f"tenant {tenant!r}: {numbers}: send it later or elsewhere, or raise the tenant's quota")

    def dispatched(self, request: Request) -> None:
        _count_out(self.waiting, request.tenant)

    def ended(self, request: Request) -> None:
        if request.batch is None:  # it never ran
            _count_out(self.waiting, request.tenant)
        _count_out(self.in_flight, request.tenant)


def _check(name: str, value: Any) -> None:
    wrong_type = isinstance(value, bool) or not hasattr(value, "__index__")
    if value is not None and (wrong_type or value < 0):
        legal = f"{name} must be a whole number >= 0, or None for no limit, not {value!r}"
        raise TypeError(legal) if wrong_type else ValueError(legal)


def _own(overrides: Any) -> dict[Hashable, TenantQuota]:
    """A copy, checked: what was given may change later."""
    quotas = overrides.values() if isinstance(overrides, Mapping) else (None,)
    if not all(isinstance(quota, TenantQuota) and quota.overrides is None for quota in quotas):
        raise TypeError(f"overrides must map tenants to TenantQuota without overrides, not {overrides!r}")
    return dict(overrides)


def _count_out(counts: dict[Hashable, int], tenant: Hashable) -> None:
    counts[tenant] -= 1
    if not counts[tenant]:
        del counts[tenant]
