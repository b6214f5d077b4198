"""Classes of priority that age, so that waiting long enough makes anybody urgent."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..._context import number
from ..._core._protocols import OrderingPolicy
from ..structures._classes import Classes
from ..structures._turns import checked_inside
from ._fifo import FIFO

_AGING = "a finite number of seconds above 0, or None for strict classes"


@dataclass(frozen=True, slots=True)
class Priority:
    """Serves the class of the smallest `arrival of its oldest + aging x priority`; within it, another policy's choice.

    Lower is more urgent, negatives more so; `math.inf` is background. A class passes over another for as long as its
    oldest arrived at most `aging` x (difference of priority) later, and no longer; with `Fifo` inside the same holds
    for any two requests of a group.

    within: the ordering policy inside each class. TypeError if it is none.
    aging: seconds that one unit of priority is worth; None is strict: a less urgent class waits for as long as any more
        urgent request does. ValueError unless a finite number above 0 or None.

    >>> from batchlib import batched
    >>> from batchlib.policies import Priority
    >>> double = batched(lambda xs: [2 * x for x in xs], ordering=Priority(aging=0.5))
    >>> double.options(priority=-1).call(4)
    8
    """

    within: OrderingPolicy = FIFO
    aging: float | None = 1.0

    def __post_init__(self) -> None:
        checked_inside(self.within)
        if self.aging is not None:
            aging = number("aging", self.aging, _AGING)
            if not 0 < aging < math.inf:
                raise ValueError(f"aging must be {_AGING}, not {aging!r}")
            object.__setattr__(self, "aging", aging)

    @property
    def needs_runs(self) -> bool:
        """Whether the policy inside does."""
        return getattr(self.within, "needs_runs", False)

    def start(self) -> PriorityOrdering:
        return PriorityOrdering(self.within, self.aging)


class PriorityOrdering(Classes):
    """The classes under the name of their policy."""
