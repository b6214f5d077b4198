"""Results reach their callers, batches form by themselves, and nothing runs where it must not."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
import trio
from support.until import until

from .held import Held, Kind, of_kind
from .runtimes import FuturesRuntime, LoopRuntime, MixedRuntime, Runtime, ThreadsRuntime

Make = Callable[..., Any]


def doubled(items: list[Any]) -> list[Any]:
    return [2 * item for item in items]


def test_every_caller_gets_its_own_result(runtime: Runtime, kind: Kind, make: Make) -> None:
    double = make(of_kind(kind, doubled), max_batch_size=7)
    calls = runtime.start_each(double, range(50))
    assert [call.result() for call in calls] == [2 * number for number in range(50)]
    done = double.statistics()
    assert (done.submitted, done.completed, done.waiting, done.running) == (50, 50, 0, 0)


def test_a_lone_call_gets_a_list_of_one(runtime: Runtime, kind: Kind, make: Make) -> None:
    seen: list[Any] = []

    def same(items: list[Any]) -> list[Any]:
        seen.append(items)
        return items

    item = ["an item that is a list"]
    assert runtime.start(make(of_kind(kind, same)), item).result() is item
    assert seen == [[item]]


def test_a_gather_of_eight_in_one_tick_is_one_batch(loop: LoopRuntime, kind: Kind, make: Make) -> None:
    sizes: list[int] = []

    def double(items: list[Any]) -> list[Any]:
        sizes.append(len(items))
        return doubled(items)

    function = make(of_kind(kind, double))
    assert loop.run(lambda: loop.gather(function, range(8))) == [2 * number for number in range(8)]
    assert sizes == [8]
    assert function.statistics().reasons == {"executor_free": 1}


def test_a_gather_over_the_limit_leaves_in_full_batches(loop: LoopRuntime, kind: Kind, make: Make) -> None:
    function = make(of_kind(kind, doubled), max_batch_size=8)
    loop.run(lambda: loop.gather(function, range(20)))
    done = function.statistics()
    assert (done.batches, done.reasons) == (3, {"full": 2, "executor_free": 1})


def test_tasks_started_in_one_tick_are_one_batch(loop: LoopRuntime, kind: Kind, make: Make) -> None:
    held = Held(kind)
    calls = loop.start_each(make(held), range(8))
    until(lambda: held.seen)
    held.gate.open()
    assert [call.result() for call in calls] == list(range(8))
    assert held.sizes == [8]


@pytest.mark.parametrize("calling", [ThreadsRuntime, FuturesRuntime])
def test_a_threads_call_is_dispatched_at_once(calling: type[Runtime], kind: Kind, make: Make) -> None:
    held = Held(kind)
    function = make(held)
    with calling() as runtime:
        call = runtime.start(function, 1)
        until(lambda: held.seen)
        now = function.statistics()
        assert (now.running, now.waiting, now.batches) == (1, 0, 1)
        held.gate.open()
        assert call.result() == 1


def test_late_binding_fills_the_batches_under_a_backlog(runtime: Runtime, make: Make) -> None:
    """A batch is closed when an executor takes it, not before: what has arrived by then goes along."""
    held = Held("plain")
    function = make(held, max_batch_size=8)
    first = runtime.start(function, -1)
    until(lambda: held.seen)
    calls = [runtime.start(function, number) for number in range(40)]  # one by one, each in a tick of its own
    until(lambda: function.statistics().waiting == 40)
    held.gate.open()
    assert [call.result() for call in [first, *calls]] == [-1, *range(40)]
    assert held.sizes == [1, 8, 8, 8, 8, 8]


def test_late_binding_on_the_callers_loop(loop: LoopRuntime, make: Make) -> None:
    held = Held("async")
    function = make(held, max_batch_size=8)
    first = loop.start(function, -1)
    until(lambda: held.seen)
    calls = [loop.start(function, number) for number in range(40)]
    until(lambda: function.statistics().waiting == 40)
    held.gate.open()
    assert [call.result() for call in [first, *calls]] == [-1, *range(40)]
    assert held.sizes == [1, 8, 8, 8, 8, 8]


def test_first_in_first_out(runtime: Runtime, make: Make) -> None:
    held = Held("plain")
    function = make(held, max_batch_size=3)
    calls = [runtime.start(function, -1)]
    until(lambda: held.seen)
    for number in range(9):
        calls.append(runtime.start(function, number))
        until(lambda: function.statistics().waiting == len(calls) - 1)
    held.gate.open()
    for call in calls:
        call.result()
    assert held.seen == [[-1], [0, 1, 2], [3, 4, 5], [6, 7, 8]]


def test_callers_of_all_runtimes_share_a_batch_of_a_plain_function(make: Make) -> None:
    with MixedRuntime("asyncio", "threads", "trio", "uvloop", "futures", "asyncio") as runtime:
        held = Held("plain")
        function = make(held)
        first = runtime.start(function, -1)
        until(lambda: held.seen)
        calls = runtime.start_each(function, range(12))
        until(lambda: function.statistics().waiting == 12)
        held.gate.open()
        assert [call.result() for call in [first, *calls]] == [-1, *range(12)]
        assert held.sizes == [1, 12]


def place() -> Any:
    """The loop or trio run that the present code is on."""
    if trio.lowlevel.in_trio_task():
        return trio.lowlevel.current_trio_token()
    return asyncio.get_running_loop()


def test_a_batch_of_an_async_function_never_mixes_loops(make: Make) -> None:
    ran: list[tuple[Any, list[Any]]] = []

    async def function(items: list[Any]) -> list[Any]:
        ran.append((place(), items))
        return items

    with MixedRuntime("asyncio", "threads", "trio", "uvloop", "futures", "asyncio") as runtime:
        batcher = make(function, max_batch_size=8)
        calls = [part.start(batcher, number) for _ in range(10) for number, part in enumerate(runtime.parts)]
        for call in calls:
            call.result()
        places: dict[int, Any] = {}
        for where, items in ran:
            for item in items:
                assert places.setdefault(item, where) is where
        # Threads and futures share the batcher's own loop; each of the four loops has its callers' batches.
        assert places[1] is places[4]
        assert len(set(places.values())) == 5
        for number in (0, 2, 3, 5):

            async def here() -> Any:
                return place()

            assert runtime.parts[number].run(here) is places[number]


def test_a_plain_function_never_runs_on_a_loops_thread(loop: LoopRuntime, make: Make) -> None:
    function = make(lambda items: [threading.current_thread()] * len(items))
    assert loop.start(function, 1).result() is not loop.thread


def test_an_async_function_runs_in_a_task_of_its_own(loop: LoopRuntime, make: Make) -> None:
    def task() -> Any:
        return trio.lowlevel.current_task() if trio.lowlevel.in_trio_task() else asyncio.current_task()

    async def tasks(items: list[Any]) -> list[Any]:
        return [task() for _ in items]

    function = make(tasks)

    async def main() -> tuple[Any, Any]:
        return task(), await function(1)

    mine, its = loop.run(main)
    assert mine is not its
    assert its is not None


def test_many_callers_of_all_kinds_at_once(kind: Kind, make: Make) -> None:
    with MixedRuntime("asyncio", "threads", "trio", "uvloop", "futures", "trio", "asyncio") as runtime:
        double = make(of_kind(kind, doubled), max_batch_size=16, max_concurrent_batches=3)
        calls = runtime.start_each(double, range(700))
        assert [call.result() for call in calls] == [2 * number for number in range(700)]
        done = double.statistics()
        assert (done.submitted, done.completed, done.running_batches) == (700, 700, 0)


def test_one_object_serves_one_loop_after_another(kind: Kind, make: Make) -> None:
    double = make(of_kind(kind, doubled))
    for name in ("asyncio", "trio", "uvloop", "asyncio", "trio"):
        with MixedRuntime(name) as runtime:
            assert runtime.start(double, 4).result() == 8


def test_several_parameters_stay_together(runtime: Runtime, kind: Kind, make: Make) -> None:
    def score(queries: list[str], documents: list[str]) -> list[str]:
        return [f"{query}:{document}" for query, document in zip(queries, documents, strict=True)]

    async def score_async(queries: list[str], documents: list[str]) -> list[str]:
        return score(queries, documents)

    function = make(score if kind == "plain" else score_async)
    calls = [runtime.start(function, f"q{n}", f"d{n}") for n in range(6)]
    calls += [runtime.start(function, documents=f"d{n}", queries=f"q{n}") for n in range(6, 12)]
    assert [call.result() for call in calls] == [f"q{n}:d{n}" for n in range(12)]


def test_settings_reach_the_function_and_keep_batches_apart(runtime: Runtime, kind: Kind, make: Make) -> None:
    batches: list[tuple[float, list[int]]] = []

    def scale(numbers: list[int], *, by: float = 1.0) -> list[float]:
        batches.append((by, numbers))
        return [number * by for number in numbers]

    async def scale_async(numbers: list[int], *, by: float = 1.0) -> list[float]:
        return scale(numbers, by=by)

    function = make(scale if kind == "plain" else scale_async)
    calls = [runtime.start(function, number, by=float(number % 3)) for number in range(24)]
    assert [call.result() for call in calls] == [number * float(number % 3) for number in range(24)]
    assert all(number % 3 == by for by, numbers in batches for number in numbers)


def test_a_wrong_call_is_a_type_error_for_its_caller_alone(runtime: Runtime, kind: Kind, make: Make) -> None:
    held = Held(kind)
    function = make(held)
    good = runtime.start(function, 1)
    for args, settings in [((), {}), ((1, 2), {}), ((1,), {"unknown": 2})]:
        with pytest.raises(TypeError):
            runtime.start(function, *args, **settings).result()
    held.gate.open()
    assert good.result() == 1
    assert function.statistics().submitted == 1
