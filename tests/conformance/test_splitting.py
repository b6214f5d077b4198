"""`oversize="split"`: one call of many rows runs in batches within the limit, and its caller sees none of it."""

import sys
import threading
import types
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import VirtualClock
from support.until import until

from batchlib import (
    DeadlineExceeded,
    ItemTooLarge,
    Overloaded,
    ReentrantCallError,
    RequestEnded,
    batch_context,
    batched,
    request_options,
)

from .held import Held, Kind, of_kind
from .runtimes import RUNTIMES, FuturesRuntime, Left, LoopRuntime, Runtime
from .test_mapping import collected, mapping, start

Make = Callable[..., Any]
SPLIT: dict[str, Any] = {"cost": len, "max_batch_cost": 4, "oversize": "split"}
__all__ = ["mapping"]  # a fixture


def doubled(calls: list[Any]) -> list[Any]:
    return [[2 * row for row in rows] for rows in calls]


def rows_of(batch: list[Any]) -> int:
    return sum(map(len, batch))


def test_a_large_call_gives_what_the_function_gives(runtime: Runtime, kind: Kind, make: Make) -> None:
    held = Held(kind, doubled)
    held.gate.open()
    function = make(held, **SPLIT)
    assert runtime.start(function, range(10)).result() == list(range(0, 20, 2))
    assert runtime.start(function, range(4)).result() == [0, 2, 4, 6]
    assert runtime.start(function, []).result() == []
    assert held.seen == [[range(4)], [range(4, 8)], [range(8, 10)], [range(4)], [[]]]
    now = function.statistics()
    assert (now.submitted, now.completed) == (5, 5)


def test_many_callers_at_once(runtime: Runtime, kind: Kind, make: Make) -> None:
    held = Held(kind, doubled)
    held.gate.open()
    function = make(held, max_concurrent_batches=2, **SPLIT)
    calls = [runtime.start(function, range(length)) for length in range(20)]
    assert [call.result() for call in calls] == [list(range(0, 2 * length, 2)) for length in range(20)]
    assert all(rows_of(batch) <= 4 for batch in held.seen)


def test_the_rest_shares_its_batch_and_keeps_its_place(runtime: Runtime, make: Make) -> None:
    held = Held("plain", doubled)
    function = make(held, **SPLIT)
    calls = [runtime.start(function, "a")]
    until(lambda: held.seen)
    for place, text in enumerate(["bbbbbb", "c", "d"]):
        calls.append(runtime.start(function, text))
        until(lambda place=place: function.statistics().waiting == place + 2)
    held.gate.open()
    assert [call.result() for call in calls] == [["aa"], ["bb"] * 6, ["cc"], ["dd"]]
    assert held.seen == [["a"], ["bbbb"], ["bb", "c", "d"]]


def test_it_fails_once_and_what_is_left_never_runs(runtime: Runtime, kind: Kind, make: Make) -> None:
    def fail_at_8(calls: list[Any]) -> list[Any]:
        return [KeyError("row 8") if 8 in rows else list(rows) for rows in calls]

    held = Held(kind, fail_at_8)
    function = make(held, **SPLIT)
    whole = runtime.start(function, range(20))
    until(lambda: held.seen)
    other = runtime.start(function, range(3))
    until(lambda: function.statistics().waiting == 5)
    held.gate.open()
    error = whole.error()
    assert isinstance(error, KeyError)
    assert error.args == ("row 8",)
    assert other.result() == [0, 1, 2]
    assert held.seen == [[range(4)], [range(4, 8)], [range(8, 12)], [range(3)]]
    now = function.statistics()
    assert (now.completed, now.failed, now.waiting, now.running) == (3, 3, 0, 0)


def test_a_batch_that_raises_fails_the_whole_once(runtime: Runtime, kind: Kind, make: Make) -> None:
    function = make(of_kind(kind, lambda calls: 1 / 0), **SPLIT)
    assert isinstance(runtime.start(function, range(100)).error(), ZeroDivisionError)
    assert function.statistics().batches == 1
    assert function.statistics().failed == 25


