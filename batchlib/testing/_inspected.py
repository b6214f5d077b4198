"""Policies with an inspector in front: passes every call on, and notes each answer that the protocol forbids.

One class for each state that the core talks to. Optional methods and attributes are the policy's own: an inspector
hands out what it does not know by `__getattr__`, so that it has exactly those that the policy has.
"""

from __future__ import annotations

import inspect
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import combinations_with_replacement
from typing import Any

from .._core._protocols import Decision, Group
from .._core._request import Request
from .._core._transitions import State
from ..errors import Rejected
from ..policies.structures._deadlines import due
from ._broken import Findings

Fits = Callable[[Sequence[Request]], bool]


class Inspected:
    """A policy's description whose states are inspected. `kind` is what `start()` makes.

    findings: where breaches go. fits: for a limit, whether these may share a batch. may_raise: what an admission policy
    or a queue's `push` may fail a caller with.
    """

    def __init__(
        self,
        policy: Any,
        kind: type[Any],
        findings: Findings,
        fits: Fits,
        may_raise: tuple[type[Exception], ...] = (),
    ) -> None:
        self._policy = policy
        self._kind = kind
        self.findings = findings
        self.need = findings.need
        self.fits = fits
        self.may_raise = may_raise
        self.states: list[Any] = []

    def start(self) -> Any:
        state = self._policy.start()
        kind = type(type(state).__name__, (self._kind,), {})  # the core names a faulty policy by its class
        self.states.append(kind(state, self))
        return self.states[-1]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_policy"], name)


class _State:
    """What all inspectors share. `inspected` is the description; the state in front of which they stand is `state`."""

    def __init__(self, state: Any, inspected: Inspected) -> None:
        self.state = state
        self.inspected = inspected
        self.need = inspected.need
        self.name = type(state).__name__

    def __getattr__(self, name: str) -> Any:
        own = getattr(self.__dict__["state"], name)
        return partial(self.never_raises, name) if inspect.ismethod(own) else own

    def never_raises(self, method: str, *args: Any, allowed: tuple[type[Exception], ...] = ()) -> Any:
        try:
            return getattr(self.state, method)(*args)
        except allowed:
            raise
        except Exception as error:
            self.need(False, f"no method of a policy may raise: {self.name}.{method} raised {error!r}", cause=error)
            raise

    def after_event(self, waiting: int, in_flight: int) -> None:
        """Called when an event is over."""


class InspectedAdmission(_State):
    can_refuse = True  # so that one is asked that says it never does

    def admit(self, request: Request, room: Any, now: float) -> Any:
        answer = self.never_raises("admit", request, room, now, allowed=self.inspected.may_raise)
        self.need(
            answer is None or isinstance(answer, Rejected),
            f"admit gives None, or the Rejected that the caller gets: {self.name} gave {answer!r}",
        )
        self.need(
            answer is None or getattr(self.state, "can_refuse", True),
            f"can_refuse is False only where admit always gives None: {self.name} gave {answer!r}",
        )
        return answer

    def after_event(self, waiting: int, in_flight: int) -> None:
        tracked = getattr(self.state, "tenants_tracked", 0)
        self.need(in_flight or not tracked, f"no state is left when nothing is in flight: {tracked} tenants tracked")


class InspectedOrdering(_State):
    def __init__(self, state: Any, inspected: Inspected) -> None:
        super().__init__(state, inspected)
        self.queues: list[InspectedQueue] = []

    def queue(self) -> InspectedQueue:
        queue = InspectedQueue(self.never_raises("queue"), self.inspected)
        self.queues.append(queue)
        return queue

    def after_event(self, waiting: int, in_flight: int) -> None:
        for queue in self.queues:
            queue.look()
        self.queues = [queue for queue in self.queues if queue.mine]
        self._compare_ranks()
        tracked = getattr(self.state, "tenants_tracked", 0)
        self.need(waiting or not tracked, f"no state is left when nothing waits: {tracked} tenants tracked")

    def _compare_ranks(self) -> None:
        ranks, problem = [], ""
        try:
            ranks += [queue.rank() for queue in self.queues]
            for one, other in combinations_with_replacement(ranks, 2):  # each with itself too: NaN is equal to none
                if not (one < other or other < one or one == other):
                    problem = f"{one!r} is neither less than {other!r}, nor more, nor equal"
        except Exception as error:
            problem = str(error)
        self.need(not problem, f"ranks can be compared with one another: {self.name} has {ranks}; {problem}")


