"""What the function may know of its callers, what it must not see of them, and what it must not call."""

import asyncio
from collections.abc import Callable
from contextlib import contextmanager
from contextvars import Context, ContextVar, copy_context
from typing import Any

import pytest
import trio
from support import VirtualClock
from support.until import until

from batchlib import BatchContext, ReentrantCallError, batch_context

from .held import Held, Kind, of_kind
from .runtimes import LoopRuntime, Runtime

Make = Callable[..., Any]
user: ContextVar[str] = ContextVar("user")


@contextmanager
def as_user(name: str) -> Any:
    token = user.set(name)
    try:
        yield
    finally:
        user.reset(token)


def test_one_entry_per_item_in_the_order_of_the_list(runtime: Runtime, make: Make) -> None:
    held = Held(
        "plain",
        lambda items: [
            (item, c.get(user), len(batch_context())) for item, c in zip(items, batch_context(), strict=True)
        ],
    )
    function = make(held)
    first = runtime.start(function, "alone")
    until(lambda: held.seen)
    calls = [runtime.start(function, f"item of {name}", inside=as_user(name)) for name in ("ann", "bob", "cy")]
    until(lambda: function.statistics().waiting == 3)
    held.gate.open()
    assert first.result() == ("alone", None, 1)
    assert [call.result() for call in calls] == [(f"item of {name}", name, 3) for name in ("ann", "bob", "cy")]


def test_it_is_a_sequence_of_what_requests_carry(runtime: Runtime, kind: Kind, clock: VirtualClock, make: Make) -> None:
    contexts: list[BatchContext] = []

    def function(items: list[Any]) -> list[Any]:
        context = batch_context()
        contexts.append(context)
        return [(context[0].tenant, context[-1].deadline, len(context[:1]), context.cancelled, len(context))]

    batcher = make(of_kind(kind, function), clock=clock)
    call = runtime.start(batcher.options(tenant="acme", timeout=5, priority=2), 1)
    assert call.result() == ("acme", 105.0, 1, False, 1)
    (context,) = contexts
    with pytest.raises(IndexError):
        context[1]


def test_a_default_for_a_variable_that_the_caller_has_not_set(runtime: Runtime, kind: Kind, make: Make) -> None:
    function = make(of_kind(kind, lambda items: [c.get(user, "nobody") for c in batch_context()]))
    assert runtime.start(function, 1).result() == "nobody"
    assert runtime.start(function, 1, inside=as_user("ann")).result() == "ann"


def test_the_function_sees_no_callers_variables(runtime: Runtime, kind: Kind, make: Make) -> None:
    function = make(of_kind(kind, lambda items: [user.get("nobody")] * len(items)))
    for name in ("ann", "bob"):
        assert runtime.start(function, 1, inside=as_user(name)).result() == "nobody"


def test_what_the_function_sets_stays_in_its_batch(runtime: Runtime, kind: Kind, make: Make) -> None:
    def leaky(items: list[int]) -> list[str]:
        before = user.get("nobody")
        user.set("the function")
        return [before] * len(items)

    function = make(of_kind(kind, leaky))
    assert [runtime.start(function, number).result() for number in range(3)] == ["nobody"] * 3
    assert user.get("nobody") == "nobody"


def test_what_outlives_its_batch_still_knows_its_items(runtime: Runtime, kind: Kind, make: Make) -> None:
    contexts: list[Context] = []

    def function(items: list[int]) -> list[int]:
        contexts.append(copy_context())
        return items

    assert runtime.start(make(of_kind(kind, function)).options(tenant="acme"), 1).result() == 1
    (context,) = contexts
    assert [each.tenant for each in context.run(batch_context)] == ["acme"]


def test_outside_a_batch_there_is_none(loop: LoopRuntime) -> None:
    with pytest.raises(LookupError, match="no batch runs here"):
        batch_context()
    with pytest.raises(LookupError):
        loop.do(batch_context)


# ---- calls from inside


def calls_back(way: str) -> Callable[[Any], Any]:
    """What a plain function does to call a batched one from inside."""
    return {
        "call": lambda function: function.call(1),
        "submit": lambda function: function.submit(1).result(30),
        "map": lambda function: list(function.map([1])),
        "options": lambda function: function.options(timeout=5).call(1),
    }[way]


