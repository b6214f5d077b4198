"""Policies that break their contract, one rule each; `ZOO` says what the contract must answer."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from batchlib.errors import Overloaded, Rejected
from batchlib.policies import CostLimit, Fifo, Greedy
from batchlib.policies.structures._deadlines import due
from batchlib.protocols import Decision, Group, Request, State, WaitingRoom

# ---- orderings


class Listed:
    """A right ordering, newest first, to be broken: the description is `Ordered(queue class)`."""

    arrival_order = False

    def __init__(self) -> None:
        self.requests: list[Request] = []

    def push(self, request: Request) -> None:
        self.requests.append(request)

    def in_order(self) -> Iterator[Request]:
        return reversed(self.requests)

    def rank(self) -> Any:
        return -self.requests[-1].sequence

    def dispatched(self, requests: Sequence[Request], now: float) -> None:
        for request in requests:
            self.requests.remove(request)

    def removed(self, request: Request) -> None:
        self.requests.remove(request)


@dataclass(frozen=True)
class Ordered:
    queue: Callable[[], Any]

    def start(self) -> "Ordered":
        return self


class GivesOutThoseThatLeft(Listed):
    def removed(self, request: Request) -> None:
        pass


class ForgetsOne(Listed):
    def in_order(self) -> Iterator[Request]:
        return (request for request in self.requests if request.cost != 3)


class GivesOneTwice(Listed):
    def in_order(self) -> Iterator[Request]:
        yield from self.requests
        if len(self.requests) > 2:
            yield self.requests[0]


class RaisesWhenItsLastLeaves(Listed):
    def removed(self, request: Request) -> None:
        self.requests.remove(request)
        self.first = self.requests[0].sequence


class RaisesNowAndThen(Listed):
    def push(self, request: Request) -> None:
        super().push(request)
        if request.priority == 2:
            raise KeyError(request.priority)


class RankShrinksByItself(Listed):
    """Small numbers of waiting requests rank first, so departures bring it forward."""

    def rank(self) -> Any:
        return len(self.requests)


class RanksThatCannotBeCompared(Listed):
    def rank(self) -> Any:
        return self.requests[-1].tenant


class RanksThatAreNoNumbers(Listed):
    def rank(self) -> float:
        return math.nan


class SaysItIsByArrival(Listed):
    arrival_order = True


class SaysItIsByDeadline(Listed):
    def due_from(self, instant: float) -> Iterator[Request]:
        return (each for each in self.in_order() if due(each) >= instant)


class StartsAnywhere(Listed):
    """In the right order, and does not look where to start."""

    def in_order(self) -> Iterator[Request]:
        return iter(sorted(super().in_order(), key=lambda each: math.inf if each.deadline is None else each.deadline))

    def rank(self) -> float:
        deadline = next(self.in_order()).deadline
        return math.inf if deadline is None else deadline

    def due_from(self, instant: float) -> Iterator[Request]:
        return self.in_order()


class GivesAList(Listed):
    def in_order(self) -> Any:
        return self.requests[::-1]


class MakesAllAlike(Listed):
    """Its neighbours find other requests than they were given."""

    def push(self, request: Request) -> None:
        request.priority = 0
        super().push(request)


class RaisesInRank(Listed):
    def rank(self) -> Any:
        return -self.requests[1].sequence


class RaisesWhileRead(Listed):
    def in_order(self) -> Iterator[Request]:
        for request in reversed(self.requests):
            if request.cost == 3:
                raise LookupError(request)
            yield request


class KeepsAccounts:
    def __init__(self) -> None:
        self.accounts: set[Any] = set()

    def start(self) -> "KeepsAccounts":
        return KeepsAccounts()

    @property
    def tenants_tracked(self) -> int:
        return len(self.accounts)

    def queue(self) -> Listed:
        accounts = self.accounts

        class Counting(Listed):
            def push(self, request: Request) -> None:
                super().push(request)
                accounts.add(request.tenant)

        return Counting()


class SharedByClass(Listed):
    """Whoever came first anywhere decides the direction, for all batchers there will ever be."""

    seen: list[int] = []  # noqa: RUF012

    def push(self, request: Request) -> None:
        super().push(request)
        self.seen.append(1)

    def in_order(self) -> Iterator[Request]:
        return iter(self.requests) if len(self.seen) % 2 else reversed(self.requests)


# ---- dispatch


class Dispatcher:
    """A description that is its own state."""

    def start(self) -> Any:
        return type(self)()


class ReturnsNone(Dispatcher):
    def decide(self, group: Group, now: float) -> Any:
        return Decision(group.fill().requests) if group.waiting > 1 else None


class RaisesInDecide(Dispatcher):
    def decide(self, group: Group, now: float) -> Decision:
        waited = [now - request.arrival for request in group.in_order() if request.cost > 1]
        return Decision(group.fill().requests, reason=f"{max(waited)}")


class OverTheLimit(Dispatcher):
    def decide(self, group: Group, now: float) -> Decision:
        return Decision(tuple(group.in_order()))


class MixesGroups(Dispatcher):
    def __init__(self) -> None:
        self.before: tuple[Request, ...] = ()

    def decide(self, group: Group, now: float) -> Decision:
        filled = group.fill().requests
        others = [request for request in self.before if request.state is State.WAITING]
        self.before = tuple(group.in_order())
        return Decision([*filled[:1], *others[:1]] if len(filled) == 1 else filled)


class DispatchesThoseThatLeft(Dispatcher):
    def __init__(self) -> None:
        self.known: list[Request] = []

    def decide(self, group: Group, now: float) -> Decision:
        here = list(group.in_order())
        self.known = [*self.known, *(request for request in here if request not in self.known)]
        if now < group.oldest_arrival + 1:
            return Decision(wake_at=group.oldest_arrival + 1)
        mine = [request for request in self.known if request.group == here[0].group]
        self.known.remove(mine[0])
        return Decision(mine[:1])


class DispatchesOnce(Dispatcher):
    def decide(self, group: Group, now: float) -> Decision:
        return Decision(iter(group.fill().requests))  # type: ignore[arg-type]


class DispatchesTwice(Dispatcher):
    def decide(self, group: Group, now: float) -> Decision:
        first = group.fill().requests[:1]
        return Decision(first * min(2, group.waiting))


class WaitsForEver(Dispatcher):
    def decide(self, group: Group, now: float) -> Decision:
        filled = group.fill()
        return Decision(filled.requests) if filled.full else Decision(wake_at=math.inf)


class WakesInThePast(Dispatcher):
    def decide(self, group: Group, now: float) -> Decision:
        filled = group.fill()
        return Decision(filled.requests) if filled.full else Decision(wake_at=group.oldest_arrival + 1)


class WakesByAnotherSum(Dispatcher):
    """Wakes at `arrival + 0.1` and then asks for `now - arrival >= 0.1`, which rounding makes false now and then."""

    def decide(self, group: Group, now: float) -> Decision:
        if now - group.oldest_arrival >= 0.1:
            return Decision(group.fill().requests)
        return Decision(wake_at=group.oldest_arrival + 0.1)


class WakesAtAName(Dispatcher):
    def decide(self, group: Group, now: float) -> Decision:
        return Decision(wake_at="soon")  # type: ignore[arg-type]


class DropsOfAnotherGroup(Dispatcher):
    def __init__(self) -> None:
        self.before: list[Request] = []

    def decide(self, group: Group, now: float) -> Decision:
        here = list(group.in_order())
        others = [request for request in self.before if request.state is State.WAITING and request not in here]
        self.before = here
        return Decision(group.fill().requests, drop=others)


class RaisesInObserve(Dispatcher):
    def decide(self, group: Group, now: float) -> Decision:
        return Decision(group.fill().requests)

    def observe(self, batch: object, execution_time: float) -> None:
        raise LookupError(execution_time)


class WakesAtNaN(Dispatcher):
    def decide(self, group: Group, now: float) -> Decision:
        filled = group.fill()
        return Decision(filled.requests) if filled.full else Decision(wake_at=now + 0 * math.inf)


class StarvesAClass(Dispatcher):
    """Never serves those with priority 2; they may look on."""

    def decide(self, group: Group, now: float) -> Decision:
        room = group.room()
        served = [request for request in group.in_order() if request.priority < 2 and room.add(request)]
        return Decision(served) if served else Decision(wake_at=now + 1)


@dataclass
class ChangesItsDescription:
    served: int = 0

    def start(self) -> "ChangesItsDescription":
        return self

    def decide(self, group: Group, now: float) -> Decision:
        self.served += 1
        return Decision(group.fill().requests)


@dataclass(frozen=True)
class SharesState:
    """Alternates between all and one; whose turn it is should be each batcher's own."""

    turns: list[int] = field(default_factory=list, compare=False)

    def start(self) -> "SharesState":
        return self

    def decide(self, group: Group, now: float) -> Decision:
        self.turns.append(1)
        return Decision(group.fill().requests[: 1 + len(self.turns) % 2])


