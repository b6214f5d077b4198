"""One caller's error is its own; one that fails a whole batch comes to each caller as an object of its own."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from support.until import until

from batchlib import BatchContractError, BatchFailed

from .held import Held, Kind, of_kind
from .runtimes import LoopRuntime, Runtime

Make = Callable[..., Any]


class Refused(Exception):
    """An error with a signature of its own and attributes beside its args."""

    def __init__(self, code: int, *, reason: str) -> None:
        super().__init__(f"refused with {code}")
        self.code = code
        self.reason = reason


class Unlike(Exception):
    """An error that cannot be copied: its text is not made from its args."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = [text]

    def __str__(self) -> str:
        return self._text.pop() if len(self._text) > 1 else str(id(self))


def batch_of(runtime: Runtime, held: Held, function: Any, items: list[Any]) -> list[Any]:
    """What each caller of one batch gets, errors as values. The batch is formed behind another one."""
    work, held.work = held.work, list
    blocker = runtime.start(function, "blocker")
    until(lambda: held.seen)
    calls = runtime.start_each(function, items)
    until(lambda: function.statistics().waiting == len(items))
    held.work = lambda batch: batch if batch == ["blocker"] else work(batch)
    held.gate.open()
    assert blocker.result() == "blocker"
    return [call.error() or call.result() for call in calls]


def test_an_error_in_a_slot_is_its_callers_alone(runtime: Runtime, kind: Kind, make: Make) -> None:
    errors = {1: Refused(403, reason="not yours"), 3: ValueError("three")}

    def some(items: list[int]) -> list[Any]:
        return [errors.get(item, item) for item in items]

    function = make(of_kind(kind, some))
    calls = runtime.start_each(function, range(5))
    assert [call.result() for call in (calls[0], calls[2], calls[4])] == [0, 2, 4]
    assert calls[1].error() is errors[1]
    assert calls[3].error() is errors[3]
    assert (errors[1].code, errors[1].reason) == (403, "not yours")  # type: ignore[attr-defined]
    done = function.statistics()
    assert (done.completed, done.failed) == (3, 2)


def test_one_error_object_in_many_slots_becomes_many(runtime: Runtime, make: Make) -> None:
    shared = Refused(429, reason="quota")
    held = Held("plain", lambda items: [shared] * len(items))
    got = batch_of(runtime, held, make(held), [1, 2, 3])
    assert len({id(error) for error in got}) == 3
    assert all((type(e), e.code, e.reason, str(e)) == (Refused, 429, "quota", str(shared)) for e in got)


def test_a_raised_error_fails_the_batch_with_a_copy_for_each(runtime: Runtime, make: Make) -> None:
    original = Refused(500, reason="broken")

    def fail(items: list[Any]) -> list[Any]:
        raise original

    held = Held("plain", fail)
    function = make(held)
    got = batch_of(runtime, held, function, [1, 2, 3])
    assert len({id(error) for error in got}) == 3
    for error in got:
        assert (type(error), error.args, error.code, error.reason) == (Refused, original.args, 500, "broken")
        assert error.__cause__ is original
    assert function.statistics().failed == 3


def test_a_raised_error_on_the_callers_loop(loop: LoopRuntime, make: Make) -> None:
    original = Refused(500, reason="broken")

    async def fail(items: list[Any]) -> list[Any]:
        raise original

    calls = loop.start_each(make(fail), range(3))
    got = [call.error() for call in calls]
    assert len({id(error) for error in got}) == 3
    assert all(type(error) is Refused and error.__cause__ is original for error in got)


def test_a_batch_of_one_gets_the_error_itself(runtime: Runtime, kind: Kind, make: Make) -> None:
    original = Refused(500, reason="broken")

    def fail(items: list[Any]) -> list[Any]:
        raise original

    assert runtime.start(make(of_kind(kind, fail)), 1).error() is original


def test_what_cannot_be_copied_arrives_as_a_cause(runtime: Runtime, make: Make) -> None:
    original = Unlike("odd")

    def fail(items: list[Any]) -> list[Any]:
        raise original

    held = Held("plain", fail)
    got = batch_of(runtime, held, make(held), [1, 2])
    assert [type(error) for error in got] == [BatchFailed, BatchFailed]
    assert got[0] is not got[1]
    assert all(error.__cause__ is original and "Unlike" in str(error) for error in got)


class Stop(BaseException):
    """Not an Exception, and nobody's but the function's."""


ENDING = [
    Stop("mine"),
    KeyboardInterrupt(),
    SystemExit(3),
    GeneratorExit(),
    asyncio.CancelledError(),
    StopIteration(4),
    StopAsyncIteration(),
]


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("original", ENDING, ids=lambda error: type(error).__name__)
def test_what_would_end_a_loop_arrives_as_batch_failed(
    runtime: Runtime, original: BaseException, size: int, make: Make
) -> None:
    def fail(items: list[Any]) -> list[Any]:
        raise original

    held = Held("plain", fail)
    function = make(held)
    got = batch_of(runtime, held, function, list(range(size)))
    assert [type(error) for error in got] == [BatchFailed] * size
    assert len({id(error) for error in got}) == size
    assert all(error.__cause__ is original and type(original).__name__ in str(error) for error in got)
    held.work = list
    assert runtime.start(function, 1).result() == 1  # no error stops the batcher
    assert function.statistics().healthy


