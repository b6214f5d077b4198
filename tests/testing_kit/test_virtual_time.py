"""Virtual time in a service's tests: on asyncio, on trio and in threads, exact and without a sleep."""

import asyncio
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import anyio
import pytest

from batchlib import BatchFailed, BlockingCallError, Closed, DeadlineExceeded, batched
from batchlib.testing import ManualExecutor, VirtualClock, VirtualTime, override, virtual_time

Run = Callable[..., Any]


@pytest.fixture(params=["asyncio", "uvloop", "trio"])
def run(request: pytest.FixtureRequest) -> Run:
    """Runs an async function to its end on one of the loops."""
    options = {"use_uvloop": True} if request.param == "uvloop" else {}
    backend = "trio" if request.param == "trio" else "asyncio"
    return lambda function: anyio.run(function, backend=backend, backend_options=options)


def double(numbers: list[int]) -> list[int]:
    return [2 * number for number in numbers]


async def double_async(numbers: list[int]) -> list[int]:
    await anyio.sleep(0)
    return double(numbers)


FUNCTIONS = {"plain": double, "async": double_async}


@pytest.fixture(params=FUNCTIONS)
def function(request: pytest.FixtureRequest) -> Any:
    return batched(FUNCTIONS[request.param], max_batch_size=8, max_wait=0.5, timeout=2.0)


class Caller:
    """One awaited call, and what it got."""

    def __init__(self) -> None:
        self.got: Any = None

    async def __call__(self, call: Any, *args: Any) -> None:
        try:
            self.got = await call(*args)
        except Exception as error:
            self.got = error


def test_held_back_until_max_wait_and_not_a_moment_longer(run: Run, function: Any) -> None:
    async def test() -> None:
        with virtual_time(function) as time:
            async with anyio.create_task_group() as tasks:
                first, second = Caller(), Caller()
                tasks.start_soon(first, function, 1)
                await time.aadvance(0.25)
                tasks.start_soon(second, function, 2)
                await time.aadvance(0.125)
                assert (first.got, second.got) == (None, None)
                await time.aadvance(0.125)
                assert (first.got, second.got) == (2, 4)
                assert function.statistics().reasons == {"max_wait": 1}
                assert time.now() == 0.5

    run(test)


def test_chains_of_calls_come_at_their_own_instants(run: Run, function: Any) -> None:
    """A service that calls three times in a row, moved on in a single step."""
    instants = []

    async def service(time: VirtualTime) -> None:
        number = 1
        for _ in range(3):
            number = await function(number)
            instants.append((time.now(), number))

    async def test() -> None:
        with virtual_time(function, start=10.0) as time:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(service, time)
                await time.aadvance(60)

    run(test)
    assert instants == [(10.5, 2), (11.0, 4), (11.5, 8)]


def test_map_is_waited_for(run: Run, function: Any) -> None:
    got: list[int] = []

    async def service() -> None:
        got.extend([result async for result in function.map(range(20))])

    async def test() -> None:
        with virtual_time(function) as time:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(service)
                await time.aadvance(0.5)
                assert len(got) == 20

    run(test)


def test_a_deadline_just_before_and_at_its_instant(run: Run) -> None:
    held = ManualExecutor(is_async=True)
    function = batched(double, timeout=2.0)

    async def test() -> None:
        with virtual_time(function, executor=held) as time:
            async with anyio.create_task_group() as tasks:
                first, second = Caller(), Caller()
                tasks.start_soon(first, function, 1)
                await time.asettle()
                tasks.start_soon(second, function.options(timeout=1.0), 2)
                await time.aadvance(0.75)
                assert second.got is None
                await time.aadvance(0.25)
                assert isinstance(second.got, DeadlineExceeded)
                held.batches[0].finish()
                await time.asettle()
                assert first.got == 1

    run(test)


def test_a_function_takes_no_virtual_time() -> None:
    """A plain one that lasts: the clock stands still until it has returned, deadlines or not."""
    gate = threading.Event()

    def slow(numbers: list[int]) -> list[int]:
        assert gate.wait(30)
        return numbers

    function = batched(slow, max_wait=0.5, timeout=0.75)
    with virtual_time(function) as time:
        future = function.submit(1)
        mover = threading.Thread(target=time.advance, args=(60,))
        mover.start()
        while not function.statistics().running:
            pass
        assert time.now() == 0.5
        gate.set()
        mover.join()
        assert future.result() == 1
        assert time.now() == 60


def test_in_threads(function: Any) -> None:
    with virtual_time(function) as time:
        futures = [function.submit(number) for number in range(3)]
        time.advance(0.25)
        assert not any(future.done() for future in futures)
        time.advance(0.25)
        assert [future.result(0) for future in futures] == [0, 2, 4]  # done, not only on their way


