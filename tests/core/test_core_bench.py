"""The bench finds what it is there for: a core that breaks one rule of its README is caught at the next event."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from core_bench import Bench, policies

from batchlib._core._actions import Abandon, Action, Dispatch, Resolve, WakeAt
from batchlib._core._policies import Policies
from batchlib._core._transitions import State
from batchlib.policies import CostLimit, SizeOrWait

Actions = Sequence[Action]


class Twisted(Bench):
    """Its core does what `twist` makes of its actions. believed: the policies that the bench takes the core's for."""

    def __init__(
        self,
        twist: Callable[["Twisted", Actions], Actions],
        given: Policies | None = None,
        believed: Policies | None = None,
    ) -> None:
        super().__init__(given)
        self.policies = believed or self.policies
        self.twist = twist

    def perform(self, actions: Actions, *, submitting: bool = False) -> None:
        super().perform(self.twist(self, actions), submitting=submitting)


def as_it_is(bench: Twisted, actions: Actions) -> Actions:
    return actions


def without(kind: type[Any]) -> Any:
    return lambda bench, actions: [action for action in actions if not isinstance(action, kind)]


def after(kind: type[Any], also: Callable[[Twisted, Any], Action]) -> Any:
    """Each action of a kind is followed by another."""
    return lambda bench, actions: [
        each for action in actions for each in ([action, also(bench, action)] if isinstance(action, kind) else [action])
    ]


def changing(kind: type[Any], change: Callable[[Twisted, Any], object]) -> Any:
    def twist(bench: Twisted, actions: Actions) -> Actions:
        for action in actions:
            if isinstance(action, kind):
                change(bench, action)
        return actions

    return twist


def on_first(name: str, value: Any) -> Callable[[Twisted, Any], None]:
    return lambda bench, action: setattr(bench.requests[0], name, value)


def on_batch(name: str, value: Any) -> Callable[[Twisted, Any], None]:
    return lambda bench, action: setattr(action.batch, name, value)


def expire_first(bench: Twisted, action: Any) -> None:
    bench.requests[0].state, bench.requests[0].outcome = State.EXPIRED, TimeoutError()


def looks_at(instant: Callable[[Twisted], float]) -> Any:
    return after(Dispatch, lambda bench, action: WakeAt(instant(bench)))


def only_soon(bench: Twisted, actions: Actions) -> Actions:
    return [action for action in actions if action == WakeAt(-math.inf)]


two_at_once, waits = policies(max_concurrent_batches=2, max_batch_size=2), policies(dispatch=SizeOrWait(1))

BROKEN: dict[str, tuple[Any, ...]] = {  # what the bench says, and what makes it say so
    "told twice": ("ends exactly once", after(Resolve, lambda bench, action: action)),
    "told never": ("ends exactly once", without(Resolve)),
    "told nobody": ("somebody is told", after(Resolve, lambda bench, action: Resolve([]))),
    "told while it runs": (
        "who is told has ended",
        after(Dispatch, lambda bench, action: Resolve(action.batch.requests)),
    ),
    "failed with a result": ("no result gets an error", changing(Resolve, on_first("state", State.FAILED))),
    "another end than in the books": ("the books add up", changing(Resolve, expire_first)),
    "a group that stays": (
        "empty groups leave nothing",
        changing(WakeAt, lambda bench, action: bench.core._groups.by_key.update(b=bench.core._groups.by_key["a"])),
    ),
    "not in the books": ("the books add up", changing(WakeAt, on_first("state", State.RUNNING))),
    "never admitted": ("the books add up", changing(WakeAt, on_first("state", State.NEW))),
    "a batch nobody runs": ("the books add up", without(Dispatch)),
    "a batch that stays": (
        "the books know what runs",
        changing(Resolve, lambda bench, action: bench.running.append(bench.batches[0])),
    ),
    "one twice in a batch": (
        "each request once",
        changing(Dispatch, lambda bench, action: action.batch.requests.append(bench.requests[0])),
    ),
    "too many in a batch": ("at most max_batch_size", as_it_is, policies(), policies(max_batch_size=1)),
    "too many batches": ("no more batches than executors", as_it_is, two_at_once, policies(max_batch_size=2)),
    "too much in a batch": ("no batch is over a limit", as_it_is, policies(), policies(limits=(CostLimit(2),))),
    "another number": ("a batch is what it says", changing(Dispatch, on_batch("number", 7))),
    "another group": ("groups are never mixed", changing(Dispatch, on_batch("group", "other"))),
    "run though it had ended": ("who has ended never runs", changing(Dispatch, on_first("state", State.EXPIRED))),
    "run though it was due": ("no expired request runs", changing(Dispatch, lambda bench, action: bench.stall(9))),
    "written to": ("read and never written", changing(WakeAt, on_first("cost", 9))),
    "nobody looks again": ("has a time to look again", without(WakeAt)),
    "nobody looks at the deadline": ("for every deadline", only_soon, waits),
    "looks for ever": ("wake-ups never loop", looks_at(lambda bench: bench.now)),
    "looks at no instant": ("wake-ups never loop", looks_at(lambda bench: math.inf)),
    "looks at the end of every tick": ("only an arrival", looks_at(lambda bench: -math.inf)),
    "stopped while wanted": ("runs for nobody", after(Dispatch, lambda bench, action: Abandon(action.batch))),
}


def play(bench: Bench) -> None:
    bench.arrive(*["a"] * 4, timeout=5.0)
    bench.finish(bench.running[0])
    bench.drain()


@pytest.mark.parametrize("what", BROKEN)
def test_a_core_that_breaks_a_rule_is_caught(what: str) -> None:
    rule, *broken = BROKEN[what]
    with pytest.raises(AssertionError, match=rule):
        play(Twisted(*broken))


@pytest.mark.parametrize("given", [policies(), two_at_once, waits])
def test_one_that_keeps_them_is_not(given: Policies) -> None:
    play(Twisted(as_it_is, given))
