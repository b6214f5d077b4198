"""Cancel scopes around a call behave as always; their deadline is a hint to the policies and never ends a request."""

import asyncio
from collections.abc import Callable
from typing import Any

import anyio
import pytest
import trio
from support import VirtualClock
from support.until import until

from batchlib.policies import Greedy

from .held import Held, Kind
from .runtimes import FuturesRuntime, LoopRuntime, Runtime, ThreadsRuntime

Make = Callable[..., Any]
SOON = 0.002  # seconds until a scope ends in real time; nothing is ordered by it


class Hints:
    """A dispatch policy that notes what the requests were given, and dispatches all."""

    def __init__(self) -> None:
        self.seen: list[float | None] = []

    def start(self) -> "Hints":
        return self

    def decide(self, group: Any, now: float) -> Any:
        self.seen += [request.hint for request in group.fill().requests]
        return Greedy().start().decide(group, now)


def test_move_on_after_takes_a_waiting_request_out(loop: LoopRuntime, make: Make) -> None:
    held = Held("plain")
    function = make(held)
    first = loop.start(function, 0)
    until(lambda: held.seen)

    async def main() -> bool:
        with anyio.move_on_after(SOON) as scope:
            await function(1)
        return scope.cancelled_caught

    assert loop.run(main)
    now = function.statistics()
    assert (now.cancelled, now.expired, now.waiting) == (1, 0, 0)
    held.gate.open()
    assert first.result() == 0
    assert held.seen == [[0]]


def test_fail_after_raises_its_own_error(loop: LoopRuntime, kind: Kind, make: Make) -> None:
    held = Held(kind)
    function = make(held)

    async def main() -> None:
        with anyio.fail_after(SOON):
            await function(1)

    error = loop.spawn(main)[0].error()
    assert type(error) is TimeoutError
    now = function.statistics()
    assert (now.cancelled, now.expired) == (1, 0)


def test_a_scope_that_is_left_in_time_leaves_no_trace(loop: LoopRuntime, kind: Kind, make: Make) -> None:
    held = Held(kind)
    held.gate.open()
    function = make(held)

    async def main() -> Any:
        with anyio.move_on_after(3600) as scope:
            result = await function(1)
        assert not scope.cancelled_caught
        with anyio.fail_after(3600):
            return result, await function(2)

    assert loop.run(main) == (1, 2)


def test_cancelling_a_scope_around_many_calls(loop: LoopRuntime, kind: Kind, make: Make) -> None:
    held = Held(kind)
    function = make(held)

    async def main() -> None:
        async with anyio.create_task_group() as group:
            for number in range(5):
                group.start_soon(function, number)
            while not held.seen:
                await anyio.sleep(0)
            group.cancel_scope.cancel()

    loop.run(main)
    assert function.statistics().cancelled == 5
    held.gate.open()
    until(lambda: function.statistics().running_batches == 0)


def test_a_shielded_scope_keeps_its_call(loop: LoopRuntime, kind: Kind, make: Make) -> None:
    held = Held(kind)
    function = make(held)
    got: list[Any] = []

    async def main() -> None:
        with anyio.CancelScope() as outer:
            with anyio.CancelScope(shield=True):
                outer.cancel()
                got.append(await function(1))

    (call,) = loop.spawn(main)
    until(lambda: held.seen)
    held.gate.open()
    call.result()
    assert got == [1]


def test_the_librarys_own_timeouts_do_the_same(loop: LoopRuntime, kind: Kind, make: Make) -> None:
    held = Held(kind)
    function = make(held)

    async def main() -> None:
        if trio.lowlevel.in_trio_task():
            with trio.fail_after(SOON):
                await function(1)
        else:
            async with asyncio.timeout(SOON):
                await function(1)

    error = loop.spawn(main)[0].error()
    assert isinstance(error, TimeoutError | trio.TooSlowError)
    assert function.statistics().cancelled == 1


def test_the_scopes_deadline_arrives_as_a_hint(loop: LoopRuntime, kind: Kind, clock: VirtualClock, make: Make) -> None:
    hints = Hints()
    held = Held(kind)
    held.gate.open()
    function = make(held, clock=clock, dispatch=hints)

    async def main() -> None:
        await function(0)
        with anyio.move_on_after(1_000):
            await function(1)
            with anyio.fail_after(100):
                await function(2)
            with anyio.fail_after(5_000):
                await function(3)
        with anyio.CancelScope():
            await function(4)

    loop.run(main)
    none, outer, inner, still_outer, endless = hints.seen
    assert none is endless is None
    # What has gone by in real time since the scope was entered is taken off, on the batcher's own clock.
    assert outer is not None
    assert inner is not None
    assert still_outer is not None
    assert 100 < inner <= 200 < outer <= 1_100.001
    assert still_outer <= outer


def test_a_hint_never_ends_a_request(loop: LoopRuntime, kind: Kind, clock: VirtualClock, make: Make) -> None:
    held = Held(kind)
    function = make(held, clock=clock, dispatch=Hints())

    async def main() -> list[Any]:
        with anyio.fail_after(3_600):
            return await loop.gather(function, range(3))

    (call,) = loop.spawn(main)
    until(lambda: held.seen)
    clock.advance(10_000)
    now = function.statistics()
    assert (now.expired, now.cancelled, now.running + now.waiting) == (0, 0, 3)
    held.gate.open()
    assert call.result() == [0, 1, 2]


@pytest.mark.parametrize("calling", [ThreadsRuntime, FuturesRuntime])
def test_a_thread_has_no_scope(calling: type[Runtime], make: Make) -> None:
    hints = Hints()
    function = make(lambda items: items, dispatch=hints)
    with calling() as runtime:
        assert runtime.start(function, 1).result() == 1
    assert hints.seen == [None]
