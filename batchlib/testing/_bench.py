"""The production core driven by hand: events in, actions performed, and what must always hold looked at after each.

Time moves only when it is told to, and executors end when they are told to. Every event is written down, so that the
same story can be told to another batcher. The rules are those of batchlib/_core/README.md; they hold whatever the
policies do, so a breach of one is a policy's whose decision could not be followed, or a bug of the core.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Sequence
from operator import attrgetter
from typing import Any

from .._core._actions import Abandon, Action, Dispatch, Report, Resolve, WakeAt
from .._core._batch import Batch
from .._core._batcher import Batcher
from .._core._policies import Policies
from .._core._request import Request
from .._core._transitions import FINAL, State
from ..errors import BatchFailed, Rejected
from ._broken import Findings

Story = list[tuple[str, tuple[Any, ...]]]

_CARRIED = ("args", "group", "arrival", "cost", "deadline", "hint", "priority", "tenant")
_values = attrgetter(*_CARRIED)


class Bench:
    """Feeds a Batcher, and is its runtime. Requests and batches are named by their numbers, from 0 and from 1.

    now: where the time begins. may_raise: what policies may refuse a request with, beside Rejected.
    """

    def __init__(
        self, policies: Policies, findings: Findings, now: float = 0.0, may_raise: tuple[type[Exception], ...] = ()
    ) -> None:
        self.policies = policies
        self.core = Batcher(policies)
        self.now = now
        self.requests: list[Request] = []
        self.running: dict[int, Batch] = {}
        self.story: Story = []
        self.told: list[tuple[Any, ...]] = []  # what came of it
        self.need = findings.need
        self._may_raise: tuple[type[BaseException], ...] = (Rejected, *may_raise)
        self._came_with: list[tuple[Any, ...]] = []
        self._resolved: Counter[Request] = Counter()
        self._batches = 0
        self._wakes: list[float] = []  # wake-ups that are out
        self._soon = False  # one is out for the end of the tick

    # ---- events

    def submit(
        self,
        group: Hashable = None,
        cost: float = 1,
        timeout: float | None = None,
        priority: float = 0,
        tenant: Hashable = None,
        hint: float | None = None,
    ) -> Request:
        """A request arrives; `timeout` and `hint` are seconds from now."""
        self.story.append(("submit", (group, cost, timeout, priority, tenant, hint)))
        request = Request((len(self.requests),), group, self.now)
        request.cost, request.priority, request.tenant = cost, priority, tenant
        request.deadline = None if timeout is None else self.now + timeout
        request.hint = None if hint is None else self.now + hint
        self.requests.append(request)
        self._came_with.append(_values(request))
        self._perform(self.core.submit(request, self.now))
        return request

    def cancel(self, number: int) -> None:
        self.story.append(("cancel", (number,)))
        self._perform(self.core.cancel(self.requests[number], self.now))

    def wake(self) -> None:
        """The end of a tick, or an instant at which the core asked to be woken."""
        self.story.append(("wake", ()))
        self._wake()

    def advance(self, seconds: float) -> None:
        """Time passes; every wake-up is served at its own instant."""
        self.story.append(("advance", (seconds,)))
        end = self.now + seconds
        while self._wakes and min(self._wakes) <= end:
            self.now = max(self.now, min(self._wakes))
            self._wake()
        self.now = end

    def stall(self, seconds: float) -> None:
        """Time passes and nobody looks: what was due is late."""
        self.story.append(("stall", (seconds,)))
        self.now += seconds

    def finish(self, number: int, failing: Sequence[int] = ()) -> None:
        """A batch ends; those at the places `failing` get an error."""
        self.story.append(("finish", (number, failing)))
        batch = self.running.pop(number)
        outcomes = [ValueError(place) if place in failing else place for place in range(batch.size)]
        self._perform(self.core.finish(batch, outcomes, self.now, clean=not failing))

    def configure(self, policies: Policies) -> None:
        self.story.append(("configure", (policies,)))
        self.policies = policies
        self._perform(self.core.configure(policies, self.now))

    def close(self, drain: bool) -> None:
        self.story.append(("close", (drain,)))
        self._perform(self.core.close(self.now, drain=drain, running=not drain))

    def work_off(self, most: int) -> bool:
        """Nobody comes any more: batches end and time passes until all is done; False if `most` steps are too few."""
        self.wake()
        for _ in range(most):
            for request in self.waiting:
                if request.hint is not None and request.hint <= self.now:  # its caller's scope ends, and so it leaves
                    self.cancel(request.args[0])
            if self.running:
                self.finish(min(self.running))
            elif self.core.waiting and self._wakes:
                self.advance(max(0.0, min(self._wakes) - self.now))
            else:
                break
        return self.core.idle

    @property
    def waiting(self) -> list[Request]:
        return [request for request in self.requests if request.state is State.WAITING]

    # ---- the runtime

    def _wake(self) -> None:
        self._soon = False
        self._wakes = [instant for instant in self._wakes if instant > self.now]
        self._perform(self.core.wake(self.now))

    def _perform(self, actions: Sequence[Action]) -> None:
        self._read_only()  # first: the rest may follow from it
        for action in actions:
            match action:
                case Resolve(requests):
                    for request in requests:
                        self._resolve(request)
                case Dispatch(batch):
                    self._dispatch(batch)
                case WakeAt(instant) if instant == -math.inf:
                    self._soon = True
                case WakeAt(instant):
                    self._wakes.append(instant)
                case Abandon(batch):
                    self.told.append(("left by all", batch.number))
                case Report(error):
                    self.need(False, f"no method of a policy may raise: {error!r}", cause=error)
        self._hold()

    def _read_only(self) -> None:
        for request, before in zip(self.requests, self._came_with, strict=True):
            for name, old, new in zip(_CARRIED, before, _values(request), strict=True):
                written = f"{name} of {request} was {old!r} and is {new!r}"
                self.need(new == old, f"requests are read and never written: {written}")

    def _resolve(self, request: Request) -> None:
        self._resolved[request] += 1
        self.told.append((request.state.value, request.args[0]))
        outcome = request.outcome
        if request.state is State.REJECTED and not isinstance(outcome, self._may_raise):
            self.need(False, f"no method of a policy may raise: {outcome!r}", cause=outcome)
        elif isinstance(outcome, BatchFailed):
            self.need(False, f"every decision must be one that can be followed: {outcome}", cause=outcome.__cause__)

    def _dispatch(self, batch: Batch) -> None:
        items = [request.args[0] for request in batch.requests]
        self.told.append(("batch", items, batch.reason))
        self._batches += 1
        self.running[batch.number] = batch
        need, shown = self.need, f"{batch} of {batch.requests}"
        need(0 < batch.size == len(set(batch.requests)), f"a batch holds each request once: {shown}")
        need(batch.size <= self.policies.max_batch_size, f"a batch holds at most max_batch_size requests: {shown}")
        need(len(self.running) <= self.policies.max_concurrent_batches, f"no more batches than executors: {shown}")
        for request in batch.requests:
            need(request.state is State.RUNNING and request not in self._resolved, f"who has ended never runs: {shown}")
            need(request.deadline is None or request.deadline > self.now, f"no expired request runs: {request}")
            need(request.group == batch.group, f"groups are never mixed: {shown}")

    def _hold(self) -> None:
        need, requests = self.need, self.requests
        count = Counter(request.state for request in requests)
        books = self.core.statistics(self.now)
        sums = (books.completed, books.failed, books.cancelled, books.expired, books.shed, books.rejected)
        ended = (State.COMPLETED, State.FAILED, State.CANCELLED, State.EXPIRED, State.SHED, State.REJECTED)
        need(sums == tuple(count[state] for state in ended), f"the books add up: {books}")
        need((books.waiting, books.running) == (count[State.WAITING], count[State.RUNNING]), f"they add up: {books}")
        need(books.submitted == len(requests) and books.batches == self._batches, f"the books add up: {books}")
        for request in requests:
            told = request.state in FINAL and request.state is not State.CANCELLED
            need(self._resolved[request] == told, f"each request ends exactly once: {request}")
        need(
            not (self.core.idle and self._held_back()),
            "an idle batcher holds nobody back: holds_back gave True, and nothing will happen that ends the pause",
        )
        free = len(self.running) < self.policies.max_concurrent_batches
        if free and books.waiting:
            need(
                self._soon or self._wakes,
                f"an idle executor gets work or has a time to look again, and {books.waiting} wait",
            )

    def _held_back(self) -> bool:
        try:
            return self.core.held_back
        except Exception as error:
            return self.need(False, f"no method of a policy may raise: holds_back raised {error!r}", cause=error)