def test_a_neighbours_error_is_the_neighbours(runtime: Runtime, make: Make) -> None:
    held = Held("plain", lambda calls: [ValueError(rows) if "x" in rows else rows for rows in calls])
    function = make(held, **SPLIT)
    first = runtime.start(function, "a")
    until(lambda: held.seen)
    whole, wrong = runtime.start(function, "bbbbbb"), runtime.start(function, "x")
    until(lambda: function.statistics().waiting == 3)
    held.gate.open()
    assert (first.result(), whole.result()) == ("a", "bbbbbb")
    assert isinstance(wrong.error(), ValueError)


def test_who_leaves_while_it_waits_takes_all_parts_along(leaving: Runtime, kind: Kind, make: Make) -> None:
    held = Held(kind, doubled)
    function = make(held, **SPLIT)
    first = leaving.start(function, [7])
    until(lambda: held.seen)
    whole = leaving.start(function, range(10))
    until(lambda: function.statistics().waiting == 3)
    whole.leave()
    with pytest.raises(Left):
        whole.result()
    now = function.statistics()
    assert (now.waiting, now.cancelled, now.running) == (0, 3, 1)
    held.gate.open()
    assert first.result() == [14]
    assert held.seen == [[[7]]]


def test_who_leaves_while_a_part_runs(leaving_a_batch: Runtime, kind: Kind, make: Make) -> None:
    held = Held(kind, doubled)
    function = make(held, **SPLIT)
    whole = leaving_a_batch.start(function, range(10))
    until(lambda: held.seen)
    whole.leave()
    with pytest.raises(Left):
        whole.result()
    now = function.statistics()
    assert (now.waiting, now.running, now.cancelled) == (0, 0, 3)
    if kind == "async":
        until(lambda: held.cancelled)
    held.gate.open()
    assert leaving_a_batch.start(function, [7]).result() == [14]
    assert held.seen == [[range(4)], [[7]]]


def test_a_future_can_be_cancelled_until_a_part_runs(make: Make) -> None:
    held = Held("plain", doubled)
    function = make(held, **SPLIT)
    first = function.submit(range(8))
    until(lambda: held.seen)
    second = function.submit(range(8))
    assert (first.running(), second.running()) == (True, False)
    assert not first.cancel()
    assert second.cancel()
    assert second.cancelled()
    held.gate.open()
    assert first.result() == list(range(0, 16, 2))
    assert not first.running()
    assert held.seen == [[range(4)], [range(4, 8)]]


def test_a_whole_expires_once(runtime: Runtime, kind: Kind, clock: VirtualClock, make: Make) -> None:
    held = Held(kind, doubled)
    function = make(held, clock=clock, timeout=1, **SPLIT)
    whole = runtime.start(function, range(10))
    until(lambda: held.seen)
    clock.advance(1)
    assert isinstance(whole.error(), DeadlineExceeded)
    assert function.statistics().expired == 3
    held.gate.open()
    until(lambda: not function.statistics().running_batches)
    assert held.seen == [[range(4)]]


def test_a_whole_is_refused_as_a_whole(runtime: Runtime, make: Make) -> None:
    held = Held("plain", doubled)
    function = make(held, max_waiting=3, overflow="reject", **SPLIT)
    first = runtime.start(function, range(4))
    until(lambda: held.seen)
    assert isinstance(runtime.start(function, range(16)).error(), Overloaded)
    assert function.statistics().waiting == 0
    assert function.statistics().rejected == 4
    fits = runtime.start(function, range(12))
    until(lambda: function.statistics().waiting == 3)
    held.gate.open()
    assert first.result() == [0, 2, 4, 6]
    assert fits.result() == list(range(0, 24, 2))


