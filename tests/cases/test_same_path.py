"""One item takes the same way as many, whatever the limits: the function always gets lists and gives a list."""

from typing import Any

import pytest
from support.callers import Start, outcomes

from batchlib import batched

ITEMS: list[Any] = ["abc", b"abc", {"p": "xyz", "q": 5}, 3, None, [1, 2], (), (1,), {1}, float("nan"), object(), "", []]


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("size", [1, 4, None])
def test_nothing_inside_an_item_or_a_result_is_taken_apart(start: Start, size: int | None, asynchronous: bool) -> None:
    kinds: set[type] = set()

    def describe(items: list[Any]) -> list[Any]:
        kinds.add(type(items))
        return [{"in": item, "id": "123", "k": 7} for item in items]

    async def describe_async(items: list[Any]) -> list[Any]:
        return describe(items)

    f = batched(describe_async if asynchronous else describe, max_batch_size=size)
    for item in ITEMS:
        result = start(f, item).result()
        assert result == {"in": item, "id": "123", "k": 7}
        assert result["in"] is item
    assert kinds == {list}


def test_a_result_may_be_anything(start: Start) -> None:
    f = batched(lambda items: items, max_batch_size=1)
    for item in ITEMS:
        assert start(f, item).result() is item


def test_limits_that_change_in_use_change_nothing_else(start: Start) -> None:
    kinds: set[type] = set()
    lengths: list[int] = []

    def function(items: list[int]) -> list[int]:
        kinds.add(type(items))
        lengths.append(len(items))
        return items

    f = batched(function, max_batch_size=1, max_wait=60)
    for size in (1, 4, 1, 3):
        f.configure(max_batch_size=size)
        lengths.clear()
        assert outcomes([start(f, item) for item in range(12)]) == list(range(12))
        assert lengths == [size] * (12 // size)
    assert kinds == {list}


def test_several_parameters_and_settings_keep_their_shape(start: Start) -> None:
    def function(a: list[int], b: list[str], *, sep: str = "-") -> list[str]:
        assert type(a) is type(b) is list
        return [f"{x}{sep}{y}" for x, y in zip(a, b, strict=True)]

    f = batched(function, max_batch_size=1)
    assert start(f, 1, "x").result() == "1-x"
    assert start(f, 1, "x", sep="+").result() == "1+x"
