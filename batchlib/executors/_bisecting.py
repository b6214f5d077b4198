"""`on_error="bisect"`: runs halves of a failed batch again, on whatever executor, until the culprits are alone."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import Any

from .._core._execution import Executor
from .._core._request import Request
from ..errors import BatchContractError, ExecutorLost
from ._bisect import Range, bisect
from ._errors import one_each
from ._in_parts import InParts


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
    def counts(self) -> Mapping[str, int]:
        return getattr(self._executor, "counts", {})

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
                except Exception as error:
                    part = work.throw(error)
                else:
                    part = work.send(outcomes)
        except StopIteration as finished:
            return finished.value  # type: ignore[no-any-return]
        finally:
            outcomes = part = []  # as in `_runs`

    async def run_async(self, requests: Sequence[Request]) -> Sequence[Any]:
        work = _runs(requests)
        del requests  # whoever has an error has this frame, too
        part = next(work)
        try:
            while True:
                try:
                    outcomes = await self._executor.run_async(part)
                except Exception as error:
                    part = work.throw(error)
                else:
                    part = work.send(outcomes)
        except StopIteration as finished:
            return finished.value  # type: ignore[no-any-return]
        finally:
            outcomes = part = []  # as in `_runs`


def _nothing() -> None: ...


def _runs(requests: Sequence[Request]) -> Generator[Sequence[Request], Any, Sequence[Any]]:
    """Yields what to run, all of them first; is sent its outcomes, or thrown what it raised. Returns the outcomes.

    An ExecutorLost ends the search, and takes along the outcomes of those that would not have run again.
    """
    size = len(requests)
    plan = bisect(size)
    outcomes: list[Any] = [None] * size
    left = set(range(size))  # the places of those that have not run, or may run again
    given: Any = None
    suspects: Any = None  # of the last run
    try:
        while True:
            low, high = plan.send(suspects)
            try:
                given = yield requests[low:high]
            except ExecutorLost as lost:
                lost.outcomes = {
                    **{place: outcomes[place] for place in range(size) if place not in left},
                    **{low + place: outcome for place, outcome in lost.outcomes.items()},
                }
                raise
            except Exception as error:
                given = InParts()
                given.fail(error, high - low)
            suspects = [(low + begin, low + end) for begin, end in _suspects(given, high - low == size)]
            outcomes[low:high] = one_each(given, high - low)
            left.difference_update(range(low, high))
            left.update(*[range(*each) for each in suspects])
    except StopIteration:
        return outcomes
    finally:  # the tracebacks of errors know this frame: a cycle would keep the items until a collection
        del outcomes, requests, given


def _suspects(given: Any, whole: bool) -> list[Range]:
    """The parts of a run that may hold a culprit beside others. whole: it was the batch's first run."""
    return [
        (begin, end)
        for (begin, end), error in getattr(given, "failed", {}).items()
        if end - begin > 1 and isinstance(error, Exception) and not (whole and isinstance(error, BatchContractError))
    ]
