"""Accounts of start-time fair queueing: how much each tenant has been served, on a time of its own.

`time` is the tag of the latest request served, and a tenant's tag is that of its next request: the one with the
smallest is next and pays cost over weight. Whoever comes back gets at least `time`: being idle earns nothing. Lifting
only to the smallest tag of those present would forget, at a moment when all are idle, what was served before it.
"""

from __future__ import annotations

import math
from collections.abc import Hashable

from ..._core._protocols import Ordering
from ._sorted import Sorted


class Account:
    """One tenant. `ticket` breaks ties: tags that are equal are served in the order in which they were given."""

    __slots__ = ("ordering", "tag", "tenant", "ticket", "waiting", "weight")

    def __init__(self, tenant: Hashable, weight: float, ordering: Ordering) -> None:
        self.tenant = tenant
        self.weight = weight
        self.ordering = ordering  # of its requests; a new one each time that it comes back
        self.waiting = 0
        self.tag = 0.0
        self.ticket = 0


class Accounts:
    """Operations: enter, leave O(log tenants) when a tenant comes or goes, else O(1); charge O(1).

    Goals: memory follows who waits. A tenant without waiting requests is kept only until `time` has passed its tag,
    since from then on it comes back as a stranger would; when nobody waits nothing is kept at all.
    """

    def __init__(self) -> None:
        self.by_tenant: dict[Hashable, Account] = {}
        self.ticket = 0  # the last one given
        self._idle: Sorted[tuple[float, int, Account]] = Sorted()
        self._restart()

    def _restart(self) -> None:
        """Raising `time` to the largest tag and forgetting everybody is the same as starting over, and stays exact."""
        self.by_tenant.clear()
        self._idle = Sorted()
        self._time = 0.0
        self._waiting = 0
        self._smallest = math.inf  # cost above 0

    @property
    def tenants_tracked(self) -> int:
        return len(self.by_tenant)

    def enter(self, account: Account, cost: float) -> None:
        """A request waits. It may be its tenant's first, whose tag is given now."""
        if not account.waiting:
            if account.ticket:
                self._idle.remove((account.tag, account.ticket, account))
            self.by_tenant[account.tenant] = account
            account.tag = max(self._time, account.tag)
            self.ticket = account.ticket = self.ticket + 1
        account.waiting += 1
        self._waiting += 1
        if 0 < cost < self._smallest:
            self._smallest = cost

    @property
    def least(self) -> float:
        """What a cost of 0 is charged like."""
        return 1.0 if self._smallest == math.inf else self._smallest

    def charge(self, account: Account, cost: float) -> None:
        """A request is served: called in the order of service, before `leave`."""
        if account.tag > self._time:
            self._time = account.tag
        account.tag += (cost or self.least) / account.weight
        self.ticket = account.ticket = self.ticket + 1

    def leave(self, account: Account, requests: int) -> None:
        """That many have stopped waiting, served or not."""
        account.waiting -= requests
        self._waiting -= requests
        if not self._waiting:
            self._restart()
            return
        if not account.waiting:
            self._idle.add((account.tag, account.ticket, account))
        while self._idle and self._idle.first()[0] <= self._time:
            *_, passed = entry = self._idle.first()
            self._idle.remove(entry)
            del self.by_tenant[passed.tenant]
