"""A forked child starts afresh: no thread, no lock and no request of the parent's is in its way."""

import asyncio
import os
import threading
from collections.abc import Callable
from typing import Any

import pytest
import trio
from support import Held
from support.until import until

from batchlib import batched

# From Python 3.12 on every fork of a process with threads warns; whether that is wise is the caller's business.
pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")

InChild = Callable[[Callable[[], Any]], str]


def with_pid(items: list[int]) -> list[tuple[int, int]]:
    return [(os.getpid(), item) for item in items]


async def with_pid_async(items: list[int]) -> list[tuple[int, int]]:
    return with_pid(items)


FUNCTIONS = pytest.mark.parametrize("function", [with_pid, with_pid_async])


@FUNCTIONS
def test_what_waits_in_the_parent_runs_in_the_parent_alone(in_child: InChild, function: Any) -> None:
    f = batched(function, max_batch_size=2, max_wait=60)
    pending = f.submit(0)

    def work() -> Any:
        fresh = f.statistics().submitted == f.statistics().waiting == 0
        mine = [future.result() for future in (f.submit(1), f.submit(2))]
        return fresh and mine == [(os.getpid(), 1), (os.getpid(), 2)]

    assert in_child(work) == "True"
    assert f.submit(3).result() == (os.getpid(), 3)
    assert pending.result() == (os.getpid(), 0)
    assert f.statistics().submitted == 2


@FUNCTIONS
@pytest.mark.parametrize("used", [0, 1, 3])
def test_a_child_of_an_idle_parent(in_child: InChild, function: Any, used: int) -> None:
    f = batched(function)
    for item in range(used):
        f.call(item)
    assert in_child(lambda: f.call(7) == (os.getpid(), 7) and f.statistics().submitted == 1) == "True"
    assert f.call(8) == (os.getpid(), 8)


def test_a_child_of_a_busy_parent(in_child: InChild) -> None:
    """The parent's thread holds a batch, and the child has no such thread."""
    held = Held(with_pid)
    f = batched(held, max_batch_size=1)
    running, waiting = f.submit(1), f.submit(2)
    assert held.started.wait()

    def work() -> Any:
        held.gate.set()
        return f.call(3) == (os.getpid(), 3) and held.seen[-1] == [3]

    assert in_child(work) == "True"
    held.gate.set()
    assert [running.result(), waiting.result()] == [(os.getpid(), 1), (os.getpid(), 2)]
    assert held.seen == [[1], [2]]


@pytest.mark.parametrize("drain", [True, False])
def test_a_closed_batcher_is_closed_in_the_child_too(in_child: InChild, drain: bool) -> None:
    f = batched(with_pid)
    f.call(1)
    f.close(drain=drain)
    assert in_child(lambda: f.call(2)).startswith("Closed(")


@FUNCTIONS
def test_a_child_may_close_what_its_parent_goes_on_using(in_child: InChild, function: Any) -> None:
    f = batched(function)
    f.call(1)
    assert in_child(lambda: (f.call(2), f.close(), f.statistics().closed)[-1]) == "True"
    assert f.call(3) == (os.getpid(), 3)


@FUNCTIONS
def test_forks_in_the_midst_of_calls_from_many_threads(in_child: InChild, function: Any) -> None:
    """Whatever lock is held at the moment of the fork, the child does not wait for it."""
    f = batched(function, max_batch_size=4)
    stop = threading.Event()
    wrong: list[Any] = []

    def hammer() -> None:
        while not stop.is_set():
            if f.call(1) != (os.getpid(), 1):
                wrong.append(1)

    threads = [threading.Thread(target=hammer) for _ in range(4)]
    for thread in threads:
        thread.start()
    children = [in_child(lambda: [f.call(item)[1] for item in range(20)] == list(range(20))) for _ in range(20)]
    stop.set()
    for thread in threads:
        thread.join()
    assert children == ["True"] * 20
    assert wrong == []


@FUNCTIONS
def test_a_fork_inside_a_running_loop(in_child: InChild, function: Any) -> None:
    f = batched(function, max_batch_size=2, max_wait=60)

    async def pair() -> list[Any]:
        return await asyncio.gather(f(1), f(2))

    async def main() -> None:
        pending = asyncio.create_task(f(0))
        while not f.statistics().waiting:
            await asyncio.sleep(0)
        assert in_child(lambda: asyncio.run(pair()) == with_pid([1, 2])) == "True"
        assert await f(3) == (os.getpid(), 3)
        assert await pending == (os.getpid(), 0)

    asyncio.run(main())


@FUNCTIONS
def test_trio_in_the_child_of_a_parent_that_used_trio(in_child: InChild, function: Any) -> None:
    f = batched(function)
    assert trio.run(f, 1) == (os.getpid(), 1)
    assert in_child(lambda: trio.run(f, 2) == (os.getpid(), 2)) == "True"
    assert trio.run(f, 3) == (os.getpid(), 3)


class Model:
    @batched(max_batch_size=2, max_wait=60)
    def run(self, items: list[int]) -> list[tuple[int, int]]:
        return with_pid(items)


def test_instances_have_fresh_batchers_in_the_child(in_child: InChild) -> None:
    model = Model()
    pending = model.run.submit(0)

    def work() -> Any:
        futures = [model.run.submit(1), model.run.submit(2)]
        return [future.result() for future in futures] == with_pid([1, 2])

    assert in_child(work) == "True"
    assert model.run.submit(3).result() == (os.getpid(), 3)
    assert pending.result() == (os.getpid(), 0)


def test_grandchildren(in_child: InChild) -> None:
    f = batched(with_pid)
    f.call(0)

    def work() -> Any:
        f.call(1)
        return in_child(lambda: f.call(2) == (os.getpid(), 2))

    assert in_child(work) == "True"


def test_deadlines_pass_in_the_child(in_child: InChild) -> None:
    """They need a thread that the child has to start for itself."""
    f = batched(with_pid, max_batch_size=2, max_wait=60)
    before = f.options(timeout=60).submit(0)
    until(lambda: f.statistics().waiting == 1)
    assert in_child(lambda: f.options(timeout=0.01).call(1)).startswith("DeadlineExceeded(")
    assert f.submit(2).result() == (os.getpid(), 2)
    assert before.result() == (os.getpid(), 0)
