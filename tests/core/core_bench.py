"""The bench of the contract of policies, which holds the invariants of the core, with what tests look at afterwards."""

import math
from collections.abc import Sequence
from typing import Any

from batchlib._core._actions import Action, WakeAt
from batchlib._core._batch import Batch
from batchlib._core._policies import Policies
from batchlib._core._request import Request
from batchlib.policies import Fifo, Greedy
from batchlib.testing import _bench


def policies(**options: Any) -> Policies:
    defaults: dict[str, Any] = {
        "admission": (),
        "ordering": Fifo(),
        "dispatch": Greedy(),
        "limits": (),
        "max_batch_size": 4,
        "max_concurrent_batches": 1,
        "oversize_alone": False,
    }
    return Policies(**{**defaults, **options})


def need(kept: object, rule: str, *shown: object) -> None:
    assert kept, (rule, *shown)


class Bench(_bench.Bench):
    """Fails at once, and keeps what happened.

    scarce: no wake-up can be had.
    refused: the last could not be had. unwatched: one could not be had, until somebody has taken note.
    """

    def __init__(self, given: Policies | None = None, now: float = 0.0) -> None:
        super().__init__(given or policies(), need, now)
        self.contents: dict[Batch, Sequence[Request]] = {}
        self.abandoned: list[Batch] = []
        self.reports: list[Exception] = []
        self.scarce = self.refused = self.unwatched = False

    # ---- events

    def arrive(self, *groups: Any, **fields: Any) -> list[Request]:
        """Several requests in one tick, whose end is served."""
        requests = [self.submit(group, **fields) for group in groups]
        self.wake()
        return requests

    def drain(self) -> None:
        """To the end, serving all that is asked for."""
        self.close(drain=True)
        while self.running or self.wakes:
            if self.running:
                self.finish(self.running[0])
            else:
                self.advance_to(min(self.wakes))

    # ---- what happened

    @property
    def sizes(self) -> list[int]:
        return [batch.size for batch in self.batches]

    @property
    def items(self) -> list[list[Any]]:
        """What each batch held; an item is the number of its request, from 0."""
        return [[request.args[0] for request in self.contents[batch]] for batch in self.batches]

    @property
    def reasons(self) -> list[str]:
        return [batch.reason for batch in self.batches]

    @property
    def states(self) -> list[str]:
        return [request.state.value for request in self.requests]

    # ---- the runtime

    def perform(self, actions: Sequence[Action], *, submitting: bool = False) -> None:
        done: list[Action] = []
        for action in actions:
            if not isinstance(action, WakeAt) or action.instant == -math.inf:
                done.append(action)
            elif self.scarce:
                self.refused = self.unwatched = True
                done += self.core.unwatched(self.now)
            elif self.refused and submitting and action.instant < self.now:  # too late for what nobody could watch
                self.wakes.append(action.instant)
                self.refused = False
            else:
                done.append(action)
                self.refused = False
        super().perform(done, submitting=submitting)

    def hold_always(self) -> None:
        if not self.refused:
            return super().hold_always()
        # The next event looks at the deadlines. While an executor is idle nobody may need such luck.
        held_back = self.waiting and len(self.running) < self.policies.max_concurrent_batches
        need(not held_back or self.soon or self.wakes, "without a wake-up nobody is held back", self.waiting)  # 7
        out, self.wakes = self.wakes, [-math.inf]
        super().hold_always()
        self.wakes = out

    def hold_dispatch(self, batch: Batch) -> None:
        super().hold_dispatch(batch)
        self.contents[batch] = list(batch.requests)  # it forgets them in the end

    def hold_abandon(self, batch: Batch) -> None:
        super().hold_abandon(batch)
        self.abandoned.append(batch)

    def hold_report(self, error: Exception) -> None:
        self.reports.append(error)
