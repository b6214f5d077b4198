"""From one call to one request: binds it, and works out its cost, group, tenant, priority and deadline.

Everything that comes from the user runs here, in the caller: what it raises is its caller's alone, and nothing has
been queued yet. One such error is a refusal like the core's own, and becomes one: ItemTooLarge of a collation.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from contextvars import copy_context
from dataclasses import dataclass
from typing import Any

from ._context import AMBIENT, UNSET, Ambient, Unset, number
from ._core._execution import Accepted
from ._core._protocols import WaitingRoom
from ._core._request import Request
from ._signature import BatchSignature
from .errors import ItemTooLarge


@dataclass(frozen=True, slots=True)
class CallOptions:
    """What `.options(...)` was given."""

    timeout: float | Unset | None = UNSET
    tenant: Hashable | Unset = UNSET
    priority: float | Unset = UNSET


@dataclass(frozen=True, slots=True)
class IntakeOptions:
    """What the decorator was told about single calls. `timeout` in seconds, None for no limit."""

    cost: Callable[..., float] | None = None
    group_by: Callable[..., Hashable] | None = None
    timeout: float | None = None
    tenant: Hashable = None
    priority: float | Callable[..., float] = 0


@dataclass(frozen=True, slots=True)
class OfCollation:
    """An admission policy: refuses what the collation has refused, so that it is counted and told to hooks."""

    def start(self) -> OfCollation:
        return self

    def admit(self, request: Request, room: WaitingRoom, now: float) -> ItemTooLarge | None:
        refusal: ItemTooLarge | None = request.outcome
        return refusal


class Intake:
    """Makes the requests of one batcher.

    now: the batcher's clock. accept: what a collation says to the items of a call, None without one. The plain call,
    which has positional items and no options, takes the short way.
    """

    def __init__(
        self,
        signature: BatchSignature,
        options: IntakeOptions,
        now: Callable[[], float],
        accept: Callable[[tuple[Any, ...]], Accepted] | None = None,
    ) -> None:
        self.signature = signature
        self._now = now
        self._accept = accept
        self._arity = signature.arity
        self._default_settings = signature.default_settings
        self._default_key = signature.default_key
        self.configure(options)

    def configure(self, options: IntakeOptions) -> None:
        self.options = options
        self._plain = self._accept is None and options == IntakeOptions()

    def request(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], options: CallOptions | None, owner: object = None
    ) -> Request:
        """The request of one call. Raises what the signature or a user's callback raises."""
        if kwargs or len(args) != self._arity:
            args, settings, key = self.signature.bind(args, kwargs)
        else:
            settings, key = self._default_settings, self._default_key
        request = Request(args, key, 0.0, copy_context())
        if settings is not None:
            request.settings = settings
        if owner is not None:
            request.owner = owner
        ambient = AMBIENT.get()
        if ambient is not None or options is not None or not self._plain:
            self._apply(request, options or _NO_OPTIONS, ambient or _OUTSIDE)
        return request

    def _apply(self, request: Request, options: CallOptions, ambient: Ambient) -> None:
        mine = self.options
        if mine.cost is not None:
            request.cost = _cost(mine.cost(*request.args))
        if mine.group_by is not None:
            group = mine.group_by(*request.args)
            try:
                hash(group)
            except TypeError:
                kind = type(group).__name__
                raise TypeError(
                    f"group_by must give something hashable, since equal keys make a group, not a {kind}"
                ) from None
            request.group = (request.group, group)
        if self._accept is not None:
            try:
                args, key, length = self._accept(request.args)
            except ItemTooLarge as refusal:
                request.outcome = refusal.with_traceback(None)  # which would know this frame, and so the request
                args, key, length = request.args, None, 0
            request.group = (request.group, key)
            if mine.cost is None:
                request.cost = _length(length)
        else:
            args = request.args
        request.tenant = _first_set(options.tenant, ambient.tenant, mine.tenant)
        priority: Any = _first_set(options.priority, ambient.priority, mine.priority)
        if callable(priority):
            priority = number("priority", priority(*request.args))
        request.priority = priority
        request.args = args  # last: a user's callbacks see what the caller gave
        timeout = mine.timeout if isinstance(options.timeout, Unset) else options.timeout
        if ambient.until is not None:
            left = ambient.until - time.monotonic()
            timeout = left if timeout is None else min(timeout, left)
        if timeout is not None:
            request.deadline = self._now() + timeout
        request.chain = ambient.chain


_NO_OPTIONS = CallOptions()
_OUTSIDE = Ambient()


def _first_set(*values: Any) -> Any:
    for value in values:
        if value is not UNSET:
            return value
    return None


def _length(value: Any) -> float:
    """Of a collation. Given on as it is, since it may know what it is the sum of."""
    try:
        good = 0 <= value < float("inf")
    except TypeError:  # no number
        good = False
    if not good:
        raise ValueError(f"a collation's accept must give a length that is a finite number >= 0, not {value!r}")
    return value  # type: ignore[no-any-return]


def _cost(value: object) -> float:
    cost = number("cost", value)
    if not 0 <= cost < float("inf"):
        raise ValueError(f"cost must be a finite number >= 0, not {value!r}")
    return cost