class InspectedQueue(_State):
    """Knows who was pushed, and so who must be in the order."""

    def __init__(self, state: Any, inspected: Inspected) -> None:
        super().__init__(state, inspected)
        self.mine: list[Request] = []
        self._floor: Any = None  # the rank when it was last seen: only a push may bring a smaller one

    def push(self, request: Request) -> None:
        self._floor = None
        self.never_raises("push", request, allowed=self.inspected.may_raise)
        self.mine.append(request)

    def in_order(self) -> Iterator[Request]:
        order = self.never_raises("in_order")
        self.need(isinstance(order, Iterator), f"in_order gives an iterator: {self.name} gave a {type(order).__name__}")
        try:
            for request in order:
                left = getattr(request, "state", None) is not State.WAITING
                self.need(
                    not left, f"in_order gives out those that wait: {self.name} gave out {request}, which has left"
                )
                yield request
        except Exception as error:  # while it is read
            self.need(False, f"no method of a policy may raise: {self.name}.in_order raised {error!r}", cause=error)
            raise

    def rank(self) -> Any:
        rank = self.never_raises("rank")
        grown = self._floor is None or not rank < self._floor
        self.need(grown, f"only a push may make a rank smaller: {self.name} had {self._floor!r}, now {rank!r}")
        self._floor = rank
        return rank

    def dispatched(self, requests: Sequence[Request], now: float) -> None:
        self.never_raises("dispatched", requests, now)

    def removed(self, request: Request) -> None:
        self.never_raises("removed", request)

    def look(self) -> None:
        """Everyone who waits is in the order, once."""
        self.mine = [request for request in self.mine if request.state is State.WAITING]
        if self.mine:
            order = list(self.in_order())
            found = Counter(order)
            missing = [request for request in self.mine if not found[request]]
            strangers = [request for request in order if request not in self.mine]
            self.need(not missing, f"in_order leaves nobody out: {missing} are missing in {self.name}'s {order}")
            self.need(
                max(found.values(), default=1) == 1, f"in_order gives each request once: {self.name} gave {order}"
            )
            self.need(not strangers, f"in_order gives what was pushed: {strangers} were not, in {self.name}'s {order}")
            kept = not self.state.arrival_order or order == sorted(order, key=lambda request: request.sequence)
            self.need(kept, f"arrival_order is True only where in_order is that order: {self.name} gave {order}")
            if hasattr(self.state, "due_from"):
                self._look_at_deadlines(order)

    def _look_at_deadlines(self, order: list[Request]) -> None:
        kept = order == sorted(order, key=due)
        self.need(
            kept, f"due_from is there only where in_order is the order of the deadlines: {self.name} gave {order}"
        )
        for instant in map(due, order):
            found = list(self.never_raises("due_from", instant))
            kept = found == [request for request in order if due(request) >= instant]
            self.need(kept, f"due_from({instant:g}) gives those due then or later: {self.name} gave {found}")


