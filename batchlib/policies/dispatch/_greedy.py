"""Never let an executor idle while something waits: the default.

With one executor and random arrivals, waiting on purpose gains next to nothing and a timer costs its whole length at
low load; what arrives in one loop tick is gathered by the core's caller before the policy is asked.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..._core._protocols import Decision, Group


@dataclass(frozen=True, slots=True)
class Greedy:
    """Dispatches whatever waits as soon as an executor is free.

    >>> from batchlib import batched
    >>> from batchlib.policies import Greedy
    >>> double = batched(lambda xs: [2 * x for x in xs], dispatch=Greedy())
    >>> double.call(4)
    8
    """

    def start(self) -> GreedyDispatcher:
        return GreedyDispatcher()


class GreedyDispatcher:
    """No state: the group says all there is to know."""

    def decide(self, group: Group, now: float) -> Decision:
        filled = group.fill()
        return Decision(filled.requests, reason="full" if filled.full else "executor_free")
