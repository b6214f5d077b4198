"""Descriptions of executors: one executor per batcher, ended with it, started anew where threads are gone."""

import gc
import os
import threading
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from support import Held
from support.held import LONG
from support.until import until

from batchlib import ExecutorLost, batched
from batchlib.executors import Bisecting
from batchlib.protocols import BatchFunction


@dataclass
class Counting:
    """Starts executors that run the function as it is, and writes down what becomes of them."""

    usual_concurrent_batches: int = 3
    started: list["Running"] = field(default_factory=list)

    def start(self, function: BatchFunction) -> "Running":
        self.started.append(Running(function))
        return self.started[-1]


class Running:
    is_async = False

    def __init__(self, function: BatchFunction) -> None:
        self.function = function
        self.healthy = True
        self.counts: dict[str, int]
        self.stopped = 0
        self.process = os.getpid()

    def run(self, requests: Sequence[Any]) -> Sequence[Any]:
        collated = self.function.collate(requests)
        return self.function.uncollate(self.function.call(requests, collated), collated)

    async def run_async(self, requests: Sequence[Any]) -> Sequence[Any]:
        raise NotImplementedError

    def stop(self) -> None:
        self.stopped += 1


def test_the_function_runs_in_what_was_started_for_it() -> None:
    factory = Counting()
    double = batched(lambda xs, *, k=2: [k * x for x in xs], executor=factory)
    assert (double.call(1), double.call(2, k=5)) == (2, 10)
    assert len(factory.started) == 1
    other = batched(lambda xs: xs, executor=factory, collate=tuple)
    assert other.call(3) == 3
    assert len(factory.started) == 2


def test_methods_have_an_executor_for_each_instance() -> None:
    factory = Counting()

    class Model:
        def __init__(self, k: int) -> None:
            self.k = k

        @batched(executor=factory)
        def run(self, xs: list[int]) -> list[int]:
            return [self.k * x for x in xs]

    one, two = Model(10), Model(100)
    assert (one.run.call(1), two.run.call(1), one.run.call(2)) == (10, 100, 20)
    assert len(factory.started) == 2
    del one
    gc.collect()
    assert [each.stopped for each in factory.started] == [1, 0]


def test_it_says_how_many_batches_it_wants_at_once_unless_told() -> None:
    together = threading.Barrier(3)

    def meet(items: list[int]) -> list[int]:
        together.wait(10)
        return items

    with batched(meet, executor=Counting(), max_batch_size=1) as function:
        assert sorted(future.result(10) for future in [function.submit(n) for n in range(3)]) == [0, 1, 2]


@pytest.mark.parametrize(
    ("limits", "changed", "most"),
    [
        ({}, {}, 3),
        ({}, {"max_batch_size": 1}, 3),
        ({"max_concurrent_batches": 1}, {}, 1),
        ({"max_concurrent_batches": 2}, {"max_concurrent_batches": 1}, 1),
        ({"max_concurrent_batches": 1}, {"max_wait": 0}, 1),
        ({"max_concurrent_batches": None}, {}, 5),
    ],
)
def test_a_number_of_batches_that_is_given_wins_even_if_it_is_the_default(
    limits: dict[str, Any], changed: dict[str, Any], most: int
) -> None:
    held = Held()
    function: Any = batched(held, executor=Counting(), max_batch_size=1, **limits)
    function.configure(**changed)
    futures = [function.submit(n) for n in range(5)]
    until(lambda: function.statistics().running_batches >= most)
    shown = function.statistics()
    held.gate.set()
    assert [future.result(LONG) for future in futures] == [0, 1, 2, 3, 4]
    function.close()
    assert (shown.running_batches, shown.waiting) == (most, 5 - most)


