"""What travels with the caller's context: request options, and the batches that the present code runs inside.

One context variable holds it all, None for most code, so that a call from outside pays for a single look-up.
"""

from __future__ import annotations

import math
import time
from collections.abc import Generator, Hashable, Sequence
from contextlib import contextmanager
from contextvars import Context, ContextVar
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, TypeVar, overload

from ._core._batch import Batch
from ._core._request import Request

T = TypeVar("T")
D = TypeVar("D")


class Unset:
    """The type of UNSET: an option that was not given, where None has a meaning of its own."""

    def __repr__(self) -> str:
        return "UNSET"


UNSET = Unset()


@dataclass(slots=True)
class Ambient:
    """Options of the enclosing `request_options`, and the batches around the present code, outermost first.

    Never changed once it is set; not frozen, since one is made for every batch.
    """

    tenant: Hashable | Unset = UNSET
    priority: float | Unset = UNSET
    until: float | None = None
    """End of the enclosing time budget, on `time.monotonic`."""
    chain: tuple[Batch, ...] = ()
    requests: Sequence[Request] | None = None
    """Those of the innermost of these batches, kept here since the batch lets go of them when it ends."""


AMBIENT: ContextVar[Ambient | None] = ContextVar("batchlib", default=None)


class ItemContext:
    """What the function may know of one item's request: its caller's context variables, tenant and deadline."""

    __slots__ = ("_request",)

    def __init__(self, request: Request) -> None:
        self._request = request

    @overload
    def get(self, variable: ContextVar[T]) -> T | None: ...
    @overload
    def get(self, variable: ContextVar[T], default: D) -> T | D: ...
    def get(self, variable: ContextVar[Any], default: Any = None) -> Any:
        """The caller's value of a context variable, else `default`."""
        context = self._request.context
        return default if context is None else context.get(variable, default)

    @property
    def tenant(self) -> Hashable:
        return self._request.tenant

    @property
    def priority(self) -> float:
        return self._request.priority

    @property
    def deadline(self) -> float | None:
        """Instant on the batcher's clock, None without one."""
        return self._request.deadline


class BatchContext(Sequence[ItemContext]):
    """One ItemContext per item of the running batch, in the order of the lists that the function got."""

    __slots__ = ("_batch", "_requests")

    def __init__(self, batch: Batch, requests: Sequence[Request]) -> None:
        self._batch = batch
        self._requests = requests

    def __len__(self) -> int:
        return len(self._requests)

    @overload
    def __getitem__(self, index: int) -> ItemContext: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[ItemContext]: ...
    def __getitem__(self, index: int | slice) -> ItemContext | Sequence[ItemContext]:
        if isinstance(index, slice):
            return [ItemContext(request) for request in self._requests[index]]
        return ItemContext(self._requests[index])

    @property
    def cancelled(self) -> bool:
        """Whether every caller has left: nobody will see the results. Safe to poll from the function's thread."""
        return self._batch.live == 0


def batch_context() -> BatchContext:
    """The batch that the present code runs in, for use inside a batched function.

    With `on_error="bisect"` it describes the whole batch, also while a half of it runs again.

    Raises LookupError outside a batch.

    >>> from batchlib import batch_context, batched
    >>> @batched
    ... def sizes(items: list[int]) -> list[int]:
    ...     return [len(batch_context())] * len(items)
    >>> sizes.call(0)
    1
    """
    ambient = AMBIENT.get()
    if ambient is None or ambient.requests is None:
        raise LookupError("batch_context() is for code inside a batched function; no batch runs here")
    return BatchContext(ambient.chain[-1], ambient.requests)


@contextmanager
def request_options(
    *,
    timeout: float | timedelta | None = None,
    tenant: Hashable | Unset = UNSET,
    priority: float | Unset = UNSET,
) -> Generator[None]:
    """Gives options to every request made inside the `with` block, in this task or thread and the tasks it starts.

    timeout: seconds (or a timedelta); one budget that starts on entering, for everything inside; None adds no limit.
        Of nested budgets, and of this one and a request's own timeout, the earliest deadline wins.
    tenant, priority: win over the decorator's, lose to `.options(...)`. The innermost block counts.

    Raises ValueError for a timeout that is not a number >= 0, and for a priority that is not a number.

    >>> import batchlib
    >>> double = batchlib.batched(lambda xs: [2 * x for x in xs])
    >>> with batchlib.request_options(tenant="acme", timeout=5):
    ...     double.call(4)
    8
    """
    outer = AMBIENT.get() or Ambient()
    seconds = duration("timeout", timeout)
    until = outer.until
    if seconds is not None:
        end = time.monotonic() + seconds
        until = end if until is None else min(until, end)
    token = AMBIENT.set(
        replace(
            outer,
            until=until,
            tenant=outer.tenant if isinstance(tenant, Unset) else hashable("tenant", tenant),
            priority=outer.priority if isinstance(priority, Unset) else number("priority", priority),
        )
    )
    try:
        yield
    finally:
        AMBIENT.reset(token)


def inside(batch: Batch, nested: bool) -> Context:
    """A neutral context for running a batch: no caller's variables, only the batch and the chain that led to it.

    nested: whether some of its requests may come from inside other batches.
    """
    context = Context()
    context.run(enter, batch, nested)
    return context


def enter(batch: Batch, nested: bool) -> None:
    """The same for the present context, which must be an empty one."""
    chain = {outer: None for request in batch.requests for outer in request.chain if not outer.done} if nested else ()
    AMBIENT.set(Ambient(UNSET, UNSET, None, (*chain, batch), batch.requests))


def duration(name: str, value: float | timedelta | None) -> float | None:
    """A duration in seconds, checked; None stays None."""
    if value is None:
        return None
    legal = "a number of seconds >= 0, or None for no limit"
    seconds = value.total_seconds() if isinstance(value, timedelta) else number(name, value, legal)
    if not seconds >= 0:
        raise ValueError(f"{name} must be {legal}, not {value!r}")
    return seconds


def hashable(name: str, value: T) -> T:
    """Checked here, in its caller: a policy would find out later, when it is too late to say so."""
    try:
        hash(value)
    except TypeError:
        raise TypeError(f"{name} must be hashable, not {value!r}") from None
    return value


def number(name: str, value: Any, legal: str = "a number") -> float:
    """A real number, checked: not a bool, not a text, not NaN. NumPy's and torch's scalars are numbers.

    legal: what it must be, for the message; the range is the caller's to check.
    """
    if type(value) is not int and type(value) is not float:
        if isinstance(value, bool | str | bytes) or not hasattr(value, "__float__"):
            raise TypeError(f"{name} must be {legal}, not {value!r}")
        value = float(value)
    real: float = value
    try:
        if not math.isnan(real):
            return real
    except OverflowError:  # a whole number beyond all floats: no policy could count with it
        pass
    raise ValueError(f"{name} must be {legal}, not {value!r}")
