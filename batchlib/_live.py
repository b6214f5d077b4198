"""One queue at work, put together from a function and its options: signature, collation, executor, driver, intake."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from ._core._execution import Executor
from ._core._request import Request
from ._intake import Intake
from ._options import Given, Resolved
from ._signature import BatchSignature, is_async
from ._split import ways_to_call
from .executors import Bisecting, CollatedFunction, FunctionExecutor
from .runtimes._calls import Ways
from .runtimes._driver import Driver


@dataclass(slots=True)
class Live:
    """One queue at work, and what it was made from. Shared by all faces of it."""

    driver: Driver
    intake: Intake
    given: Given
    prepare: Callable[..., Request]  # from the arguments, settings, options and owner of a call
    ways: Ways


def batch_signature(function: Callable[..., Any], given: Given, *, bound: bool = False) -> BatchSignature:
    """What it takes, without what its collation fills. TypeError where the collation cannot do with that."""
    collation = given.collation
    signature = BatchSignature(function, bound=bound, filled=() if collation is None else collation.names)
    if collation is not None and bound:  # a function's collation starts with it, a method's with the first instance
        collation.start(signature.filled, signature.name)
    return signature


def start(function: Callable[..., Any], given: Given, signature: BatchSignature, *, owned: bool) -> Live:
    """A new queue for a function, or with `owned` for a method on one instance."""
    resolved = given.resolve(signature.name)
    collation = resolved.collation
    collator = None if collation is None else collation.start(signature.filled, signature.name)
    batch_function = CollatedFunction(
        function,
        name=signature.name,
        is_async=is_async(function),
        owned=owned,
        collate=resolved.collate,
        collator=collator,
        by_name=signature.by_name,
    )
    driver = Driver(resolved.policies, partial(_executor, resolved, batch_function), resolved.driver)
    intake = Intake(signature, resolved.intake, driver.now, None if collator is None else collator.accept)
    return Live(driver, intake, given, *ways_to_call(driver, intake.request, resolved.join))


def _executor(resolved: Resolved, function: CollatedFunction) -> Executor:
    """A new executor; one that was given as it is stays the same."""
    if resolved.executor is not None:
        return resolved.executor
    factory = resolved.factory
    executor = FunctionExecutor(function) if factory is None else factory.start(function)
    return Bisecting(executor) if resolved.bisect_errors else executor
