"""A limit is counted in what is scarce, and what can never fit does not block what can."""

from typing import Any

import pytest
from support import Held
from support.callers import Start, outcomes
from support.until import until

from batchlib import ItemTooLarge, batched


def double(calls: list[list[int]]) -> list[list[int]]:
    return [[row * 2 for row in call] for call in calls]


def test_an_item_that_is_itself_a_batch_counts_as_its_rows(start: Start) -> None:
    """Filled in order and closed at the first that does not fit: a small one behind it does not jump ahead."""
    held = Held(double)
    f = batched(held, max_batch_size=64, cost=len, max_batch_cost=10)
    calls = [start(f, [0] * 10)]
    assert held.started.wait()
    for number, rows in enumerate([4, 4, 4, 1, 6], 1):
        calls.append(start(f, [number] * rows))
        until(lambda number=number: f.statistics().waiting == number)
    held.gate.set()
    assert outcomes(calls) == [[0] * 10, [2] * 4, [4] * 4, [6] * 4, [8], [10] * 6]
    assert [[len(call) for call in batch] for batch in held.seen] == [[10], [4, 4], [4, 1], [6]]


@pytest.mark.parametrize("before", [[], [3], [3, 4]], ids=["alone", "while one runs", "behind others"])
def test_an_impossible_item_is_refused_and_the_others_run(start: Start, before: list[int]) -> None:
    held = Held()
    f = batched(held, max_batch_size=4, cost=lambda size: size, max_batch_cost=10)
    calls = []
    for size in before:
        calls.append(start(f, size))
        assert held.started.wait()
        until(lambda: f.statistics().waiting == len(calls) - 1)
    error = start(f, 99).exception()
    assert type(error) is ItemTooLarge
    assert "99" in str(error)
    assert "10" in str(error)
    calls.append(start(f, 5))
    held.gate.set()
    assert outcomes(calls) == [*before, 5]
    assert f.statistics().rejected == 1
    assert all(99 not in batch for batch in held.seen)


@pytest.mark.parametrize("cost", [10, 10.0])
def test_what_just_fits_is_taken(start: Start, cost: Any) -> None:
    f = batched(lambda items: items, cost=lambda item: item, max_batch_cost=10)
    assert start(f, cost).result() == cost
    assert type(start(f, 10.001).exception()) is ItemTooLarge


def test_an_oversize_item_may_be_allowed_to_run_by_itself(start: Start) -> None:
    held = Held()
    f = batched(held, cost=lambda size: size, max_batch_cost=10, oversize="alone")
    calls = [start(f, 1)]
    assert held.started.wait()
    for number, size in enumerate([4, 99, 5, 5], 1):
        calls.append(start(f, size))
        until(lambda number=number: f.statistics().waiting == number)
    held.gate.set()
    assert outcomes(calls) == [1, 4, 99, 5, 5]
    assert held.seen == [[1], [4], [99], [5, 5]]


def test_a_lowered_limit_refuses_those_it_leaves_no_room_for(start: Start) -> None:
    held = Held()
    f = batched(held, cost=lambda size: size, max_batch_cost=10)
    calls = [start(f, 1)]
    assert held.started.wait()
    for number, size in enumerate([9, 2], 1):
        calls.append(start(f, size))
        until(lambda number=number: f.statistics().waiting == number)
    f.configure(max_batch_cost=5)
    assert type(calls[1].exception()) is ItemTooLarge
    held.gate.set()
    assert outcomes([calls[0], calls[2]]) == [1, 2]
    assert held.seen == [[1], [2]]


def test_a_call_of_more_rows_than_a_batch_holds_can_run_in_several(start: Start) -> None:
    held = Held(double)
    f = batched(held, cost=len, max_batch_cost=10, oversize="split")
    calls = [start(f, [0])]
    assert held.started.wait()
    for number, rows in enumerate([23, 6], 1):
        calls.append(start(f, [number] * rows))
        until(lambda number=number: f.statistics().waiting == (0, 3, 4)[number])
    held.gate.set()
    assert outcomes(calls) == [[0], [2] * 23, [4] * 6]
    assert [[len(call) for call in batch] for batch in held.seen] == [[1], [10], [10], [3, 6]]
