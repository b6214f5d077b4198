"""An executor that is gone for good: everybody is told at once, and nothing more gets to it."""

from collections.abc import Callable, Sequence
from typing import Any

from support.until import until

from batchlib import ExecutorLost

from .held import Held, Kind, of_kind
from .runtimes import Runtime

Make = Callable[..., Any]


class Broken(RuntimeError):
    """What the device said."""


def gone(items: list[Any]) -> list[Any]:
    raise ExecutorLost("the device is gone: start a new process") from Broken("device-side assert")


class Executor:
    """Runs the batches of a Held."""

    def __init__(self, held: Held, kind: Kind) -> None:
        self.is_async = kind == "async"
        self._function: Any = held.function

    def run(self, requests: Sequence[Any]) -> Any:
        return self._function([request.args[0] for request in requests])

    async def run_async(self, requests: Sequence[Any]) -> Any:
        return await self._function([request.args[0] for request in requests])


def test_who_runs_waits_or_comes_later_is_told_at_once(runtime: Runtime, kind: Kind, make: Make) -> None:
    held = Held(kind, gone)
    function = make(held, max_batch_size=2, executor=Executor(held, kind))
    running = runtime.start_each(function, [1])
    until(lambda: held.seen)
    waiting = runtime.start_each(function, [2, 3, 4])
    until(lambda: function.statistics().waiting == 3)
    assert function.statistics().healthy
    held.gate.open()
    errors = [call.error() for call in (*running, *waiting, runtime.start(function, 5))]
    assert all(isinstance(error, ExecutorLost) for error in errors)
    assert all(isinstance(error.__cause__, Broken) for error in errors if error is not None)
    assert len({id(error) for error in errors}) == 5
    assert held.seen == [[1]]
    done = function.statistics()
    assert (done.healthy, done.closed, done.waiting, done.running) == (False, True, 0, 0)
    assert (done.failed, done.rejected, done.submitted) == (1, 4, 5)


def test_who_has_an_outcome_when_it_is_lost_gets_that(runtime: Runtime, kind: Kind, make: Make) -> None:
    def half(items: list[Any]) -> list[Any]:
        raise ExecutorLost("gone", outcomes={0: "done"})

    held = Held(kind, half)
    function = make(held, max_batch_size=1, executor=Executor(held, kind))
    running = runtime.start(function, 1)
    until(lambda: held.seen)
    waiting = runtime.start_each(function, [2, 3])
    until(lambda: function.statistics().waiting == 2)
    held.gate.open()
    assert running.result() == "done"
    assert [type(call.error()) for call in waiting] == [ExecutorLost] * 2
    done = function.statistics()
    assert (done.healthy, done.closed, done.completed, done.failed, done.rejected) == (False, True, 1, 0, 2)


class OneLost(ExecutorLost):
    """Somebody's own, which leaves out what it inherits."""

    def __init__(self, device: str, code: int) -> None:
        self.device = device


def test_an_error_of_ones_own_strands_nobody(runtime: Runtime, kind: Kind, make: Make) -> None:
    def function(items: list[Any]) -> list[Any]:
        raise OneLost("cuda:0", 710)

    held = Held(kind, function)
    batcher = make(held, max_batch_size=1, executor=Executor(held, kind))
    calls = [runtime.start(batcher, 1)]
    until(lambda: held.seen)
    calls += runtime.start_each(batcher, [2, 3])
    until(lambda: batcher.statistics().waiting == 2)
    held.gate.open()
    calls += [runtime.start(batcher, 4)]
    assert [(type(error), error.args) for call in calls if (error := call.error())] == [
        (ExecutorLost, ("cuda:0", 710))
    ] * 4


def test_one_that_is_lost_can_be_closed(runtime: Runtime, kind: Kind, make: Make) -> None:
    held = Held(kind, gone)
    function = make(held, executor=Executor(held, kind))
    held.gate.open()
    assert isinstance(runtime.start(function, 1).error(), ExecutorLost)
    function.close()
    assert isinstance(runtime.start(function, 2).error(), ExecutorLost)


def test_the_lost_executor_of_another_function_is_an_error_like_others(
    runtime: Runtime, kind: Kind, make: Make
) -> None:
    """Raised inside a function, it comes from a batched one that this one has called."""

    def calls_another(items: list[Any]) -> list[Any]:
        return gone(items) if 1 in items else items

    function = make(of_kind(kind, calls_another), max_batch_size=1)
    assert isinstance(runtime.start(function, 1).error(), ExecutorLost)
    assert runtime.start(function, 2).result() == 2
    assert function.statistics().healthy
