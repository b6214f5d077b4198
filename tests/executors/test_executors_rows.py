"""Whoever keeps a row of an array keeps that row and nothing else, and shares it with nobody."""

import asyncio
from typing import Any

import numpy as np
import pytest

from batchlib import batched
from batchlib.executors._outcomes import split
from batchlib.executors._rows import rows_of


async def test_a_row_owns_its_storage() -> None:
    calls = batched(lambda items: np.zeros((len(items), 1000)), max_batch_size=8)
    rows = await asyncio.gather(*(calls(n) for n in range(8)))
    assert all(row.base is None and row.nbytes == 8000 for row in rows)
    rows[0].fill(7)
    assert rows[1].sum() == 0


async def test_rows_that_overlap_in_the_result_do_not_overlap_for_the_callers() -> None:
    calls = batched(lambda items: np.broadcast_to(np.zeros(4), (len(items), 4)), max_batch_size=2)
    first, second = await asyncio.gather(calls(1), calls(2))
    first.fill(7)
    assert second.sum() == 0


def test_a_result_is_not_overwritten_by_the_next_batch_of_a_function_that_uses_its_memory_again() -> None:
    memory = np.zeros((2, 3))

    @batched
    def fill(items: list[float]) -> np.ndarray:
        memory[: len(items)] = np.array(items)[:, None]
        return memory[: len(items)]

    first = fill.call(1.0)
    fill.call(2.0)
    assert first.tolist() == [1.0] * 3


@pytest.mark.parametrize("size", [1, 3])
def test_copying_can_be_chosen(size: int) -> None:
    array = np.zeros((size, 2))
    assert all(np.shares_memory(array, row) for row in rows_of(array, copy=False))
    for copy in (True, "auto"):
        assert not any(np.shares_memory(array, row) for row in rows_of(array, copy))


def test_records_do_not_overlap_either() -> None:
    """NumPy gives a view of the array for each, though it is no array."""
    records = np.zeros(2, [("score", "f4"), ("label", "i4")])
    first, second = rows_of(records)
    first["score"] = 7
    assert (records["score"].tolist(), first["score"], second["label"]) == ([0, 0], 7, 0)
    assert np.shares_memory(rows_of(records, copy=False)[0], records)


def test_what_a_function_puts_into_a_list_is_given_as_it_is() -> None:
    array = np.zeros((3, 2))
    assert all(np.shares_memory(array, row) for row in split(list(array), 3))


def test_numbers_and_objects_in_an_array_are_given_as_they_are() -> None:
    marks: list[Any] = [object(), object()]
    assert rows_of(np.array(marks, dtype=object)) == marks
    assert rows_of(np.arange(3)) == [0, 1, 2]
    assert rows_of(np.zeros((0, 3))) == []
