"""One exception object per caller.

An exception grows its traceback with every `raise`, so one object shared by all callers of a batch would collect
their frames and keep them alive.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..errors import BatchContractError, BatchFailed

# A future must never be given what ends a loop or fakes the end of an iterator.
_LOOP_ENDING = (StopIteration, StopAsyncIteration)


def failures(error: BaseException, size: int) -> list[Exception]:
    """What each of `size` callers gets for an exception that failed their whole batch."""
    if size == 1:
        return [deliverable(error)]
    return [_copy(error) or _wrap(error) for _ in range(size)]


def deliverable(error: BaseException) -> Exception:
    """The exception itself, or BatchFailed around it where a caller cannot be given it as it is."""
    if isinstance(error, Exception) and not isinstance(error, _LOOP_ENDING):
        return error
    return _wrap(error)


def one_each(outcomes: Any, size: int) -> Sequence[Any]:
    """What an executor gave, if that is one outcome per request; otherwise an error for each."""
    if (type(outcomes) is list or type(outcomes) is tuple) and len(outcomes) == size:
        return outcomes
    actual: object = type(outcomes).__name__
    try:
        if hasattr(outcomes, "__len__"):
            actual = len(outcomes)
            if actual == size:
                return list(outcomes)
    except Exception as error:  # a foreign sequence
        return failures(error, size)
    message = f"the executor must give a sequence of one outcome per request: {size}, not {actual}"
    return failures(BatchContractError(message), size)


def in_slots(outcomes: Sequence[Any]) -> Sequence[Any]:
    """Outcomes as each caller gets them; the very same object if there is no exception among them.

    An exception in a slot is that request's alone: one that stands in several is copied, and what a caller cannot be
    given as it is comes wrapped.
    """
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            break
    else:
        return outcomes
    seen: set[int] = set()
    own: list[Any] = []
    for outcome in outcomes:
        mine = outcome
        if isinstance(outcome, BaseException):
            again = id(outcome) in seen
            seen.add(id(outcome))
            mine = (_copy(outcome) or _wrap(outcome)) if again else deliverable(outcome)
        own.append(mine)
    return own


def _wrap(error: BaseException) -> BatchFailed:
    try:
        text = str(error)
    except Exception as fault:  # a foreign class again: its callers must get something
        text = f"(its text cannot be had: {type(fault).__name__})"
    wrapped = BatchFailed(f"the batch function raised {type(error).__name__}: {text}")
    wrapped.__cause__ = error
    return wrapped


def _copy(error: BaseException) -> Exception | None:
    """A new object of the same type, made without `__init__` (whose signature is unknown); None if it is another."""
    if not isinstance(error, Exception) or deliverable(error) is not error:
        return None
    try:
        copy = type(error).__new__(type(error), *error.args)
        copy.__dict__.update(error.__dict__)
        copy.args = error.args
        same = type(copy) is type(error) and str(copy) == str(error)
    except Exception:  # whatever a foreign class does to being copied, its callers get it wrapped
        return None
    if not same:
        return None
    copy.__cause__ = error
    copy.__suppress_context__ = True
    return copy
