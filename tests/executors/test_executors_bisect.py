"""Bisection: its bounds as properties, and the whole of it through the executor."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from batchlib._core._execution import Executor
from batchlib._core._request import Request
from batchlib.errors import BatchContractError, BatchFailed, ExecutorLost
from batchlib.executors import Bisecting, CollatedFunction, FunctionExecutor
from batchlib.executors._bisect import bisect
from batchlib.executors._errors import failures
from batchlib.executors._in_parts import InParts


def levels(size: int) -> int:
    """⌈log2 size⌉."""
    return next(level for level in range(size) if 2**level >= size)


class Poison(Exception):
    pass


def search(size: int, culprits: set[int]) -> tuple[set[tuple[int, int]], list[tuple[int, int]]]:
    """Runs a plan to its end; for all that failed for good its last run, and all ranges that were run."""
    plan = bisect(size)
    runs: list[tuple[int, int]] = []
    failed: dict[int, tuple[int, int]] = {}
    suspects: Any = None
    try:
        while True:
            low, high = plan.send(suspects)
            runs.append((low, high))
            suspects = [(low, high)] if culprits & set(range(low, high)) else []
            for place in range(low, high):
                failed.pop(place, None)
                if suspects:
                    failed[place] = low, high
    except StopIteration:
        return set(failed.values()), runs


@st.composite
def batches(draw: st.DrawFn, most: int) -> tuple[int, set[int]]:
    size = draw(st.integers(2, 300))
    return size, draw(st.sets(st.integers(0, size - 1), min_size=1, max_size=min(size, most)))


@settings(max_examples=150, deadline=None, database=None)
@given(batches(most=4))
def test_few_culprits_are_found_within_the_bound(batch: tuple[int, set[int]]) -> None:
    """Up to four culprits stay below the stop, so nobody else suffers."""
    size, culprits = batch
    failed, runs = search(size, culprits)
    assert failed == {(place, place + 1) for place in culprits}
    assert len(runs) <= 1 + 2 * len(culprits) * levels(size)
    assert len(set(runs)) == len(runs)


@settings(max_examples=150, deadline=None, database=None)
@given(batches(most=300))
def test_an_outage_stops_early_and_every_culprit_has_failed(batch: tuple[int, set[int]]) -> None:
    size, culprits = batch
    failed, runs = search(size, culprits)
    assert len(runs) <= 1 + 8 * levels(size)
    covered = [place for low, high in failed for place in range(low, high)]
    assert len(set(covered)) == len(covered)
    assert culprits <= set(covered)
    # Who failed without being a culprit had not been run apart from one.
    passed = {place for low, high in runs if not culprits & set(range(low, high)) for place in range(low, high)}
    assert passed.isdisjoint(covered)


@settings(max_examples=30, deadline=None, database=None)
@given(st.integers(2, 600))
def test_when_everything_fails_the_last_error_seen_is_given(size: int) -> None:
    last: dict[int, list[int]] = {}
    runs = 0

    def function(items: list[int]) -> None:
        nonlocal runs
        runs += 1
        last.update(dict.fromkeys(items, items))
        raise Poison(items)

    outcomes = run(executor_for(function, bisect_errors=True), requests(range(size)))
    assert runs <= 1 + min(8 * levels(size), 2 * size - 2)
    assert [outcome.args[0] for outcome in outcomes] == [last[item] for item in range(size)]


def test_the_earlier_half_is_searched_first() -> None:
    _, runs = search(8, {0, 7})
    assert runs == [(0, 8), (0, 4), (4, 8), (0, 2), (2, 4), (0, 1), (1, 2), (4, 6), (6, 8), (6, 7), (7, 8)]


def requests(items: Sequence[Any]) -> list[Request]:
    return [Request((item,), "", 0.0) for item in items]


def run(executor: Executor, batch: list[Request]) -> Sequence[Any]:
    """As a batcher does: what a batch raises is each caller's own."""
    try:
        return asyncio.run(executor.run_async(batch)) if executor.is_async else executor.run(batch)
    except Exception as error:
        return failures(error, len(batch))


def executor_for(function: Any, *, bisect_errors: bool = False, **options: Any) -> Executor:
    executor = FunctionExecutor(CollatedFunction(function, **options))
    return Bisecting(executor) if bisect_errors else executor


