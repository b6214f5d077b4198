"""What a decorated function becomes. It only translates: calls into requests, options into policies."""

from __future__ import annotations

import functools
import inspect
import sys
import types
from collections.abc import AsyncIterable, Callable, Coroutine, Iterable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Generic, Literal, ParamSpec, TypeVar, cast, overload

from ._checks import whole
from ._context import UNSET, Unset, duration, hashable, number
from ._core._statistics import Statistics
from ._intake import CallOptions
from ._live import Live, apart, batch_signature, start
from ._map import Results
from ._options import Given
from .errors import BlockingCallError
from .runtimes._lifecycle import aclose
from .runtimes._places import on_loop

if TYPE_CHECKING:
    from collections.abc import Hashable
    from types import TracebackType
    from typing import Self

    from typing_extensions import Unpack

    from ._typing import Limits, Seconds, Source, TakesFirst
    from .executors._apart import Apart

A = TypeVar("A")
P = ParamSpec("P")
R = TypeVar("R")


async def _coroutine_function() -> None: ...


def worn(function: Any, signature: inspect.Signature | None) -> dict[str, Any]:
    """What makes a batched object look like the function it wraps, and like a coroutine function to frameworks."""
    names: tuple[str, ...] = functools.WRAPPER_ASSIGNMENTS
    looks: dict[str, Any] = {name: getattr(function, name) for name in names if hasattr(function, name)}
    looks.setdefault("__name__", type(function).__name__)
    looks.setdefault("__qualname__", looks["__name__"])
    looks["__wrapped__"] = function
    if signature is not None:
        looks["__signature__"] = signature
    if sys.version_info >= (3, 12):
        inspect.markcoroutinefunction(marked := types.SimpleNamespace())
        looks.update(vars(marked))
    else:  # inspect takes whatever has the attributes of a function for one, and looks at its code
        looks.update(__code__=_coroutine_function.__code__, __defaults__=None, __kwdefaults__=None)
        looks.setdefault("__annotations__", {})
    return looks


def by_name(module: str, qualname: str) -> Any:
    """What a name leads to; None if it leads nowhere."""
    found: Any = sys.modules.get(module)
    for part in qualname.split("."):
        found = getattr(found, part, None)
    return found


def reduce(face: Any, function: Any, given: Given) -> str | tuple[Any, ...]:
    """Pickles by name where that finds the object again; otherwise as its function and options, without its queue."""
    found = by_name(face.__module__, face.__qualname__)
    return face.__qualname__ if found is face else (rebuild, (type(face), function, given))


def rebuild(kind: Any, function: Any, given: Given) -> Any:
    """The other end of `reduce`."""
    return kind(function, given)


