"""An executor that is gone for good: everybody is told at once, and nothing more gets to it."""

from collections.abc import Callable
from typing import Any

from support.until import until

from batchlib import ExecutorLost

from .held import Held, Kind
from .runtimes import Runtime

Make = Callable[..., Any]


class Broken(RuntimeError):
    """What the device said."""


def gone(items: list[Any]) -> list[Any]:
    raise ExecutorLost("the device is gone: start a new process") from Broken("device-side assert")


def test_who_runs_waits_or_comes_later_is_told_at_once(runtime: Runtime, kind: Kind, make: Make) -> None:
    held = Held(kind, gone)
    function = make(held, max_batch_size=2)
    running = runtime.start_each(function, [1])
    until(lambda: held.seen)
    waiting = runtime.start_each(function, [2, 3, 4])
    until(lambda: function.statistics().waiting == 3)
    assert function.statistics().healthy
    held.gate.open()
    later = None
    errors = [call.error() for call in (*running, *waiting)]
    later = runtime.start(function, 5).error()
    assert all(isinstance(error, ExecutorLost) for error in (*errors, later))
    assert all(isinstance(error.__cause__, Broken) for error in (*errors, later) if error is not None)
    assert len({id(error) for error in (*errors, later)}) == 5
    assert held.seen == [[1]]
    done = function.statistics()
    assert (done.healthy, done.closed, done.waiting, done.running) == (False, True, 0, 0)
    assert (done.failed, done.rejected, done.submitted) == (1, 4, 5)


def test_a_lost_executor_is_never_searched_for_culprits(runtime: Runtime, kind: Kind, make: Make) -> None:
    held = Held(kind, gone)
    function = make(held, on_error="bisect")
    held.gate.open()
    assert {type(call.error()) for call in runtime.start_each(function, range(4))} == {ExecutorLost}
    assert len(held.seen) == 1


def test_one_that_is_lost_can_be_closed(runtime: Runtime, kind: Kind, make: Make) -> None:
    held = Held(kind, gone)
    function = make(held)
    held.gate.open()
    assert isinstance(runtime.start(function, 1).error(), ExecutorLost)
    function.close()
    assert isinstance(runtime.start(function, 2).error(), ExecutorLost)
