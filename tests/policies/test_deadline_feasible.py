"""DeadlineFeasible: who is let in is in time, whatever arrives later."""

import math
import re
import sys
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from core_bench import policies
from hypothesis import given, settings
from hypothesis import strategies as st

from batchlib._core._actions import Dispatch
from batchlib._core._batch import Batch
from batchlib._core._batcher import Batcher
from batchlib._core._latency_model import LatencyModel
from batchlib._core._request import Request
from batchlib._core._transitions import State
from batchlib.errors import Overloaded
from batchlib.policies import DeadlineFeasible


def line(size: int, longest: float) -> float:
    return 5.0 + size * longest


def request(due: float | None, cost: float = 1, hint: float | None = None) -> Request:
    made = Request((), "", 0.0)
    made.deadline, made.cost, made.hint = due, cost, hint
    return made


def batch(size: int, started: float, cost: float = 1) -> Batch:
    inside = [request(None, cost) for _ in range(size)]
    for each in inside:
        each.state = State.WAITING
    return Batch(1, "", inside, "", started)


class Place:
    """A waiting room by hand."""

    def __init__(self, waiting: int = 0, running: Sequence[Batch] = (), size: int = 4, at_once: int = 1) -> None:
        self.waiting, self.running_batches = waiting, running
        self.max_batch_size, self.max_concurrent_batches = size, at_once
        self.running = sum(each.size for each in running)
        self.latency_model = LatencyModel()


def admitted(place: Place, due: float | None, now: float = 0.0, *, learned: bool = False, **fields: Any) -> bool:
    admission = DeadlineFeasible(execution_time=None if learned else line).start()
    refusal = admission.admit(request(due, **fields), place, now)
    assert refusal is None or isinstance(refusal, Overloaded)
    return refusal is None


def just(place: Place, due: float, **given: Any) -> bool:
    """Whether this is the earliest deadline that is admitted."""
    return admitted(place, due, **given) and not admitted(place, due - 0.001, **given)


def test_an_execution_time_has_to_be_callable() -> None:
    with pytest.raises(TypeError, match="execution_time must be a callable"):
        DeadlineFeasible(execution_time="fast")  # type: ignore[arg-type]


def test_ones_own_batch_counts_as_full() -> None:
    assert just(Place(), 9)
    assert just(Place(waiting=3), 9)
    assert just(Place(waiting=4), 18)
    assert just(Place(waiting=11), 27)


def test_a_batch_that_runs_is_waited_for() -> None:
    assert just(Place(running=[batch(2, started=-3.0)]), 4 + 9)
    assert just(Place(running=[batch(2, started=-30.0)]), 9)  # long overdue: it may end at any moment


def test_several_executors_take_turns() -> None:
    busy = [batch(4, started=-1.0), batch(1, started=-4.0)]
    assert just(Place(at_once=3, running=busy, waiting=3), 9)  # one is free now
    assert just(Place(at_once=3, running=busy, waiting=4), 2 + 9)
    assert just(Place(at_once=3, running=busy, waiting=8), 8 + 9)
    assert just(Place(at_once=3, running=busy, waiting=12), 9 + 9)


def test_lengths_count() -> None:
    assert just(Place(), 5 + 4 * 3, cost=3)
    assert just(Place(running=[batch(2, 0.0, cost=4)]), 13 + 9)


def test_a_batch_without_a_limit_holds_all_that_wait() -> None:
    assert just(Place(waiting=6, size=sys.maxsize), 12)


@pytest.mark.parametrize("learned", [True, False])
def test_who_has_no_deadline_is_let_in_and_who_is_late_is_not(learned: bool) -> None:
    assert admitted(Place(waiting=10**6), None, learned=learned)
    assert not admitted(Place(), 1.0, now=1.0, learned=learned)
    assert not admitted(Place(), None, now=1.0, hint=1.0, learned=learned)


def test_a_refusal_has_the_numbers_and_what_to_do() -> None:
    made = request(4.0)
    made.tenant = "acme"
    error = DeadlineFeasible(execution_time=line).start().admit(made, Place(waiting=4), 1.0)
    words = "done after up to 18 s, due in 3 s, 4 requests wait (tenant='acme'): send it elsewhere"
    assert re.match(re.escape(words), str(error))
    late = DeadlineFeasible().start().admit(made, Place(), 5.0)
    assert "due in 0 s" in str(late)


# ---- learned


