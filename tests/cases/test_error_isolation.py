"""An error reaches those it belongs to, as it is, and nothing ever stops the batcher."""

import asyncio
import logging
import traceback
from contextlib import ExitStack
from typing import Any

import pytest
from support import Held
from support.callers import Start, outcomes, starter
from support.until import until

from batchlib import BatchFailed, batched


class HTTPError(Exception):
    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status


class Odd(Exception):
    """`copy.copy` fails on it."""

    def __init__(self, *, code: int) -> None:
        super().__init__(f"code {code}")
        self.code = code


class Stubborn(Exception):
    """Cannot be made again from its arguments."""

    def __new__(cls, *args: Any, **kwargs: Any) -> "Stubborn":
        if not kwargs:
            raise RuntimeError("made by name only")
        return super().__new__(cls)

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(*kwargs.values())


class Boom(BaseException):
    """Not an Exception, like what ends a thread or a program."""


ENDING = [Boom("x"), SystemExit(3), KeyboardInterrupt(), GeneratorExit(), asyncio.CancelledError(), StopIteration(1)]


def both(function: Any, asynchronous: bool) -> Any:
    """The function, or an async one that does the same."""

    async def run(items: list[Any]) -> Any:
        return function(items)

    return run if asynchronous else function


@pytest.fixture(params=[False, True], ids=["plain", "async"])
def asynchronous(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def test_an_exception_in_a_slot_is_private_and_arrives_as_it_is(start: Start, asynchronous: bool) -> None:
    error = HTTPError(422, "negative")
    f = batched(
        both(lambda items: [error if item < 0 else item for item in items], asynchronous), max_batch_size=3, max_wait=60
    )
    assert outcomes([start(f, 1), start(f, -1), start(f, 3)]) == [1, error, 3]
    assert error.status == 422


def test_one_exception_object_in_several_slots_is_not_shared(start: Start) -> None:
    error = HTTPError(422, "negative")
    f = batched(lambda items: [error] * len(items), max_batch_size=3, max_wait=60)
    errors = outcomes([start(f, item) for item in range(3)])
    assert len({id(error) for error in errors}) == 3
    assert [(type(error), error.status, str(error)) for error in errors] == [(HTTPError, 422, "negative")] * 3


@pytest.mark.parametrize("error", ENDING, ids=lambda error: type(error).__name__)
def test_what_would_end_a_loop_fails_its_own_slot_only(start: Start, asynchronous: bool, error: Any) -> None:
    f = batched(
        both(lambda items: [error if item < 0 else item for item in items], asynchronous), max_batch_size=2, max_wait=60
    )
    good, bad = outcomes([start(f, 1), start(f, -1)])
    assert (good, type(bad), bad.__cause__) == (1, BatchFailed, error)


@pytest.mark.parametrize("error", [*ENDING, StopAsyncIteration()], ids=lambda error: type(error).__name__)
def test_what_would_end_a_thread_is_never_a_hang(start: Start, error: BaseException) -> None:
    """Its callers learn the root cause, those behind them are served."""
    held = Held()

    def function(items: list[str]) -> list[str]:
        held(items)
        if "boom" in items:
            raise error
        return items

    f = batched(function, max_batch_size=2, max_wait=60)
    failing = [start(f, "boom"), start(f, "beside")]
    assert held.started.wait()
    waiting = [start(f, "next"), start(f, "to it")]
    until(lambda: f.statistics().waiting == 2)
    held.gate.set()
    errors = outcomes(failing)
    assert [(type(got), got.__cause__) for got in errors] == [(BatchFailed, error)] * 2
    assert outcomes(waiting) == ["next", "to it"]
    assert f.statistics().healthy


@pytest.mark.parametrize("error", [Boom("x"), asyncio.CancelledError("not the caller's")], ids=["Boom", "Cancelled"])
@pytest.mark.parametrize("size", [1, 2])
def test_an_async_function_that_raises_such_a_thing_harms_no_loop(
    start: Start, error: BaseException, size: int, caplog: pytest.LogCaptureFixture
) -> None:
    async def function(items: list[Any]) -> list[Any]:
        if "boom" in items:
            raise error
        return items

    f = batched(function, max_batch_size=size, max_wait=60)
    errors = outcomes([start(f, "boom") for _ in range(size)])
    assert [(type(got), got.__cause__) for got in errors] == [(BatchFailed, error)] * size
    assert outcomes([start(f, item) for item in range(size)]) == list(range(size))
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3)], ids=["KeyboardInterrupt", "SystemExit"])
@pytest.mark.parametrize("kind", ["thread", "future", "trio"])
def test_an_interrupt_on_a_loop_that_serves_others_stops_nothing(kind: str, error: BaseException) -> None:
    """Only a caller's own asyncio loop hears of it, as of any interrupt."""

    async def function(items: list[Any]) -> list[Any]:
        if "boom" in items:
            raise error
        return items

    with ExitStack() as stack:
        start = starter(kind, stack)
        f = batched(function, max_batch_size=1)
        got = start(f, "boom").exception()
        assert (type(got), got.__cause__) == (BatchFailed, error)
        assert start(f, "next").result() == "next"


