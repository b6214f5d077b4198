"""Runs a function on chosen batches, as the batches of callers are run: in its executor, in a thread, in a context."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from inspect import Parameter
from typing import Any

from ..._context import inside
from ..._core._batch import Batch
from ..._core._execution import Collator, Executor, ExecutorFactory
from ..._core._policies import Policies
from ..._core._request import Request
from ...errors import ExecutorLost
from ...executors import CollatedFunction, FunctionExecutor
from ...executors._apart import Apart
from ...executors._errors import one_each

USUAL_BATCH_SIZE = 32
_POSITIONAL = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)


@dataclass
class Trials:
    """One function under trial, and how often it was run.

    prepare: makes a request of the items of one call, as the intake of a batched function does.
    collation, collator: None where the function gets lists, or what a plain callable makes of them.
    autocast: what its executor computes in, if it says so.
    policies: those of a batched function.
    started: makes an executor of the same kind that collates in another way.
    own: whether the executor was made for these trials, and ends with them.
    """

    name: str
    function: Any
    executor: Executor
    started: Callable[[Collator], Executor]
    prepare: Callable[[tuple[Any, ...]], Request]
    single: bool
    collation: Any = None
    collator: Any = None
    max_batch_size: int = USUAL_BATCH_SIZE
    autocast: Any = None
    policies: Policies | None = None
    own: bool = False
    runs: int = 0
    raised: list[Exception] = field(default_factory=list)
    """What whole batches failed with; an error in a slot is an outcome like others."""
    _threads: ThreadPoolExecutor | None = field(default=None, repr=False)

    def request(self, sample: Any) -> Request:
        """The request of a sample: an item, or a tuple of items for a function of several batched parameters."""
        several = not self.single and type(sample) is tuple
        request = self.prepare(sample if several else (sample,))
        if request.outcome is not None:  # its items are refused
            raise request.outcome
        return request

    @contextmanager
    def at_work(self) -> Generator[None]:
        """Has a thread to run in: grad mode and the like are a thread's own, and callers' batches have one, too."""
        with ThreadPoolExecutor(1, "batchlib check") as self._threads:
            try:
                yield
            finally:
                if self.own:
                    getattr(self.executor, "stop", _nothing)()

    def run(self, *requests: Request, executor: Executor | None = None) -> Sequence[Any]:
        """One batch: an outcome per request, for each the error if it fails as a whole. ExecutorLost is raised."""
        assert self._threads is not None
        self.runs += 1
        those = [replaced(request, request.args) for request in requests]
        batch = Batch(self.runs, those[0].group, those, "check", 0.0)
        try:
            outcomes = self._threads.submit(
                inside(batch, False).run, _executed, executor or self.executor, those
            ).result()
        except ExecutorLost:
            raise
        except Exception as error:
            self.raised.append(error)
            return [error] * len(those)
        finally:
            batch.requests = []  # a request knows its batch: no cycle is left behind
        each = list(one_each(outcomes, len(those)))
        for (begin, end), failure in getattr(outcomes, "failed", {}).items():  # parts that failed as a whole
            self.raised.append(failure)
            each[begin:end] = [failure] * (end - begin)
        return each

    def run_collated(self, collator: Collator, *requests: Request) -> Sequence[Any]:
        """The same with another collator, in an executor of its own."""
        executor = self.started(collator)
        try:
            return self.run(*requests, executor=executor)
        finally:
            getattr(executor, "stop", _nothing)()


def _executed(executor: Executor, requests: list[Request]) -> Sequence[Any]:
    return asyncio.run(_awaited(executor, requests)) if executor.is_async else executor.run(requests)


async def _awaited(executor: Executor, requests: list[Request]) -> Sequence[Any]:
    return await executor.run_async(requests)


def _nothing() -> None: ...


def replaced(request: Request, args: tuple[Any, ...]) -> Request:
    """A new request like this one, with other items."""
    new = Request(args, request.group, 0.0, request.context)
    new.cost, new.settings, new.owner = request.cost, request.settings, request.owner
    return new


def trials_of(function: Any, collate: Any, settings: Mapping[str, Any]) -> Trials:
    """For a batched function, or a plain one with a collation. TypeError for what is neither."""
    if not callable(function):
        raise TypeError(f"check_batching needs a batched function, or a callable and its collate=, not {function!r}")
    face: Any = function  # its type is unknown again, after `callable`
    taken = getattr(face, "_apart", None)
    if taken is None:
        return _plain(face, collate, dict(settings))
    apart: Apart = taken()
    if collate is None:
        return _batched(apart, dict(settings))
    factory: Any = apart.factory
    if getattr(factory, "cuda_graphs", False):  # the shapes of another collation need not be few
        factory = replace(factory, cuda_graphs=False)
    trials = _plain(face.direct, collate, dict(settings), factory)
    trials.max_batch_size = min(apart.policies.max_batch_size, USUAL_BATCH_SIZE)
    return trials


def _batched(apart: Apart, settings: dict[str, Any]) -> Trials:
    return Trials(
        name=apart.name,
        function=apart.function,
        executor=apart.executor,
        started=apart.started,
        prepare=lambda args: apart.request(args, settings),
        single=_is_single(apart.parameters),
        collation=apart.collation,
        collator=apart.collator,
        max_batch_size=min(apart.policies.max_batch_size, USUAL_BATCH_SIZE),
        autocast=getattr(apart.factory, "autocast", None),
        policies=apart.policies,
    )


def _plain(function: Any, collate: Any, settings: dict[str, Any], factory: ExecutorFactory | None = None) -> Trials:
    """For a function with a collation. factory: what describes its executor; None for the usual one."""
    name = getattr(function, "__qualname__", type(function).__qualname__)
    collation = collate if hasattr(collate, "start") else None
    if isinstance(collation, type):
        raise TypeError(f"collate must be a collation, not {collate!r}; did you mean {collate.__name__}(...)?")
    parameters = list(inspect.signature(function).parameters.values())
    filled = [p.name for p in parameters if collation is not None and p.name in collation.names]
    behind = parameters[[p.name for p in parameters].index(filled[0]) :] if filled else []
    collator = None if collation is None else collation.start(filled, name)
    call = getattr(function, "__call__", None)  # noqa: B004 (an object's own, to see whether it is async)

    def started(collator: Collator | None) -> Executor:
        executed = CollatedFunction(
            function,
            name=name,
            is_async=inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call),
            collate=collate if collation is None else None,
            collator=collator,
            by_name=[p.name for p in behind if p.kind is Parameter.POSITIONAL_OR_KEYWORD and p.name not in filled],
        )
        return FunctionExecutor(executed) if factory is None else factory.start(executed)

    def prepare(args: tuple[Any, ...]) -> Request:
        args, key, _ = (args, None, 1) if collator is None else collator.accept(args)
        request = Request(args, (len(args), key), 0.0)
        request.settings = settings
        return request

    single = _is_single([parameter for parameter in parameters if parameter.name not in filled])
    return Trials(
        name,
        function,
        started(collator),
        started,
        prepare,
        single,
        collation,
        collator,
        autocast=getattr(factory, "autocast", None),
        own=True,
    )


def _is_single(parameters: Any) -> bool:
    """Whether there is exactly one batched parameter, so that a tuple is an item and not several."""
    kinds = [parameter.kind for parameter in parameters]
    return Parameter.VAR_POSITIONAL not in kinds and sum(kind in _POSITIONAL for kind in kinds) == 1
