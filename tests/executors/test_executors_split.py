"""From what a function gave back to one outcome per request, for every kind of thing a function can give back."""

import array
from collections import OrderedDict, UserList, deque, namedtuple
from typing import Any

import numpy as np
import pytest

from batchlib.errors import BatchContractError
from batchlib.executors._outcomes import split

Point = namedtuple("Point", "x y z")


@pytest.mark.parametrize(
    "result",
    [
        [1, 2, 3],
        (1, 2, 3),
        range(1, 4),
        deque([1, 2, 3]),
        UserList([1, 2, 3]),
        array.array("i", [1, 2, 3]),
        np.array([1, 2, 3]),
        np.array([1, 2, 3], dtype=object),
    ],
    ids=lambda result: type(result).__name__,
)
def test_what_is_in_order_is_split(result: Any) -> None:
    assert list(split(result, 3)) == [1, 2, 3]


def test_a_list_is_not_copied() -> None:
    result = [1, 2]
    assert split(result, 2) is result


def test_an_array_is_split_on_its_first_axis() -> None:
    rows = split(np.arange(6).reshape(3, 2), 3)
    assert [row.tolist() for row in rows] == [[0, 1], [2, 3], [4, 5]]
    (row,) = split(np.arange(2).reshape(1, 2), 1)
    assert row.shape == (2,)
    assert list(split(np.zeros((0, 4)), 0)) == []


def test_a_string_among_outcomes_is_an_outcome() -> None:
    assert split(["abc"], 1) == ["abc"]
    assert list(split(np.array(["ab", "cd"]), 2)) == ["ab", "cd"]


NEVER: list[tuple[Any, str]] = [
    (None, "a NoneType"),
    ("abc", "a str"),
    (np.str_("abc"), "a str_"),
    (b"abc", "a bytes"),
    (bytearray(b"abc"), "a bytearray"),
    (memoryview(b"abc"), "a memoryview"),
    ({1: 1, 2: 2, 3: 3}, "a dict"),
    (OrderedDict.fromkeys("abc"), "a OrderedDict"),
    ({1: 1, 2: 2, 3: 3}.keys(), "a dict_keys"),
    ({1, 2, 3}, "a set"),
    (frozenset({1, 2, 3}), "a frozenset"),
    (Point(1, 2, 3), "a Point"),
    ((each for each in range(3)), "a generator"),
    (iter([1, 2, 3]), "a list_iterator"),
    (map(abs, [1, 2, 3]), "a map"),
    (3, "a int"),
    (np.float64(3), "a float64"),
    (np.array(3), "a ndarray"),
    (object(), "a object"),
]


@pytest.mark.parametrize(("result", "named"), NEVER, ids=[named for _, named in NEVER])
def test_what_has_no_order_or_no_items_is_refused_even_at_the_right_length(result: Any, named: str) -> None:
    with pytest.raises(BatchContractError) as raised:
        split(result, 3)
    assert f"a list, tuple, array or tensor of 3; it gave {named}" in str(raised.value)


@pytest.mark.parametrize("result", [[1, 2], (1, 2), range(2), deque([1, 2]), np.arange(2), np.zeros((2, 3))])
@pytest.mark.parametrize("size", [1, 3])
def test_a_wrong_count_is_refused_with_both_numbers(result: Any, size: int) -> None:
    with pytest.raises(BatchContractError) as raised:
        split(result, size)
    assert f"tensor of {size}; it gave a {type(result).__name__} of 2" in str(raised.value)


def test_an_empty_result_is_a_wrong_count() -> None:
    with pytest.raises(BatchContractError, match="it gave a list of 0"):
        split([], 1)
