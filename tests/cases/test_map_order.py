"""`map` ties each result to its input, whatever the order in which batches end."""

import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from typing import Any

import anyio
import pytest
from support.held import LONG

from batchlib import batched

NUMBERS = [(number * 37) % 60 + 1 for number in range(200)]
WORDS = ["x" * number for number in NUMBERS]


class SlowFirst:
    """A plain function of which several batches run at once; the first ends after three others."""

    def __init__(self) -> None:
        self.ended: list[list[int]] = []
        self._others = threading.Semaphore(0)

    def __call__(self, numbers: list[int]) -> list[int]:
        if 0 in numbers:
            for _ in range(3):
                assert self._others.acquire(timeout=LONG)
        self.ended.append(numbers)
        self._others.release()
        return [-number for number in numbers]


def collect(kind: Any, results: Any) -> list[Any]:
    async def collect_async() -> list[Any]:
        return [result async for result in results]

    return list(results) if kind == "thread" else anyio.run(collect_async, backend=kind)


def grouped(function: Any, **options: Any) -> Any:
    return batched(function, cost=len, max_batch_cost=100, group_by=lambda word: len(word) // 8, **options)


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("kind", ["thread", "asyncio", "trio"])
def test_results_are_tied_to_their_inputs_when_batches_overtake(kind: Any, ordered: bool) -> None:
    function = SlowFirst()
    f = batched(function, max_batch_size=5, max_concurrent_batches=4)
    got = collect(kind, f.map(range(200), ordered=ordered))
    assert 0 not in function.ended[0]
    expected = [-number for number in range(200)]
    if ordered:
        assert got == expected
    else:
        assert got != sorted(got)
        assert sorted(got) == list(enumerate(expected))


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("kind", ["thread", "asyncio", "trio"])
def test_groups_do_not_mix_up_the_order(kind: Any, ordered: bool, asynchronous: bool) -> None:
    async def lengths_async(words: list[str]) -> list[int]:
        return lengths(words)

    def lengths(words: list[str]) -> list[int]:
        return [len(word) for word in words]

    f = grouped(lengths_async if asynchronous else lengths, max_batch_size=4, max_concurrent_batches=4)
    got = collect(kind, f.map(WORDS, ordered=ordered))
    assert (got if ordered else sorted(got)) == (NUMBERS if ordered else list(enumerate(NUMBERS)))


@pytest.mark.parametrize("kind", ["thread", "asyncio", "trio"])
@pytest.mark.parametrize("ordered", [True, False])
def test_an_error_stands_in_its_own_place(kind: Any, ordered: bool) -> None:
    """And is a value if errors are asked for as values: order and count stay."""

    def function(numbers: list[int]) -> list[Any]:
        return [ValueError(number) if number % 7 == 3 else number for number in numbers]

    f = batched(function, max_batch_size=4)
    got = collect(kind, f.map(range(50), ordered=ordered, return_exceptions=True))
    results = got if ordered else [result for _, result in sorted(got)]
    shown = [result.args[0] if isinstance(result, ValueError) else result for result in results]
    assert shown == list(range(50))
    assert [number for number, result in enumerate(results) if isinstance(result, ValueError)] == list(range(3, 50, 7))


@pytest.mark.parametrize("kind", ["thread", "asyncio", "trio"])
def test_the_source_is_pulled_no_further_than_the_look_ahead(kind: Any) -> None:
    pulled = 0

    def source() -> Iterator[int]:
        nonlocal pulled
        for number in range(100):
            pulled += 1
            yield number

    async def source_async() -> AsyncIterator[int]:
        for number in source():
            yield number

    f = batched(lambda numbers: numbers, max_batch_size=4)

    async def collect() -> None:
        taken = 0
        async for number in f.map(source_async(), look_ahead=10):
            assert number == taken
            taken += 1
            assert taken < pulled + 1 <= taken + 11

    if kind == "thread":
        for taken, number in enumerate(f.map(source(), look_ahead=10), 1):
            assert number == taken - 1
            assert taken <= pulled <= taken + 10
    else:
        anyio.run(collect, backend=kind)
    assert pulled == 100


@pytest.mark.parametrize("kind", ["asyncio", "trio"])
def test_an_item_that_fails_at_once_does_not_wait_for_the_next(kind: Any) -> None:
    """The source may pause for as long as it likes."""

    async def source() -> AsyncIterator[Any]:
        yield "good"
        yield 5
        await anyio.sleep_forever()

    f = batched(lambda words: words, cost=len, max_batch_cost=10)
    got: list[Any] = []

    async def main() -> None:
        async with aclosing(aiter(f.map(source(), return_exceptions=True))) as results:
            got.extend([await anext(results), await anext(results)])

    anyio.run(main, backend=kind)
    assert got[0] == "good"
    assert type(got[1]) is TypeError