def test_it_is_stopped_when_the_batcher_is_closed_or_collected() -> None:
    factory = Counting()
    closed, collected = (batched(lambda xs: xs, executor=factory) for _ in range(2))
    closed.call(1)
    collected.call(1)
    closed.close()
    assert [each.stopped > 0 for each in factory.started] == [True, False]
    del collected
    gc.collect()
    assert [each.stopped > 0 for each in factory.started] == [True, True]


def test_a_part_that_is_gone_shows_in_the_health() -> None:
    factory = Counting()
    for options in ({}, {"on_error": "bisect"}):
        function = batched(lambda xs: xs, executor=factory, **options)
        assert function.statistics().healthy
        factory.started[-1].healthy = False
        assert not function.statistics().healthy
        assert function.call(1) == 1


def test_what_an_executor_counts_shows_in_the_statistics() -> None:
    factory = Counting()
    for options in ({}, {"on_error": "bisect"}):
        function = batched(lambda xs: xs, executor=factory, **options)
        assert function.statistics().executor == {}
        factory.started[-1].counts = {"retries": 1}
        before = function.statistics()
        factory.started[-1].counts["retries"] = 2
        assert (before.executor, function.statistics().executor) == ({"retries": 1}, {"retries": 2})
    assert batched(lambda xs: xs).statistics().executor == {}


def test_culprits_are_searched_for_on_whatever_executor() -> None:
    def reciprocal(items: list[int]) -> list[float]:
        return [1 / item for item in items]

    factory = Counting()
    futures = [batched(reciprocal, executor=factory, on_error="bisect").submit(1)]
    function = batched(reciprocal, executor=factory, on_error="bisect", max_wait=60, max_batch_size=4)
    futures = [function.submit(item) for item in (1, 0, 2, 4)]
    assert isinstance(futures[1].exception(10), ZeroDivisionError)
    assert [futures[place].result(10) for place in (0, 2, 3)] == [1.0, 0.5, 0.25]
    assert isinstance(Bisecting(factory.started[0]).inside, Running)


class Lost(Running):
    def run(self, requests: Sequence[Any]) -> Sequence[Any]:
        super().run(requests)
        raise ExecutorLost("gone")


def test_a_lost_executor_is_never_searched_for_culprits() -> None:
    class Factory(Counting):
        def start(self, function: BatchFunction) -> Running:
            return Lost(function)

    seen: list[list[int]] = []
    function = batched(
        lambda xs: seen.append(xs) or xs, executor=Factory(), on_error="bisect", max_wait=60, max_batch_size=4
    )
    assert {type(future.exception(10)) for future in [function.submit(n) for n in range(4)]} == {ExecutorLost}
    assert seen == [[0, 1, 2, 3]]


def test_a_batcher_whose_executor_was_lost_keeps_no_items() -> None:
    class Item:
        pass

    class Gone:
        is_async = False

        def run(self, requests: Sequence[Any]) -> Sequence[Any]:
            raise ExecutorLost("gone")

        async def run_async(self, requests: Sequence[Any]) -> Sequence[Any]:
            raise NotImplementedError

    function: Any = batched(lambda items: items, executor=Gone())
    item = Item()
    kept = weakref.ref(item)
    assert isinstance(function.submit(item).exception(10), ExecutorLost)
    function.close()
    del item
    assert kept() is None


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_starts_one_of_its_own() -> None:
    factory = Counting()
    function = batched(lambda xs: [os.getpid() for _ in xs], executor=factory)
    function.call(1)
    child = os.fork()
    if not child:
        mine = function.call(1) == os.getpid() == factory.started[-1].process
        os._exit(0 if mine and len(factory.started) == 2 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert len(factory.started) == 1


def test_what_is_no_executor_is_refused_with_a_hint() -> None:
    with pytest.raises(TypeError, match=r"executor must be None, an executor .* did you mean Counting\(\.\.\.\)"):
        batched(executor=Counting)
    with pytest.raises(TypeError, match=r"did you mean TorchExecutor\('cuda'\)"):
        batched(executor="cuda")
