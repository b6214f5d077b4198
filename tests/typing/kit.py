"""A user's own tests: the kit's blocks, fixtures and strategies, and policies of one's own under the contract."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import assert_type

import hypothesis

from batchlib import Overloaded, batched
from batchlib.protocols import Decision, Group, Request, WaitingRoom
from batchlib.testing import (
    Affine,
    ManualExecutor,
    PolicyContract,
    Simulation,
    VirtualClock,
    VirtualTime,
    Workload,
    immediate,
    override,
    simulate,
    strategies,
    virtual_time,
)
from batchlib.testing.pytest_plugin import MakeImmediate, PutOnVirtualTime


@batched(max_wait=0.5)
def embed(texts: list[str]) -> list[int]:
    return [len(text) for text in texts]


class Service:
    @batched(max_wait=0.5)
    async def embed(self, texts: list[str]) -> list[int]:
        return [len(text) for text in texts]


class Bouncer:
    def start(self) -> "Bouncer":
        return self

    def admit(self, request: Request, room: WaitingRoom, now: float) -> Overloaded | None:
        return Overloaded("full") if room.waiting > 3 else None


class NewestFirst:
    def start(self) -> "NewestFirst":
        return self

    def queue(self) -> "Stack":
        return Stack()


class Stack:
    arrival_order = False

    def __init__(self) -> None:
        self._waiting: list[Request] = []

    def push(self, request: Request) -> None:
        self._waiting.append(request)

    def in_order(self) -> Iterator[Request]:
        return reversed(self._waiting)

    def rank(self) -> int:
        return -self._waiting[-1].sequence

    def dispatched(self, requests: Sequence[Request], now: float) -> None:
        for request in requests:
            self._waiting.remove(request)

    def removed(self, request: Request) -> None:
        self._waiting.remove(request)


@dataclass(frozen=True)
class OneByOne:
    def start(self) -> "OneByOne":
        return self

    def decide(self, group: Group, now: float) -> Decision:
        return Decision(group.fill().requests[:1], reason="one")


@dataclass
class AtMostThree:
    inside: int = 0

    def add(self, request: Request) -> bool:
        if self.full:
            return False
        self.inside += 1
        return True

    @property
    def full(self) -> bool:
        return self.inside >= 3


class Threes:
    def start(self) -> "Threes":
        return self

    def open(self) -> AtMostThree:
        return AtMostThree()

    def exceeds(self, request: Request) -> tuple[float, float] | None:
        return None


class TestBouncer(PolicyContract):
    policy = Bouncer()
    may_raise = (KeyError,)


class TestNewestFirst(PolicyContract):
    policy = NewestFirst()
    settings = hypothesis.settings(PolicyContract.settings, max_examples=10)


class TestOneByOne(PolicyContract):
    policy = OneByOne()
    picklable = repeatable = False


class TestThrees(PolicyContract):
    policy = Threes()

    def fits(self, requests: Sequence[Request]) -> bool:
        return len(requests) <= 3


def test_fixtures(virtual_time: PutOnVirtualTime, immediate: MakeImmediate) -> None:
    time = virtual_time(embed, Service.embed, start=1, executor=ManualExecutor())
    assert_type(time, VirtualTime)
    immediate(embed, Service().embed)


async def test_blocks() -> None:
    with virtual_time(embed, max_wait=0.25) as time, override(Service.embed, clock=VirtualClock()), immediate(embed):
        assert_type(time, VirtualTime)
        await time.aadvance(0.5)


@hypothesis.given(strategies.workloads(), strategies.executor_models())
def test_simulation(workload: Workload, model: Affine) -> None:
    assert_type(simulate({"ordering": NewestFirst()}, workload, model), Simulation)
    assert_type(simulate(embed, workload, lambda batch: 0.5 * batch.size), Simulation)
