"""Gives batched functions other options for the length of a test, and takes them back.

A batched object is a face of a queue. The block swaps the queue behind the face for one that is started anew, from the
same function and other options, and closes it at the end; the queue of before is untouched and comes back.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, cast

from .._batched import Batched, Configured
from .._core._transitions import FINAL
from .._live import Live, start
from .._method import BatchedMethod
from .._options import Given
from ..policies import Greedy
from ..runtimes._driver import Driver
from ..simulation import ManualExecutor
from ._virtual_time import VirtualTime

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .._typing import Options

AnyBatched = Batched[..., Any] | BatchedMethod[Any, ..., Any]
Changes = Callable[[Mapping[str, Any]], Mapping[str, Any]]  # from the options of before to those that are new


class Table(dict[int, "tuple[weakref.ref[Any], Live]"]):
    """The batchers of a method's instances, as BatchedMethod keeps them; each is watched before it is used."""

    def setdefault(self, key: int, entry: Any = None, /) -> Any:
        _watched(entry[1])
        return super().setdefault(key, entry)


@contextmanager
def override(function: AnyBatched, /, **options: Unpack[Options]) -> Generator[None]:
    """Runs a batched function with other options inside the `with` block.

    function: what `batched` made: a function, or a method of a class (`Service.embed`; for all its instances).
    options: the decorator's, in place of what it was given; what is not named stays.

    Calls made inside go to a queue of their own. At the end it is closed, those still in it get `Closed`, and the
    function is as it was before, with the requests that waited then. Blocks nest. Enter and leave a block while nobody
    else calls the function. What `options(...)` gave before the block, and methods bound before it, keep the old queue.

    Raises TypeError for what is not batched, and for options that cannot work, as the decorator does.

    >>> from batchlib import batched
    >>> from batchlib.testing import override
    >>> double = batched(lambda xs: [2 * x for x in xs], max_batch_size=8)
    >>> with override(double, max_batch_size=1):
    ...     list(double.map([1, 2])), double.statistics().batches
    ([2, 4], 2)
    """
    with _overridden(function, lambda _: options):
        yield


@contextmanager
def virtual_time(*functions: AnyBatched, start: float = 0.0, **options: Unpack[Options]) -> Generator[VirtualTime]:
    """Puts batched functions on one virtual clock inside the `with` block; see `override` for what a block is.

    functions: batched functions, or batched methods of classes. start: the instant that the clock shows at first.
    options: the decorator's, for all of them, such as `executor=ManualExecutor()`, whose batches count as at rest.

    `request_options(timeout=...)` and the deadlines of cancel scopes stay on real time. TypeError for `clock=`.

    >>> from batchlib import batched
    >>> from batchlib.testing import virtual_time
    >>> double = batched(lambda xs: [2 * x for x in xs], max_wait=0.5)
    >>> with virtual_time(double) as time:
    ...     future = double.submit(4)
    ...     time.advance(0.25)
    ...     print(future.done())
    ...     time.advance(0.25)
    ...     print(future.done())
    False
    True
    """
    if "clock" in options:
        raise TypeError("virtual_time gives the clock: leave out clock=, or give yours with override(..., clock=...)")
    time = VirtualTime(start)
    with _all_overridden(functions, lambda _: {**options, "clock": time}):
        yield time


@contextmanager
def immediate(*functions: AnyBatched) -> Generator[None]:
    """Runs each call of these functions at once and alone, as a batch of one, inside the `with` block.

    For tests of what a service does, which need not think of batches: nothing is held back, nothing waits for a place,
    `max_waiting` and the orderings have nothing to do. Limits of cost, admission policies, timeouts and the checks of
    what the function returns stay. See `override` for what a block is.

    >>> from batchlib import batched
    >>> from batchlib.testing import immediate
    >>> sizes = batched(lambda xs: [len(xs)] * len(xs), max_batch_size=8, max_wait=60)
    >>> with immediate(sizes):
    ...     sizes.call("a")
    1
    """
    with _all_overridden(functions, _one_by_one):
        yield


def _one_by_one(given: Mapping[str, Any]) -> Mapping[str, Any]:
    parts: Any = given["dispatch"] or ()
    parts = parts if isinstance(parts, Sequence) else (parts,)
    limits = [part for part in parts if hasattr(part.start(), "open")]
    changes: dict[str, Any] = {
        "max_batch_size": 1,
        "max_wait": 0.0,
        "max_concurrent_batches": None,
        "max_waiting": None if given["admission"] is None else given["max_waiting"],
        "ordering": None,
        "dispatch": (Greedy(), *limits) if limits else None,
    }
    if given.get("target_latency") is not None:  # it would learn and hold back; the timeout that it is stays
        changes |= {"target_latency": None, "timeout": given["target_latency"]}
    return changes


