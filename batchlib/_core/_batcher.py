"""The core: decides which requests share a batch and when, and never waits.

Events go in as method calls with the time as an argument; actions come out as a sequence for the runtime to perform
in order. There is no clock, thread, loop or lock in here, and no user code except policies. Callers serialise the
calls (the runtime's lock). README.md in this folder is the theory; _transitions.py is the table.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ..errors import BatchFailed, Overloaded, Rejected
from . import _refusals as refusals
from ._actions import NOTHING, SOON, Abandon, Action, Dispatch, Report, Resolve, WakeAt
from ._batch import Batch
from ._deadlines import Deadlines
from ._groups import Groups, WaitingGroup
from ._policies import Policies, PolicyStates
from ._protocols import Decision
from ._request import Request
from ._statistics import Books, Statistics
from ._transitions import TRANSITIONS, Event, State, after

# The hot loops assign these; they are looked up in the table so that the table stays the only truth.
_ADMITTED = TRANSITIONS[State.NEW, Event.ADMIT]
_DISPATCHED = TRANSITIONS[State.WAITING, Event.DISPATCH]
_COMPLETED = TRANSITIONS[State.RUNNING, Event.COMPLETE]
_FAILED = TRANSITIONS[State.RUNNING, Event.FAIL]


class Batcher:
    """One queue, its policies and its running batches.

    Every method is one event; what it returns must be performed. A request is named in exactly one Resolve, unless
    its caller cancelled it; a batch in exactly one Dispatch.
    """

    def __init__(self, policies: Policies) -> None:
        self.waiting = 0
        self.running = 0
        self._states = PolicyStates(policies)
        self._limits = self._states.limits
        self._groups = Groups(self._states.ordering, self._limits)
        self._deadlines = Deadlines()
        self._batches: dict[int, Batch] = {}
        self._max_concurrent_batches = policies.max_concurrent_batches
        self._books = Books()
        self._sequence = 0
        self._armed = math.inf  # the earliest instant for which a WakeAt is out
        self._closed = self._draining = False

    @property
    def max_batch_size(self) -> int:
        return self._limits.max_batch_size

    @property
    def running_batches(self) -> Sequence[Batch]:
        return tuple(self._batches.values())

    @property
    def idle(self) -> bool:
        """Nothing waits and nothing runs, not even a batch that everybody has left."""
        return not self.waiting and not self._batches

    @property
    def held_back(self) -> bool:
        """Whether those who run ahead of their results should pause."""
        return any(holds_back(self) for holds_back in self._states.holds_back)

    # ---- events

    def submit(self, request: Request, now: float) -> Sequence[Action]:
        """A request asks to join. SOON says: call `wake` once the arrivals of this tick are in."""
        self._books.submitted += 1
        self._sequence = request.sequence = self._sequence + 1
        refusal = self._refusal(request, now)
        if refusal is not None:
            return self._refuse(request, refusal)
        group = self._groups.by_key.get(request.group)
        new = group is None
        if group is None:
            group = self._groups.open(request.group)
        request.state = _ADMITTED
        try:
            group.push(request)
            if new or group.alert:
                self._groups.touch(group)
        except Exception as error:  # a user's ordering policy: its failure is its caller's
            return self._refuse(request, error, group)
        group.waiting += 1
        self.waiting += 1
        free = len(self._batches) < self._max_concurrent_batches
        if request.deadline is None:
            return SOON if free else NOTHING
        self._deadlines.add(request, self.waiting + self.running)
        return (*self._arm(), *SOON) if free else self._arm()

    def cancel(self, request: Request, now: float) -> Sequence[Action]:
        """The caller has left. Waiting: taken out. Running: its batch goes on without it. Ended: nothing."""
        state = request.state
        if state is State.WAITING:
            self._leave_waiting(request, Event.CANCEL, None)
            return NOTHING
        if state is State.RUNNING:
            return self._leave_running(request, Event.CANCEL, None)
        return NOTHING

    def wake(self, now: float) -> Sequence[Action]:
        """Time has come to `now`: expire what is due, then see what can be dispatched."""
        actions: list[Action] = []
        if now >= self._armed:
            self._armed = math.inf
            self._expire(now, actions)
        self._dispatch(now, actions)
        actions += self._arm()
        if self._states.reports:
            actions += [Report(error) for error in self._states.reports]
            self._states.reports.clear()
        return actions

    def finish(self, batch: Batch, outcomes: Sequence[Any], now: float) -> Sequence[Action]:
        """A batch has ended: `outcomes[i]` is the result of request i, or the exception for its caller."""
        if batch.done:
            return NOTHING
        batch.done = True
        del self._batches[batch.number]
        resolved = []
        completed = failed = 0
        for request, outcome in zip(batch.requests, outcomes, strict=True):
            if request.state is not _DISPATCHED:
                continue  # its caller left
            if isinstance(outcome, BaseException):
                request.state = _FAILED
                failed += 1
            else:
                request.state = _COMPLETED
                completed += 1
            request.outcome = outcome
            resolved.append(request)
        self._books.ended[_COMPLETED] += completed
        self._books.ended[_FAILED] += failed
        self._books.execution_time += now - batch.started
        self.running -= len(resolved)
        batch.live = 0
        states = self._states
        states.told(states.observers, batch, now - batch.started)
        if states.on_ended:
            for request in resolved:
                states.told(states.on_ended, request)
        batch.requests = []  # a request knows its batch; the other direction would make a cycle
        actions: list[Action] = [Resolve(resolved)] if resolved else []
        # Deadlines have their own wake-ups; asking here as well keeps an expired request from being dispatched.
        actions += self.wake(now)
        return actions

    def close(self, now: float, *, drain: bool, running: bool = False) -> Sequence[Action]:
        """Takes no more requests. `drain`: what waits is dispatched; otherwise it ends with Closed.

        `running`: callers of running batches get Closed too (the batches cannot be stopped, but nobody waits).
        """
        self._closed = True
        actions: list[Action] = []
        if drain:
            self._draining = True
            self._groups.rouse_all()
        else:
            waiting = [request for group in self._groups.by_key.values() for request in group.by_arrival()]
            self._give_up(waiting, Event.CLOSE, refusals.closed_while, actions)
        if running:
            for batch in list(self._batches.values()):
                gone = [request for request in batch.requests if request.state is State.RUNNING]
                for request in gone:
                    actions += self._leave_running(request, Event.CLOSE, refusals.closed_while(request))
                actions.append(Resolve(gone))
        actions += self.wake(now)
        return actions

    def configure(self, policies: Policies, now: float) -> Sequence[Action]:
        """New limits. State of policies that stay the same is kept; a waiting item that no longer fits is refused."""
        actions: list[Action] = []
        self._max_concurrent_batches = policies.max_concurrent_batches
        if self._states.configure(policies):
            for group in list(self._groups.by_key.values()):
                for request in list(group.by_arrival()):
                    excess = self._limits.exceeds(request)
                    if excess is not None:
                        too_large = refusals.too_large(*excess)
                        self._leave_waiting(request, Event.REFUSE, too_large)
                        actions.append(Resolve((request,)))
        self._groups.rouse_all()
        actions += self.wake(now)
        return actions

    # ---- admission

    def _refusal(self, request: Request, now: float) -> Exception | None:
        if self._closed:
            return refusals.closed_for_new(self.waiting)
        try:
            if not self._limits.oversize_alone:
                excess = self._limits.exceeds(request)
                if excess is not None:
                    return refusals.too_large(*excess)
            for admission in self._states.admissions:
                refusal = admission.admit(request, self, now)
                if refusal is not None:
                    return self._with_estimate(refusal)
        except Exception as error:  # a user's policy: its failure is its caller's
            return error
        return None

    def _refuse(self, request: Request, error: Exception, group: WaitingGroup | None = None) -> Sequence[Action]:
        request.state = after(State.NEW, Event.REFUSE)
        request.outcome = error
        self._books.ended[request.state] += 1
        if group is not None and not group.waiting:
            self._groups.discard(group)
        return (Resolve((request,)),)

    def _with_estimate(self, refusal: Rejected) -> Rejected:
        """How long the present queue will take, going by the mean batch so far."""
        ended = self._books.batches - len(self._batches)
        if isinstance(refusal, Overloaded) and refusal.retry_after is None and ended:
            batches_ahead = math.ceil(self.waiting / self.max_batch_size) / self._max_concurrent_batches
            refusal.retry_after = self._books.execution_time / ended * max(1.0, batches_ahead)
        return refusal

    # ---- leaving without a result

    def _leave_waiting(self, request: Request, event: Event, outcome: BaseException | None) -> None:
        request.state = after(State.WAITING, event)
        request.outcome = outcome
        self._books.ended[request.state] += 1
        self.waiting -= 1
        group = self._groups.by_key[request.group]
        group.waiting -= 1
        self._states.told(self._states.on_ended, request)
        self._states.told((group.queue.removed,), request)
        if not group.waiting:
            self._groups.discard(group)
        elif not group.asleep:
            self._groups.touch(group)  # the first may be another one now

    def _leave_running(self, request: Request, event: Event, outcome: BaseException | None) -> Sequence[Action]:
        request.state = after(State.RUNNING, event)
        request.outcome = outcome
        self._books.ended[request.state] += 1
        self.running -= 1
        self._states.told(self._states.on_ended, request)
        batch = request.batch
        assert batch is not None
        batch.live -= 1
        return (Abandon(batch),) if batch.abandoned else NOTHING

    def _give_up(
        self, requests: Iterable[Request], event: Event, error: Callable[[Request], Exception], actions: list[Action]
    ) -> bool:
        """Ends those that wait, each with an error object of its own; says whether there were any."""
        gone = [request for request in requests if request.state is State.WAITING]
        for request in gone:
            self._leave_waiting(request, event, error(request))
        if gone:
            actions.append(Resolve(gone))
        return bool(gone)

    def _expire(self, now: float, actions: list[Action]) -> None:
        gone = []
        for request in self._deadlines.due(now):
            error = refusals.expired(request, self.waiting, now)
            if request.state is State.WAITING:
                self._leave_waiting(request, Event.EXPIRE, error)
            else:
                actions += self._leave_running(request, Event.EXPIRE, error)
            gone.append(request)
        if gone:
            actions.append(Resolve(gone))

    # ---- dispatch

    def _dispatch(self, now: float, actions: list[Action]) -> None:
        while self.waiting and len(self._batches) < self._max_concurrent_batches:
            batch = self._next_batch(now, actions)
            if batch is None:
                break
            actions.append(Dispatch(batch))

    def _next_batch(self, now: float, actions: list[Action]) -> Batch | None:
        """Asks the ready groups, in the order of their first requests, until one dispatches."""
        groups = self._groups
        groups.rouse(now)
        while (group := groups.pick()) is not None:
            decision = self._decide(group, now)
            if isinstance(decision, BatchFailed):
                self._fail_next(group, decision, actions)
            else:
                dropped = self._give_up(decision.drop, Event.SHED, lambda _: refusals.shed(self.waiting), actions)
                if decision.dispatch:
                    return self._form(group, decision, now)
                if decision.wake_at is not None and group.waiting:
                    groups.sleep(group, decision.wake_at)
                    continue
                if not dropped:
                    problem = "drops only requests that do not wait"
                    self._fail_next(group, refusals.policy_fault(self._states.dispatcher, problem, None), actions)
            if group.waiting:
                groups.touch(group)
        return None

    def _decide(self, group: WaitingGroup, now: float) -> Decision | BatchFailed:
        """The policy's decision, or why it is none."""
        dispatcher, cause = self._states.dispatcher, None
        try:
            if self._draining:
                return Decision(group.fill().requests, reason="drain")
            decision = dispatcher.decide(group, now)
            later = decision.wake_at is not None and now < decision.wake_at < math.inf
            if group.allows(decision.dispatch) if decision.dispatch else decision.drop or later:
                return decision
            problem = f"decided what cannot be done now (t={now:g}): {decision!r}"
        except Exception as error:
            problem, cause = f"raised {type(error).__name__}: {error}", error
        return refusals.policy_fault(dispatcher, problem, cause)

    def _fail_next(self, group: WaitingGroup, fault: BatchFailed, actions: list[Action]) -> None:
        """A policy failed: those who would have been next get the error, so that it cannot strand anybody."""

        def own_copy(_: Request) -> BatchFailed:
            copy = BatchFailed(*fault.args)
            copy.__cause__ = fault.__cause__
            return copy

        try:
            first = group.fill().requests
        except Exception:  # the ordering itself is broken (its error is the fault's cause): nobody here can be served
            first = []
        self._give_up(first or list(group.by_arrival()), Event.FAIL, own_copy, actions)

    def _form(self, group: WaitingGroup, decision: Decision, now: float) -> Batch:
        requests = list(decision.dispatch)
        number = self._books.batches + 1
        batch = Batch(number, group.key, requests, decision.reason or "policy", now)
        for request in requests:
            request.state = _DISPATCHED
            request.batch = batch
        self._measure(batch)
        self._batches[number] = batch
        self._books.dispatched(batch)
        self.waiting -= batch.size
        self.running += batch.size
        group.waiting -= batch.size
        states = self._states
        if states.on_dispatched:
            for request in requests:
                states.told(states.on_dispatched, request)
        states.told((group.queue.dispatched,), requests, now)
        if group.waiting:
            self._groups.touch(group)
        else:
            self._groups.discard(group)
        return batch

    def _measure(self, batch: Batch) -> None:
        limits = self._limits
        batch.fill = batch.size / limits.max_batch_size
        batch.cost = sum([request.cost for request in batch.requests])
        if limits.limiters and batch.size == 1 and limits.exceeds(batch.requests[0]) is not None:
            batch.reason = "oversize"

    # ---- time

    def _arm(self) -> tuple[Action, ...]:
        """Asks to be woken if something is due earlier than any wake-up that is already out."""
        instant = self._deadlines.next()
        if len(self._batches) < self._max_concurrent_batches:  # a sleeper can do nothing before an executor is free
            instant = min(instant, self._groups.next_wake())
        if instant >= self._armed:
            return ()
        self._armed = instant
        return (WakeAt(instant),)

    # ---- evidence

    def statistics(self, now: float, max_execution_time: float | None = None) -> Statistics:
        """A frozen snapshot. `max_execution_time`: a running batch older than this many seconds is unhealthy."""
        return self._books.snapshot(
            now,
            max_execution_time,
            waiting=self.waiting,
            running=self.running,
            waiting_since=[group.oldest_arrival for group in self._groups.by_key.values()],
            running_since=[batch.started for batch in self._batches.values()],
            closed=self._closed,
        )