def test_a_full_queue_holds_back_a_whole_from_a_loop_that_submits(loop: LoopRuntime, make: Make) -> None:
    held = Held("plain", doubled)
    function = make(held, max_waiting=2, **SPLIT)
    first = loop.start(function, [1])
    until(lambda: held.seen)
    accepted = loop.do(lambda: function.submit(range(20)))  # there is room for one, so there is for all of it
    with pytest.raises(Overloaded):
        loop.do(lambda: function.submit(range(20)))
    assert function.statistics().waiting == 5
    held.gate.open()
    assert first.result() == [2]
    assert accepted.result() == list(range(0, 40, 2))


def test_a_limit_that_is_lowered_refuses_what_waits(runtime: Runtime, make: Make) -> None:
    held = Held("plain", doubled)
    function = make(held, **SPLIT)
    whole = runtime.start(function, range(12))
    until(lambda: held.seen)
    function.configure(max_batch_cost=3)
    assert isinstance(whole.error(), ItemTooLarge)
    held.gate.open()
    assert runtime.start(function, range(7)).result() == list(range(0, 14, 2))
    assert held.seen == [[range(4)], [range(3)], [range(3, 6)], [range(6, 7)]]


@pytest.mark.parametrize("ordered", [True, False])
def test_map(mapping: Runtime, kind: Kind, ordered: bool, make: Make) -> None:
    items = [range(length) for length in (9, 0, 4, 17, 1)]
    function = make(of_kind(kind, doubled), **SPLIT)
    found = collected(mapping, function.map(items, ordered=ordered))
    expected = doubled(items)
    assert (found if ordered else [value for _, value in sorted(found)]) == expected
    results = collected(mapping, function.map([*items, range(3)], return_exceptions=True))
    assert results == doubled([*items, range(3)])


def test_map_that_is_left_early_cancels_all_parts(mapping: Runtime, make: Make) -> None:
    def broken(calls: list[Any]) -> list[Any]:
        return [ValueError("first") if 0 in rows else list(rows) for rows in calls]

    held = Held("plain", broken)
    function = make(held, **SPLIT)
    call = start(mapping, function.map([range(9)] * 5, look_ahead=3), [])
    until(lambda: function.statistics().submitted == 9)
    held.gate.open()
    assert isinstance(call.error(), ValueError)
    until(lambda: not function.statistics().running_batches)
    assert function.statistics().waiting == 0


def test_what_a_call_carries_all_its_parts_carry(runtime: Runtime, clock: VirtualClock, make: Make) -> None:
    seen = []

    def function(calls: list[Any], *, scale: int = 1) -> list[Any]:
        seen.append([(item.tenant, item.priority, item.deadline, scale) for item in batch_context()])
        return [[scale * row for row in rows] for rows in calls]

    batcher = make(function, clock=clock, **SPLIT)
    chosen = batcher.options(priority=3, timeout=5)
    inside = request_options(tenant="acme")
    assert runtime.start(chosen, range(6), inside=inside, scale=10).result() == list(range(0, 60, 10))
    assert seen == [[("acme", 3, 105.0, 10)]] * 2


def test_parallel_arguments_are_cut_alike(runtime: Runtime, make: Make) -> None:
    seen = []

    def score(queries: list[Any], documents: list[Any]) -> list[Any]:
        seen.append((queries, documents))
        return [tuple(zip(q, d, strict=True)) for q, d in zip(queries, documents, strict=True)]

    function = make(score, **{**SPLIT, "cost": lambda q, d: len(q)})
    assert runtime.start(function, "abcdef", range(6)).result() == tuple(zip("abcdef", range(6), strict=True))
    assert seen == [(["abcd"], [range(4)]), (["ef"], [range(4, 6)])]


