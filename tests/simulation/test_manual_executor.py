"""The executor that is driven by hand, with real batched functions in threads, on asyncio and on trio."""

import asyncio
import functools
import threading
from collections.abc import Callable
from typing import Any

import pytest
import trio

from batchlib import BatchContractError, batched
from batchlib.simulation import ManualExecutor


def echoing(items: list[Any]) -> list[Any]:
    return items


async def asyncio_gather(*calls: Callable[[], Any]) -> list[Any]:
    return await asyncio.gather(*[call() for call in calls], return_exceptions=True)


async def trio_gather(*calls: Callable[[], Any]) -> list[Any]:
    results: list[Any] = [None] * len(calls)

    async def run(place: int) -> None:
        try:
            results[place] = await calls[place]()
        except Exception as error:
            results[place] = error

    async with trio.open_nursery() as nursery:
        for place in range(len(calls)):
            nursery.start_soon(run, place)
    return results


LOOPS = [
    pytest.param(asyncio.run, asyncio_gather, asyncio.sleep, id="asyncio"),
    pytest.param(trio.run, trio_gather, trio.sleep, id="trio"),
]


@pytest.mark.parametrize("is_async", [False, True], ids=["plain", "async"])
@pytest.mark.parametrize(("run", "gather", "sleep"), LOOPS)
def test_batches_stop_until_they_are_let_go(run: Any, gather: Any, sleep: Any, is_async: bool) -> None:
    async def main() -> None:
        executor = ManualExecutor(is_async=is_async)
        async with batched(echoing, max_batch_size=2, executor=executor) as echo:
            told: list[list[str]] = []  # what each batch held: trio starts the callers in any order

            async def let_go() -> None:
                first = await executor.arrived(1)
                told.append(first.items)
                assert executor.batches == [first]
                while echo.statistics().waiting < 3:
                    await sleep(0)
                first.finish(["one", KeyError("two")])
                second = await executor.arrived(2)
                told.append(second.items)
                second.fail(ValueError("both"))
                third = await executor.arrived(3)
                told.append(third.items)
                third.finish()
                assert (await executor.arrived(2)) is second

            *results, none = await gather(*[functools.partial(echo, item) for item in "abcde"], let_go)
            assert none is None
            outcomes = [[results["abcde".index(item)] for item in items] for items in told]
            assert [len(items) for items in told] == [2, 2, 1]
            assert outcomes[0][0] == "one"
            assert type(outcomes[0][1]) is KeyError
            assert [type(outcome) for outcome in outcomes[1]] == [ValueError, ValueError]
            assert outcomes[2] == told[2]
            assert executor.batches == []

    run(main) if run is trio.run else run(main())


def test_threads_wait_for_it() -> None:
    executor = ManualExecutor()
    with batched(echoing, max_batch_size=2, executor=executor) as echo:
        futures = [echo.submit(item) for item in range(3)]
        first = executor.wait_for(1)
        assert first.items[0] == 0
        with pytest.raises(TimeoutError, match="1 batches have arrived within 0 s, not 2"):
            executor.wait_for(2, timeout=0)
        assert not futures[0].done()
        executor.release()
        assert [future.result() for future in futures] == [0, 1, 2]
        assert echo.call(3) == 3  # nothing is held any more
        executor.hold()
        future = echo.submit(4)
        held = executor.wait_for(4)
        assert executor.batches == [held]
        assert repr(held) == "<HeldBatch [4]>"
        held.finish(["four"])
        assert future.result() == "four"


def test_an_async_batch_for_threads_is_let_go_from_a_thread() -> None:
    executor = ManualExecutor(is_async=True)
    with batched(echoing, executor=executor) as echo:
        future = echo.submit(1)
        executor.wait_for(1).finish([2])
        assert future.result() == 2


def test_a_function_makes_the_outcomes() -> None:
    executor = ManualExecutor(lambda items: [2 * item for item in items])
    with batched(echoing, executor=executor) as double:
        executor.release()
        assert double.call(4) == 8
    executor = ManualExecutor(lambda items: "no list")
    with batched(echoing, executor=executor) as broken:
        executor.release()
        with pytest.raises(BatchContractError):
            broken.call(4)
    with pytest.raises(TypeError, match="function must be callable or None, not True"):
        ManualExecutor(True)  # type: ignore[arg-type]


def test_items_of_several_parameters_are_tuples() -> None:
    def add(left: list[int], right: list[int]) -> list[int]:
        return [a + b for a, b in zip(left, right, strict=True)]

    executor = ManualExecutor()
    with batched(add, executor=executor) as adding:
        future = adding.submit(1, 2)
        held = executor.wait_for(1)
        assert held.items == [(1, 2)]
        held.finish([3])
        assert future.result() == 3


def test_a_batch_ends_once() -> None:
    executor = ManualExecutor()
    with batched(echoing, executor=executor) as echo:
        future = echo.submit(1)
        held = executor.wait_for(1)
        held.fail(OSError("disk"))
        with pytest.raises(OSError, match="disk"):
            future.result()
        for again in (held.finish, functools.partial(held.fail, KeyError())):
            with pytest.raises(RuntimeError, match="has been let go before"):
                again()


def test_a_wrong_count_is_the_contracts_error() -> None:
    executor = ManualExecutor()
    with batched(echoing, executor=executor) as echo:
        future = echo.submit(1)
        executor.wait_for(1).finish([1, 2])
        with pytest.raises(BatchContractError):
            future.result()


async def test_an_async_batch_that_everybody_leaves_is_cancelled() -> None:
    executor = ManualExecutor(is_async=True)
    async with batched(echoing, executor=executor) as echo:
        call = asyncio.ensure_future(echo(1))
        held = await executor.arrived(1)
        assert not held.cancelled
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        while not held.cancelled:
            await asyncio.sleep(0)
        assert executor.batches == []
        held.finish([1])  # nobody is there, and nothing happens
        other = asyncio.ensure_future(echo(2))
        (await executor.arrived(2)).finish()
        assert await other == 2


def test_a_loop_that_is_gone_disturbs_nobody() -> None:
    executor = ManualExecutor(is_async=True)
    with batched(echoing, executor=executor) as echo:

        async def leave() -> None:
            call = asyncio.ensure_future(echo(1))
            waiter = asyncio.ensure_future(executor.arrived(5))
            await executor.arrived(1)
            del call, waiter

        asyncio.run(leave())  # cancels both as it ends
        futures = [echo.submit(item) for item in range(2)]
        executor.wait_for(2)
        executor.release()
        assert [future.result() for future in futures] == [0, 1]
        for _ in range(3):
            echo.call(1)
        assert executor.wait_for(5) is not None


def test_many_threads_let_one_batch_go_once() -> None:
    executor = ManualExecutor()
    with batched(echoing, executor=executor) as echo:
        future = echo.submit(1)
        held = executor.wait_for(1)
        barrier, refused = threading.Barrier(4), []

        def finish(outcome: int) -> None:
            barrier.wait()
            try:
                held.finish([outcome])
            except RuntimeError as error:
                refused.append(error)

        threads = [threading.Thread(target=finish, args=(outcome,)) for outcome in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert future.result() in range(4)
        assert len(refused) == 3