class InspectedDispatcher(_State):
    def decide(self, group: Group, now: float) -> Decision:
        answer: Any = self.never_raises("decide", group, now)
        shown = f"{self.name} decided {answer!r} at t={now:g}"
        if not self.need(isinstance(answer, Decision), f"decide gives a Decision: {shown}"):
            return Decision()
        decision: Decision = answer
        waiting = list(group.in_order())
        parts: dict[str, Any] = {"dispatch": decision.dispatch, "drop": decision.drop}
        for name, requests in parts.items():
            if not self.need(isinstance(requests, Sequence), f"{name} is a sequence of requests: {shown}"):
                return decision
        left = [request for request in decision.dispatch if request.state is not State.WAITING]
        others = [request for request in decision.dispatch if request not in waiting and request not in left]
        self.need(not left, f"those dispatched wait: {left} have left; {shown}")
        self.need(not others, f"those dispatched are of this group: {others} are not; {shown}")
        self.need(len(set(decision.dispatch)) == len(decision.dispatch), f"nobody is dispatched twice: {shown}")
        strangers = [each for each in decision.drop if each.state is State.WAITING and each not in waiting]
        self.need(not strangers, f"those dropped are of this group: {strangers} are not; {shown}")
        self.need(not set(decision.drop) & set(decision.dispatch), f"nobody is both dispatched and dropped: {shown}")
        if decision.dispatch and not left and not others:
            self._fits(group, decision, shown)
        elif not decision.dispatch and not any(request in waiting for request in decision.drop):
            ahead = isinstance(decision.wake_at, int | float) and now < decision.wake_at < math.inf
            self.need(ahead, f"who dispatches nothing says when to look again, a finite instant ahead: {shown}")
        return decision

    def _fits(self, group: Group, decision: Decision, shown: str) -> None:
        if len(decision.dispatch) == 1:
            return  # one that exceeds a limit has been admitted to run alone
        room = group.room()
        fit = all([room.add(request) for request in decision.dispatch])
        self.need(fit, f"a batch is within all limits: {shown}")


class InspectedLimiter(_State):
    def open(self) -> InspectedRoom:
        return InspectedRoom(self.never_raises("open"), self.inspected, self)

    def exceeds(self, request: Request) -> Any:
        excess = self.never_raises("exceeds", request)
        fits = self.open().add(request)
        shown = f"{self.name} says {excess} of {request}, and an empty room {'takes' if fits else 'refuses'} it"
        self.need((excess is None) is bool(fits), f"exceeds names those, and only those, that never fit alone: {shown}")
        if excess is not None:
            need, allowed = excess
            self.need(need > allowed, f"exceeds gives (needed, allowed), needed being more: {shown}")
        return excess


class InspectedRoom(_State):
    def __init__(self, state: Any, inspected: Inspected, limiter: InspectedLimiter) -> None:
        super().__init__(state, inspected)
        self._inside: list[Request] = []

    def add(self, request: Request) -> Any:
        added = self.never_raises("add", request)
        self.need(isinstance(added, bool), f"add says whether it took the request, True or False: it gave {added!r}")
        if added:
            self._inside.append(request)
            fits = self.inspected.fits(self._inside)
            self.need(fits, f"what a room holds fits: {self.name} took {self._inside}")
            if self.state.full:  # nobody will ask it again
                self.need(not self.state.add(request), f"a full room takes nobody: {self.name} took one like {request}")
        return added

    @property
    def full(self) -> bool:
        full: bool = self.state.full
        return full


def picture(value: Any) -> Any:
    """The values that an object is made of, to be compared; of one that has none and knows no equality, its type."""
    if isinstance(value, Mapping):
        return type(value), [(key, picture(inner)) for key, inner in value.items()]
    if isinstance(value, list | tuple | set | frozenset):
        return type(value), [picture(inner) for inner in value]
    names = [name for kind in type(value).__mro__ for name in vars(kind).get("__slots__", ())]
    fields = {
        **{name: getattr(value, name) for name in names if hasattr(value, name)},
        **getattr(value, "__dict__", {}),
    }
    equal = any("__eq__" in vars(kind) for kind in type(value).__mro__[:-1])  # of its own, and not object's
    if isinstance(value, type) or inspect.isroutine(value) or (equal and not fields):
        return value
    return type(value), [(name, picture(inner)) for name, inner in fields.items()]