class _Counter:
    """A counter that no comparison of values sees into."""

    __slots__ = ("__weakref__", "_next")

    def __init__(self) -> None:
        self._next = iter(range(1 << 30)).__next__

    def __call__(self) -> int:
        return self._next()

    def __deepcopy__(self, memo: Any) -> "_Counter":
        return self


@dataclass(frozen=True)
class SharesHiddenState:
    ticket: Callable[[], int] = field(default_factory=_Counter)

    def start(self) -> "SharesHiddenState":
        return self

    def decide(self, group: Group, now: float) -> Decision:
        return Decision(group.fill().requests[: 1 + self.ticket() % 2])


class OwnClock(Dispatcher):
    """Waits by a clock of its own, which the batcher's has nothing to do with."""

    def decide(self, group: Group, now: float) -> Decision:
        filled = group.fill()
        if filled.full or time.monotonic() + 2.0**21 > group.oldest_arrival:
            return Decision(filled.requests)
        return Decision(wake_at=now + 1)


# ---- admission


class LeakyCounter:
    """Counts those that come, and forgets that they also leave without having run."""

    def __init__(self) -> None:
        self.waiting = 0

    def start(self) -> "LeakyCounter":
        return LeakyCounter()

    def admit(self, request: Request, room: WaitingRoom, now: float) -> Rejected | None:
        if self.waiting >= 3:
            return Overloaded("three wait already")
        self.waiting += 1
        return None

    def dispatched(self, request: Request) -> None:
        self.waiting -= 1


