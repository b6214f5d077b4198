"""Models of how long a batch takes."""

import math
from typing import Any

import pytest

from batchlib._core._batch import Batch
from batchlib._core._request import Request
from batchlib.simulation import Affine, Table


def batch(*costs: float, number: int = 1) -> Batch:
    requests = [Request((), None, 0.0) for _ in costs]
    for request, cost in zip(requests, costs, strict=True):
        request.cost = cost
    return Batch(number, None, requests, "full", 0.0)


def test_affine_counts_items_and_padding() -> None:
    assert Affine(1.0, 0.5)(batch(9, 1, 1)) == 2.5
    assert Affine(1.0, 0.5, 0.25)(batch(9, 1, 1)) == 2.5 + 0.25 * 3 * 9
    assert Affine(1.0, 0.5, 0.25).seconds(3, 9) == 2.5 + 0.25 * 3 * 9
    assert Affine(1.0, 0.5, 0.25).seconds(3) == 2.5 + 0.25 * 3
    assert Affine(1.0, 0.5).capacity(8) == 8 / 5
    assert Affine(0.0, 0.0, 0.5).capacity(8, longest=2) == 1


def test_a_table_is_read_between_its_lines() -> None:
    table = Table({8: 9.0, 1: 2.0, 4: 3.0})
    assert [table.seconds(size) for size in (1, 2, 4, 6, 8)] == [2.0, 2 + 1 / 3, 3.0, 6.0, 9.0]
    assert table(batch(1, 1, 1, 1)) == 3.0
    steps = Table({8: 9.0, 2: 2.0}, step=True)
    assert [steps.seconds(size) for size in (1, 2, 3, 8)] == [2.0, 2.0, 9.0, 9.0]
    assert Table({4: 3.0}).seconds(1) == 3.0
    with pytest.raises(ValueError, match="the largest size in the table is 8; there is no time for 9"):
        table.seconds(9)
    assert table == Table({1: 2.0, 4: 3.0, 8: 9.0})


def test_stragglers_are_drawn_by_number_alone() -> None:
    model = Affine(1.0, 0.5).with_stragglers(share=0.05, factor=5, seed=7)
    slow = [number for number in range(1, 4001) if model.straggles(number)]
    assert len(slow) == pytest.approx(200, rel=0.25)
    assert slow != [
        number for number in range(1, 4001) if Affine(1.0, 0.5).with_stragglers(0.05, 5, 8).straggles(number)
    ]
    assert model(batch(1, number=slow[0])) == 7.5
    assert model(batch(1, 1, number=slow[0])) == 10.0
    assert model(batch(1, number=slow[0] + 1)) == (7.5 if slow[0] + 1 in slow else 1.5)
    assert Table({1: 2.0}).with_stragglers(1, 3)(batch(1)) == 6.0
    assert Table({1: 2.0}).with_stragglers(0, 3)(batch(1)) == 2.0


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Affine(-1, 1), "base must be a finite number of seconds >= 0, not -1"),
        (lambda: Affine(1, math.inf), "per_item must be a finite number of seconds >= 0, not inf"),
        (lambda: Affine(1, 1, "much"), "per_cost must be a finite number of seconds >= 0, not 'much'"),
        (lambda: Affine(0, 0), "one of base, per_item and per_cost must be above 0"),
        (lambda: Table({}), "the seconds of at least one batch size"),
        (lambda: Table({0: 1.0}), "size must be a whole number >= 1, not 0"),
        (lambda: Table({1: 0.0}), r"times\[1\] must be above 0"),
        (lambda: Table({1: math.nan}), r"times\[1\] must be a finite number of seconds >= 0, not nan"),
        (lambda: Affine(1, 1).with_stragglers(1.5, 2), "share must be a number from 0 to 1, not 1.5"),
        (lambda: Affine(1, 1).with_stragglers(0.5, 0.5), "factor must be a finite number >= 1, not 0.5"),
    ],
)
def test_what_is_no_model(make: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        make()