@contextmanager
def _all_overridden(functions: Sequence[AnyBatched], changes: Changes) -> Generator[None]:
    with ExitStack() as stack:
        for function in functions:
            stack.enter_context(_overridden(function, changes))
        yield


@contextmanager
def _overridden(function: AnyBatched, changes: Changes) -> Generator[None]:
    face = _face(function)
    swapped = _method(face, changes) if isinstance(face, BatchedMethod) else _function(face, changes)
    attributes = vars(face)
    before = {name: attributes[name] for name in swapped}
    attributes.update(swapped)
    try:
        yield
    finally:
        inside = {name: attributes[name] for name in swapped}
        attributes.update(before)
        for live in _lives(inside):
            _end(live.driver)


def _face(function: Any) -> Batched[..., Any] | BatchedMethod[Any, ..., Any]:
    """The object that calls go through: for a bound method, which is made anew on each access, the class's own."""
    if isinstance(function, BatchedMethod):
        return cast("BatchedMethod[Any, ..., Any]", function)
    if not isinstance(function, Batched):
        raise TypeError(f"this needs what @batched has made, not {function!r}")
    owner = vars(function)["_owner"]
    if owner is None:
        return cast("Batched[..., Any]", function)
    kinds = owner.__mro__ if isinstance(owner, type) else type(owner).__mro__
    for member in [member for kind in kinds for member in vars(kind).values()]:
        method = vars(member).get("_method") if isinstance(member, Batched) else member
        if isinstance(method, BatchedMethod) and vars(method)["_function"] is function.__wrapped__:
            return cast("BatchedMethod[Any, ..., Any]", method)
    raise TypeError(f"{function!r} is bound to {owner!r}, whose class does not have it: name it on its class")


def _changed(given: Given, changes: Changes, name: str) -> Given:
    options = {**given.defaults, **given.values}
    new = changes(options)
    unknown = sorted(set(new) - set(given.defaults))
    if unknown:
        raise TypeError(f"batched has no option {', '.join(unknown)}")
    changed = Given.of({**options, **new}, given.defaults)
    changed.resolve(name)  # says what is wrong at once
    return changed


def _function(face: Batched[..., Any], changes: Changes) -> dict[str, Any]:
    live: Live = vars(face)["_live"]
    signature = live.intake.signature
    new = start(face.__wrapped__, _changed(live.given, changes, signature.name), signature, owned=False)
    _watched(new)
    kept = {"_options", "_owner"}
    face_of_new: Configured[..., Any] = Configured(new)
    looks = {name: value for name, value in vars(face_of_new).items() if name not in kept}
    return {**looks, "_method": None}


def _method(method: BatchedMethod[Any, ..., Any], changes: Changes) -> dict[str, Any]:
    given = _changed(vars(method)["_given"], changes, method.__qualname__)
    swapped: dict[str, Any] = {"_given": given, "_table": Table()}
    if vars(method)["_kind"] is staticmethod:
        plain: Batched[..., Any] = Batched(vars(method)["_function"], given)
        _watched(vars(plain)["_live"])
        method.__get__(None, object)  # makes the one of before, which comes back
        swapped["_plain"] = plain
    return swapped


def _watched(live: Live) -> None:
    """Virtual time waits for whatever runs by its clock."""
    clock = live.given.values.get("clock")
    if isinstance(clock, VirtualTime):
        clock.rest.watch(live.driver)


def _lives(attributes: Mapping[str, Any]) -> Iterator[Live]:
    """All queues behind a face that has these."""
    for value in attributes.values():
        if isinstance(value, Live):
            yield value
        elif isinstance(value, Table):
            yield from [live for _, live in list(value.values())]
        elif isinstance(value, Batched | BatchedMethod):
            yield from _lives(vars(value))


def _end(driver: Driver) -> None:
    """Closes at once: who waits or runs gets Closed, and threads end when what runs in them does."""
    driver.close(drain=False, timeout=None)
    with driver.lock:
        actions = driver.core.close(driver.now(), drain=False, running=True)
    driver.perform(actions, None)
    if isinstance(driver.executor, ManualExecutor):
        for held in driver.executor.batches:
            if all(request.state in FINAL for request in held.requests):  # nobody sees its outcome, and it has a thread
                held.finish()
