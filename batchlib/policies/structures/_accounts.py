"""Accounts of start-time fair queueing: how much each tenant has been served, on a time of its own.

`time` is the tag of the latest request served, and a tenant's tag is that of its next request: the one with the
smallest is next and pays cost over weight. Whoever comes back gets at least `time`: being idle earns nothing. Lifting
only to the smallest tag of those present would forget, at a moment when all are idle, what was served before it.

Past capacity there may be enough tenants that come for the first time to hold `time` where it is, and whoever has been
served behind them, for ever. So while it stands still they get half of the smallest price more: nobody who has been
served is that near, so every bound holds, and `time` goes on.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable

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
        self._stands = False  # the latest request served did not move `time`
        self._waiting = 0
        self._smallest = math.inf  # cost above 0
        self._heaviest = 0.0  # weight

    @property
    def tenants_tracked(self) -> int:
        return len(self.by_tenant)

    def enter(self, account: Account, cost: float) -> None:
        """A request waits. It may be its tenant's first, whose tag is given now."""
        if 0 < cost < self._smallest:
            self._smallest = cost
        if not account.waiting:
            if account.ticket:
                self._idle.remove((account.tag, account.ticket, account))
            self.by_tenant[account.tenant] = account
            self._heaviest = max(self._heaviest, account.weight)
            more = self.least / self._heaviest / 2 if self._stands else 0.0
            account.tag = max(self._time + more, account.tag)
            self.ticket = account.ticket = self.ticket + 1
        account.waiting += 1
        self._waiting += 1

    @property
    def least(self) -> float:
        """What a cost of 0 is charged like."""
        return 1.0 if self._smallest == math.inf else self._smallest

    def charge(self, served: Iterable[tuple[Account, float]]) -> None:
        """Requests, each with its cost, are served in this order: called before `leave`."""
        time, stands, ticket, least = self._time, self._stands, self.ticket, self.least
        for account, cost in served:
            tag = account.tag
            stands = tag <= time
            if not stands:
                time = tag
            account.tag = tag + (cost or least) / account.weight
            account.ticket = ticket = ticket + 1
        self._time, self._stands, self.ticket = time, stands, ticket

    def leave(self, leaving: Iterable[tuple[Account, int]]) -> None:
        """So many of each have stopped waiting, served or not."""
        gone: list[Account] = []
        for account, requests in leaving:
            account.waiting -= requests
            self._waiting -= requests
            if not account.waiting:
                gone.append(account)
        if not self._waiting:
            self._restart()
            return
        for account in gone:
            self._idle.add((account.tag, account.ticket, account))
        while self._idle and self._idle.first()[0] <= self._time:
            *_, passed = self._idle.take_first()
            del self.by_tenant[passed.tenant]