class RefusesWithAString:
    def start(self) -> "RefusesWithAString":
        return self

    def admit(self, request: Request, room: WaitingRoom, now: float) -> Any:
        return "no" if room.waiting > 2 else None


class RaisesInEnded:
    def __init__(self) -> None:
        self.running: set[Request] = set()

    def start(self) -> "RaisesInEnded":
        return RaisesInEnded()

    def admit(self, request: Request, room: WaitingRoom, now: float) -> None:
        return None

    def dispatched(self, request: Request) -> None:
        self.running.add(request)

    def ended(self, request: Request) -> None:
        self.running.remove(request)  # not everyone who ends has run


class SaysItRefusesNobody(RefusesWithAString):
    can_refuse = False

    def admit(self, request: Request, room: WaitingRoom, now: float) -> Rejected | None:
        return Overloaded("no") if room.waiting > 2 else None


class HoldsBackForEver(RefusesWithAString):
    def admit(self, request: Request, room: WaitingRoom, now: float) -> None:
        return None

    def holds_back(self, room: WaitingRoom) -> bool:
        return True


class RaisesInHoldsBack(HoldsBackForEver):
    def holds_back(self, room: WaitingRoom) -> bool:
        return 1 / room.waiting < 1


# ---- limits


class Rooms:
    def __init__(self, room: Callable[[], Any], exceeds: Callable[[Request], Any] = lambda request: None) -> None:
        self.open = room
        self.exceeds = exceeds


@dataclass(frozen=True)
class Limited:
    room: Callable[[], Any]
    exceeds: Callable[[Request], Any] = lambda request: None

    def start(self) -> Rooms:
        return Rooms(self.room, self.exceeds)


class LooksAtOneOnly:
    """At most 4 in all, it should say; it says at most 4 each."""

    full = False

    def add(self, request: Request) -> bool:
        return request.cost <= 4


class TakesSomeWhenFull:
    def __init__(self) -> None:
        self.inside = 0

    def add(self, request: Request) -> bool:
        if self.full and request.cost > 1:
            return False
        self.inside += 1
        return True

    @property
    def full(self) -> bool:
        return self.inside >= 2


class SaysNothing:
    full = False

    def add(self, request: Request) -> None:
        return None


def exceeds_three(request: Request) -> tuple[float, float] | None:
    return (request.cost, 3) if request.cost > 3 else None


# ---- what each must be told

AHEAD = "says when to look again, a finite instant ahead"
RAISED = "no method of a policy may raise"

