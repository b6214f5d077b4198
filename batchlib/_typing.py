"""The static types of `@batched`: which function gives which callable. Nothing here does anything at run time.

`Decorator` is the type of `batched` and of `batched(**options)`. Its overloads take the batched parameters off a
function's front, five down to one, give them back as items, and leave the settings as they are. A function is tried
before a method, because a method's `self` could be anything, a list too.

What no checker can be told: that a batched parameter has a default (the caller has to give its item), and how many
lists `*args` are (any number passes). What pyright can infer and mypy cannot: a result that is a union (mypy joins it,
`int | str` is an `object`; `int | None` stays), a function with a type variable of its own, and a function with an
`Any` inside its annotations, which mypy may take for `Any` as a whole.
"""

# A function of two lists is also a method of a list. The first overload that fits wins, so the overlap is meant.
# mypy: disable-error-code="overload-overlap"

from __future__ import annotations

from collections.abc import AsyncIterable, Awaitable, Callable, Hashable, Iterable, Sequence
from datetime import timedelta
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Literal,
    ParamSpec,
    Protocol,
    TypedDict,
    TypeVar,
    Unpack,
    cast,
    overload,
)

if TYPE_CHECKING:
    from ._batched import Batched
    from ._core._execution import Collation, Executor, ExecutorFactory
    from ._core._protocols import AdmissionPolicy, Clock, DispatchPolicy, Hook, Limit, OrderingPolicy
    from ._method import BatchedMethod

A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
D = TypeVar("D")
E = TypeVar("E")
P = ParamSpec("P")  # what follows the batched parameters: the settings
R = TypeVar("R")  # one item's result
S = TypeVar("S")  # a method's self or cls

A_contra = TypeVar("A_contra", contravariant=True)
R_co = TypeVar("R_co", covariant=True)

# They take the exception types out of a union of results. mypy does so by `BaseException` alone. pyright takes away the
# very types that it finds in a union, and gives every other one to a variable: the one whose name sorts last.
X1 = TypeVar("X1", bound=BaseException)
X2 = TypeVar("X2", bound=BaseException)


class Array(Protocol[R_co]):
    """What NumPy, torch and their like return: rows on axis 0, one for each item."""

    @property
    def shape(self) -> Any: ...

    def __getitem__(self, index: int, /) -> R_co: ...


Outcomes = Sequence[R | BaseException | Exception | X1 | X2] | Array[R]
Returned = Outcomes[R, X1, X2] | Awaitable[Outcomes[R, X1, X2]]

Source = Iterable[A] | AsyncIterable[A]
Seconds = float | timedelta


class TakesFirst(Protocol[A_contra]):
    """Whatever is called with an A first: the type of `self` from which `map` learns what its source must hold."""

    def __call__(self, item: A_contra, /, *args: Any, **kwargs: Any) -> object: ...


class TakesLists(Protocol[R_co]):
    """A function of `*args`, or one of which the checker knows nothing, such as an `nn.Module`."""

    def __call__(self, *args: list[Any]) -> R_co: ...


class Limits(TypedDict, total=False):
    """What `configure` can change."""

    max_batch_size: int | None
    max_wait: Seconds
    max_batch_cost: float | Literal["auto"] | None
    max_waiting: int | None
    timeout: Seconds | None
    target_latency: Seconds | None
    max_concurrent_batches: int | None
    max_execution_time: Seconds | None


class Options(Limits, total=False):
    """What `batched` can be told."""

    cost: Callable[..., float] | None
    group_by: Callable[..., Hashable] | None
    overflow: Literal["wait", "reject"]
    oversize: Literal["reject", "alone", "split"]
    join: Callable[[list[Any]], Any] | None
    on_error: Literal["fail", "bisect"]
    priority: float | Callable[..., float]
    tenant: Hashable
    admission: AdmissionPolicy | Sequence[AdmissionPolicy] | None
    ordering: OrderingPolicy | None
    dispatch: DispatchPolicy | Limit | Sequence[DispatchPolicy | Limit] | None
    collate: Callable[[list[Any]], Any] | Collation | None
    executor: Executor | ExecutorFactory | None
    hooks: Sequence[Hook]
    name: str | None
    version: str | None
    clock: Clock | None


