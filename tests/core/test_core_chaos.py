"""Policies that do whatever they should not: callers get a clear error, nobody is stranded, nothing loops.

The bench holds the invariants after every event; here the policies are what is drawn.
"""

import math
import random
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from core_bench import Bench, policies
from hypothesis import given, settings
from hypothesis import strategies as st

from batchlib._core._protocols import Decision, Group, WaitingRoom
from batchlib._core._request import Request
from batchlib._core._transitions import FINAL, State
from batchlib.errors import BatchFailed, Overloaded
from batchlib.policies import CostLimit


class Loops(BaseException):
    """Too many questions for one event; no `except Exception` can hide it."""


class Chaos:
    """All kinds of policy in one; each call misbehaves with `chance`, in a way that the seed decides."""

    arrival_order = False

    def __init__(self, seed: int, chance: float) -> None:
        self.random = random.Random(seed)
        self.chance = chance
        self.questions = 0
        self.seen: list[Request] = []

    def start(self) -> "Chaos":
        return self

    def bad(self, *deeds: str) -> str | None:
        self.questions += 1
        if self.questions > 5_000:
            raise Loops
        deed = self.random.choice(deeds) if self.random.random() < self.chance else None
        if deed == "raise":
            raise self.random.choice([ValueError("chaos"), KeyError(1), StopIteration()])
        return deed

    # ---- admission

    def admit(self, request: Request, room: WaitingRoom, now: float) -> Any:
        deed = self.bad("raise", "overloaded", "nonsense")
        return {"overloaded": Overloaded("chaos"), "nonsense": 7}.get(deed or "")

    def dispatched(self, *args: Any) -> None:
        self.bad("raise")

    def ended(self, request: Request) -> None:
        self.bad("raise")

    # ---- limit

    def open(self) -> "Chaos":
        self.bad("raise")
        return self

    def add(self, request: Request) -> bool:
        return self.bad("raise", "no") is None

    @property
    def full(self) -> bool:
        return self.bad("raise", "yes") is not None

    def exceeds(self, request: Request) -> tuple[float, float] | None:
        return (9, 8) if self.bad("raise", "too large") else None

    def observe(self, batch: Any, execution_time: float) -> None:
        self.bad("raise")

    # ---- dispatch

    def decide(self, group: Group, now: float) -> Any:
        waiting = list(group.in_order())
        some = self.random.sample(waiting, self.random.randint(0, len(waiting)))
        ended = [request for request in self.seen if request.state is not State.WAITING]
        deed = self.bad(*DECISIONS, "raise")
        if deed is None:
            return Decision(group.fill().requests)
        instant = self.random.choice([now - 1, now, now + 0.25, math.inf, math.nan])
        return DECISIONS[deed](waiting, some, ended, instant, self.seen)


DECISIONS: dict[str, Any] = {
    "nothing": lambda waiting, some, ended, instant, seen: Decision(),
    "none": lambda waiting, some, ended, instant, seen: None,
    "wait": lambda waiting, some, ended, instant, seen: Decision(wake_at=instant),
    "everyone": lambda waiting, some, ended, instant, seen: Decision(waiting),
    "some": lambda waiting, some, ended, instant, seen: Decision(some, reason=["unhashable"]),  # type: ignore[arg-type]
    "twice": lambda waiting, some, ended, instant, seen: Decision(some * 2),
    "ended": lambda waiting, some, ended, instant, seen: Decision(some + ended),
    "others": lambda waiting, some, ended, instant, seen: Decision(seen),
    "once": lambda waiting, some, ended, instant, seen: Decision(iter(some)),  # type: ignore[arg-type]
    "junk": lambda waiting, some, ended, instant, seen: Decision([1, 2]),  # type: ignore[list-item]
    "drop": lambda waiting, some, ended, instant, seen: Decision(drop=some + some),
    "drop and wait": lambda waiting, some, ended, instant, seen: Decision(drop=some + ended, wake_at=instant),
    "drop and dispatch": lambda waiting, some, ended, instant, seen: Decision(waiting[:2], drop=some),
    "drop ended": lambda waiting, some, ended, instant, seen: Decision(drop=ended),
    "drop junk": lambda waiting, some, ended, instant, seen: Decision(drop=[None], wake_at=instant),  # type: ignore[list-item]
}


class ChaosOrdering(Chaos):
    def queue(self) -> "ChaosQueue":
        self.bad("raise")
        return ChaosQueue(self)