@pytest.mark.parametrize("callback", ["cost", "group_by", "priority"])
@pytest.mark.parametrize("bad", [None, 5])
def test_a_callback_that_raises_fails_its_own_call_only(start: Start, callback: str, bad: Any) -> None:
    limits = {"max_batch_cost": 100} if callback == "cost" else {}
    f = batched(
        lambda items: [item.upper() for item in items], max_batch_size=2, max_wait=60, **{callback: len}, **limits
    )
    good = start(f, "ab")
    until(lambda: f.statistics().waiting == 1)
    with pytest.raises(TypeError, match=r"has no len\(\)"):
        start(f, bad).result()
    assert outcomes([good, start(f, "cd")]) == ["AB", "CD"]
    assert f.statistics().submitted == 2


@pytest.mark.parametrize(
    ("callback", "value", "error"),
    [
        ("cost", -1, ValueError),
        ("cost", float("nan"), ValueError),
        ("cost", float("inf"), ValueError),
        ("cost", "3", TypeError),
        ("cost", None, TypeError),
        ("cost", True, TypeError),
        ("priority", float("nan"), ValueError),
        ("priority", "high", TypeError),
        ("group_by", [1], TypeError),
    ],
)
def test_a_callback_that_gives_nonsense_fails_its_own_call_only(
    start: Start, callback: str, value: Any, error: type[Exception]
) -> None:
    f = batched(lambda items: items, max_batch_size=2, max_wait=60, **{callback: lambda item: value if item < 0 else 1})
    good = start(f, 1)
    until(lambda: f.statistics().waiting == 1)
    with pytest.raises(error):
        start(f, -1).result()
    assert outcomes([good, start(f, 2)]) == [1, 2]


def test_a_raised_error_is_followed_by_normal_service(start: Start, asynchronous: bool) -> None:
    f = batched(both(lambda items: [1 // item for item in items], asynchronous), max_batch_size=2, max_wait=60)
    for _ in range(3):
        assert [type(error) for error in outcomes([start(f, 0), start(f, 1)])] == [ZeroDivisionError] * 2
        assert outcomes([start(f, 1), start(f, 1)]) == [1, 1]
    assert f.statistics().failed == 6


def test_one_bad_item_can_be_told_from_its_neighbours(start: Start, asynchronous: bool) -> None:
    f = batched(
        both(lambda items: [10 // item for item in items], asynchronous),
        max_batch_size=3,
        max_wait=60,
        on_error="bisect",
    )
    first, bad, last = outcomes([start(f, 1), start(f, 0), start(f, 2)])
    assert (first, type(bad), last) == (10, ZeroDivisionError, 5)


@pytest.mark.parametrize(
    ("error", "arrives_as"), [(ValueError("x"), ValueError), (Odd(code=7), Odd), (Stubborn(code=7), BatchFailed)]
)
def test_each_caller_has_an_exception_of_its_own(error: Exception, arrives_as: type[Exception]) -> None:
    """One object for all would collect everybody's frames."""

    def function(items: list[int]) -> list[int]:
        raise error

    async def call(item: int) -> Any:
        await f(item)

    async def main() -> list[Any]:
        return await asyncio.gather(*(call(item) for item in range(50)), return_exceptions=True)

    f = batched(function, max_batch_size=50, max_wait=60)
    errors = asyncio.run(main())
    assert len({id(error) for error in errors}) == 50
    assert {type(error) for error in errors} == {arrives_as}
    assert all(own.__cause__ is error for own in errors)
    assert len({len(traceback.extract_tb(own.__traceback__)) for own in errors}) == 1
    assert {str(own) for own in errors} == {str(error) if arrives_as is not BatchFailed else str(errors[0])}
    if isinstance(error, Odd):
        assert {own.code for own in errors} == {7}


def test_a_caller_alone_gets_the_original(start: Start, asynchronous: bool) -> None:
    error = Odd(code=7)

    def function(items: list[int]) -> list[int]:
        raise error

    f = batched(both(function, asynchronous), max_batch_size=1)
    assert start(f, 1).exception() is error
