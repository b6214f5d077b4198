"""Instances get their batchers without a lock: a fork would leave it held in the child, whoever was binding."""

import os
import threading
from collections.abc import Callable
from typing import Any

import pytest
from support import VirtualClock
from support.held import LONG

from batchlib import batched

# From Python 3.12 on every fork of a process with threads warns; whether that is wise is the caller's business.
pytestmark = [pytest.mark.timeout(60), pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")]


class HeldClock:
    """Whoever makes a batcher asks its clock for the time; in the thread that is `held`, that waits for the gate."""

    def __init__(self) -> None:
        self.started = threading.Event()
        self.gate = threading.Event()
        self.held: threading.Thread | None = None
        self._clock = VirtualClock()

    @property
    def now(self) -> Callable[[], float]:
        if threading.current_thread() is self.held:
            self.started.set()
            assert self.gate.wait(LONG)
        return self._clock.now

    def call_at(self, instant: float, callback: Callable[[], object]) -> None:
        self._clock.call_at(instant, callback)


class Binding:
    """A thread that calls a method of an instance for the first time, and is held while it makes the batcher."""

    def __init__(self) -> None:
        self.clock = clock = HeldClock()

        class Model:
            @batched(clock=clock)
            def run(self, items: list[int]) -> list[tuple[int, int]]:
                return [(os.getpid(), item) for item in items]

        self.model, self.other = Model(), Model()
        self.answers: list[Any] = []
        self.thread = clock.held = threading.Thread(target=lambda: self.answers.append(self.model.run.call(1)))
        self.thread.start()
        assert clock.started.wait(LONG)

    def end(self) -> None:
        self.clock.gate.set()
        self.thread.join(LONG)
        assert self.answers == [(os.getpid(), 1)]


def test_a_fork_while_a_thread_binds(in_child: Callable[[Callable[[], Any]], str]) -> None:
    binding = Binding()
    model, other = binding.model, binding.other
    assert in_child(lambda: [one.run.call(2) == (os.getpid(), 2) for one in (model, other)]) == "[True, True]"
    binding.end()


def test_whoever_binds_at_the_same_time_gets_the_same_batcher() -> None:
    binding = Binding()
    assert binding.model.run.call(2) == (os.getpid(), 2)
    binding.end()
    assert binding.model.run.statistics().completed == 2


def test_other_instances_need_not_wait() -> None:
    binding = Binding()
    assert binding.other.run.call(2) == (os.getpid(), 2)
    binding.end()
    assert binding.other.run.statistics().completed == 1
