"""Nobody's identity rubs off on another's work: batches run in a neutral context, and know each item's own."""

import asyncio
import contextvars
from typing import Any

import pytest
from support.callers import Start, outcomes
from support.until import until

import batchlib
from batchlib import batch_context, batched, request_options

WHO: contextvars.ContextVar[str] = contextvars.ContextVar("who", default="nobody")


class As:
    """Calls a batched function with WHO set, in each of the ways that callers have."""

    def __init__(self, f: Any, name: str) -> None:
        self._f = f
        self._name = name

    async def __call__(self, *args: Any) -> Any:
        WHO.set(self._name)
        result = await self._f(*args)
        assert WHO.get() == self._name
        return result

    def call(self, *args: Any) -> Any:
        return self._inside().run(self._f.call, *args)

    def submit(self, *args: Any) -> Any:
        return self._inside().run(self._f.submit, *args)

    def _inside(self) -> contextvars.Context:
        context = contextvars.copy_context()
        context.run(WHO.set, self._name)
        return context


@pytest.mark.parametrize("asynchronous", [False, True])
def test_the_worker_has_no_callers_context_and_each_item_has_its_own(start: Start, asynchronous: bool) -> None:
    """The first caller starts whatever runs batches; nobody after it may find its name there."""
    around: list[str] = []
    per_item: list[list[str | None]] = []

    def look(items: list[Any]) -> list[Any]:
        around.append(WHO.get())
        per_item.append([item.get(WHO) for item in batch_context()])
        WHO.set("the function")
        return items

    async def look_async(items: list[Any]) -> list[Any]:
        return look(items)

    f = batched(look_async if asynchronous else look, max_batch_size=2, max_wait=60)
    pairs = [("first", "second"), ("third", "fourth")]
    for pair in pairs:
        calls = []
        for number, name in enumerate(pair, 1):
            calls.append(start(As(f, name), name))
            if number == 1:
                until(lambda: f.statistics().waiting == 1)
        assert outcomes(calls) == list(pair)
    assert around == ["nobody", "nobody"]
    assert per_item == [list(pair) for pair in pairs]


def test_callbacks_run_in_their_callers_context(start: Start) -> None:
    seen: list[str] = []
    f = batched(lambda items: items, max_batch_size=2, max_wait=60, group_by=lambda item: seen.append(WHO.get()))
    calls = [start(As(f, name), name) for name in ("a", "b")]
    assert outcomes(calls) == ["a", "b"]
    assert sorted(seen) == ["a", "b"]


def test_options_around_one_caller_are_not_those_of_another(start: Start) -> None:
    tenants: list[list[Any]] = []

    def function(items: list[Any]) -> list[Any]:
        tenants.append([item.tenant for item in batch_context()])
        return items

    f = batched(function, max_batch_size=2, max_wait=60)

    class For:
        def __init__(self, tenant: str) -> None:
            self._tenant = tenant

        async def __call__(self, item: int) -> Any:
            with request_options(tenant=self._tenant):
                return await f(item)

        def call(self, item: int) -> Any:
            with request_options(tenant=self._tenant):
                return f.call(item)

        def submit(self, item: int) -> Any:
            with request_options(tenant=self._tenant):
                return f.submit(item)

    first = start(For("acme"), 1)
    until(lambda: f.statistics().waiting == 1)
    assert outcomes([first, start(f, 2)]) == [1, 2]
    assert tenants == [["acme", None]]


async def test_tasks_started_inside_a_batch_know_it_and_others_do_not() -> None:
    async def function(items: list[int]) -> list[int]:
        async def sizes() -> int:
            return len(batch_context())

        return await asyncio.gather(*(sizes() for _ in items))

    f = batched(function, max_batch_size=3)
    assert await asyncio.gather(f(1), f(2), f(3)) == [3, 3, 3]
    with pytest.raises(LookupError):
        batchlib.batch_context()
