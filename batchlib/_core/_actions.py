"""What the core tells its runtime to do. The runtime does all of it and decides nothing.

Not frozen: several are made for every batch, and freezing doubles what making one costs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ._batch import Batch
from ._request import Request


@dataclass(slots=True)
class Dispatch:
    """Run this batch, then call `finish` with its outcomes."""

    batch: Batch


@dataclass(slots=True)
class Resolve:
    """These requests have ended: tell each one's caller its `state` and `outcome`.

    One action per event, not per request: an object for each would cost a tenth of all that is spent on a request.
    """

    requests: Sequence[Request]


@dataclass(slots=True)
class Abandon:
    """Every caller of this running batch has left: stop it if that can be done."""

    batch: Batch


@dataclass(slots=True)
class WakeAt:
    """Call `wake` at `instant` or as soon after it as possible; minus infinity means at the end of the current tick."""

    instant: float


@dataclass(slots=True)
class Report:
    """A policy failed where no caller can be told: log it."""

    error: Exception


Action = Dispatch | Resolve | Abandon | WakeAt | Report

NOTHING: tuple[Action, ...] = ()
SOON: tuple[Action, ...] = (WakeAt(-math.inf),)
