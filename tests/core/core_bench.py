"""The core on a test bench: events by hand, a runtime that performs the actions, and the invariants held at each step.

The invariants have the numbers of batchlib/_core/README.md. They hold whatever the policies do.
"""

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

from batchlib._core._actions import Abandon, Action, Dispatch, Report, Resolve, WakeAt
from batchlib._core._batch import Batch
from batchlib._core._batcher import Batcher
from batchlib._core._policies import Policies
from batchlib._core._request import Request
from batchlib._core._transitions import FINAL, State
from batchlib.policies import CostLimit, Fifo, Greedy


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


class Bench:
    """Moves the time, feeds events, performs actions. `now` never goes back; wake-ups come when they are let."""

    def __init__(self, given: Policies | None = None, now: float = 0.0) -> None:
        self.policies = given or policies()
        self.core = Batcher(self.policies)
        self.now = now
        self.requests: list[Request] = []
        self.resolved: Counter[Request] = Counter()
        self.batches: list[Batch] = []  # all that were dispatched, in order
        self.contents: dict[Batch, list[Request]] = {}
        self.running: list[Batch] = []
        self.abandoned: list[Batch] = []
        self.reports: list[Exception] = []
        self.wakes: list[float] = []  # wake-ups that are out
        self.soon = False  # one is out for the end of the tick

    # ---- events

    def submit(self, group: Any = "", *, timeout: float | None = None, **fields: Any) -> Request:
        request = Request((len(self.requests),), group, self.now)
        request.deadline = None if timeout is None else self.now + timeout
        for name, value in fields.items():
            setattr(request, name, value)
        self.requests.append(request)
        self.perform(self.core.submit(request, self.now), submitting=True)
        return request

    def arrive(self, *groups: Any, **fields: Any) -> list[Request]:
        """Several requests in one tick, whose end is served."""
        requests = [self.submit(group, **fields) for group in groups]
        self.wake()
        return requests

    def cancel(self, request: Request) -> None:
        self.perform(self.core.cancel(request, self.now))

    def wake(self) -> None:
        self.soon = False
        self.wakes = [instant for instant in self.wakes if instant > self.now]
        self.perform(self.core.wake(self.now))

    def advance_to(self, instant: float) -> None:
        """Serves every wake-up at its own instant."""
        while self.wakes and min(self.wakes) <= instant:
            self.now = max(self.now, min(self.wakes))
            self.wake()
        self.now = instant

    def finish(self, batch: Batch, outcomes: Sequence[Any] | None = None, *, looked_at: bool = True) -> None:
        """`looked_at`: the executor knows whether there is an exception among them, and says so."""
        self.running.remove(batch)
        given = [request.args[0] for request in self.contents[batch]] if outcomes is None else outcomes
        clean = looked_at and not any(isinstance(outcome, BaseException) for outcome in given)
        self.perform(self.core.finish(batch, given, self.now, clean=clean))

    def close(self, *, drain: bool, running: bool = False) -> None:
        self.perform(self.core.close(self.now, drain=drain, running=running))

    def configure(self, **options: Any) -> None:
        self.policies = policies(**options)
        self.perform(self.core.configure(self.policies, self.now))

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
        for action in actions:
            match action:
                case Resolve(requests):
                    self.hold_resolve(requests)
                case Dispatch(batch):
                    self.hold_dispatch(batch)
                case WakeAt(instant) if instant == -math.inf:
                    assert submitting
                    self.soon = True
                case WakeAt(instant):
                    assert self.now <= instant if submitting else self.now < instant  # 9
                    assert instant < math.inf
                    self.wakes.append(instant)
                case Abandon(batch):
                    assert batch in self.running
                    assert all(request.state in FINAL for request in self.contents[batch])
                    self.abandoned.append(batch)
                case Report(error):
                    self.reports.append(error)
        self.hold_always()

    def hold_resolve(self, requests: Sequence[Request]) -> None:
        assert requests
        for request in requests:
            self.resolved[request] += 1
            assert self.resolved[request] == 1  # 1
            assert request.state in FINAL
            assert request.state is not State.CANCELLED
            assert isinstance(request.outcome, Exception) or request.state is State.COMPLETED

    def hold_dispatch(self, batch: Batch) -> None:
        assert batch.size == len(batch.requests) > 0
        assert len(set(batch.requests)) == batch.size
        for request in batch.requests:
            assert request.state is State.RUNNING  # 4
            assert request.batch is batch
            assert request not in self.resolved
            assert request.deadline is None or request.deadline > self.now  # 4
            assert request.group == batch.group  # 5
        assert len(self.running) < self.policies.max_concurrent_batches  # 3
        costs = sum(request.cost for request in batch.requests)
        limits = [limit.max_cost for limit in self.policies.limits if isinstance(limit, CostLimit)]
        over = any(costs > limit for limit in limits)
        assert batch.size <= self.policies.max_batch_size  # 3
        assert not over or (batch.size == 1 and self.policies.oversize_alone and batch.reason == "oversize")  # 3
        assert batch.number == len(self.batches) + 1
        assert batch.cost == costs
        assert batch.fill == batch.size / self.policies.max_batch_size
        self.batches.append(batch)
        self.running.append(batch)
        self.contents[batch] = list(batch.requests)

    def hold_always(self) -> None:
        count = Counter(request.state for request in self.requests)
        books = self.core.statistics(self.now)
        assert books.submitted == len(self.requests) == sum(count.values())  # 2
        assert count[State.NEW] == 0
        assert (books.completed, books.failed) == (count[State.COMPLETED], count[State.FAILED])
        assert (books.cancelled, books.expired) == (count[State.CANCELLED], count[State.EXPIRED])
        assert (books.shed, books.rejected) == (count[State.SHED], count[State.REJECTED])
        assert (books.waiting, books.running) == (count[State.WAITING], count[State.RUNNING])
        for request in self.requests:
            told = 1 if request.state in FINAL and request.state is not State.CANCELLED else 0
            assert self.resolved[request] == told  # 1
        waiting = [request for request in self.requests if request.state is State.WAITING]
        assert books.groups == len({request.group for request in waiting})  # 8
        assert books.running_batches == len(self.running) == len(self.core.running_batches)
        assert books.batches == len(self.batches)
        assert self.core.idle is (not waiting and not self.running)
        if waiting and len(self.running) < self.policies.max_concurrent_batches:
            assert self.soon or self.wakes  # 7
        for request in self.requests:
            if request.deadline is not None and request.state not in FINAL:
                assert any(instant <= request.deadline for instant in self.wakes)  # 6
