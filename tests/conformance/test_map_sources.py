"""What the sources of a `map` raise reaches whoever iterates, and a slow one holds back nothing that it has given."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from .held import Kind, of_kind
from .runtimes import LONG, AsyncioRuntime, Left, LoopRuntime

Make = Callable[..., Any]

pytestmark = pytest.mark.timeout(60)


async def ending_with(error: BaseException) -> AsyncIterator[int]:
    yield 0
    yield 1
    raise error


@pytest.mark.parametrize("error", [SystemExit(5), GeneratorExit(), asyncio.CancelledError("the source's own")])
def test_whatever_an_async_source_raises_comes_in_its_place(
    loop: LoopRuntime, kind: Kind, error: BaseException, make: Make
) -> None:
    function = make(of_kind(kind, lambda items: items))
    into: list[Any] = []

    async def main() -> None:
        async for value in function.map(ending_with(error)):
            into.append(value)  # noqa: PERF401  (what came before the error counts)

    call = loop.spawn(main)[0]
    if isinstance(error, asyncio.CancelledError) and isinstance(loop, AsyncioRuntime):
        assert isinstance(call.error(), Left)
    else:
        assert call.error() is error
    assert into == [0, 1]
    assert loop.run(lambda: function(2)) == 2  # the loop has not ended


def test_a_slow_source_holds_back_no_item(kind: Kind, make: Make) -> None:
    """The source is pulled by the thread that iterates, which waits here until the first item has run."""
    ran = threading.Event()

    def work(items: list[int]) -> list[int]:
        ran.set()
        return items

    def source() -> Iterator[int]:
        yield 0
        assert ran.wait(LONG)
        yield 1

    assert list(make(of_kind(kind, work), max_batch_size=4).map(source())) == [0, 1]


def test_every_item_of_a_slow_source_runs_before_the_next_is_pulled(kind: Kind, make: Make) -> None:
    ran: list[threading.Event] = [threading.Event() for _ in range(20)]

    def work(items: list[int]) -> list[int]:
        for item in items:
            ran[item].set()
        return items

    def source() -> Iterator[int]:
        for item, event in enumerate(ran):
            yield item
            assert event.wait(LONG)

    assert list(make(of_kind(kind, work), max_batch_size=8).map(source())) == list(range(20))
