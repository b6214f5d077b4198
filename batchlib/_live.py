"""One queue at work, put together from a function and its options: signature, collation, executor, driver, intake."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from ._core._execution import Collation, Collator, Executor
from ._core._request import Request
from ._intake import Intake
from ._options import Given, Resolved
from ._signature import BatchSignature, is_async
from ._split import ways_to_call
from .executors import Bisecting, CollatedFunction, FunctionExecutor
from .executors._apart import Apart
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

    def configure(self, limits: Mapping[str, Any]) -> None:
        """Changes limits, all or none. Under the lock from the first look on: two at once each keep the other's."""
        with self.driver.lock:
            given = self.given.with_limits(limits)
            resolved = given.resolve(self.intake.signature.name)
            actions = self.driver.configure(resolved.policies, resolved.driver.max_execution_time)
            self.intake.configure(resolved.intake)
            self.given = given
        self.driver.perform(actions, None)


def batch_signature(function: Callable[..., Any], given: Given, *, bound: bool = False) -> BatchSignature:
    """What it takes, without what its collation fills. TypeError where the collation cannot do with that."""
    collation = given.collation
    signature = BatchSignature(function, bound=bound, filled=() if collation is None else collation.names)
    if collation is not None and bound:  # a function's collation starts with it, a method's with the first instance
        _started(collation, signature)
    return signature


def start(function: Callable[..., Any], given: Given, signature: BatchSignature, *, owned: bool) -> Live:
    """A new queue for a function, or with `owned` for a method on one instance."""
    resolved = given.resolve(signature.name)
    collator = _collator(resolved, signature)
    batch_function = _batch_function(function, resolved, signature, collator, owned)
    driver = Driver(resolved.policies, partial(_executor, resolved, batch_function), resolved.driver)
    intake = Intake(signature, resolved.intake, driver.now, None if collator is None else collator.accept)
    return Live(driver, intake, given, *ways_to_call(driver, intake.request, resolved.join))


def apart(live: Live, function: Callable[..., Any], owner: object) -> Apart:
    """A queue's function, on that owner, for running it past the queue."""
    signature, executor = live.intake.signature, live.driver.executor
    resolved = live.given.resolve(signature.name)

    def started(collator: Collator) -> Executor:
        return _usual(resolved, _batch_function(function, resolved, signature, collator, owner is not None))

    return Apart(
        name=signature.name,
        function=function,
        parameters=list(signature.signature.parameters.values()),
        request=lambda args, settings: live.intake.request(args, dict(settings), None, owner),
        executor=executor.inside if isinstance(executor, Bisecting) else executor,
        started=started,
        factory=resolved.factory,
        collation=resolved.collation,
        collator=_collator(resolved, signature),
        policies=resolved.policies,
    )


def _collator(resolved: Resolved, signature: BatchSignature) -> Collator | None:
    return None if resolved.collation is None else _started(resolved.collation, signature)


def _started(collation: Collation, signature: BatchSignature) -> Collator:
    collator = collation.start(signature.filled, signature.name)
    expect = getattr(collator, "expect", None)
    if expect is not None and signature.batched is not None:
        expect(signature.batched)
    return collator


def _batch_function(
    function: Callable[..., Any], resolved: Resolved, signature: BatchSignature, collator: Collator | None, owned: bool
) -> CollatedFunction:
    return CollatedFunction(
        function,
        name=signature.name,
        is_async=is_async(function),
        owned=owned,
        collate=resolved.collate,
        collator=collator,
        by_name=signature.by_name,
    )


def _executor(resolved: Resolved, function: CollatedFunction) -> Executor:
    """A new executor; one that was given as it is stays the same."""
    if resolved.executor is not None:
        return resolved.executor
    executor = _usual(resolved, function)
    return Bisecting(executor) if resolved.bisect_errors else executor


def _usual(resolved: Resolved, function: CollatedFunction) -> Executor:
    return FunctionExecutor(function) if resolved.factory is None else resolved.factory.start(function)
