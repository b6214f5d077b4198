"""Every instance has a batcher of its own, which lives as long as the instance and no longer."""

import gc
import threading
import weakref
from typing import Any

import pytest
from support import Held
from support.callers import Start, outcomes
from support.until import until

from batchlib import batched


class Model:
    def __init__(self, weight: int) -> None:
        self.weight = weight
        self.seen: list[list[int]] = []

    @batched(max_batch_size=2, max_wait=60)
    def run(self, items: list[int]) -> list[int]:
        self.seen.append(sorted(items))
        return [item * self.weight for item in items]

    @batched(max_batch_size=1)
    def name(self, items: list[int]) -> list[str]:
        return [f"{type(self).__name__} {item}" for item in items]


class Loud(Model):
    """Inherits `run`, and has a `name` of its own."""

    @batched(max_batch_size=1)
    def name(self, items: list[int]) -> list[str]:
        return [f"LOUD {item}" for item in items]


def threads_of_batchlib() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("batchlib")}


def wait_for_one(method: Any) -> None:
    until(lambda: method.statistics().waiting == 1)


@pytest.mark.parametrize("kinds", [(Model, Model), (Model, Loud)])
def test_calls_on_two_instances_never_meet(start: Start, kinds: Any) -> None:
    a, b = kinds[0](10), kinds[1](100)
    calls = [start(a.run, 1), start(b.run, 1), start(a.run, 2), start(b.run, 2)]
    assert outcomes(calls) == [10, 100, 20, 200]
    assert a.seen == b.seen == [[1, 2]]
    assert a.run.statistics().submitted == b.run.statistics().submitted == 2


def test_an_override_has_its_own_batcher(start: Start) -> None:
    loud = Loud(1)
    assert start(loud.name, 1).result() == "LOUD 1"
    assert start(super(Loud, loud).name, 1).result() == "Loud 1"
    assert loud.name.statistics().submitted == 1


def test_the_class_has_the_method_too(start: Start) -> None:
    model = Model(3)
    calls = [start(model.run, 1), start(model.run, 2)]
    assert outcomes(calls) == [3, 6]
    assert "batched method Model.run" in repr(Model.run)
    with pytest.raises(AttributeError, match="on an instance"):
        Model.run.submit  # noqa: B018


@pytest.mark.parametrize("used", [False, True])
def test_an_instance_that_is_dropped_is_gone_with_its_threads(start: Start, used: bool) -> None:
    before = threads_of_batchlib()
    model = Model(3)
    if used:
        assert outcomes([start(model.run, 1), start(model.run, 2)]) == [3, 6]
    gone = weakref.ref(model)
    del model
    until(lambda: gc.collect() is not None and gone() is None)
    until(lambda: not threads_of_batchlib() - before)


def test_a_running_batch_keeps_its_instance_and_no_longer(start: Start) -> None:
    held = Held()

    class Slow:
        @batched(max_batch_size=1)
        def run(self, items: list[int]) -> list[int]:
            return [*held(items)]

    slow = Slow()
    gone = weakref.ref(slow)
    call = start(slow.run, 1)
    assert held.started.wait()
    del slow
    gc.collect()
    assert gone() is not None
    held.gate.set()
    assert call.result() == 1
    del call
    until(lambda: gc.collect() is not None and gone() is None)


def test_a_waiting_request_keeps_its_instance(start: Start) -> None:
    model = Model(3)
    gone = weakref.ref(model)
    first = start(model.run, 1)
    method = model.run
    wait_for_one(method)
    del model
    gc.collect()
    assert gone() is not None
    second = start(method, 2)
    assert outcomes([first, second]) == [3, 6]
    del method, first, second
    until(lambda: gc.collect() is not None and gone() is None)


def test_a_successor_at_the_same_address_gets_nothing_of_its_predecessor(start: Start) -> None:
    """Identity is looked up by address: the batcher of one that is gone must not serve the next one there."""
    for weight in range(50):
        model = Model(weight)
        assert outcomes([start(model.run, 1), start(model.run, 2)]) == [weight, 2 * weight]
        assert model.run.statistics().submitted == 2
        del model
