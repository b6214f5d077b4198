"""Positional parameters are batched, keyword-only ones are settings; only equal settings share a batch."""

import functools
from collections.abc import Callable, Hashable, Iterator
from typing import Any

import pytest
from support import Held
from support.until import until

from batchlib import batched

Submit = Callable[[Any], Any]
Backlog = Callable[..., list[Any]]


@pytest.fixture
def backlog() -> Iterator[Backlog]:
    """backlog(function, calls): what the calls give that have all waited together, behind a first batch."""
    held = Held()
    made: list[Any] = []

    def run(function: Callable[..., Any], calls: list[Submit], **options: Any) -> list[Any]:
        @functools.wraps(function)
        def behind(*columns: Any, **settings: Any) -> Any:
            return function(*columns, **settings) if held.seen else held(columns[0])

        batcher = batched(behind, **options)
        made.append(batcher)
        first = calls[0](batcher)
        until(lambda: held.seen)
        futures = [call(batcher) for call in calls]
        held.gate.set()
        first.result(30)
        return [future.result(30) for future in futures]

    yield run
    held.gate.set()
    for batcher in made:
        batcher.close(drain=False)


def with_settings(*values: Any) -> list[Submit]:
    return [lambda f, value=value: f.submit(1, setting=value) for value in values]


class Note:
    """A batch function that notes its settings and its sizes."""

    def __init__(self) -> None:
        self.batches: list[tuple[Any, int]] = []

    def __call__(self, items: list[int], *, setting: Any = 1) -> list[Any]:
        self.batches.append((setting, len(items)))
        return [setting] * len(items)


def test_settings_compare_by_type_and_value(backlog: Backlog) -> None:
    note = Note()
    values = [1, 1.0, True, 1, "1", 1.0, None]
    got = backlog(note, with_settings(*values))
    assert [(type(value), value) for value in got] == [(type(value), value) for value in values]
    assert [(type(value), value, size) for value, size in note.batches] == [
        (int, 1, 2),
        (float, 1.0, 2),
        (bool, True, 1),
        (str, "1", 1),
        (type(None), None, 1),
    ]


def test_settings_inside_tuples_and_frozen_sets_do_so_too(backlog: Backlog) -> None:
    note = Note()
    values = [(1, (2,)), (1, (2.0,)), (True, (2,)), frozenset({1}), frozenset({1.0}), (1, (2,))]
    got = backlog(note, with_settings(*values))
    assert repr(got) == repr(values)
    assert [size for _, size in note.batches] == [2, 1, 1, 1, 1]


def test_a_default_said_equals_one_left_out(backlog: Backlog) -> None:
    note = Note()
    backlog(note, [lambda f: f.submit(1), lambda f: f.submit(1, setting=1), lambda f: f.submit(items=1)])
    assert note.batches == [(1, 3)]


@pytest.mark.parametrize("value", [[1], {"a": 1}, {1}, (1, [2]), bytearray(b"x")], ids=repr)
def test_an_unhashable_setting_is_a_type_error_at_the_call(value: Any) -> None:
    note = Note()
    with batched(note) as function:
        with pytest.raises(TypeError, match=r"the setting 'setting' must be hashable.*share a batch.*Pass a tuple"):
            function.call(1, setting=value)
        with pytest.raises(TypeError, match="must be hashable"):
            function(1, setting=value)
        assert function.statistics().submitted == 0
        assert function.call(1) == 1


def test_an_unhashable_default_is_a_type_error_at_decoration() -> None:
    def wrong(items: list[int], *, setting: Any = []) -> list[int]:  # noqa: B006
        return items

    with pytest.raises(TypeError, match=r"the setting 'setting' must be hashable"):
        batched(wrong)


def test_a_setting_without_a_default_must_be_given() -> None:
    def scale(items: list[int], *, by: int) -> list[int]:
        return [by * item for item in items]

    with batched(scale) as function:
        assert function.call(4, by=2) == 8
        with pytest.raises(TypeError, match=r"missing a required .*by"):
            function.call(4)


def test_group_by_adds_to_the_key(backlog: Backlog) -> None:
    batches: list[list[str]] = []

    def note(items: list[str]) -> list[str]:
        batches.append(items)
        return items

    words = ["a", "bb", "c", "dd", "eee"]
    calls = [lambda f, word=word: f.submit(word) for word in words]
    assert backlog(note, calls, group_by=len) == words
    assert batches == [["a", "c"], ["bb", "dd"], ["eee"]]


def test_group_by_gets_all_batched_arguments(backlog: Backlog) -> None:
    batches: list[Any] = []

    def note(xs: list[int], ys: list[int], *, setting: int = 0) -> list[int]:
        batches.append((xs, ys, setting))
        return xs

    calls = [
        lambda f, x=x, y=y, s=s: f.submit(x, y, setting=s) for x, y, s in [(1, 2, 0), (2, 1, 0), (5, 5, 0), (3, 0, 1)]
    ]
    backlog(note, calls, group_by=lambda x, y: x + y)
    assert batches == [([1, 2], [2, 1], 0), ([5], [5], 0), ([3], [0], 1)]