def knowing(*sizes: int, at: float = 0.0, **given: Any) -> Place:
    place = Place(**given)
    for size in sizes * 4:
        place.latency_model.observe(size, 1, line(size, 1), at)
    return place


def test_until_something_is_measured_everybody_is_let_in() -> None:
    assert admitted(Place(waiting=10**6), 0.001, learned=True)


def test_what_is_learned_counts() -> None:
    assert just(knowing(1, 2, 4, waiting=4), 18.0005, learned=True)
    assert admitted(knowing(1, 2, 4, waiting=4), 17.9, learned=True) is False


def test_sizes_never_seen_are_not_reckoned_with() -> None:
    """A slope from sizes 1 and 2 says little about 1000: it must not close the door before any larger batch can run."""
    assert just(knowing(1, 2, size=1_000), 9.0005, learned=True)


def test_an_idle_batcher_that_has_learned_nothing_for_long_lets_somebody_try() -> None:
    assert not admitted(knowing(1, 2, 4, at=0.0), 61.0, now=59.0, learned=True)
    assert admitted(knowing(1, 2, 4, at=0.0), 62.0, now=61.0, learned=True)
    assert not admitted(knowing(1, 2, 4, at=0.0, waiting=1), 62.0, now=61.0, learned=True)
    assert not admitted(knowing(1, 2, 4, at=0.0, running=[batch(1, 60.0)]), 62.0, now=61.0, learned=True)
    assert not admitted(knowing(1, 2, 4, at=0.0), 61.0, now=61.0, learned=True)


# ---- in the core


class Machine:
    """The core on virtual time, greedy, first in, first out."""

    def __init__(self, time: Callable[[int], float], admission: Any, size: int, at_once: int) -> None:
        self.core = Batcher(policies(admission=(admission,), max_batch_size=size, max_concurrent_batches=at_once))
        self.time = time
        self.ends: list[tuple[float, int, Any, list[Request]]] = []
        self.finished: dict[Request, float] = {}

    def perform(self, actions: Sequence[Any], now: float) -> None:
        for action in actions:
            if isinstance(action, Dispatch):
                inside = list(action.batch.requests)
                self.ends.append((now + self.time(len(inside)), action.batch.number, action.batch, inside))

    def end_until(self, instant: float) -> None:
        while self.ends and min(self.ends)[0] <= instant:
            entry = min(self.ends)
            self.ends.remove(entry)
            end, _, ended, inside = entry
            self.finished |= dict.fromkeys(inside, end)
            self.perform(self.core.finish(ended, [None] * len(inside), end, clean=True), end)

    def arrive(self, now: float, due: float | None, together: int) -> list[Request]:
        arrived = [request(due) for _ in range(together)]
        for each in arrived:
            self.perform(self.core.submit(each, now), now)
        self.perform(self.core.wake(now), now)
        return arrived


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 6), st.none() | st.integers(1, 40), st.integers(1, 4)), max_size=40),
    st.integers(1, 5),
    st.integers(1, 3),
)
def test_whoever_is_admitted_is_in_time_whatever_arrives_later(
    gaps: list[tuple[int, int | None, int]], size: int, at_once: int
) -> None:
    policy = DeadlineFeasible(execution_time=line)
    machine = Machine(lambda number: line(number, 1), policy, size, at_once)
    now, arrived = 0.0, []
    for gap, timeout, together in gaps:
        now += gap
        machine.end_until(now)
        # Half a second: two batches never end at the very deadline, where the first to be told would end the other's.
        arrived += machine.arrive(now, None if timeout is None else now + timeout + 0.5, together)
    machine.end_until(math.inf)
    for each in arrived:
        if each.state is State.REJECTED:
            assert isinstance(each.outcome, Overloaded)
            assert each.deadline is not None
        else:
            assert each.state is State.COMPLETED
            assert each.deadline is None or machine.finished[each] <= each.deadline


def test_a_slow_spell_does_not_close_the_door_for_ever() -> None:
    slow = [1.0]
    machine = Machine(lambda number: slow[0] * line(number, 1), DeadlineFeasible(), 4, 1)
    now, states = 0.0, []
    for number in range(3_000):
        slow[0] = 20.0 if 500 <= number < 1_000 else 1.0
        now += 6.0
        machine.end_until(now)
        states += machine.arrive(now, now + 30.0, 1 + number % 2)
    machine.end_until(math.inf)
    assert any(each.state is State.REJECTED for each in states[750:1_500])
    assert all(each.state is State.COMPLETED for each in states[-200:])
