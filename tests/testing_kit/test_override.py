"""Other options for the length of a block: which queue a call goes to, and that all is as before afterwards."""

import threading
from typing import Any

import anyio
import pytest

from batchlib import Closed, ItemTooLarge, batched
from batchlib.policies import CostLimit, DeadlineAware, MaxWaiting
from batchlib.testing import ManualExecutor, VirtualClock, immediate, override, virtual_time


def sizes(items: list[Any]) -> list[int]:
    return [len(items)] * len(items)


class Service:
    @batched(max_wait=60)
    def method(self, items: list[Any]) -> list[int]:
        return sizes(items)

    @batched(max_wait=60)
    @classmethod
    def of_class(cls, items: list[Any]) -> list[int]:
        return sizes(items)

    @batched(max_wait=60)
    @staticmethod
    def of_nobody(items: list[Any]) -> list[int]:
        return sizes(items)


@batched(max_wait=60)
def of_module(items: list[Any]) -> list[int]:
    return sizes(items)


SERVICE = Service()
FACES: dict[str, tuple[Any, Any]] = {
    "function": (of_module, lambda: of_module),
    "method": (Service.method, lambda: SERVICE.method),
    "bound": (SERVICE.method, lambda: SERVICE.method),
    "classmethod": (Service.of_class, lambda: Service.of_class),
    "staticmethod": (Service.of_nobody, lambda: Service.of_nobody),
    "static of the class": (vars(Service)["of_nobody"], lambda: Service.of_nobody),
}


@pytest.mark.parametrize("which", list(FACES))
def test_inside_and_afterwards(which: str) -> None:
    face, call = FACES[which]
    before = call()
    live = vars(before)["_live"]
    with override(face, max_wait=0):
        inside = call()
        assert inside.call("x") == 1
        assert inside.statistics().submitted == 1
        assert vars(call())["_live"] is vars(inside)["_live"] is not live
        queue = vars(inside)["_live"]
    assert vars(call())["_live"] is live
    assert not live.driver.core.closed
    assert queue.driver.core.closed


def test_it_says_what_cannot_work() -> None:
    with pytest.raises(TypeError, match="what @batched has made, not <function sizes"), override(sizes):  # type: ignore[arg-type]
        pass
    with pytest.raises(TypeError, match="no option nonsense"), override(of_module, nonsense=1):  # type: ignore[call-arg]
        pass
    with pytest.raises(ValueError, match="max_batch_size"), override(of_module, max_batch_size=0):
        pass
    with pytest.raises(ValueError, match="max_batch_size"), override(Service.method, max_batch_size=0):
        pass
    assert vars(of_module)["_live"].given.values == {"max_wait": 60}


def test_what_waits_outside_stays() -> None:
    function = batched(sizes, max_batch_size=2, max_wait=60)
    outside = function.submit("x")
    with override(function, max_wait=0):
        assert function.call("y") == 1
        assert not outside.done()
    assert function.call("z") == 2
    assert outside.result() == 2


def test_blocks_nest_and_leave_on_errors() -> None:
    function = batched(sizes, max_wait=60, max_batch_size=3)
    live = vars(function)["_live"]
    with pytest.raises(ZeroDivisionError), override(function, max_wait=0), override(function, max_batch_size=1):
        function.call("x") / 0
    assert vars(function)["_live"] is live
    assert live.given.values == {"max_wait": 60, "max_batch_size": 3}


def test_who_runs_at_the_end_gets_closed_and_no_thread_stays() -> None:
    manual = ManualExecutor()
    function = batched(sizes)
    before = threading.enumerate()
    with override(function, executor=manual):
        running = function.submit("x")
        manual.wait_for(1)
        waiting = function.submit("y")
        worker = next(thread for thread in threading.enumerate() if thread not in before)
    assert isinstance(running.exception(0), Closed)
    assert isinstance(waiting.exception(0), Closed)
    worker.join(30)
    assert not worker.is_alive()


