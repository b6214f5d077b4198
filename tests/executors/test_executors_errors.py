"""One exception object per caller: the same type, arguments and text, or BatchFailed around the original."""

import asyncio
import threading
from typing import Any

import pytest

from batchlib.errors import BatchFailed, Overloaded
from batchlib.executors._errors import deliverable, failures, in_slots


class Plain(Exception):
    pass


class KeywordOnly(Exception):
    def __init__(self, *, code: int) -> None:
        super().__init__(f"code {code}")
        self.code = code


class Reworded(Exception):
    """Its text comes from an attribute that `__init__` alone sets."""

    def __init__(self, detail: str) -> None:
        super().__init__("hidden")
        self.detail = detail

    def __str__(self) -> str:
        return self.detail


class Unpicklable(Exception):
    def __init__(self) -> None:
        super().__init__("locked")
        self.lock = threading.Lock()


class Singleton(Exception):
    made: Any = None

    def __new__(cls, *args: Any) -> "Singleton":
        if cls.made is not None:
            raise RuntimeError("there is one already")
        cls.made = super().__new__(cls, *args)
        return cls.made


class Other(Exception):
    """Makes something else than itself."""

    def __new__(cls, *args: Any) -> Any:
        return super().__new__(cls, *args) if not args else ValueError(*args)


class Slotted(Exception):
    __slots__ = ()


class Unequal(Exception):
    """Whose arguments cannot be compared."""

    def __str__(self) -> str:
        return f"{id(self)}"


def raised(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as caught:
        return caught


COPIED: list[Exception] = [
    Plain("a", 1),
    KeywordOnly(code=7),
    Reworded("what happened"),
    Unpicklable(),
    Slotted("s"),
    KeyError("missing"),
    OSError(28, "No space left on device"),
    FileNotFoundError(2, "No such file"),
    ExceptionGroup("several", [ValueError(1), OSError(2)]),
    Overloaded("full", retry_after=3.0),
    TimeoutError(),
]


@pytest.mark.parametrize("error", COPIED, ids=lambda error: type(error).__name__)
def test_each_caller_of_a_failed_batch_gets_a_copy(error: Exception) -> None:
    copies = failures(raised(error), 3)
    assert len({id(copy) for copy in [error, *copies]}) == 4
    for copy in copies:
        assert type(copy) is type(error)
        assert copy.args == error.args
        assert str(copy) == str(error)
        assert vars(copy) == vars(error)
        assert copy.__cause__ is error
        assert copy.__traceback__ is None


def test_attributes_are_taken_over() -> None:
    error = Plain("x")
    error.__dict__["status"] = 503
    first, second = failures(error, 2)
    assert first.__dict__ == second.__dict__ == {"status": 503}
    assert first.__dict__ is not second.__dict__
    error.add_note("while encoding")
    assert failures(error, 2)[0].__notes__ == ["while encoding"]


def test_numbers_of_the_operating_system_are_taken_over() -> None:
    first, _ = failures(OSError(28, "No space left on device"), 2)
    assert isinstance(first, OSError)
    assert (first.errno, first.strerror) == (28, "No space left on device")


WRAPPED: list[BaseException] = [
    FileNotFoundError(2, "No such file", "weights.bin"),
    UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"),
    Other(),
    Unequal("x"),
    StopIteration(3),
    StopAsyncIteration(),
    KeyboardInterrupt(),
    SystemExit(2),
    GeneratorExit(),
    asyncio.CancelledError(),
    BaseExceptionGroup("several", [KeyboardInterrupt()]),
]


@pytest.mark.parametrize("error", WRAPPED, ids=lambda error: type(error).__name__)
def test_what_cannot_be_copied_or_delivered_arrives_as_the_cause(error: BaseException) -> None:
    if type(error) is Other:
        error.args = ("more",)
    for own in failures(error, 2):
        assert type(own) is BatchFailed
        assert own.__cause__ is error
        assert f"the batch function raised {type(error).__name__}" in str(own)


def test_a_class_that_resists_being_copied_is_wrapped() -> None:
    error = Singleton("one")
    assert [type(own) for own in failures(error, 2)] == [BatchFailed, BatchFailed]


@pytest.mark.parametrize("error", [*COPIED, WRAPPED[0], WRAPPED[1]], ids=lambda error: type(error).__name__)
def test_a_batch_of_one_delivers_the_original(error: Exception) -> None:
    assert failures(error, 1) == [error]


@pytest.mark.parametrize("error", [StopIteration(), KeyboardInterrupt(), asyncio.CancelledError()])
def test_what_would_end_a_loop_is_never_delivered_as_it_is(error: BaseException) -> None:
    (own,) = failures(error, 1)
    assert type(own) is BatchFailed
    assert own.__cause__ is error
    assert type(deliverable(error)) is BatchFailed


def test_outcomes_without_an_exception_are_not_touched() -> None:
    outcomes = [1, None, ValueError, "x"]
    assert in_slots(outcomes) is outcomes


def test_an_exception_in_a_slot_is_delivered_as_it_is() -> None:
    error = KeywordOnly(code=4)
    own = in_slots([1, error, 3])
    assert own[0::2] == [1, 3]
    assert own[1] is error


def test_an_exception_shared_by_several_slots_is_copied_for_all_but_one() -> None:
    shared, alone = Plain("shared"), Plain("alone")
    own = in_slots((shared, 1, shared, alone, shared))
    assert own[0] is shared
    assert own[3] is alone
    assert len({id(outcome) for outcome in own}) == 5
    assert [str(own[place]) for place in (0, 2, 4)] == ["shared"] * 3


def test_a_slot_that_a_future_cannot_be_given_is_wrapped() -> None:
    stop, interrupt = StopIteration(), KeyboardInterrupt()
    own = in_slots([stop, interrupt, stop])
    assert [type(outcome) for outcome in own] == [BatchFailed] * 3
    assert [outcome.__cause__ for outcome in own] == [stop, interrupt, stop]


def test_a_group_of_exceptions_copied_keeps_its_parts() -> None:
    group = ExceptionGroup("several", [ValueError(1), OSError(2)])
    first, second = failures(group, 2)
    assert isinstance(first, ExceptionGroup)
    assert first.exceptions == group.exceptions
    assert first is not second
