"""Objects of foreign classes may raise wherever they are touched: the callers concerned are told, and nobody hangs."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from support import Held
from support.held import LONG

from batchlib import BatchContractError, BatchFailed, batched

pytestmark = pytest.mark.timeout(60)


class LazilyFailing(Sequence[Any]):
    """Rows that are fetched when they are looked at, and cannot be."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: Any) -> Any:
        raise LookupError("the rows are gone")


class Unsized(LazilyFailing):
    def __len__(self) -> int:
        raise LookupError("not even a length")


class Speechless(Exception):
    def __str__(self) -> str:
        raise LookupError("no text")

    __repr__ = __str__


Outcomes = Callable[[int], Any]


def errors_of_three(f: Any, held: Held) -> list[BaseException | None]:
    """What three callers of one batch get; the batcher goes on after it."""
    first = f.submit("first")
    assert held.started.wait(LONG)
    futures = [f.submit(item) for item in range(3)]
    held.gate.set()
    assert first.exception(LONG) is not None
    errors = [future.exception(LONG) for future in futures]
    f.close(timeout=LONG)
    assert [len(batch) for batch in held.seen] == [1, 3]
    now = f.statistics()
    assert (now.waiting, now.running_batches, now.failed) == (0, 0, 4)
    return errors


@pytest.mark.parametrize("kind", [LazilyFailing, Unsized])
def test_a_sequence_that_raises_fails_its_batch(kind: Any) -> None:
    held = Held(lambda items: kind(len(items)))
    errors = errors_of_three(batched(held), held)
    assert [type(error) for error in errors] == [LookupError] * 3
    assert len({id(error) for error in errors}) == 3


def test_an_error_without_a_text_in_every_slot() -> None:
    def refused(items: list[Any]) -> list[Any]:
        error = Speechless()
        return [error] * len(items)

    held = Held(refused)
    errors = errors_of_three(batched(held), held)
    assert isinstance(errors[0], Speechless)
    for error in errors[1:]:  # it could not be copied
        assert isinstance(error, BatchFailed)
        assert str(error) == "the batch function raised Speechless: (its text cannot be had: LookupError)"
        assert error.__cause__ is errors[0]


def test_an_error_without_a_text_for_the_whole_batch() -> None:
    def refused(items: list[Any]) -> list[Any]:
        raise Speechless

    held = Held(refused)
    errors = errors_of_three(batched(held), held)
    assert [type(error) for error in errors] == [BatchFailed] * 3
    assert {type(error.__cause__) for error in errors if error is not None} == {Speechless}


def same(items: list[Any]) -> list[Any]:
    return items


class Executor:
    """One of a user's own, which gives back whatever the test wants."""

    def __init__(self, outcomes: Outcomes, is_async: bool) -> None:
        self.held = Held(lambda requests: outcomes(len(requests)))
        self.is_async = is_async

    def run(self, requests: Sequence[Any]) -> Any:
        return self.held(list(requests))

    async def run_async(self, requests: Sequence[Any]) -> Any:
        return self.held(list(requests))


NO_SEQUENCES: dict[str, tuple[Outcomes, str]] = {
    "None": (lambda size: None, "NoneType"),
    "a number": (lambda size: 7, "int"),
    "an iterator": (lambda size: iter(range(size)), "range_iterator"),
    "too few": (lambda size: [0] * (size - 1), "2"),
    "too many": (lambda size: [0] * (size + 1), "4"),
}


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("what", NO_SEQUENCES)
def test_an_executor_that_gives_no_sequence_of_outcomes(what: str, is_async: bool) -> None:
    outcomes, named = NO_SEQUENCES[what]
    executor = Executor(outcomes, is_async)
    errors = errors_of_three(batched(same, executor=executor), executor.held)
    assert [type(error) for error in errors] == [BatchContractError] * 3
    assert f"one outcome per request: 3, not {named}" in str(errors[0])


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("kind", [LazilyFailing, Unsized])
def test_an_executor_whose_outcomes_raise(kind: Any, is_async: bool) -> None:
    executor = Executor(kind, is_async)
    errors = errors_of_three(batched(same, executor=executor), executor.held)
    assert [isinstance(error, Exception) for error in errors] == [True] * 3