class Decorator(Protocol):
    """`batched`, and what `batched(**options)` gives: takes the function now, or more options first."""

    @overload
    def __call__(self, /, **options: Unpack[Options]) -> Decorator: ...

    @overload
    def __call__(self, function: TakesLists[Returned[R, X1, X2]], /, **options: Unpack[Options]) -> Batched[..., R]: ...

    @overload
    def __call__(
        self,
        function: Callable[Concatenate[list[A], list[B], list[C], list[D], list[E], P], Returned[R, X1, X2]],
        /,
        **options: Unpack[Options],
    ) -> Batched[Concatenate[A, B, C, D, E, P], R]: ...

    @overload
    def __call__(
        self,
        function: Callable[Concatenate[list[A], list[B], list[C], list[D], P], Returned[R, X1, X2]],
        /,
        **options: Unpack[Options],
    ) -> Batched[Concatenate[A, B, C, D, P], R]: ...

    @overload
    def __call__(
        self,
        function: Callable[Concatenate[list[A], list[B], list[C], P], Returned[R, X1, X2]],
        /,
        **options: Unpack[Options],
    ) -> Batched[Concatenate[A, B, C, P], R]: ...

    @overload
    def __call__(
        self,
        function: Callable[Concatenate[list[A], list[B], P], Returned[R, X1, X2]],
        /,
        **options: Unpack[Options],
    ) -> Batched[Concatenate[A, B, P], R]: ...

    @overload
    def __call__(
        self,
        function: Callable[Concatenate[list[A], P], Returned[R, X1, X2]],
        /,
        **options: Unpack[Options],
    ) -> Batched[Concatenate[A, P], R]: ...

    @overload
    def __call__(
        self,
        function: Callable[Concatenate[S, list[A], list[B], list[C], list[D], list[E], P], Returned[R, X1, X2]],
        /,
        **options: Unpack[Options],
    ) -> BatchedMethod[S, Concatenate[A, B, C, D, E, P], R]: ...

    @overload
    def __call__(
        self,
        function: Callable[Concatenate[S, list[A], list[B], list[C], list[D], P], Returned[R, X1, X2]],
        /,
        **options: Unpack[Options],
    ) -> BatchedMethod[S, Concatenate[A, B, C, D, P], R]: ...

    @overload
    def __call__(
        self,
        function: Callable[Concatenate[S, list[A], list[B], list[C], P], Returned[R, X1, X2]],
        /,
        **options: Unpack[Options],
    ) -> BatchedMethod[S, Concatenate[A, B, C, P], R]: ...

    @overload
    def __call__(
        self,
        function: Callable[Concatenate[S, list[A], list[B], P], Returned[R, X1, X2]],
        /,
        **options: Unpack[Options],
    ) -> BatchedMethod[S, Concatenate[A, B, P], R]: ...

    @overload
    def __call__(
        self,
        function: Callable[Concatenate[S, list[A], P], Returned[R, X1, X2]],
        /,
        **options: Unpack[Options],
    ) -> BatchedMethod[S, Concatenate[A, P], R]: ...

    @overload  # of whatever a collation makes: the checker cannot know what its callers give, but what they get
    def __call__(self, function: Callable[..., Array[R]], /, **options: Unpack[Options]) -> Batched[..., R]: ...

    @overload
    def __call__(self, function: Callable[..., Any], /, **options: Unpack[Options]) -> Batched[..., Any]: ...


def typed(function: Callable[..., Any], /) -> Decorator:
    """Gives `batched` its type, and leaves its signature and its documentation to itself."""
    return cast("Decorator", function)