@pytest.fixture(params=[False, True], ids=["plain", "async"])
def executor_of(request: pytest.FixtureRequest) -> Any:
    def make(function: Any, **options: Any) -> Executor:
        async def as_async(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs)

        return executor_for(as_async if request.param else function, is_async=request.param, **options)

    return make


def test_the_poisoned_item_fails_and_its_neighbours_do_not(executor_of: Any) -> None:
    calls: list[list[int]] = []

    def double(items: list[int]) -> list[int]:
        calls.append(items)
        if 5 in items:
            raise Poison("five")
        return [2 * item for item in items]

    outcomes = run(executor_of(double, bisect_errors=True), requests(range(8)))
    assert outcomes[:5] == [0, 2, 4, 6, 8]
    assert isinstance(outcomes[5], Poison)
    assert outcomes[6:] == [12, 14]
    assert calls == [list(range(8)), [0, 1, 2, 3], [4, 5, 6, 7], [4, 5], [6, 7], [4], [5]]


def test_exceptions_in_slots_of_halves_reach_their_callers(executor_of: Any) -> None:
    def function(items: list[int]) -> list[Any]:
        if 0 in items:
            raise Poison
        return [KeyError(item) if item == 3 else item for item in items]

    outcomes = run(executor_of(function, bisect_errors=True), requests(range(4)))
    assert [type(outcome) for outcome in outcomes] == [Poison, int, int, KeyError]


def test_a_half_that_breaks_the_contract_is_halved_again(executor_of: Any) -> None:
    def function(items: list[int]) -> Any:
        if len(items) == 4:
            raise Poison
        return None if 3 in items else items

    outcomes = run(executor_of(function, bisect_errors=True), requests(range(4)))
    assert outcomes[:3] == [0, 1, 2]
    assert isinstance(outcomes[3], BatchContractError)


def test_a_batch_that_breaks_the_contract_is_not_run_again(executor_of: Any) -> None:
    calls: list[int] = []
    executor = executor_of(lambda items: calls.append(len(items)), bisect_errors=True)
    outcomes = run(executor, requests(range(4)))
    assert calls == [4]
    assert {type(outcome) for outcome in outcomes} == {BatchContractError}
    assert len(set(map(id, outcomes))) == 4


@pytest.mark.parametrize("size", [1, 3])
def test_without_bisection_a_failed_batch_runs_once(executor_of: Any, size: int) -> None:
    calls: list[int] = []

    def function(items: list[int]) -> None:
        calls.append(len(items))
        raise Poison

    outcomes = run(executor_of(function, bisect_errors=size == 1), requests(range(size)))
    assert calls == [size]
    assert [type(outcome) for outcome in outcomes] == [Poison] * size


def test_a_plain_function_that_ends_an_iterator_fails_its_batch() -> None:
    for bisect_errors in (False, True):
        executor = executor_for(lambda items: next(iter(())), bisect_errors=bisect_errors)
        outcomes = run(executor, requests(range(3)))
        assert [type(outcome) for outcome in outcomes] == [BatchFailed] * 3
        assert all(isinstance(outcome.__cause__, StopIteration) for outcome in outcomes)


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_what_is_no_exception_of_the_function_passes_through(executor_of: Any, error: type[BaseException]) -> None:
    def function(items: list[int]) -> None:
        raise error

    executor = executor_of(function, bisect_errors=True)
    if executor.is_async:
        work = executor.run_async(requests(range(2)))
        with pytest.raises(error):
            work.send(None)
    else:
        with pytest.raises(error):
            executor.run(requests(range(2)))


def test_parallel_lists_settings_owner_and_collate(executor_of: Any) -> None:
    def function(owner: str, queries: tuple[int, ...], documents: tuple[int, ...], *, scale: int) -> list[str]:
        assert type(queries) is type(documents) is tuple
        return [f"{owner}{scale * query}{document}" for query, document in zip(queries, documents, strict=True)]

    batch = [Request(args, "", 0.0) for args in ((1, 2), (3, 4))]
    for request in batch:
        request.owner, request.settings = "o", {"scale": 10}
    assert run(executor_of(function, owned=True, collate=tuple), batch) == ["o102", "o304"]


def test_the_function_gets_lists_where_nothing_is_collated(executor_of: Any) -> None:
    def add(left: list[int], right: list[int]) -> list[int]:
        assert type(left) is type(right) is list
        return [a + b for a, b in zip(left, right, strict=True)]

    assert run(executor_of(add), [Request((3, 4), "", 0.0)]) == [7]