class Configured(Generic[P, R]):
    """A batched function with options for single calls; what `.options(...)` gives."""

    def __init__(self, live: Live, options: CallOptions | None = None, owner: object = None) -> None:
        self._live = live
        self._driver = live.driver
        self._intake = live.intake
        self._request = live.prepare
        self._awaited = live.ways.awaited
        self._options = options
        self._owner = owner

    def __repr__(self) -> str:
        return f"<batched {self._intake.signature.name} with {self._options}>"

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
        """One item's result, awaited on asyncio or trio.

        The call is bound at once: a wrong one raises TypeError here, and so does what a user's `cost`, `group_by` or
        `priority` raises. Awaiting raises the item's own error, DeadlineExceeded, a Rejected, or BatchContractError.

        Cancel safety: cancelled while it waits, the request is taken out and never runs; cancelled while its batch
        runs, the batch goes on without it. Nobody else is touched.
        """
        return self._awaited(self._driver, self._request(args, kwargs, self._options, self._owner))

    def call(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """The same from a plain thread: blocks until the result is there.

        Raises what awaiting would raise; BlockingCallError on an event loop's thread, ReentrantCallError inside a batch
        of its own and in a thread of the batcher. Interrupted, it leaves as a cancelled caller does.
        """
        try:
            result: R = self._live.ways.called(self._driver, self._request(args, kwargs, self._options, self._owner))
            return result
        finally:
            del args, kwargs  # an error's traceback knows this frame: who keeps it need not keep the item

    def submit(self, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """The same, as a future.

        Blocks while `max_waiting` requests wait; on a loop's thread it raises Overloaded then.
        Every other error comes out of the future. Cancelling the future works while the request waits; once it runs,
        `cancel()` gives False.
        """
        return self._live.ways.submitted(self._driver, self._request(args, kwargs, self._options, self._owner))

    @overload
    def map(
        self: TakesFirst[A],
        source: Source[A],
        /,
        *more: Source[Any],
        ordered: Literal[True] = True,
        return_exceptions: Literal[False] = False,
        look_ahead: int | None = None,
    ) -> Results[R]: ...
    @overload
    def map(
        self: TakesFirst[A],
        source: Source[A],
        /,
        *more: Source[Any],
        ordered: Literal[True] = True,
        return_exceptions: Literal[True],
        look_ahead: int | None = None,
    ) -> Results[R | Exception]: ...
    @overload
    def map(
        self: TakesFirst[A],
        source: Source[A],
        /,
        *more: Source[Any],
        ordered: Literal[False],
        return_exceptions: Literal[False] = False,
        look_ahead: int | None = None,
    ) -> Results[tuple[int, R]]: ...
    @overload
    def map(
        self: TakesFirst[A],
        source: Source[A],
        /,
        *more: Source[Any],
        ordered: Literal[False],
        return_exceptions: Literal[True],
        look_ahead: int | None = None,
    ) -> Results[tuple[int, R | Exception]]: ...
    def map(
        self,
        *sources: Source[Any],
        ordered: bool = True,
        return_exceptions: bool = False,
        look_ahead: int | None = None,
    ) -> Results[Any]:
        """Calls the function with every item; `for` over it in a thread, `async for` in a task.

        sources: iterables, or async ones for `async for`; several are zipped and must be equally long (ValueError).
        ordered: results in the order of the items; otherwise `(index, result)` as they come.
        return_exceptions: give errors as values. Otherwise the first is raised in its place and cancels the rest.
        look_ahead: how many items may be pulled and not yet given out; None for 4 batches.

        Cancel safety: leaving early, by `break`, an error or cancellation, cancels what waits.
        """
        if not sources:
            raise TypeError("map() needs at least one iterable")
        given: tuple[Any, ...] = sources
        for source in given:
            if not isinstance(source, Iterable | AsyncIterable):
                raise TypeError(f"map() takes iterables of items, not {source!r}")
        return self._map(sources, ordered, return_exceptions, look_ahead)

    def _map(self, sources: Any, ordered: bool, return_exceptions: bool, look_ahead: int | None) -> Results[Any]:
        ahead = 4 * min(self._driver.max_batch_size, 1024) if look_ahead is None else whole("look_ahead", look_ahead)
        return Results(
            self._driver,
            lambda args: self._request(args, {}, self._options, self._owner),
            sources,
            ordered=ordered,
            return_exceptions=return_exceptions,
            look_ahead=ahead,
            result_of=self._live.ways.result_of,
        )


class Batched(Configured[P, R]):
    """A function behind a batcher: called one item at a time, run many at a time. Made by `batched`."""

    def __init__(
        self,
        function: Callable[..., Any],
        given: Given,
        *,
        live: Live | None = None,
        owner: object = None,
        looks: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(live or start(function, given, batch_signature(function, given), owned=False), None, owner)
        self._method: Any = None
        self.__dict__.update(looks or worn(function, self._intake.signature.signature))

    @property
    def direct(self) -> Callable[..., Any]:
        """The undecorated function: takes lists, batches nothing."""
        function = self.__wrapped__
        return function if self._owner is None else functools.partial(function, self._owner)

    def options(
        self,
        *,
        timeout: Seconds | Unset | None = UNSET,
        tenant: Hashable | Unset = UNSET,
        priority: float | Unset = UNSET,
    ) -> Configured[P, R]:
        """The same function with other options for its calls.

        timeout: replaces the decorator's, in seconds; None for no limit. tenant, priority: win over all others.

        >>> import batchlib
        >>> double = batchlib.batched(lambda xs: [2 * x for x in xs])
        >>> double.options(timeout=5, priority=-1).call(4)
        8
        """
        checked = CallOptions(
            timeout if isinstance(timeout, Unset) else duration("timeout", timeout),
            hashable("tenant", tenant),
            priority if isinstance(priority, Unset) else number("priority", priority),
        )
        return Configured(self._live, checked, self._owner)

    def statistics(self) -> Statistics:
        """A frozen snapshot of the counters, ages and health."""
        return self._driver.statistics()

    def configure(self, **limits: Unpack[Limits]) -> None:
        """Changes limits while in use, all or none of them. A waiting item that fits no longer gets ItemTooLarge.

        Raises TypeError for anything but a limit, ValueError for a value out of range.

        >>> import batchlib
        >>> double = batchlib.batched(lambda xs: [2 * x for x in xs])
        >>> double.configure(max_batch_size=64, timeout=1.5)
        """
        self._live.configure(limits)

    def close(self, drain: bool = True, timeout: Seconds | None = None) -> None:
        """Takes no more requests, and ends. A second call does nothing.

        drain: finish what was accepted; otherwise those that wait get Closed at once, and a running batch may end.
        timeout: seconds that draining may take, None for no limit; whoever then still waits or runs gets Closed.

        Raises BlockingCallError with `drain` on an event loop's thread: await `aclose` there.
        """
        self._driver.close(drain, duration("timeout", timeout))

    async def aclose(self, drain: bool = True, timeout: Seconds | None = None) -> None:
        """The same on asyncio or trio. Cancelled while it waits, the closing goes on without it.

        Raises RuntimeError if no thread can be started to wait for the drain; nothing has been closed then.
        """
        await aclose(self._driver, drain, duration("timeout", timeout))

    def __enter__(self) -> Self:
        if on_loop():  # its end would drain, and block
            raise BlockingCallError(f"`with {self.__name__}` would block this event loop at its end: use `async with`")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def _apart(self) -> Apart:
        """For what runs the function past its queue, and lies below this."""
        return apart(self._live, self.__wrapped__, self._owner)

    def __get__(self, instance: object, owner: type | None = None) -> Self:
        """Binds as a plain function does, for one that was wrapped by another decorator inside a class."""
        if instance is None or not hasattr(self.__wrapped__, "__get__"):
            return self
        if self._method is None:
            from ._method import BatchedMethod

            self._method = BatchedMethod(self.__wrapped__, self._live.given)
        return cast("Self", self._method.__get__(instance, owner))

    def __reduce__(self) -> str | tuple[Any, ...]:
        if self._owner is not None:
            return getattr, (self._owner, self.__name__)
        return reduce(self, self.__wrapped__, self._live.given)

    def __repr__(self) -> str:
        return f"<batched {self.__qualname__}>"

    if TYPE_CHECKING:
        __wrapped__: Callable[..., Any]
        __name__: str
        __qualname__: str
