"""`@batched`, and the only home of its defaults.

A function becomes a Batched, a method a BatchedMethod, which gives each instance a Batched of its own.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from ._batched import Batched, by_name
from ._method import BatchedMethod
from ._options import Given, Usual
from ._typing import typed

if TYPE_CHECKING:
    from collections.abc import Hashable

    from ._core._execution import Collation, Executor, ExecutorFactory
    from ._core._protocols import AdmissionPolicy, Clock, DispatchPolicy, Hook, Limit, OrderingPolicy
    from ._typing import Seconds

_ONE = Usual(1)


@typed
def batched(
    function: Callable[..., Any] | None = None,
    /,
    *,
    max_batch_size: int | None = 32,
    max_wait: Seconds = 0.0,
    cost: Callable[..., float] | None = None,
    max_batch_cost: float | Literal["auto"] | None = None,
    group_by: Callable[..., Hashable] | None = None,
    max_waiting: int | None = 1024,
    overflow: Literal["wait", "reject"] = "wait",
    timeout: Seconds | None = None,
    target_latency: Seconds | None = None,
    max_concurrent_batches: int | None = _ONE,
    oversize: Literal["reject", "alone", "split"] = "reject",
    join: Callable[[list[Any]], Any] | None = None,
    on_error: Literal["fail", "bisect"] = "fail",
    priority: float | Callable[..., float] = 0,
    tenant: Hashable = None,
    admission: AdmissionPolicy | Sequence[AdmissionPolicy] | None = None,
    ordering: OrderingPolicy | None = None,
    dispatch: DispatchPolicy | Limit | Sequence[DispatchPolicy | Limit] | None = None,
    collate: Callable[[list[Any]], Any] | Collation | None = None,
    executor: Executor | ExecutorFactory | None = None,
    hooks: Sequence[Hook] = (),
    max_execution_time: Seconds | None = None,
    name: str | None = None,
    version: str | None = None,
    clock: Clock | None = None,
) -> Any:
    """Turns a function that works on a list into one that works on an item, and batches its callers.

    function: takes a list per positional parameter (batched) and keyword-only settings; gives one outcome per item, in
        order: a list, tuple, array or tensor. An exception instance in a slot is that item's error. Plain functions run
        in a thread of the batcher, `async def` ones on their callers' loop.
    max_batch_size: requests per batch; None for no limit.
    max_wait: seconds that an incomplete batch is held back for company, from its oldest request, while an executor is
        free. 0 never holds back.
    cost, max_batch_cost: what an item uses of the scarce resource, called with the call's positional arguments, and
        how much a batch may hold in all; None for no limit. A collation that pads brings its own cost, an item's
        length; the limit is then one of the size times the longest ("auto": what has been measured to be good for it),
        and items of near lengths share a batch.
    group_by: called likewise; only requests with equal keys share a batch.
    max_waiting, overflow: how many requests may wait (None for no limit), and whether those over it "wait" (`submit` in
        a thread blocks, `map` pauses, an awaited call always joins) or everyone is refused ("reject").
    timeout: seconds that each call is granted; None for no limit.
    target_latency: the same, and batches are formed so that as many calls as possible keep it: learns how long batches
        take, and serves the earliest deadline first (`DeadlineAware`, `EarliestDeadline`). None for neither.
    max_concurrent_batches: executions at once.
    oversize: an item over max_batch_cost is refused ("reject"), runs by itself ("alone"), or is cut into parts that fit
        and count as a request each ("split"; its cost must be its length, and it fails once, as a whole).
    join: makes the result of a split item out of the list of its parts' results; None for `+`, and for arrays and
        tensors a concatenation on axis 0.
    on_error: a raised error fails its whole batch ("fail"), or halves run again until the culprits are alone
        ("bisect"; only for functions that may be run twice).
    priority, tenant: what a request carries unless its call says otherwise; lower is more urgent.
    admission, ordering, dispatch: policy objects from `batchlib.policies`, or your own; None for the usual ones.
    collate: makes what the function gets out of each list; or a collation, such as those of `batchlib.torch`, which
        makes padded or stacked tensors out of all of them, and items of the result again.
    executor: runs the batches instead of the function itself; or the description of one that runs the function, such
        as `batchlib.torch.TorchExecutor`.
    hooks: called with an event for every batch and request.
    max_execution_time: seconds after which a running batch makes `statistics().healthy` false; None for no limit.
    name, version: appear in every event; the function's qualified name by default.
    clock: where time comes from, for tests.

    Without a function it gives a decorator. Raises TypeError or ValueError, naming the parameter, for options and
    signatures that cannot work.

    >>> from batchlib import batched
    >>> @batched(max_batch_size=16)
    ... def double(numbers: list[int]) -> list[int]:
    ...     return [2 * number for number in numbers]
    >>> double.call(21)
    42
    """
    options = {option: value for option, value in locals().items() if option != "function"}
    given = Given.of(options, _DEFAULTS)
    given.resolve("batched")  # says what is wrong at once, with or without a function
    if function is None:
        return functools.partial(batched, **given.values)
    return _decorate(function, given)


_DEFAULTS: dict[str, Any] = {
    parameter.name: parameter.default
    for parameter in inspect.signature(batched).parameters.values()
    if parameter.kind is inspect.Parameter.KEYWORD_ONLY
}


def given_options(options: Any) -> Given:
    """The decorator's options from elsewhere: a mapping, or those of a batched function. TypeError for other names."""
    if isinstance(options, Batched):
        return options._live.given  # pyright: ignore[reportPrivateUsage]
    if not isinstance(options, Mapping):
        raise TypeError(f"options must be a mapping of the decorator's options or a batched function, not {options!r}")
    unknown = sorted(set(options) - set(_DEFAULTS))
    if unknown:
        raise TypeError(f"{', '.join(unknown)}: batched has no such option; it has {', '.join(_DEFAULTS)}")
    return Given.of({**_DEFAULTS, **options}, _DEFAULTS)


def _decorate(function: Any, given: Given) -> Any:
    if isinstance(function, Batched | BatchedMethod):
        raise TypeError(f"{function!r} is batched already")
    if not callable(function) and not isinstance(function, classmethod | staticmethod):
        hint = "; did you mean max_batch_size=?" if isinstance(function, int) else ""
        raise TypeError(f"batched takes a function or another callable, not {function!r}{hint}")
    if isinstance(function, classmethod | staticmethod) or _in_class_body(function):
        return BatchedMethod(function, given)
    return Batched(function, given)


def _in_class_body(function: Any) -> bool:
    """Whether this is a function of a class that is still being made: its name leads to it only afterwards."""
    outside, _, _ = getattr(function, "__qualname__", "").rpartition(".")
    inside = inspect.isfunction(function) and bool(outside) and not outside.endswith("<locals>")
    return inside and by_name(function.__module__, function.__qualname__) is not function