def test_an_async_batch_that_runs_at_the_end_is_cancelled() -> None:
    ended = []

    async def forever(items: list[Any]) -> list[int]:
        try:
            await anyio.sleep_forever()
            return sizes(items)
        finally:
            ended.append(items)

    function = batched(forever)

    async def test() -> None:
        async def call() -> None:
            with pytest.raises(Closed):
                await function("x")

        async with anyio.create_task_group() as tasks:
            with override(function):
                tasks.start_soon(call)
                while not function.statistics().running:
                    await anyio.sleep(0)
                await anyio.wait_all_tasks_blocked()

    anyio.run(test)
    assert ended == [["x"]]


def test_options_made_before_keep_the_old_queue() -> None:
    function = batched(sizes, max_batch_size=2)
    before = function.options(tenant="x")
    with override(function, max_batch_size=1):
        assert before.call("x") == 1
        assert function.statistics().submitted == 0
    assert function.statistics().submitted == 1


def test_a_plain_function_inside_a_class() -> None:
    """One that another decorator has wrapped becomes a method when it is looked up."""

    class Wrapped:
        method = batched(lambda self, items: sizes(items), max_wait=60)

    service = Wrapped()
    face = vars(Wrapped)["method"]
    with override(face, max_wait=0):
        assert service.method.call("x") == 1
        live = vars(service.method)["_live"]
    assert live.driver.core.closed
    assert vars(service.method)["_live"] is not live


def test_a_function_that_its_class_no_longer_has() -> None:
    class Gone:
        @batched
        def method(self, items: list[Any]) -> list[int]:
            return sizes(items)

    gone = Gone()
    bound = gone.method
    del Gone.method
    with pytest.raises(TypeError, match="name it on its class"), override(bound):
        pass


# ---- immediate


def test_immediate_runs_each_alone_and_at_once() -> None:
    function = batched(sizes, max_wait=60, max_waiting=1, overflow="reject")
    with immediate(function, of_module):
        assert list(function.map("abcdef")) == [1] * 6
        assert of_module.call("x") == 1
        assert function.statistics().max_queue_delay is not None

    async def gathered() -> list[int]:
        with immediate(function):
            async with anyio.create_task_group() as tasks:
                got: list[int] = []

                async def call() -> None:
                    got.append(await function("x"))

                for _ in range(50):
                    tasks.start_soon(call)
            return got

    assert anyio.run(gathered) == [1] * 50


def test_immediate_keeps_limits_and_admission() -> None:
    limited = batched(sizes, cost=len, dispatch=(DeadlineAware(), CostLimit(3)), admission=MaxWaiting(5))
    with immediate(limited):
        assert limited.call("abc") == 1
        with pytest.raises(ItemTooLarge):
            limited.call("abcd")


def test_immediate_keeps_a_target_as_a_timeout() -> None:
    function = batched(sizes, target_latency=30, dispatch=None)
    with immediate(function):
        assert function.call("x") == 1
        assert vars(function)["_live"].intake.options.timeout == 30


def test_immediate_with_a_single_limit() -> None:
    function = batched(sizes, cost=len, dispatch=CostLimit(3))
    with immediate(function), pytest.raises(ItemTooLarge):
        function.call("abcd")


# ---- the fixtures


def test_the_fixtures(virtual_time: Any, immediate: Any) -> None:
    one, other = batched(sizes, max_wait=0.5), batched(sizes, max_wait=60)
    time = virtual_time(one, start=3)
    immediate(other)
    future = one.submit("x")
    time.advance(0.5)
    assert future.result(0) == 1
    assert time.now() == 3.5
    assert other.call("x") == 1


def test_a_clock_of_ones_own() -> None:
    function = batched(sizes, max_wait=0.5)
    clock = VirtualClock()
    with override(function, clock=clock):
        future = function.submit("x")
        clock.advance(0.5)
        assert future.result() == 1


def test_methods_are_put_on_the_time_when_they_are_first_used() -> None:
    service = Service()
    with virtual_time(Service.method) as time:
        first, second = service.method.submit("x"), Service().method.submit("y")
        time.advance(60)
        assert first.result(0) == second.result(0) == 1