class ChaosQueue:
    arrival_order = False

    def __init__(self, chaos: Chaos) -> None:
        self.bad, self.random = chaos.bad, chaos.random
        self.requests: list[Request] = []

    def push(self, request: Request) -> None:
        self.bad("raise")
        self.requests.append(request)
        self.bad("raise")

    def in_order(self) -> Iterator[Request]:
        alive = [request for request in self.requests if request.state is State.WAITING]
        match self.bad("raise", "ended too", "twice", "nobody", "then raise"):
            case "ended too":
                yield from self.requests
            case "twice":
                yield from alive + alive
            case "nobody":
                return
            case "then raise":
                yield from alive[:1]
                raise ValueError("chaos")
            case _:
                yield from sorted(alive, key=lambda request: request.priority)

    def rank(self) -> Any:
        deed = self.bad("raise", "incomparable", "random")
        return {"incomparable": None, "random": self.random.random()}.get(deed or "", 0.5)

    def dispatched(self, requests: Sequence[Request], now: float) -> None:
        self.bad("raise")

    def removed(self, request: Request) -> None:
        self.bad("raise")


EVENTS = ("submit", "submit", "submit", "tick", "pass", "cancel", "finish", "configure", "scarce")


def play(bench: Bench, chaos: Sequence[Chaos], moves: random.Random, steps: int) -> None:
    for _ in range(steps):
        for policy in chaos:
            policy.questions = 0
            policy.seen = bench.requests
        match moves.choice(EVENTS):
            case "submit":
                timeout = moves.choice([None, None, 0.0, 0.5, 2.0])
                bench.submit(moves.choice("ab"), timeout=timeout, cost=moves.randint(1, 4), priority=moves.random())
            case "tick":
                bench.wake()
            case "pass":
                bench.advance_to(bench.now + 0.25)
            case "cancel" if bench.requests:
                bench.cancel(moves.choice(bench.requests))
            case "finish" if bench.running:
                bench.finish(moves.choice(bench.running))
            case "scarce":
                bench.scarce = moves.random() < 0.5
            case "configure" if moves.random() < 0.3:
                bench.configure(policies(**{**fields_of(bench), "max_batch_size": moves.randint(1, 4)}))
            case _:
                pass


def fields_of(bench: Bench) -> dict[str, Any]:
    return {name: getattr(bench.policies, name) for name in type(bench.policies).__slots__}


seeds = st.integers(0, 1 << 32)
KINDS = {
    "admission": lambda seed, chance: {"admission": (Chaos(seed, chance), Chaos(seed + 1, chance))},
    "ordering": lambda seed, chance: {"ordering": ChaosOrdering(seed, chance)},
    "dispatch": lambda seed, chance: {"dispatch": Chaos(seed, chance), "limits": (CostLimit(6),)},
    "limit": lambda seed, chance: {"limits": (CostLimit(6), Chaos(seed, chance)), "oversize_alone": bool(seed % 2)},
}


@pytest.mark.parametrize("kind", [*KINDS, "all"])
@settings(max_examples=200, deadline=None, database=None)
@given(seed=seeds, chance=st.sampled_from([0.02, 0.1, 0.5, 1.0]))
def test_no_policy_can_strand_a_caller(kind: str, seed: int, chance: float) -> None:
    options: dict[str, Any] = {}
    for name in KINDS if kind == "all" else [kind]:
        options |= KINDS[name](seed, chance)
    parts = [part for value in options.values() for part in (value if isinstance(value, tuple) else (value,))]
    chaos = [part for part in parts if isinstance(part, Chaos)]
    bench = Bench(policies(**options, max_batch_size=3, max_concurrent_batches=2))
    play(bench, chaos, random.Random(seed), steps=60)
    for policy in chaos:
        policy.questions = -10_000  # the drain may ask for each request that is left
    bench.drain()
    assert all(request.state in FINAL for request in bench.requests)
    for request in bench.requests:
        if request.state is State.FAILED:
            assert isinstance(request.outcome, BatchFailed)
            assert "fault of the policy" in str(request.outcome)


@pytest.mark.parametrize("kind", ["dispatch", "ordering"])
def test_a_policy_that_seldom_misbehaves_still_serves(kind: str) -> None:
    completed = 0
    for seed in range(20):
        options: dict[str, Any] = KINDS[kind](seed, 0.02)
        chaos = [part for part in options.values() if isinstance(part, Chaos)]
        bench = Bench(policies(**options, max_batch_size=3, max_concurrent_batches=2))
        play(bench, chaos, random.Random(seed), steps=60)
        completed += sum(request.state is State.COMPLETED for request in bench.requests)
    assert completed > 20