def test_an_unhashable_group_is_its_callers_type_error() -> None:
    def group(item: int) -> Hashable:
        return [item] if item == 1 else item  # type: ignore[return-value]

    with batched(lambda items: items, group_by=group) as function:
        with pytest.raises(TypeError, match="group_by must give something hashable"):
            function.call(1)
        assert function.call(2) == 2


def test_parallel_parameters(backlog: Backlog) -> None:
    batches: list[Any] = []

    def score(queries: list[str], documents: list[str], weights: list[float] = [1.0]) -> list[str]:  # noqa: B006
        batches.append((queries, documents, weights))
        return [f"{q}{d}{w}" for q, d, w in zip(queries, documents, weights, strict=True)]

    calls: list[Submit] = [
        lambda f: f.submit("q", "d"),
        lambda f: f.submit("q", documents="e"),
        lambda f: f.submit(documents="f", queries="r", weights=2.0),
        lambda f: f.submit("s", "g", 3.0),
    ]
    assert backlog(score, calls) == ["qd1.0", "qe1.0", "rf2.0", "sg3.0"]
    assert batches == [(["q", "q", "r", "s"], ["d", "e", "f", "g"], [1.0, 1.0, 2.0, 3.0])]


def test_a_default_is_each_items_own(backlog: Backlog) -> None:
    def add(a: list[int], b: list[int] = [10]) -> list[int]:  # noqa: B006
        b[0] += 1000  # what the function does to its list stays in its batch
        return [x + y for x, y in zip(a, b, strict=True)]

    assert backlog(add, [lambda f: f.submit(1), lambda f: f.submit(2), lambda f: f.submit(3, 5)]) == [1011, 12, 8]
    with batched(add) as function:
        assert function.call(1) == 1011


def test_args_are_batched_and_kwargs_are_settings(backlog: Backlog) -> None:
    batches: list[Any] = []

    def forward(*columns: list[int], **settings: Any) -> list[int]:
        batches.append((columns, settings))
        return [sum(row) for row in zip(*columns, strict=True)]

    calls: list[Submit] = [
        lambda f: f.submit(1),
        lambda f: f.submit(1, 2),
        lambda f: f.submit(3, 4),
        lambda f: f.submit(5, mode="fast"),
        lambda f: f.submit(6, mode="fast", scale=2),
        lambda f: f.submit(7, scale=2, mode="fast"),
    ]
    assert backlog(forward, calls) == [1, 3, 7, 5, 6, 7]
    assert batches == [
        (([1],), {}),
        (([1, 3], [2, 4]), {}),
        (([5],), {"mode": "fast"}),
        (([6, 7],), {"mode": "fast", "scale": 2}),
    ]


def test_named_parameters_before_args() -> None:
    def forward(first: list[int], *rest: list[int], scale: int = 1, **more: int) -> list[int]:
        return [scale * sum(row) + sum(more.values()) for row in zip(first, *rest, strict=True)]

    with batched(forward) as function:
        assert function.call(1) == 1
        assert function.call(1, 2, 3) == 6
        assert function.call(1, 2, scale=10) == 30
        assert function.call(1, 2, scale=10, extra=4) == 34
        assert function.call(first=5, scale=2) == 10


def test_cost_gets_the_defaults_too() -> None:
    costs: list[tuple[int, int]] = []

    def add(a: list[int], b: list[int] = [10]) -> list[int]:  # noqa: B006
        return a

    with batched(add, cost=lambda a, b: costs.append((a, b)) or 1) as function:
        function.call(1)
        function.call(b=3, a=2)
    assert costs == [(1, 10), (2, 3)]


def test_collate_makes_what_the_function_gets() -> None:
    got: list[Any] = []

    def note(xs: Any, ys: Any) -> list[int]:
        got.append((xs, ys))
        return list(xs)

    with batched(note, collate=tuple) as function:
        assert function.call(1, 2) == 1
    assert got == [((1,), (2,))]


def test_what_collate_raises_fails_its_batch() -> None:
    def collate(items: list[Any]) -> Any:
        raise ValueError("ragged")

    with batched(lambda items: items, collate=collate) as function:
        with pytest.raises(ValueError, match="ragged"):
            function.call(1)
        assert function.statistics().failed == 1


@pytest.mark.parametrize(
    ("cost", "error"),
    [
        (-1, ValueError),
        (float("inf"), ValueError),
        (float("nan"), ValueError),
        ("5", TypeError),
        (None, TypeError),
        (True, TypeError),
    ],
)
def test_a_cost_that_is_no_number_is_its_callers_error(cost: Any, error: type[Exception]) -> None:
    with batched(lambda items: items, cost=lambda item: cost if item == 1 else 1) as function:
        with pytest.raises(error, match="cost must be a"):
            function.call(1)
        assert function.call(2) == 2
        assert function.statistics().submitted == 1