ZOO: dict[str, tuple[Any, str]] = {
    "an order with those that left": (Ordered(GivesOutThoseThatLeft), "in_order gives out those that wait"),
    "an order that forgets one": (Ordered(ForgetsOne), "in_order leaves nobody out"),
    "an order that gives one twice": (Ordered(GivesOneTwice), "in_order gives each request once"),
    "an order that reads the first of none": (Ordered(RaisesWhenItsLastLeaves), f"{RAISED}: .*removed raised Index"),
    "an order that raises now and then": (Ordered(RaisesNowAndThen), f"{RAISED}: .*push raised KeyError"),
    "a rank that gets smaller": (Ordered(RankShrinksByItself), "only a push may make a rank smaller"),
    "ranks that cannot be compared": (Ordered(RanksThatCannotBeCompared), "not supported between"),
    "ranks that are no numbers": (Ordered(RanksThatAreNoNumbers), "ranks can be compared with one another"),
    "a rank of the second": (Ordered(RaisesInRank), f"{RAISED}: .*rank raised IndexError"),
    "an order that says it is by arrival": (Ordered(SaysItIsByArrival), "arrival_order is True only where"),
    "an order that says it is by deadline": (Ordered(SaysItIsByDeadline), "due_from is there only where in_order is"),
    "an order that starts anywhere": (Ordered(StartsAnywhere), "gives those due then or later"),
    "an order that raises while it is read": (Ordered(RaisesWhileRead), f"{RAISED}: .*in_order raised LookupError"),
    "an order that is a list": (Ordered(GivesAList), "in_order gives an iterator: GivesAList gave a list"),
    "a queue that writes": (Ordered(MakesAllAlike), "read and never written: priority of .* was -?\\d and is 0"),
    "accounts that stay": (KeepsAccounts(), "no state is left when nothing waits"),
    "a queue with state of its class": (Ordered(SharedByClass), "know nothing of each other"),
    "no decision": (ReturnsNone(), "decide gives a Decision: ReturnsNone decided None"),
    "a decision that raises": (RaisesInDecide(), f"{RAISED}: RaisesInDecide.decide raised ValueError"),
    "a batch over the limit": (OverTheLimit(), "a batch is within all limits"),
    "a batch of two groups": (MixesGroups(), "those dispatched are of this group"),
    "a batch of those that left": (DispatchesThoseThatLeft(), "those dispatched wait"),
    "a batch with one twice": (DispatchesTwice(), "nobody is dispatched twice"),
    "a batch to be read once": (DispatchesOnce(), "dispatch is a sequence of requests"),
    "a wait for ever": (WaitsForEver(), AHEAD),
    "a wake-up in the past": (WakesInThePast(), AHEAD),
    "a wake-up at no instant": (WakesAtNaN(), AHEAD),
    "a wake-up by another sum": (WakesByAnotherSum(), AHEAD),
    "a wake-up at a name": (WakesAtAName(), AHEAD),
    "a drop of another group": (DropsOfAnotherGroup(), "those dropped are of this group"),
    "an observer that raises": (RaisesInObserve(), f"{RAISED}: RaisesInObserve.observe raised LookupError"),
    "a class that starves": (StarvesAClass(), "everyone is served in the end"),
    "a description that changes": (ChangesItsDescription(), "a description is immutable"),
    "state in the description": (SharesState(), "a description is immutable"),
    "state hidden in the description": (SharesHiddenState(), "had another end"),
    "a clock of its own": (OwnClock(), "time is the argument `now`"),
    "a counter that leaks": (LeakyCounter(), "an idle batcher admits what a new one would"),
    "a refusal that is none": (RefusesWithAString(), "admit gives None, or the Rejected that the caller gets"),
    "an end that raises": (RaisesInEnded(), f"{RAISED}: RaisesInEnded.ended raised KeyError"),
    "a refusal by who refuses nobody": (SaysItRefusesNobody(), "can_refuse is False only where"),
    "a pause without end": (HoldsBackForEver(), "an idle batcher holds nobody back"),
    "a pause that raises": (RaisesInHoldsBack(), f"{RAISED}: RaisesInHoldsBack.holds_back raised ZeroDivision"),
    "a room that does not add up": (Limited(LooksAtOneOnly), "what a room holds fits"),
    "a full room that takes": (Limited(TakesSomeWhenFull), "a full room takes nobody"),
    "a room that says nothing": (Limited(SaysNothing), "add says whether it took the request"),
    "a limit that contradicts its rooms": (
        Limited(LooksAtOneOnly, exceeds_three),
        "exceeds names those, and only those",
    ),
}

RIGHT: dict[str, Any] = {"an order": Ordered(Listed), "greedy": Greedy(), "fifo": Fifo(), "costs": CostLimit(4)}