@pytest.mark.parametrize("way", ["call", "submit", "map", "options"])
def test_a_plain_function_that_calls_itself_is_refused(runtime: Runtime, way: str, make: Make) -> None:
    function = make(lambda items: [calls_back(way)(function) for _ in items])
    error = runtime.start(function, 1).error()
    assert isinstance(error, ReentrantCallError)
    assert ".direct" in str(error)
    done = function.statistics()
    assert (done.failed, done.waiting, done.running) == (1, 0, 0)


def test_an_async_function_that_calls_itself_is_refused(runtime: Runtime, make: Make) -> None:
    async def recursive(items: list[int]) -> list[int]:
        return [await function(item) for item in items]

    function = make(recursive)
    assert isinstance(runtime.start(function, 1).error(), ReentrantCallError)


def test_a_free_slot_does_not_make_it_legal(runtime: Runtime, make: Make) -> None:
    function = make(lambda items: [function.call(item) for item in items], max_concurrent_batches=4)
    assert isinstance(runtime.start(function, 1).error(), ReentrantCallError)


def test_a_cycle_through_another_function_is_refused(runtime: Runtime, make: Make) -> None:
    there = make(lambda items: [back.call(item) for item in items])
    back = make(lambda items: [there.call(item) for item in items])
    error = runtime.start(there, 1).error()
    assert isinstance(error, ReentrantCallError)
    assert runtime.start(back, 1).error() is not None
    for batcher in (there, back):
        now = batcher.statistics()
        assert (now.waiting, now.running, now.running_batches) == (0, 0, 0)


def test_a_cycle_through_async_functions_is_refused(loop: LoopRuntime, make: Make) -> None:
    async def go(items: list[int]) -> list[int]:
        return [await back(item) for item in items]

    async def come(items: list[int]) -> list[int]:
        return [await there(item) for item in items]

    there, back = make(go), make(come)
    assert isinstance(loop.start(there, 1).error(), ReentrantCallError)


def test_a_cycle_of_three_with_both_kinds_is_refused(loop: LoopRuntime, make: Make) -> None:
    async def one(items: list[int]) -> list[int]:
        return [await second(item) for item in items]

    def two(items: list[int]) -> list[int]:
        return [third.call(item) for item in items]

    async def three(items: list[int]) -> list[int]:
        return [await first(item) for item in items]

    first, second, third = make(one), make(two), make(three)
    assert isinstance(loop.start(first, 1).error(), ReentrantCallError)


def test_a_call_to_another_function_is_legal(runtime: Runtime, kind: Kind, make: Make) -> None:
    inner = make(lambda items: [10 * item for item in items])

    def plain(items: list[int]) -> list[int]:
        return [inner.call(item) + 1 for item in items]

    async def outer_async(items: list[int]) -> list[int]:
        return [await inner(item) + 1 for item in items]

    outer = make(plain if kind == "plain" else outer_async)
    calls = runtime.start_each(outer, range(5))
    assert [call.result() for call in calls] == [10 * number + 1 for number in range(5)]


def test_direct_is_how_a_function_calls_itself(runtime: Runtime, make: Make) -> None:
    def factorial(numbers: list[int]) -> list[int]:
        return [n * function.direct([n - 1])[0] if n else 1 for n in numbers]

    function = make(factorial)
    assert runtime.start(function, 5).result() == 120


def test_a_background_task_may_call_once_its_batch_is_over(loop: LoopRuntime, make: Make) -> None:
    """The marker travels with whatever the function starts; it counts only while that batch keeps the batcher busy."""
    over = Held("async")  # its gate opens when the first batch is over
    results: list[Any] = []
    tasks: list[Any] = []

    async def later() -> None:
        await over.gate.wait_async()
        results.append(await function(2))

    async def starts(items: list[int]) -> list[int]:
        if items == [1]:
            if trio.lowlevel.in_trio_task():
                trio.lowlevel.spawn_system_task(later, context=copy_context())
            else:
                tasks.append(asyncio.get_running_loop().create_task(later()))
        return items

    function = make(starts)
    assert loop.start(function, 1).result() == 1
    until(lambda: function.statistics().running_batches == 0)
    over.gate.open()
    until(lambda: results == [2])


def test_submit_to_itself_is_refused_before_it_waits_for_room(runtime: Runtime, make: Make) -> None:
    held = Held("plain", lambda items: [function.submit(item).result(30) for item in items])
    function = make(held, max_waiting=1)
    first = runtime.start(function, 1)
    until(lambda: held.seen)
    second = runtime.start(function, 2)
    until(lambda: function.statistics().waiting == 1)
    held.gate.open()
    assert isinstance(first.error(), ReentrantCallError)
    assert isinstance(second.error(), ReentrantCallError)
