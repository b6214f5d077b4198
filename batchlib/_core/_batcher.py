"""The core: decides which requests share a batch and when, and never waits.

Events go in as method calls with the time as an argument; actions come out as a sequence for the runtime to perform
in order. There is no clock, thread, loop or lock in here, and no user code except policies; the runtime's lock
serialises the calls. README.md in this folder is the theory; _transitions.py is the table.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ..errors import BatchFailed, ExecutorLost, Overloaded
from . import _refusals as refusals
from ._actions import NOTHING, SOON, Abandon, Action, Dispatch, Report, Resolve, WakeAt
from ._batch import Batch
from ._deadlines import Deadlines
from ._groups import Groups, WaitingGroup
from ._latency_model import LatencyModel
from ._policies import Policies, PolicyStates, Refusal, optional
from ._protocols import Decision
from ._request import Request
from ._running import Running
from ._statistics import Books, Statistics
from ._transitions import TRANSITIONS, Event, State, after

_ADMITTED = TRANSITIONS[State.NEW, Event.ADMIT]  # for the hot path; looked up so that the table stays the only truth


class Batcher:
    """One queue, its policies and its running batches.

    Every method is one event; what it returns must be performed. A request is named in exactly one Resolve, unless
    its caller cancelled it; a batch in exactly one Dispatch.
    """

    def __init__(self, policies: Policies) -> None:
        self.waiting = self.running = 0
        self._states = PolicyStates(policies)
        self._limits = self._states.limits
        self._running = Running()
        self._batches = self._running.batches
        self._groups = Groups(self._states.ordering, self._limits, self._running)
        self._deadlines = Deadlines()
        self._free = self.max_concurrent_batches = policies.max_concurrent_batches  # _free: executors that run nothing
        self._books = Books()
        self._armed = math.inf  # the earliest instant for which a WakeAt is out
        self.closed = False  # takes no more requests
        self._release = ""  # why nobody is held back; usually empty
        self._lost: ExecutorLost | None = None
        self._guarded = self._states.can_refuse

    @property
    def max_batch_size(self) -> int:
        return self._limits.max_batch_size

    @property
    def running_batches(self) -> Sequence[Batch]:
        return tuple(self._batches.values())

    @property
    def latency_model(self) -> LatencyModel:
        return self._running.latency_model

    @property
    def idle(self) -> bool:
        """Nothing waits and nothing runs, not even a batch that everybody has left."""
        return not self.waiting and not self._batches

    @property
    def held_back(self) -> bool:
        """Whether those who run ahead of their results should pause."""
        return any(holds_back(self) for holds_back in self._states.holds_back)

    # ---- events

    def submit(self, request: Request, now: float, *, ahead: bool = False) -> Sequence[Action]:
        """A request asks to join, or is refused. SOON says: call `wake` once the arrivals of this tick are in.
        `ahead`: whoever submits runs ahead of its results and cannot pause, so without room it is refused."""
        self._books.submitted = request.sequence = self._books.submitted + 1
        if self._guarded or ahead:
            refusal = self._refusal(request, now, ahead)
            if refusal is not None:
                return self._refuse(request, refusal)
        if (request.tenant is not None or request.priority) and self._states.carried_ordering is not None:
            self._groups = self._groups.ordered_by(self._states.take_over())
        request.state = _ADMITTED
        request.limits = self._limits
        joined = None
        try:
            group = self._groups.by_key.get(request.group) or self._groups.open(request.group)
            group.push(request)
            joined = group
            if group.alert or not group.waiting:
                self._groups.touch(group)
        except Exception as error:  # a user's ordering policy: its failure is its caller's
            return self._refuse(request, Refusal(error, self._states.ordering, self._states.admissions), joined)
        group.waiting += 1
        self.waiting += 1
        if request.deadline is None:
            return SOON if self._free > 0 else NOTHING
        self._deadlines.add(request, self.waiting + self.running)
        return (*self._arm(), *SOON) if self._free > 0 else self._arm()

    def cancel(self, request: Request, now: float) -> Sequence[Action]:
        """The caller has left. Waiting: taken out. Running: its batch goes on without it. Ended: nothing."""
        if request.state is State.RUNNING:
            return self._leave_running(request, Event.CANCEL, None)
        if request.state is State.WAITING:
            self._leave_waiting(request, Event.CANCEL, None)
        return NOTHING

    def wake(self, now: float) -> Sequence[Action]:
        """Time has come to `now`: expire what is due, then see what can be dispatched."""
        return self._advance(now, [])

    def unwatched(self, now: float) -> Sequence[Action]:
        """A WakeAt cannot be had now: whoever is held back for company leaves, and the next event asks for it again."""
        self._armed = math.inf
        actions: list[Action] = []
        self._expire(now, actions)
        if self._groups.asleep.first() is not None:
            release, self._release = self._release, self._release or "no_clock"
            self._groups.rouse_all()
            self._dispatch(now, actions)
            self._release = release
        return actions

    def finish(self, batch: Batch, outcomes: Sequence[Any], now: float, *, clean: bool = False) -> Sequence[Action]:
        """A batch has ended: `outcomes[i]` is the result of request i, or the exception for its caller.

        clean: there is no exception among them, so they need not be looked at one by one.
        """
        if batch.done:
            return NOTHING
        del self._batches[batch.number]
        self._free += 1
        states = self._states
        if states.observers:
            states.told(states.observers, batch, now - batch.started)
        if self._running.model is not None:
            self._running.learn(batch, outcomes, clean, now)
        resolved = batch.end(outcomes, clean)
        self._books.finished(resolved, clean, now - batch.started)
        self.running -= len(resolved)
        states.told_each(states.on_ended, resolved)
        actions: list[Action] = []
        self._resolve(resolved, actions)
        # Deadlines have their own wake-ups; looking here as well keeps an expired request from being dispatched.
        if self.waiting or self._deadlines.heap or states.reports:
            self._advance(now, actions)
        return actions

    def close(
        self, now: float, *, drain: bool, running: bool = False, lost: ExecutorLost | None = None
    ) -> Sequence[Action]:
        """Takes no more requests. `drain`: what waits is dispatched; otherwise it ends with Closed, or as `lost` says.
        `running`: callers of running batches get Closed too (the batches cannot be stopped, but nobody waits)."""
        self.closed = self._guarded = True
        self._lost = self._lost or lost
        actions: list[Action] = []
        if drain:
            self._release = "drain"
            self._groups.rouse_all()
        else:
            self._give_up(self._groups.everyone(), Event.CLOSE, refusals.closed_while(self._lost), actions)
        if running:
            for batch in list(self._batches.values()):
                gone = [request for request in batch.requests if request.state is State.RUNNING]
                for request in gone:
                    actions += self._leave_running(request, Event.CLOSE, refusals.closed_while(None)(request))
                self._resolve(gone, actions)
        return self._advance(now, actions)

    def configure(self, policies: Policies, now: float) -> Sequence[Action]:
        """New limits. State of policies that stay the same is kept; a waiting item that no longer fits is refused."""
        actions: list[Action] = []
        fewer_fit = self._states.configure(policies)
        self._free += policies.max_concurrent_batches - self.max_concurrent_batches
        self.max_concurrent_batches = policies.max_concurrent_batches
        if fewer_fit:
            everyone = self._groups.everyone()
            gone = {request: error for request in everyone if (error := self._states.too_large(request)) is not None}
            self._give_up(gone, Event.REFUSE, gone.__getitem__, actions)
        self._guarded = self.closed or self._states.can_refuse
        self._groups.rouse_all()
        return self._advance(now, actions)

    def _advance(self, now: float, actions: list[Action]) -> list[Action]:
        """What every event ends with: expire, dispatch, ask for the next wake-up, report."""
        if now >= self._armed:
            self._armed = math.inf
        if self._deadlines.heap:
            self._expire(now, actions)
        if self.waiting:
            self._dispatch(now, actions)
        if self.waiting or self._deadlines.heap:
            actions += self._arm()
        if self._states.reports:
            actions += [Report(error) for error in self._states.reports]
            self._states.reports.clear()
        return actions

    # ---- admission

    def _refusal(self, request: Request, now: float, ahead: bool) -> Refusal | None:
        if self.closed:
            return Refusal(refusals.closed_for_new(self.waiting, self._lost), self, ())
        refusal = self._states.refusal(request, self, now, ahead)
        if refusal is not None and isinstance(refusal.error, Overloaded) and refusal.error.retry_after is None:
            refusal.error.retry_after = self._books.time_to_clear(self)
        return refusal

    def _refuse(self, request: Request, refusal: Refusal, joined: WaitingGroup | None = None) -> Sequence[Action]:
        request.state = after(State.NEW, Event.REFUSE)
        request.outcome = refusals.deliverable(refusal.error, refusal.by)
        self._books.ended[request.state] += 1
        self._states.told(optional(refusal.admitted, "ended"), request)  # they may have counted it in
        if joined is not None:
            self._states.told((joined.queue.removed,), request)
        group = self._groups.by_key.get(request.group)
        if group is not None and not group.waiting:
            self._groups.forget(group)  # its queue may hold what was refused, so it is no spare
        return (Resolve((request,)),)

    # ---- leaving without a result

    def _leave_waiting(self, request: Request, event: Event, outcome: BaseException | None) -> None:
        request.state = after(State.WAITING, event)
        request.outcome = outcome
        self._books.ended[request.state] += 1
        self.waiting -= 1
        group = self._groups.by_key[request.group]
        group.waiting -= 1
        self._states.told((*self._states.on_ended, group.queue.removed), request)
        if not group.waiting:
            self._groups.discard(group)

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
    ) -> None:
        """Ends those that wait, each with an error object of its own."""
        gone = [request for request in dict.fromkeys(requests) if request.state is State.WAITING]
        for request in gone:
            self._leave_waiting(request, event, error(request))
        self._resolve(gone, actions)

    def _expire(self, now: float, actions: list[Action]) -> None:
        gone: list[Request] = []
        for request in self._deadlines.due(now):
            error = refusals.expired(request, self.waiting, now)
            if request.state is State.WAITING:
                self._leave_waiting(request, Event.EXPIRE, error)
            else:
                actions += self._leave_running(request, Event.EXPIRE, error)
            gone.append(request)
        self._resolve(gone, actions)

    def _resolve(self, ended: list[Request], actions: list[Action]) -> None:
        if ended:
            actions.append(Resolve(ended))

    # ---- dispatch

    def _dispatch(self, now: float, actions: list[Action]) -> None:
        try:
            while self.waiting and self._free > 0 and (batch := self._next_batch(now, actions)) is not None:
                actions.append(Dispatch(batch))
        except Exception as error:  # ranks that cannot be had or compared: nobody can say who is next
            fault = refusals.policy_fault(self._states.ordering, f"raised {type(error).__name__}: {error}", error)
            self._give_up(self._groups.everyone(), Event.FAIL, refusals.copies(fault), actions)
            self._groups = Groups(self._states.ordering, self._limits, self._running)

    def _next_batch(self, now: float, actions: list[Action]) -> Batch | None:
        """Asks the ready groups, in the order of their first requests, until one dispatches."""
        groups = self._groups
        if groups.asleep.entries:
            groups.rouse(now)
        while (group := groups.pick()) is not None:
            decision = self._states.decide(group, now, self._release)
            if isinstance(decision, BatchFailed):
                self._give_up(group.first_up(), Event.FAIL, refusals.copies(decision), actions)
            else:
                if decision.drop:
                    self._give_up(decision.drop, Event.SHED, refusals.shed(self.waiting), actions)
                    decision.dispatch = [each for each in decision.dispatch if each.state is State.WAITING]
                if decision.dispatch:
                    if len(decision.dispatch) < group.waiting:
                        groups.ready(group)  # before anything is changed: comparing ranks may raise
                    return self._form(group, decision, now)
                if decision.wake_at is not None and group.waiting:
                    groups.sleep(group, decision.wake_at)
                    continue
            if group.waiting:
                groups.ready(group)
        return None

    def _form(self, group: WaitingGroup, decision: Decision, now: float) -> Batch:
        requests = list(decision.dispatch)
        number = self._books.batches + 1
        batch = Batch(number, group.key, requests, "oversize" if group.oversize else decision.reason, now)
        batch.fill = batch.size / self._limits.max_batch_size
        self._batches[number] = batch
        self._free -= 1
        self._books.dispatched(batch)
        self.waiting -= batch.size
        self.running += batch.size
        group.waiting -= batch.size
        self._states.told_each(self._states.on_dispatched, requests)
        try:
            group.queue.dispatched(requests, now)
        except Exception as error:  # a user's ordering policy: the batch is formed, so nobody has to suffer
            self._states.reports.append(error)
        if not group.waiting:
            self._groups.discard(group)
        return batch

    # ---- time

    def _arm(self) -> tuple[Action, ...]:
        """Asks to be woken if something is due earlier than any wake-up that is already out."""
        instant = self._deadlines.next()
        if self._free > 0:  # a sleeper can do nothing before an executor is free
            instant = min(instant, self._groups.next_wake())
        if instant >= self._armed:
            return ()
        self._armed = instant
        return (WakeAt(instant),)

    # ---- evidence

    def statistics(self, now: float, max_execution_time: float | None = None) -> Statistics:
        """A frozen snapshot. `max_execution_time`: a running batch older than this many seconds is unhealthy."""
        since = [group.oldest_arrival for group in self._groups.by_key.values()]
        model, tenants = self._running.estimate(), self._states.tenants_tracked
        return self._books.snapshot(
            now, max_execution_time, self, since, tenants_tracked=tenants, latency_model=model, closed=self.closed
        )
