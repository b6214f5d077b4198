"""A batched function taken apart, for what runs it past its queue (`warmup`, `check_batching`) and lies below it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from inspect import Parameter
from typing import Any

from .._core._execution import Collation, Collator, Executor, ExecutorFactory
from .._core._policies import Policies
from .._core._request import Request


@dataclass(frozen=True, slots=True)
class Apart:
    """What its batches are made of and run by, at present.

    function: as it was before it was decorated.
    parameters: those of its callers.
    request: makes the request of a call, from its items and settings.
    executor: the batcher's own, without the search for culprits.
    started: makes another of the same kind that collates in another way.
    factory: what the executor was described by; None for the usual one, or one that was given as it is.
    """

    name: str
    function: Any
    parameters: Sequence[Parameter]
    request: Callable[[tuple[Any, ...], Mapping[str, Any]], Request]
    executor: Executor
    started: Callable[[Collator], Executor]
    factory: ExecutorFactory | None
    collation: Collation | None
    collator: Collator | None
    policies: Policies
