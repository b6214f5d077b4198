"""Runs a batch through a plain or async function."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any

from .._core._request import Request
from ..errors import BatchContractError
from ._bisect import bisect
from ._errors import failures
from ._outcomes import split


class FunctionExecutor:
    """Calls the function with parallel lists and gives back one outcome per request.

    function: takes one list per batched parameter, then the settings; with `owned` it is a method and gets the
        instance first.
    collate: makes what the function gets out of each list; None passes the list itself.
    bisect_errors: run halves of a failed batch again until the culprits are alone.

    An Exception from the function becomes each caller's own copy of it. Cancellation of an async function passes
    through, so that its task ends as cancelled.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        is_async: bool,
        owned: bool = False,
        collate: Callable[[list[Any]], Any] | None = None,
        bisect_errors: bool = False,
    ) -> None:
        self.is_async = is_async
        self._function = function
        self._owned = owned
        self._collate = collate
        self._bisect_errors = bisect_errors
        self._simple = collate is None and not owned

    def run(self, requests: Sequence[Request]) -> Sequence[Any]:
        try:
            return split(self._call(requests), len(requests))
        except Exception as error:
            work = self._after(error, requests)
        try:
            part = next(work)
            while True:
                try:
                    result = self._call(part)
                except Exception as error:
                    part = work.throw(error)
                else:
                    part = work.send(result)
        except StopIteration as finished:
            result = None  # as in `_after`
            return finished.value  # type: ignore[no-any-return]

    async def run_async(self, requests: Sequence[Request]) -> Sequence[Any]:
        try:
            return split(await self._call(requests), len(requests))
        except Exception as error:
            work = self._after(error, requests)
        try:
            part = next(work)
            while True:
                try:
                    result = await self._call(part)
                except Exception as error:
                    part = work.throw(error)
                else:
                    part = work.send(result)
        except StopIteration as finished:
            result = None  # as in `_after`
            return finished.value  # type: ignore[no-any-return]

    def _after(
        self, failure: Exception, requests: Sequence[Request]
    ) -> Generator[Sequence[Request], Any, Sequence[Any]]:
        """What to do after a failed run: yields what to run again; is sent its result, or thrown what it raised."""
        size = len(requests)
        if not self._bisect_errors or size == 1 or isinstance(failure, BatchContractError):
            return failures(failure, size)
        outcomes: list[Any] = [None] * size
        plan = bisect(size, failure)
        raised: BaseException | None = None
        try:
            while True:
                low, high = plan.send(raised)
                raised = None
                try:
                    outcomes[low:high] = split((yield requests[low:high]), high - low)
                except Exception as error:
                    raised = error
        except StopIteration as found:
            for (low, high), culprit in found.value.items():
                outcomes[low:high] = failures(culprit, high - low)
                del culprit
        try:
            return outcomes
        finally:  # the tracebacks of errors know this frame: a cycle would keep the items until a collection
            del failure, raised, outcomes

    def _call(self, requests: Sequence[Request]) -> Any:
        """What the function returns for these: its result, or the awaitable of it."""
        first = requests[0]
        if self._simple and first.settings is None and len(first.args) == 1:
            return self._function([request.args[0] for request in requests])
        if len(first.args) == 1:
            columns: list[Any] = [[request.args[0] for request in requests]]
        else:
            columns = [list(column) for column in zip(*[request.args for request in requests], strict=True)]
        if self._collate is not None:
            columns = [self._collate(column) for column in columns]
        if self._owned:
            columns.insert(0, first.owner)
        return self._function(*columns, **(first.settings or {}))
