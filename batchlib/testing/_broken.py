"""What the kit raises when a policy breaks its contract, and where what is found is kept until it can be raised."""

from __future__ import annotations


class ContractBroken(AssertionError):
    """A policy does what its protocol forbids; the message names the rule and shows what the policy did."""


class Findings:
    """Breaches, in the order in which they were seen.

    The core turns what a policy raises into an error for its callers, so a breach that is seen inside a policy's method
    is noted and raised after the event.
    """

    def __init__(self) -> None:
        self.found: list[ContractBroken] = []

    def need(self, kept: object, rule: str, *shown: object, cause: BaseException | None = None) -> bool:
        """Notes that `rule` was broken, as is `shown`, unless it was `kept`; says whether it was."""
        if kept:
            return True
        broken = ContractBroken(": ".join([str(each) for each in (rule, *shown)]))
        broken.__cause__ = cause
        self.found.append(broken)
        return False

    def raise_first(self) -> None:
        if self.found:
            raise self.found[0]
