"""The state machine behind `PolicyContract`: one story of a batcher with the policy in it, told by Hypothesis."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import zip_longest
from typing import Any, NamedTuple

from hypothesis import stateful
from hypothesis import strategies as st

from .._core._request import Request
from .._core._transitions import State
from . import strategies
from ._bench import PolicyBench
from ._broken import ContractBroken, Findings
from ._inspected import (
    Inspected,
    InspectedAdmission,
    InspectedDispatcher,
    InspectedLimiter,
    InspectedOrdering,
    picture,
)
from ._setups import NESTINGS, Call, Setup, calls, setups

# kind -> (the method that its state is known by, its inspector)
_KINDS: dict[str, tuple[str, type[Any]]] = {
    "admission": ("admit", InspectedAdmission),
    "ordering": ("queue", InspectedOrdering),
    "dispatch": ("decide", InspectedDispatcher),
    "limits": ("open", InspectedLimiter),
}

# Where a story begins, and where it is told again: from hours to centuries later, real clocks between, and all so far
# from 0 that the last bits of a float, which a shift changes, are lost alike. Drawn instants are exact in all of them,
# and what is not, such as 0.1, is rounded up in some and down in others: four powers in a row, counted modulo 4, for
# the binary digits of tenths repeat after four.
_START, *_LATER = 2.0**12, 2.0**14, 2.0**15, 2.0**33
_LONG = 1e6  # seconds after which a policy should have got over whatever load it has seen


class Terms(NamedTuple):
    """What the user has said of the policy; see PolicyContract."""

    fits: Callable[[Sequence[Request]], bool]
    may_raise: tuple[type[Exception], ...]
    repeatable: bool


def kind_of(policy: Any) -> str:
    """Which of the four questions a policy answers. TypeError for what is none."""
    known = ", ".join(method for method, _ in _KINDS.values())
    needed = f"a policy is an object whose start() gives a state with one of {known}"
    if isinstance(policy, type) or not callable(getattr(policy, "start", None)):
        raise TypeError(f"{needed}; {policy!r} is {'a class' if isinstance(policy, type) else 'without start()'}")
    state = policy.start()
    for kind, (method, _) in _KINDS.items():
        if hasattr(state, method):
            return kind
    raise TypeError(f"{needed}; that of {policy!r} gave {state!r}")


class ContractMachine(stateful.RuleBasedStateMachine):
    """One story: a batcher with the policy in it, drawn neighbours, and drawn events."""

    def __init__(self, policy: Any, kind: str, terms: Terms) -> None:
        super().__init__()
        self._policy = policy
        self._kind = kind
        self._terms = terms
        self._findings = Findings()

    @stateful.initialize(setup=setups(), within=st.sampled_from(NESTINGS))
    def begin(self, setup: Setup, within: Callable[[Any], Any]) -> None:
        terms, policy = self._terms, self._policy
        self._setup = setup
        self._pictured = picture(policy)
        self._inspected = Inspected(policy, _KINDS[self._kind][1], self._findings, terms.fits, terms.may_raise)
        self._placed: dict[str, Any] = {self._kind: (self._inspected,)}
        if self._kind == "dispatch":
            self._placed = {"dispatch": self._inspected}
        elif self._kind == "ordering":  # one that forms runs cannot be nested in one that takes turns
            nests = not getattr(policy, "needs_runs", False)
            self._placed = {"ordering": within(self._inspected) if nests else self._inspected}
        self._first = setup.policies(**self._placed)
        self.bench = self._bench(_START)

    def _bench(self, start: float) -> PolicyBench:
        return PolicyBench(self._first, self._findings, start, self._terms.may_raise)

    def _look(self) -> None:
        """After each event."""
        self._findings.raise_first()
        core = self.bench.core
        try:
            for state in self._inspected.states:
                state.after_event(core.waiting, core.waiting + core.running)
        except Exception:  # the policy's, which has been noted
            self._findings.raise_first()
            raise
        pictured = picture(self._policy)
        self._findings.need(
            pictured == self._pictured, f"a description is immutable, state belongs into what start() makes: {pictured}"
        )
        self._findings.raise_first()

    # ---- the callers

    @stateful.rule(calls=st.lists(calls(), min_size=1, max_size=4), tick=st.booleans())
    def submit(self, calls: list[Call], tick: bool) -> None:
        for call in calls:
            self.bench.tell(PolicyBench.submit, **call._asdict())
            self._look()
        if tick:
            self.end_of_tick()

    @stateful.precondition(lambda self: self.bench.requests)
    @stateful.rule(which=st.integers(0, 30))
    def cancel(self, which: int) -> None:
        self.bench.tell(PolicyBench.leave, which % len(self.bench.requests))
        self._look()

    # ---- the time

    @stateful.rule()
    def end_of_tick(self) -> None:
        self.bench.tell(PolicyBench.wake)
        self._look()

    @stateful.rule(seconds=strategies.seconds(least=0.25))
    def pass_time(self, seconds: float) -> None:
        self.bench.tell(PolicyBench.advance, seconds)
        self._look()

    @stateful.rule(seconds=strategies.seconds(least=0.25))
    def stall(self, seconds: float) -> None:
        self.bench.tell(PolicyBench.stall, seconds)

    # ---- the executors and the owner

    @stateful.precondition(lambda self: self.bench.running)
    @stateful.rule(which=st.integers(0, 3), failing=st.just(()) | st.sets(st.integers(0, 4)).map(sorted))
    def finish(self, which: int, failing: list[int]) -> None:
        running = self.bench.running
        self.bench.tell(PolicyBench.end, running[which % len(running)].number, failing)
        self._look()

    @stateful.rule(size=st.integers(1, 5), at_once=st.integers(1, 3))
    def configure(self, size: int, at_once: int) -> None:
        self._setup = self._setup.sized(size, at_once)
        self.bench.tell(PolicyBench.configure, self._setup.policies(**self._placed))
        self._look()

    @stateful.precondition(lambda self: len(self.bench.requests) > 12)
    @stateful.rule(drain=st.booleans())
    def close(self, drain: bool) -> None:
        self.bench.tell(PolicyBench.close, drain=drain, running=not drain)
        self._look()

    # ---- the end

    def teardown(self) -> None:
        if not hasattr(self, "bench") or self._findings.found:
            return
        served = self.bench.work_off(most=500)
        self._look()
        if not served:
            waiting = self.bench.waiting
            raise ContractBroken(
                f"everyone is served in the end: no more came, executors were free until t={self.bench.now:g}, "
                f"and these still wait: {waiting}"
            )
        self._admits_again()
        if self._terms.repeatable:
            self._tell_again()

    def _admits_again(self) -> None:
        """A policy that counts must have counted down: what new state admits, idle old state admits too."""
        if self._kind != "admission" or self.bench.core.closed:
            return
        self.bench.tell(PolicyBench.stall, _LONG)
        for tenant in sorted({request.tenant for request in self.bench.requests}, key=repr):
            newcomer = self.bench.tell(PolicyBench.submit, None, tenant=tenant)
            self._look()
            if newcomer.state is State.REJECTED and self._policy.start().admit(newcomer, self.bench.core, 0.0) is None:
                raise ContractBroken(
                    "an idle batcher admits what a new one would: nothing was in flight, and the policy refused with "
                    f"{newcomer.outcome!r}"
                )
            self.bench.tell(PolicyBench.leave, newcomer.args[0])
            self._look()

    def _tell_again(self) -> None:
        """The same story several times more, at once: from where it began, and later."""
        beside = (
            "state belongs to what start() makes, and batchers that share a description know nothing of each other: "
            "the same story, told again beside another batcher, had another end"
        )
        later = (
            "time is the argument `now`, and only differences of instants count: the same story, told later, had "
            "another end"
        )
        rules = {_START: beside, **dict.fromkeys(_LATER, later)}
        told = self.bench.told
        benches = {start: self._bench(start) for start in rules}
        for event in self.bench.story:
            for bench in benches.values():
                event(bench)
        self._findings.raise_first()
        for start, rule in rules.items():
            again = benches[start].told
            first = next((pair for pair in zip_longest(told, again) if pair[0] != pair[1]), None)
            if first is not None:
                raise ContractBroken(f"{rule}: {first[0]} the first time, {first[1]} the second")