def test_a_single_list_is_collated(executor_of: Any) -> None:
    assert run(executor_of(lambda items: [sum(items)] * 2, collate=tuple), requests([1, 2])) == [3, 3]


class Halving:
    """An executor that runs at most two requests at once, of whatever it is given."""

    def __init__(self, executor: Executor) -> None:
        self.is_async = executor.is_async
        self._executor = executor

    def run(self, requests: Sequence[Request]) -> Sequence[Any]:
        outcomes = InParts()
        for begin in range(0, len(requests), 2):
            part = requests[begin : begin + 2]
            try:
                outcomes += self._executor.run(part)
            except ExecutorLost as lost:
                lost.outcomes = dict(enumerate(outcomes))
                raise
            except Exception as error:
                outcomes.fail(error, len(part))
        return outcomes

    async def run_async(self, requests: Sequence[Request]) -> Sequence[Any]:
        outcomes = InParts()
        for begin in range(0, len(requests), 2):
            part = requests[begin : begin + 2]
            try:
                outcomes += await self._executor.run_async(part)
            except ExecutorLost as lost:
                lost.outcomes = dict(enumerate(outcomes))
                raise
            except Exception as error:
                outcomes.fail(error, len(part))
        return outcomes


def halving(executor_of: Any, function: Any) -> Bisecting:
    return Bisecting(Halving(executor_of(function)))


@settings(max_examples=100, deadline=None, database=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(batches(most=6))
def test_culprits_are_found_in_parts_and_nobody_runs_again_beside_whom_nothing_failed(
    executor_of: Any, batch: tuple[int, set[int]]
) -> None:
    size, culprits = batch
    ran: list[list[int]] = []

    def function(items: list[int]) -> list[int]:
        ran.append(items)
        if culprits & set(items):
            raise Poison(items)
        return items

    outcomes = run(halving(executor_of, function), requests(range(size)))
    assert [isinstance(outcome, Poison) for outcome in outcomes] == [place in culprits for place in range(size)]
    beside = {place for part in ran if culprits & set(part) for place in part}
    for place in set(range(size)) - beside:
        assert sum(place in part for part in ran) == 1


def test_an_outage_of_an_executor_that_cuts_batches_stops_early_too(executor_of: Any) -> None:
    ran: list[list[int]] = []

    def function(items: list[int]) -> list[int]:
        ran.append(items)
        raise Poison(items)

    outcomes = run(halving(executor_of, function), requests(range(256)))
    assert {type(outcome) for outcome in outcomes} == {Poison}
    assert len(ran) <= 128 + 8 * levels(256)


def test_a_part_that_breaks_the_contract_is_not_run_again(executor_of: Any) -> None:
    ran: list[list[int]] = []

    def function(items: list[int]) -> Any:
        ran.append(items)
        return None if 3 in items else items

    outcomes = run(halving(executor_of, function), requests(range(6)))
    assert [type(outcome) for outcome in outcomes] == [int, int, BatchContractError, BatchContractError, int, int]
    assert ran == [[0, 1], [2, 3], [4, 5]]


def test_an_executor_lost_amid_the_search_leaves_what_was_found(executor_of: Any) -> None:
    """Of eight requests the third is a culprit; the executor is lost when the last two are run again."""
    ran: list[list[int]] = []

    class Fails:
        def __init__(self, inner: Executor) -> None:
            self.is_async = inner.is_async
            self._inner = inner

        def _checked(self, requests: Sequence[Request]) -> None:
            ran.append([request.args[0] for request in requests])
            if ran[-1] == [7]:
                raise ExecutorLost("gone")

        def run(self, requests: Sequence[Request]) -> Sequence[Any]:
            self._checked(requests)
            return self._inner.run(requests)

        async def run_async(self, requests: Sequence[Request]) -> Sequence[Any]:
            self._checked(requests)
            return await self._inner.run_async(requests)

    def function(items: list[int]) -> list[int]:
        if {2, 6, 7} & set(items):
            raise Poison(items)
        return items

    executor = Bisecting(Halving(Fails(executor_of(function))))
    batch = requests(range(8))
    with pytest.raises(ExecutorLost) as caught:
        asyncio.run(executor.run_async(batch)) if executor.is_async else executor.run(batch)
    found = caught.value.outcomes
    assert [place for place in range(8) if isinstance(found.get(place), int)] == [0, 1, 3, 4, 5]
    assert [place for place in range(8) if isinstance(found.get(place), Poison)] == [2, 6]
    assert 7 not in found