@pytest.mark.parametrize(
    ("item", "words"),
    [
        (range(9), "the cost is 10, and argument 1 has 9 rows"),
        (10, "argument 1 is a int, which has no rows"),
        (dict.fromkeys(range(10)), "argument 1 is a dict, which has no rows"),
        (set(range(10)), "argument 1 is a set, which has no rows"),
        (deque(range(10)), "argument 1 is a deque, which has no rows"),
    ],
)
def test_a_cost_that_is_no_length_fails_its_call_alone(runtime: Runtime, item: Any, words: str, make: Make) -> None:
    function = make(doubled, **{**SPLIT, "cost": lambda rows: 10 if rows is item else len(rows)})
    error = runtime.start(function, item).error()
    assert isinstance(error, TypeError)
    assert words in str(error)
    assert function.statistics().submitted == 0
    assert runtime.start(function, range(5)).result() == [0, 2, 4, 6, 8]


def test_a_limit_below_one_row_refuses(runtime: Runtime, make: Make) -> None:
    function = make(doubled, **{**SPLIT, "max_batch_cost": 0.5})
    assert isinstance(runtime.start(function, range(3)).error(), ItemTooLarge)


JOINS: dict[str, tuple[Callable[[list[Any]], Any], Any]] = {
    "lists": (lambda calls: [list(rows) for rows in calls], [0, 1, 2, 3, 4, 5]),
    "tuples": (lambda calls: [tuple(rows) for rows in calls], (0, 1, 2, 3, 4, 5)),
    "texts": (lambda calls: ["".join(map(str, rows)) for rows in calls], "012345"),
}


@pytest.mark.parametrize("name", JOINS)
def test_results_of_parts_are_put_together_by_their_kind(runtime: Runtime, name: str, make: Make) -> None:
    function, expected = JOINS[name]
    result = runtime.start(make(function, **SPLIT), range(6)).result()
    assert result == expected
    assert type(result) is type(expected)


def test_arrays_are_put_together_on_axis_0(runtime: Runtime, make: Make) -> None:
    function = make(lambda calls: [2 * rows for rows in calls], **SPLIT)
    item = numpy.arange(18).reshape(6, 3)
    result = runtime.start(function, item).result()
    assert isinstance(result, numpy.ndarray)
    assert numpy.array_equal(result, 2 * item)


def test_tensors_are_put_together_on_axis_0(monkeypatch: pytest.MonkeyPatch, make: Make) -> None:
    class Tensor(list[Any]):
        pass

    def cat(tensors: list[Tensor], dim: int) -> Tensor:
        assert dim == 0
        return Tensor(row for tensor in tensors for row in tensor)

    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(Tensor=Tensor, cat=cat))  # type: ignore[arg-type]
    result = make(lambda calls: [Tensor(rows) for rows in calls], **SPLIT).call(range(6))
    assert type(result) is Tensor
    assert result == list(range(6))


