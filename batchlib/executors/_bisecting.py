"""`on_error="bisect"`: runs halves of a failed batch again, on whatever executor, until the culprits are alone."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

from .._core._execution import Executor
from .._core._request import Request
from ..errors import BatchContractError, ExecutorLost
from ._bisect import bisect
from ._errors import failures, one_each


class Bisecting:
    """Around an executor that may run its function again. An exception among the outcomes is no failed batch."""

    def __init__(self, executor: Executor) -> None:
        self.is_async = executor.is_async
        self._executor = executor
        self.stop = getattr(executor, "stop", _nothing)

    @property
    def healthy(self) -> bool:
        return getattr(self._executor, "healthy", True)

    @property
    def inside(self) -> Executor:
        """The executor that runs the halves."""
        return self._executor

    def run(self, requests: Sequence[Request]) -> Sequence[Any]:
        work = _runs(requests)
        del requests  # whoever has an error has this frame, too
        part = next(work)
        try:
            while True:
                try:
                    outcomes = self._executor.run(part)
                except ExecutorLost:
                    raise
                except Exception as error:
                    part = work.throw(error)
                else:
                    part = work.send(outcomes)
        except StopIteration as finished:
            outcomes = part = []  # as in `_runs`
            return finished.value  # type: ignore[no-any-return]

    async def run_async(self, requests: Sequence[Request]) -> Sequence[Any]:
        work = _runs(requests)
        del requests  # whoever has an error has this frame, too
        part = next(work)
        try:
            while True:
                try:
                    outcomes = await self._executor.run_async(part)
                except ExecutorLost:
                    raise
                except Exception as error:
                    part = work.throw(error)
                else:
                    part = work.send(outcomes)
        except StopIteration as finished:
            outcomes = part = []  # as in `_runs`
            return finished.value  # type: ignore[no-any-return]


def _nothing() -> None: ...


def _runs(requests: Sequence[Request]) -> Generator[Sequence[Request], Any, Sequence[Any]]:
    """Yields what to run, all of them first; is sent its outcomes, or thrown what it raised. Returns the outcomes."""
    size = len(requests)
    try:
        return (yield requests)  # type: ignore[no-any-return]
    except Exception as error:
        failure = error
    if size == 1 or isinstance(failure, BatchContractError):
        try:
            return failures(failure, size)
        finally:  # as below
            del failure, requests
    outcomes: list[Any] = [None] * size
    plan = bisect(size, failure)
    raised: BaseException | None = None
    try:
        while True:
            low, high = plan.send(raised)
            raised = None
            try:
                outcomes[low:high] = one_each((yield requests[low:high]), high - low)
            except Exception as error:
                raised = error
    except StopIteration as found:
        for (low, high), culprit in found.value.items():
            outcomes[low:high] = failures(culprit, high - low)
            del culprit
    try:
        return outcomes
    finally:  # the tracebacks of errors know this frame: a cycle would keep the items until a collection
        del failure, raised, outcomes, requests
