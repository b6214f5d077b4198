"""The core driven by hand: events in, actions performed, and what must always hold looked at after each.

Time moves only when it is told to, and executors end when they are told to. The numbers of the rules are those of
batchlib/_core/README.md. `Bench` has what the core makes sure of whatever the policies do, so a breach is a bug of the
core, or the work of a policy that writes what is only to be read. `PolicyBench` adds what policies owe.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from operator import attrgetter
from typing import Any, Concatenate, ParamSpec, TypeVar

from .._core._actions import Abandon, Action, Dispatch, Report, Resolve, WakeAt
from .._core._batch import Batch
from .._core._batcher import Batcher
from .._core._policies import Policies
from .._core._request import Request
from .._core._transitions import FINAL, State
from ..errors import BatchFailed, Rejected
from ..policies import CostLimit
from ._broken import Findings

_CARRIED = ("args", "group", "arrival", "cost", "deadline", "hint", "priority", "tenant")
_values = attrgetter(*_CARRIED)

P = ParamSpec("P")
R = TypeVar("R")


class Bench:
    """Feeds a Batcher, and is its runtime. The item of a request is its number, from 0.

    need: told whether a rule was kept, which one, and what shows it, as `Findings.need` is. now: where the time begins.
    """

    def __init__(self, policies: Policies, need: Callable[..., object], now: float = 0.0) -> None:
        self.policies = policies
        self.core = Batcher(policies)
        self.need = need
        self.now = now
        self.requests: list[Request] = []
        self.resolved: Counter[Request] = Counter()
        self.batches: list[Batch] = []  # all that were dispatched, in order
        self.running: list[Batch] = []  # likewise
        self.wakes: list[float] = []  # wake-ups that are out
        self.soon = False  # one is out for the end of the tick
        self._came_with: dict[Request, tuple[Any, ...]] = {}

    # ---- events

    def submit(
        self,
        group: Hashable = "",
        *,
        cost: float = 1,
        timeout: float | None = None,
        priority: float = 0,
        tenant: Hashable = None,
        hint: float | None = None,
    ) -> Request:
        """A request arrives; `timeout` and `hint` are seconds from now."""
        request = Request((len(self.requests),), group, self.now)
        request.cost, request.priority, request.tenant = cost, priority, tenant
        request.deadline = None if timeout is None else self.now + timeout
        request.hint = None if hint is None else self.now + hint
        self.requests.append(request)
        self._came_with[request] = _values(request)
        self.perform(self.core.submit(request, self.now), submitting=True)
        return request

    def cancel(self, request: Request) -> None:
        self.perform(self.core.cancel(request, self.now))

    def wake(self) -> None:
        """The end of a tick, or an instant at which the core asked to be woken."""
        self.soon = False
        self.wakes = [instant for instant in self.wakes if instant > self.now]
        self.perform(self.core.wake(self.now))

    def advance_to(self, instant: float) -> None:
        """Time passes; every wake-up is served at its own instant."""
        while self.wakes and min(self.wakes) <= instant:
            self.now = max(self.now, min(self.wakes))
            self.wake()
        self.now = instant

    def stall(self, seconds: float) -> None:
        """Time passes and nobody looks: what was due is late."""
        self.now += seconds

    def finish(self, batch: Batch, outcomes: Sequence[Any] | None = None, *, looked_at: bool = True) -> None:
        """A batch ends; each gets its item back unless there are `outcomes`.

        looked_at: the executor knows whether there is an exception among them, and says so.
        """
        self.running.remove(batch)
        given = [request.args[0] for request in batch.requests] if outcomes is None else outcomes
        clean = looked_at and not any(isinstance(outcome, BaseException) for outcome in given)
        self.perform(self.core.finish(batch, given, self.now, clean=clean))

    def configure(self, policies: Policies) -> None:
        self.policies = policies
        self.perform(self.core.configure(policies, self.now))

    def close(self, *, drain: bool, running: bool = False) -> None:
        self.perform(self.core.close(self.now, drain=drain, running=running))

    @property
    def waiting(self) -> list[Request]:
        return [request for request in self.requests if request.state is State.WAITING]

    # ---- the runtime

    def perform(self, actions: Sequence[Action], *, submitting: bool = False) -> None:
        self._hold_read_only()  # first: the rest may follow from it
        for action in actions:
            match action:
                case Resolve(requests):
                    self.hold_resolve(requests)
                case Dispatch(batch):
                    self.hold_dispatch(batch)
                case WakeAt(instant) if instant == -math.inf:
                    self.need(submitting, "only an arrival asks for the end of the tick")
                    self.soon = True
                case WakeAt(instant):
                    ahead = self.now <= instant if submitting else self.now < instant
                    self.need(ahead and instant < math.inf, "wake-ups never loop, and come", instant)  # 9
                    self.wakes.append(instant)
                case Abandon(batch):
                    self.hold_abandon(batch)
                case Report(error):
                    self.hold_report(error)
        self.hold_always()

    def _hold_read_only(self) -> None:
        for request, before in self._came_with.items():
            now = _values(request)
            if now != before:
                for name, old, new in zip(_CARRIED, before, now, strict=True):
                    written = f"{name} of {request} was {old!r} and is {new!r}"
                    self.need(new == old, "requests are read and never written", written)

    def hold_resolve(self, requests: Sequence[Request]) -> None:
        self.need(requests, "somebody is told")
        for request in requests:
            self.resolved[request] += 1
            told = request.state in FINAL and request.state is not State.CANCELLED
            self.need(told, "who is told has ended, and has not left", request)
            clear = request.state is State.COMPLETED or isinstance(request.outcome, Exception)
            self.need(clear, "who gets no result gets an error", request, request.outcome)

    def hold_dispatch(self, batch: Batch) -> None:
        need, policies, requests = self.need, self.policies, list(batch.requests)
        self.batches.append(batch)
        self.running.append(batch)
        need(0 < batch.size == len(set(requests)) == len(requests), "a batch holds each request once", batch, requests)
        need(batch.size <= policies.max_batch_size, "a batch holds at most max_batch_size requests", batch)  # 3
        need(len(self.running) <= policies.max_concurrent_batches, "no more batches than executors", self.running)  # 3
        for request in requests:
            alive = request.state is State.RUNNING and request not in self.resolved
            need(alive and request.batch is batch, "who has ended never runs", request, batch)  # 4
            due = request.deadline is not None and request.deadline <= self.now
            need(not due, "no expired request runs", request, batch)  # 4
            need(request.group == batch.group, "groups are never mixed", request, batch)  # 5
        cost = sum(request.cost for request in requests)
        over = any(isinstance(limit, CostLimit) and cost > limit.max_cost for limit in policies.limits)
        alone = batch.size == 1 and policies.oversize_alone and batch.reason == "oversize"
        need(alone or not over, "no batch is over a limit", batch, requests)  # 3
        described = (batch.number, batch.cost, batch.fill)
        need(
            described == (len(self.batches), cost, batch.size / policies.max_batch_size),
            "a batch is what it says",
            batch,
        )

    def hold_abandon(self, batch: Batch) -> None:
        left = batch in self.running and all(request.state in FINAL for request in batch.requests)
        self.need(left, "only a batch that runs for nobody is stopped", batch, batch.requests)

    def hold_report(self, error: Exception) -> None:
        """For those who look at what a policy raised where no caller could be told."""

    def hold_always(self) -> None:
        need, requests, core = self.need, self.requests, self.core
        count = Counter(request.state for request in requests)
        books = core.statistics(self.now)
        sums = (books.completed, books.failed, books.cancelled, books.expired, books.shed, books.rejected)
        ended = (State.COMPLETED, State.FAILED, State.CANCELLED, State.EXPIRED, State.SHED, State.REJECTED)
        need(sums == tuple(count[state] for state in ended), "the books add up", books)  # 2
        in_flight = (count[State.WAITING], count[State.RUNNING])
        need((books.waiting, books.running) == in_flight and not count[State.NEW], "the books add up", books)  # 2
        need((books.submitted, books.batches) == (len(requests), len(self.batches)), "the books add up", books)  # 2
        running = books.running_batches == len(core.running_batches) == len(self.running)
        need(running, "the books know what runs", books, self.running)
        ends = FINAL - {State.CANCELLED}
        wrong = [request for request in requests if self.resolved[request] != (request.state in ends)]
        need(not wrong, "each request ends exactly once", wrong)  # 1
        waiting = self.waiting
        need(books.groups == len({request.group for request in waiting}), "empty groups leave nothing", books)  # 8
        need(core.idle is not bool(waiting or self.running), "idle is who has nothing in flight", books)
        if waiting and len(self.running) < self.policies.max_concurrent_batches:
            looks = self.soon or self.wakes
            need(looks, "an idle executor gets work or has a time to look again, and these wait", waiting)  # 7
        first = min(self.wakes, default=math.inf)
        dated = [each for each in requests if each.deadline is not None and each.deadline < first]
        missed = [each for each in dated if each.state not in FINAL]
        need(not missed, "for every deadline a wake-up is out that comes no later", missed)  # 6


class PolicyBench(Bench):
    """Holds the policies to their contract too. What happens is told to it, and can be told to another one.

    may_raise: what policies may refuse a request with, beside Rejected.
    """

    def __init__(
        self, policies: Policies, findings: Findings, now: float = 0.0, may_raise: tuple[type[Exception], ...] = ()
    ) -> None:
        super().__init__(policies, findings.need, now)
        self.story: list[Callable[[PolicyBench], object]] = []
        self.told: list[tuple[Any, ...]] = []  # what came of it
        self._may_raise: tuple[type[Exception], ...] = (Rejected, *may_raise)

    def tell(self, event: Callable[Concatenate[PolicyBench, P], R], *arguments: P.args, **options: P.kwargs) -> R:
        """An event, which names requests and batches by number so that it means the same to another bench."""

        def happens(bench: PolicyBench) -> R:
            return event(bench, *arguments, **options)

        self.story.append(happens)
        return happens(self)

    def leave(self, number: int) -> None:
        """The caller of a request is gone."""
        self.cancel(self.requests[number])

    def advance(self, seconds: float) -> None:
        self.advance_to(self.now + seconds)

    def end(self, number: int, failing: Sequence[int]) -> None:
        """A batch ends, if it runs: those at the places `failing` get an error."""
        for batch in [batch for batch in self.running if batch.number == number]:
            self.finish(batch, [ValueError(place) if place in failing else place for place in range(batch.size)])

    def work_off(self, most: int) -> bool:
        """Nobody comes any more: batches end and time passes until all is done; False if `most` steps are too few."""
        self.tell(PolicyBench.wake)
        for _ in range(most):
            for request in self.waiting:
                if request.hint is not None and request.hint <= self.now:  # its caller's scope ends, and so it leaves
                    self.tell(PolicyBench.leave, request.args[0])
            if self.running:
                self.tell(PolicyBench.end, self.running[0].number, ())
            elif self.core.waiting and self.wakes:
                self.tell(PolicyBench.advance, max(0.0, min(self.wakes) - self.now))
            else:
                break
        return self.core.idle

    # ---- what policies owe

    def hold_resolve(self, requests: Sequence[Request]) -> None:
        super().hold_resolve(requests)
        for request in requests:
            outcome = request.outcome
            self.told.append((request.state.value, request.args[0]))
            if request.state is State.REJECTED and not isinstance(outcome, self._may_raise):
                self._raised(outcome)
            elif isinstance(outcome, BatchFailed):
                rule = "every decision must be one that can be followed"
                self.need(False, rule, outcome, cause=outcome.__cause__)

    def hold_dispatch(self, batch: Batch) -> None:
        super().hold_dispatch(batch)
        self.told.append(("batch", [request.args[0] for request in batch.requests], batch.reason))

    def hold_abandon(self, batch: Batch) -> None:
        super().hold_abandon(batch)
        self.told.append(("left by all", batch.number))

    def hold_report(self, error: Exception) -> None:
        self._raised(error)

    def hold_always(self) -> None:
        super().hold_always()
        try:
            stuck = self.core.idle and self.core.held_back
        except Exception as error:
            self._raised(error)
        else:
            self.need(
                not stuck,
                "an idle batcher holds nobody back: holds_back gave True, and nothing will happen that ends the pause",
            )

    def _raised(self, error: Exception) -> None:
        self.need(False, "no method of a policy may raise", repr(error), cause=error)