@pytest.mark.parametrize("original", ENDING, ids=lambda error: type(error).__name__)
def test_what_would_end_a_loop_in_a_slot(runtime: Runtime, kind: Kind, original: BaseException, make: Make) -> None:
    function = make(of_kind(kind, lambda items: [original if item == 1 else item for item in items]))
    calls = runtime.start_each(function, range(3))
    assert (calls[0].result(), calls[2].result()) == (0, 2)
    error = calls[1].error()
    assert isinstance(error, BatchFailed)
    assert error.__cause__ is original


@pytest.mark.parametrize(
    "original",
    [error for error in ENDING if not isinstance(error, KeyboardInterrupt)],  # that is the loop's as well
    ids=lambda error: type(error).__name__,
)
def test_what_would_end_a_loop_from_an_async_function(
    runtime: Runtime, original: BaseException, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    failing = True

    async def function(items: list[Any]) -> list[Any]:
        if failing:
            raise original
        return items

    batcher = make(function)
    error = runtime.start(batcher, 1).error()
    # Python itself turns the two that end iterations into a RuntimeError when they leave a coroutine.
    assert isinstance(error, BatchFailed | RuntimeError)
    assert error.__cause__ is original
    failing = False
    assert [call.result() for call in runtime.start_each(batcher, range(4))] == [0, 1, 2, 3]
    assert not caplog.records


WRONG = {
    "too few": (lambda items: items[:-1], "a list of 2"),
    "too many": (lambda items: [*items, 0], "a list of 4"),
    "a mapping": (lambda items: dict.fromkeys(items), "a dict"),
    "a set": (lambda items: set(items), "a set"),
    "a str": (lambda items: "abc", "a str"),
    "bytes": (lambda items: b"abc", "a bytes"),
    "None": (lambda items: None, "a NoneType"),
    "a generator": (lambda items: (item for item in items), "a generator"),
    "a number": (lambda items: 3, "a int"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_result_of_the_wrong_shape_is_everybodys_contract_error(runtime: Runtime, wrong: str, make: Make) -> None:
    work, actual = WRONG[wrong]
    held = Held("plain", work)
    function = make(held)
    got = batch_of(runtime, held, function, [1, 2, 3])
    assert [type(error) for error in got] == [BatchContractError] * 3
    assert len({id(error) for error in got}) == 3
    assert all("tensor of 3" in str(error) and f"it gave {actual}" in str(error) for error in got)
    held.work = list
    assert runtime.start(function, 1).result() == 1


@pytest.mark.parametrize("wrong", WRONG)
def test_the_shape_is_checked_for_one_item_too(runtime: Runtime, kind: Kind, wrong: str, make: Make) -> None:
    error = runtime.start(make(of_kind(kind, WRONG[wrong][0])), 1).error()
    assert isinstance(error, BatchContractError)
    assert "tensor of 1" in str(error)


def culprits_fail(items: list[int]) -> list[int]:
    if any(item in (3, 11) for item in items):
        raise ValueError(f"bad item among {len(items)}")
    return items


def test_bisect_finds_the_culprits_and_serves_the_rest(runtime: Runtime, make: Make) -> None:
    held = Held("plain", culprits_fail)
    function = make(held, on_error="bisect", max_batch_size=16)
    got = batch_of(runtime, held, function, list(range(16)))
    assert [value for value in got if not isinstance(value, ValueError)] == [n for n in range(16) if n not in (3, 11)]
    assert str(got[3]) == str(got[11]) == "bad item among 1"
    assert len(held.seen) - 2 <= 2 * 2 * 4  # at most 2·k·⌈log2 n⌉ runs after the first
    assert function.statistics().failed == 2


def test_bisect_on_the_callers_loop(loop: LoopRuntime, make: Make) -> None:
    function = make(of_kind("async", culprits_fail), on_error="bisect", max_batch_size=16)
    calls = loop.start_each(function, range(16))
    for number, call in enumerate(calls):
        if number in (3, 11):
            assert isinstance(call.error(), ValueError)
        else:
            assert call.result() == number


def test_bisect_gives_up_on_an_outage(runtime: Runtime, make: Make) -> None:
    def fail(items: list[Any]) -> list[Any]:
        raise ConnectionError("the device is gone")

    held = Held("plain", fail)
    got = batch_of(runtime, held, make(held, on_error="bisect", max_batch_size=256), list(range(200)))
    assert all(type(error) is ConnectionError for error in got)
    assert len({id(error) for error in got}) == 200
    assert len(held.seen) - 2 <= 8 * 8  # 8·⌈log2 n⌉, not 2n


def test_bisect_does_not_repeat_a_contract_error(runtime: Runtime, make: Make) -> None:
    held = Held("plain", lambda items: items[1:])
    got = batch_of(runtime, held, make(held, on_error="bisect"), [1, 2, 3])
    assert [type(error) for error in got] == [BatchContractError] * 3
    assert len(held.seen) == 2


@pytest.mark.parametrize("where", ["cost", "group_by", "priority"])
def test_what_a_callback_raises_is_its_callers_alone(runtime: Runtime, where: str, make: Make) -> None:
    def choosy(item: int) -> int:
        if item == 2:
            raise Refused(400, reason="two")
        return 1

    function = make(lambda items: items, **{where: choosy})
    calls = runtime.start_each(function, range(5))
    assert isinstance(calls[2].error(), Refused)
    assert [calls[number].result() for number in (0, 1, 3, 4)] == [0, 1, 3, 4]
    assert function.statistics().submitted == 4
