"""Out of memory, and devices that are gone: telling them apart, letting go of memory, remembering what fits.

An exception keeps its frames and the frames keep their tensors, so nothing can be freed, and no smaller batch tried,
while one is around that has not been scrubbed.
"""

from __future__ import annotations

import gc
import inspect
import sys
import threading
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch

from ...errors import ExecutorLost

Kinds = tuple[type[BaseException], ...]

_NO_MEMORY: Kinds = (MemoryError, torch.OutOfMemoryError)
# The CPU's allocator, cuBLAS and cuDNN have no class of their own for it. The last is what cuDNN says of a batch that
# it finds no room to work in, or that is too large for its indices: a smaller one may do.
_NO_MEMORY_TEXTS = (
    "out of memory",
    "can't allocate memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_NOT_SUPPORTED",
)
LOST: Kinds = tuple(filter(None, [getattr(torch, "AcceleratorError", None)]))  # since torch 2.8
_LOST_TEXTS = (
    "device-side assert",
    "illegal memory access",
    "illegal instruction",
    "misaligned address",
    "unspecified launch failure",
    "uncorrectable ECC",
)
# Refused before anything ran: the device goes on. An empty tensor can bring about the first.
_HARMLESS_TEXTS = ("invalid configuration argument", "invalid argument", "invalid device function", "no kernel image")

# Frames that may go on later, though they do not run now.
_PAUSING = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR

_OBJECT: Any = AttributeError.__dict__["obj"]  # a subclass may hide it

_FIRST_PATIENCE, _LAST_PATIENCE = 16, 1024  # parts at the limit that must run before the limit is raised
_MOST_LIMITS = 256


def is_out_of_memory(error: BaseException, more: Kinds = ()) -> bool:
    """Whether it, or what it came from, says that memory ran out. more: further classes that say so."""
    return _any(error, lambda each: isinstance(each, more) or _says_no_memory(each))


def is_fatal(error: BaseException, more: Kinds = ()) -> bool:
    """Whether it, or what it came from, says that the device is lost: every later call would fail with it.

    more: further classes that say so. Out of memory is not fatal.
    """
    return _any(error, lambda each: isinstance(each, more) or _says_lost(each))


def _says_no_memory(error: BaseException) -> bool:
    if isinstance(error, _NO_MEMORY):
        return True
    return isinstance(error, RuntimeError) and _has(error, _NO_MEMORY_TEXTS)


def _says_lost(error: BaseException) -> bool:
    if _says_no_memory(error) or not isinstance(error, RuntimeError):
        return False
    return _has(error, _LOST_TEXTS) or (isinstance(error, LOST) and not _has(error, _HARMLESS_TEXTS))


def _has(error: BaseException, texts: tuple[str, ...]) -> bool:
    try:
        said = str(error)
    except Exception:  # a foreign class
        return False
    return any(text in said for text in texts)


def _any(error: BaseException, says: Callable[[BaseException], bool]) -> bool:
    return any(says(each) for each in _related(error, hidden=False))


def _related(error: BaseException, *, hidden: bool) -> Iterator[BaseException]:
    """The error and what it came from. hidden: also what `raise ... from None` has put out of sight."""
    found: list[BaseException | None] = [error]
    seen: set[int] = set()
    while found:
        each = found.pop()
        if each is None or id(each) in seen:
            continue
        seen.add(id(each))
        yield each
        if isinstance(each, ExecutorLost) and not hidden:  # another executor's end, and not what brought it about here
            continue
        found.append(each.__cause__)
        if hidden or not each.__suppress_context__:
            found.append(each.__context__)
        if isinstance(each, BaseExceptionGroup):
            found.extend(each.exceptions)


def scrub(error: BaseException) -> None:
    """Has it and what it came from forget the local variables of every frame that has ended. Their texts stay."""
    for each in _related(error, hidden=True):
        trace = each.__traceback__
        frame = trace and trace.tb_frame.f_back
        while trace is not None:
            _ended(trace.tb_frame)
            trace = trace.tb_next
        while frame is not None and _ended(frame):  # of an error that was caught: it knows those who called its catcher
            frame = frame.f_back
        if isinstance(each, AttributeError):
            _OBJECT.__set__(each, None)  # what had no such attribute, perhaps a tensor


def _ended(frame: FrameType) -> bool:
    """Whether it had come to its end; its local variables are forgotten.

    Before Python 3.13 `clear` closes what only pauses. Until its end such a frame is part of its generator or
    coroutine, and the collector does not track it.
    """
    if frame.f_code.co_flags & _PAUSING and not gc.is_tracked(frame):
        return False
    try:
        frame.clear()
    except RuntimeError:
        return False
    return True


def attempt(function: Callable[..., Any], *args: Any) -> tuple[Any, BaseException | None]:
    """Calls it: what it gave, or the error that it raised, scrubbed.

    The error is returned, since a traceback would also collect the frames through which it is raised on. This frame,
    which has not ended, is taken out of it; but whoever has a frame has those below it (`f_back`), up to the thread's
    first, so callers must let go of what they hold, too, before they return with an error.
    """
    try:
        return function(*args), None
    except BaseException as error:
        error.__traceback__ = error.__traceback__ and error.__traceback__.tb_next
        scrub(error)
        del function, args
        return None, error


@dataclass(slots=True)
class _Limit:
    rows: int
    failed: int  # the largest number that has failed
    patience: int = _FIRST_PATIENCE
    successes: int = 0
    raised: bool = False  # `rows` is a trial


class RowLimits:
    """How many rows fit into memory, by a key that batches of about one size have in common; thread-safe.

    A failure halves the limit. Runs of as many rows as the limit allows raise it again, since what took the memory may
    be gone: doubled after `patience` of them, and forgotten once the largest number that ever failed has held for as
    long. A trial that fails doubles the patience, so in a world that does not change the trials become rare.

    Every method is O(1).
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._limits: dict[Hashable, _Limit] = {}

    def __len__(self) -> int:
        """Keys that have one."""
        return len(self._limits)

    def allowed(self, key: Hashable) -> int:
        """How many rows may be tried at once."""
        limit = self._limits.get(key)
        return sys.maxsize if limit is None else limit.rows

    def failed(self, key: Hashable, rows: int) -> bool:
        """So many rows did not fit; whether that was a trial.

        One that does not fit by itself tells nothing of others: its limit is forgotten.
        """
        with self._lock:
            limit = self._limits.get(key)
            trial = limit is not None and limit.raised
            if rows == 1:
                self._limits.pop(key, None)
            elif limit is None:
                if len(self._limits) == _MOST_LIMITS:
                    del self._limits[next(iter(self._limits))]
                self._limits[key] = _Limit(rows // 2, rows)
            else:
                limit.rows = min(limit.rows, rows // 2)
                limit.failed = max(limit.failed, rows)
                limit.successes = 0
                if limit.raised:
                    limit.patience = min(2 * limit.patience, _LAST_PATIENCE)
                limit.raised = False
            return trial

    def succeeded(self, key: Hashable, rows: int) -> None:
        """So many rows did fit."""
        if not self._limits:  # nearly always
            return
        with self._lock:
            limit = self._limits.get(key)
            if limit is None or rows < limit.rows:  # fewer than are allowed say nothing of more
                return
            limit.successes += 1
            if limit.successes < limit.patience:
                return
            limit.successes = 0
            if limit.raised:
                limit.patience = _FIRST_PATIENCE  # the world has changed
            if limit.rows >= limit.failed:
                del self._limits[key]
            else:
                limit.rows = min(2 * limit.rows, limit.failed)
                limit.raised = True