@pytest.mark.parametrize("is_async", [False, True])
def test_held_batches_are_at_rest(is_async: bool) -> None:
    held = ManualExecutor(is_async=is_async)
    function = batched(double, max_concurrent_batches=2, max_batch_size=1, timeout=10)
    with virtual_time(function, executor=held) as time:
        futures = [function.submit(number) for number in range(3)]
        time.settle()
        by_item = {batch.items[0]: batch for batch in held.batches}  # they may have come in either order
        assert by_item.keys() == {0, 1}
        by_item[1].finish([7])
        time.settle()
        assert {batch.items[0] for batch in held.batches} == {0, 2}
        assert futures[1].result(0) == 7
        time.advance(10)
        assert isinstance(futures[0].exception(0), DeadlineExceeded)


def test_several_functions_share_the_time() -> None:
    one, other = batched(double, max_wait=0.5), batched(double, max_wait=0.75)
    with virtual_time(one, other) as time:
        first, second = one.submit(1), other.submit(2)
        time.advance(0.5)
        assert (first.done(), second.done()) == (True, False)
        time.advance(0.25)
        assert second.result(0) == 4


def test_an_override_inside_keeps_the_time() -> None:
    function = batched(double, max_wait=0.5)
    with virtual_time(function) as time, override(function, max_wait=1.0):
        future = function.submit(1)
        time.advance(0.5)
        assert not future.done()
        time.advance(0.5)
        assert future.result(0) == 2


def test_a_broken_function_is_at_rest_too() -> None:
    function: Any = batched(lambda numbers: numbers[0].nothing, max_wait=0.5)
    with virtual_time(function) as time:
        future = function.submit(1)
        time.advance(0.5)
        assert isinstance(future.exception(0), AttributeError | BatchFailed)


@pytest.mark.parametrize("held", [False, True])
def test_a_batch_that_waits_for_the_time_itself(held: bool) -> None:
    """Its function calls another one, which is held back or held: time goes on."""
    manual = ManualExecutor()
    inner = batched(double, max_wait=0.5)
    outer = batched(lambda numbers: [inner.call(number) for number in numbers])
    with virtual_time(outer, inner) as time, override(inner, executor=manual if held else None):
        future = outer.submit(1)
        time.advance(0.25)
        assert (inner.statistics().waiting, outer.statistics().running) == (1, 1)
        time.advance(0.25)
        if held:
            assert not future.done()
            manual.batches[0].finish([2])
            time.settle()
        assert future.result(0) == 2


def test_a_loop_that_ends_while_it_waits() -> None:
    gate = threading.Event()

    def held(numbers: list[int]) -> list[int]:
        assert gate.wait(30)
        return numbers

    function = batched(held)

    async def give_up(time: VirtualTime) -> None:
        waiting = asyncio.ensure_future(time.asettle())
        while not function.statistics().running:
            await asyncio.sleep(0)
        await anyio.wait_all_tasks_blocked()
        waiting.cancel()

    with virtual_time(function) as time:
        future = function.submit(1)
        asyncio.run(give_up(time))
        gate.set()
        time.settle()
        assert future.result(0) == 1


async def test_blocking_is_refused_on_a_loop(function: Any) -> None:
    with virtual_time(function) as time:
        for move in (time.settle, partial(time.advance, 1), partial(time.advance_to, 1)):
            with pytest.raises(BlockingCallError, match="aadvance"):
                move()


async def test_other_tasks_and_callbacks_may_be_at_work(function: Any) -> None:
    """A service takes turns of the loop on its way to the call."""
    with virtual_time(function) as time:

        async def service() -> int:
            for _ in range(50):
                await asyncio.sleep(0)
            answer: int = await asyncio.shield(function(1))
            for _ in range(50):
                await asyncio.sleep(0)
            return answer

        task = asyncio.create_task(service())
        await time.aadvance(0.5)
        assert task.result() == 2


def test_calls_left_at_the_end_get_closed(run: Run, function: Any) -> None:
    async def test() -> None:
        async with anyio.create_task_group() as tasks:
            caller = Caller()
            with virtual_time(function) as time:
                tasks.start_soon(caller, function, 1)
                await time.asettle()
            await anyio.wait_all_tasks_blocked()
            assert isinstance(caller.got, Closed)

    run(test)


def test_a_second_clock_is_refused(function: Any) -> None:
    with pytest.raises(TypeError, match="virtual_time gives the clock"), virtual_time(function, clock=VirtualClock()):
        pass


def test_it_is_a_clock(function: Any) -> None:
    with virtual_time(function, start=5) as time:
        assert isinstance(time, VirtualClock)
        assert time.now() == 5