@pytest.mark.parametrize(
    "function",
    [
        lambda calls: [{row: row for row in rows} for rows in calls],
        lambda calls: [list(rows) if 0 in rows else tuple(rows) for rows in calls],
    ],
    ids=["no kind that is known", "not one kind"],
)
@pytest.mark.parametrize("without", [["numpy", "torch"], []])
def test_results_that_cannot_be_put_together_are_an_error_that_names_join(
    runtime: Runtime, function: Any, without: list[str], make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in without:
        monkeypatch.delitem(sys.modules, module, raising=False)
    batcher = make(function, **SPLIT)
    error = runtime.start(batcher, range(6)).error()
    assert isinstance(error, TypeError)
    assert "give join=" in str(error)
    assert len(runtime.start(batcher, range(3)).result()) == 3


def test_a_join_of_ones_own(runtime: Runtime, make: Make) -> None:
    joined = []

    def join(results: list[dict[int, int]]) -> dict[int, int]:
        joined.append(len(results))
        return {row: value for result in results for row, value in result.items()}

    function = make(lambda calls: [{row: -row for row in rows} for rows in calls], join=join, **SPLIT)
    assert runtime.start(function, range(9)).result() == {row: -row for row in range(9)}
    assert runtime.start(function, range(2)).result() == {0: 0, 1: -1}
    assert joined == [3]


def test_what_join_raises_is_its_callers_alone(runtime: Runtime, kind: Kind, make: Make) -> None:
    def join(results: list[list[int]]) -> list[int]:
        if results[0][0] == 0:
            raise KeyError("its own")
        return [row for result in results for row in result]

    function = make(of_kind(kind, doubled), join=join, **SPLIT)
    calls = [runtime.start(function, range(start, 9)) for start in (0, 1)]
    assert isinstance(calls[0].error(), KeyError)
    assert calls[1].result() == list(range(2, 18, 2))


def test_join_runs_in_the_caller(make: Make) -> None:
    threads = []

    def join(results: list[Any]) -> Any:
        threads.append(threading.current_thread())
        return results

    function = make(doubled, join=join, **SPLIT)
    function.call(range(8))
    next(iter(function.map([range(8)])))
    assert threads == [threading.current_thread()] * 2
    with RUNTIMES["asyncio"]() as asyncio_runtime, RUNTIMES["trio"]() as trio_runtime:
        for runtime in (asyncio_runtime, trio_runtime):
            assert isinstance(runtime, LoopRuntime)
            runtime.run(lambda: function(range(8)))
            assert threads[-1] is runtime.thread


def test_hooks_are_told_of_every_part(leaving: Runtime, make: Make) -> None:
    told: list[RequestEnded] = []
    held = Held("plain", doubled)
    function = make(
        held, hooks=[lambda event: told.append(event) if isinstance(event, RequestEnded) else None], **SPLIT
    )
    first = leaving.start(function, range(6))
    until(lambda: held.seen)
    second = leaving.start(function, range(9))
    until(lambda: function.statistics().waiting == 4)
    second.leave()
    with pytest.raises(Left):
        second.result()
    held.gate.open()
    assert first.result() == list(range(0, 12, 2))
    until(lambda: len(told) == 5)
    assert sorted((event.state.value, event.cost) for event in told) == [
        ("cancelled", 1),
        ("cancelled", 4),
        ("cancelled", 4),
        ("completed", 2),
        ("completed", 4),
    ]


def test_a_call_from_inside_its_own_batch_is_refused_however_large(make: Make) -> None:
    def function(calls: list[Any]) -> list[Any]:
        return [inner.call(rows) for rows in calls]

    inner = make(function, **SPLIT)
    assert isinstance(FuturesRuntime().start(inner, range(9)).error(), ReentrantCallError)


class Model:
    @batched(**SPLIT)
    def scaled(self, calls: list[Any], *, by: int = 2) -> list[Any]:
        return [[by * row for row in rows] for rows in calls]


def test_a_method(runtime: Runtime) -> None:
    model = Model()
    assert runtime.start(model.scaled, range(9), by=3).result() == list(range(0, 27, 3))
    model.scaled.close()


@pytest.fixture(scope="module")
def anywhere() -> Iterator[list[Runtime]]:
    with ExitStack() as stack:
        yield [stack.enter_context(RUNTIMES[kind]()) for kind in ("asyncio", "trio", "threads", "futures")]


@settings(max_examples=60, deadline=None, database=None)
@given(
    lengths=st.lists(st.integers(0, 30), min_size=1, max_size=8),
    limit=st.integers(1, 9),
    size=st.integers(1, 4),
    at_once=st.integers(1, 3),
)
def test_whatever_the_lengths_and_limits_results_are_those_of_a_direct_call(
    anywhere: list[Runtime], lengths: list[int], limit: int, size: int, at_once: int
) -> None:
    seen: list[int] = []

    def function(calls: list[Any]) -> list[Any]:
        seen.append(rows_of(calls))
        assert len(calls) <= size
        return doubled(calls)

    options = {**SPLIT, "max_batch_cost": limit, "max_batch_size": size, "max_concurrent_batches": at_once}
    with batched(function, **options) as batcher:
        items = [range(start, start + length) for start, length in enumerate(lengths)]
        calls = [anywhere[place % len(anywhere)].start(batcher, item) for place, item in enumerate(items)]
        assert [call.result() for call in calls] == doubled(items)
    assert max(seen) <= limit
    assert sum(seen) == sum(lengths)
