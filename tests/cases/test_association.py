"""Every caller gets its own answer, or an error: never somebody else's, and never nothing."""

from typing import Any

import numpy as np
import pytest
from support.callers import Start, outcomes
from support.until import until

from batchlib import BatchContractError, batched


def columns(items: list[Any]) -> dict[str, list[float]]:
    return {"cat": [0.1] * len(items), "dog": [0.9] * len(items)}


@pytest.mark.parametrize(
    ("returned", "named"),
    [
        (columns, "dict"),
        (lambda items: {object() for _ in items}, "set"),
        (lambda items: frozenset(range(len(items))), "frozenset"),
        (lambda items: "x" * len(items), "str"),
        (lambda items: b"x" * len(items), "bytes"),
        (lambda items: bytearray(len(items)), "bytearray"),
        (lambda items: None, "NoneType"),
        (lambda items: (item for item in items), "generator"),
        (lambda items: dict.fromkeys(range(len(items))).keys(), "dict_keys"),
        (lambda items: len(items), "int"),
        (lambda items: np.float64(1.0), "float64"),
    ],
)
@pytest.mark.parametrize("size", [1, 2])
def test_only_an_ordered_sequence_is_split(returned: Any, named: str, size: int) -> None:
    """Whatever its length: a mapping with as many keys as there are callers must not pass for an answer."""
    f = batched(returned, max_batch_size=size, max_wait=60)
    errors = outcomes([f.submit(item) for item in range(size)])
    assert [type(error) for error in errors] == [BatchContractError] * size
    assert all(named in str(error) and f" {size};" in str(error) for error in errors)
    assert len({id(error) for error in errors}) == size


@pytest.mark.parametrize(
    ("bad", "actual"),
    [
        (lambda items: [items], "list of 1"),
        (lambda items: items[:-1], "list of 2"),
        (lambda items: [*items, 0], "list of 4"),
        (lambda items: [], "list of 0"),
        (lambda items: tuple(items[1:]), "tuple of 2"),
        (lambda items: np.zeros((4, 2)), "ndarray of 4"),
        (lambda items: None, "NoneType"),
    ],
)
def test_a_wrong_count_fails_everyone_and_the_next_batch_works(start: Start, bad: Any, actual: str) -> None:
    functions = [bad, list]
    f = batched(lambda items: functions.pop(0)(items), max_batch_size=3, max_wait=60)
    errors = outcomes([start(f, [item]) for item in range(3)])
    assert [type(error) for error in errors] == [BatchContractError] * 3
    assert all("3" in str(error) and actual in str(error) for error in errors)
    assert outcomes([start(f, [item]) for item in range(3)]) == [[0], [1], [2]]  # an item that is a list is one item


@pytest.mark.parametrize("size", [1, 3])
def test_arrays_are_handed_out_row_by_row(start: Start, size: int) -> None:
    """As they are: no cast, no shared first row, no question for the truth of an array."""
    f = batched(lambda rows: np.stack(rows) * 2, max_batch_size=size, max_wait=60)
    rows = [np.array([0.5 + n, 1.7]) for n in range(size)]
    for row, result in zip(rows, outcomes([start(f, row) for row in rows]), strict=True):
        assert result.dtype == np.float64
        np.testing.assert_array_equal(result, row * 2)


def test_items_of_different_shapes_are_not_merged(start: Start) -> None:
    f = batched(lambda arrays: [array.sum() for array in arrays], max_batch_size=2, max_wait=60)
    assert outcomes([start(f, np.array(values)) for values in ([1, 2], [3, 4, 5])]) == [3, 12]


def test_each_call_is_bound_by_itself(start: Start) -> None:
    """Keywords in any order, next to positions, with and without a default, in one batch."""

    def subtract(a: list[int], b: list[int] = [0]) -> list[int]:  # noqa: B006 (a batched parameter's default)
        return [x - y for x, y in zip(a, b, strict=True)]

    f = batched(subtract, max_batch_size=5, max_wait=60)
    calls = [start(f, a=10, b=1), start(f, b=2, a=20), start(f, 30, 3), start(f, 40, b=4), start(f, 7)]
    assert outcomes(calls) == [9, 18, 27, 36, 7]
    assert f.statistics().batches == 1


@pytest.mark.parametrize(("args", "kwargs"), [((), {"c": 1}), ((), {}), ((1, 2, 3), {}), ((1,), {"a": 2})])
def test_a_wrong_call_is_its_callers_alone(start: Start, args: Any, kwargs: Any) -> None:
    f = batched(lambda a, b: a, max_batch_size=2, max_wait=60)
    good = start(f, 1, 1)
    until(lambda: f.statistics().waiting == 1)
    with pytest.raises(TypeError):
        start(f, *args, **kwargs).result()
    assert outcomes([good, start(f, 2, 2)]) == [1, 2]
    assert f.statistics().submitted == 2


def test_nobody_is_computed_with_the_settings_of_another(start: Start) -> None:
    batches: list[tuple[list[int], float]] = []

    @batched(max_batch_size=2, max_wait=60)
    def scale(numbers: list[int], *, factor: float = 10) -> list[float]:
        batches.append((numbers, factor))
        return [number * factor for number in numbers]

    calls = [start(scale, 1), start(scale, 1, factor=100), start(scale, 2, factor=10), start(scale, 2, factor=100)]
    assert outcomes(calls) == [10, 100, 20, 200]
    assert sorted((sorted(numbers), factor) for numbers, factor in batches) == [([1, 2], 10), ([1, 2], 100)]


def test_settings_differ_by_type_too(start: Start) -> None:
    f = batched(lambda items, *, unit: [type(unit)] * len(items), max_batch_size=2, max_wait=60)
    calls = [start(f, n, unit=unit) for n in range(2) for unit in (1, 1.0, True, (1,), (1.0,))]
    assert outcomes(calls) == [int, float, bool, tuple, tuple] * 2
    assert f.statistics().batches == 5


def test_a_setting_that_cannot_be_compared_is_refused_at_the_call(start: Start) -> None:
    f = batched(lambda items, *, unit: items)
    with pytest.raises(TypeError, match="'unit' must be hashable"):
        start(f, 1, unit=[1]).result()
    assert start(f, 1, unit=(1,)).result() == 1


def test_callers_of_every_kind_share_a_batch_and_get_their_own(start_each: list[Start]) -> None:
    f = batched(lambda items: [item * 10 for item in items], max_batch_size=len(start_each), max_wait=60)
    assert outcomes([start(f, item) for item, start in enumerate(start_each)]) == [0, 10, 20, 30, 40]
    assert f.statistics().batches == 1
