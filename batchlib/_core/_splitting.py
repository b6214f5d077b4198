"""Requests that are too large for one batch: a whole is cut into parts, and each part is a request of its own.

The parts are admitted together or not at all, stand next to each other in the order of arrival, and are limited,
ordered, dispatched and counted like everybody else. What ties them together is the rule of their end: once one has
ended without a result, nobody can use the others, so these end in the same event, before anything else is dispatched.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ._actions import SOON, Action
from ._batcher import Batcher
from ._request import Request
from ._transitions import Event, State, after

_SHARED = ("channel", "owner", "settings", "tenant", "priority", "deadline", "hint", "chain")


class Part(Request):
    """Some rows of a whole."""

    __slots__ = ("whole",)  # None once that has ended, so that no cycle is left

    whole: Whole | None


class Whole(Request):
    """What the caller of such a request waits for. Submitted and cancelled like any other, but never queued itself.

    slices: the arguments of each part and its cost.
    """

    __slots__ = ("parts", "slices")

    def __init__(self, request: Request, slices: Sequence[tuple[tuple[Any, ...], float]]) -> None:
        super().__init__(request.args, request.group, request.arrival, request.context)
        self.cost = request.cost
        _share(request, self)
        self.slices = slices
        self.parts: tuple[Part, ...] = ()

    @property
    def portions(self) -> Sequence[Request]:
        return self.parts

    def attach(self, part: Part) -> None:
        """Gives a part what its outcome is delivered to: the runtime's, as the waiter is."""

    def divide(self, now: float) -> None:
        """Makes the parts, now that all is known that they share."""
        parts: list[Part] = []
        for args, cost in self.slices:
            part = Part(args, self.group, now, self.context)
            part.cost = cost
            part.whole = self
            _share(self, part)
            self.attach(part)
            parts.append(part)
        self.parts = tuple(parts)


def _share(source: Request, target: Request) -> None:
    for field in _SHARED:
        setattr(target, field, getattr(source, field))


class SplittingBatcher(Batcher):
    """A Batcher whose requests may be wholes. Any other request goes by here as if there were none."""

    def largest_part(self, request: Request) -> int | None:
        """The cost that its parts may have; None if it fits as it is, or not even a part would fit."""
        cost = request.cost
        largest = None
        try:
            while (excess := self._limits.exceeds(request)) is not None:
                largest = math.floor(excess[1])
                if not 1 <= largest < request.cost:
                    return None
                request.cost = largest
        finally:
            request.cost = cost
        return largest

    def submit(self, request: Request, now: float, *, ahead: bool = False) -> Sequence[Action]:
        """A whole is refused with the error of its first part that is; those that were admitted are taken back."""
        if not isinstance(request, Whole):
            return super().submit(request, now, ahead=ahead)
        request.divide(now)
        request.state = after(State.NEW, Event.ADMIT)
        actions: list[Action] = []
        for part in request.parts:
            actions += super().submit(part, now, ahead=ahead)
            ahead = False  # room for the first is room for the whole: it is one arrival
            if part.state is State.REJECTED:
                ended: list[Request] = []
                self._end_others(part, ended, actions)
                super()._resolve(ended, actions)
                break
        soon = SOON if SOON[0] in actions else ()  # once, and last
        return [*(action for action in actions if action is not SOON[0]), *soon]

    def cancel(self, request: Request, now: float) -> Sequence[Action]:
        if not isinstance(request, Whole):
            return super().cancel(request, now)
        request.state = after(State.WAITING, Event.CANCEL)
        actions: list[Action] = []
        for part in request.parts:
            part.whole = None
            actions += super().cancel(part, now)
            if part.state is State.CANCELLED:
                part.waiter = None  # it will be told nothing, and knows its whole
        return actions

    def _resolve(self, ended: list[Request], actions: list[Action]) -> None:
        for request in tuple(ended):
            if isinstance(request, Part) and request.state is not State.COMPLETED:
                self._end_others(request, ended, actions)
        super()._resolve(ended, actions)

    def _end_others(self, part: Part, ended: list[Request], actions: list[Action]) -> None:
        """A part has ended without a result: ends those that have not, with its error."""
        whole, error = part.whole, part.outcome
        if whole is None:
            return  # another part has seen to it
        for other in whole.parts:
            other.whole = None
            match other.state:
                case State.NEW:  # not even submitted: refused with the whole
                    self._books.submitted += 1
                    other.state, other.outcome = after(State.NEW, Event.REFUSE), error
                    self._books.ended[other.state] += 1
                case State.WAITING:
                    self._leave_waiting(other, Event.REFUSE if part.state is State.REJECTED else Event.FAIL, error)
                case State.RUNNING:
                    actions += self._leave_running(other, Event.FAIL, error)
                case _:
                    continue
            ended.append(other)
