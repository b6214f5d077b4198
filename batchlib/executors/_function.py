"""Runs a batch through a plain or async function."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .._core._request import Request
from ..errors import ExecutorLost
from ._batch_function import CollatedFunction
from ._errors import failures
from ._outcomes import split


class FunctionExecutor:
    """Calls the function where it is told to run, and gives back one outcome per request.

    What the function raises passes through, the cancellation of an async one too, so that its task ends as cancelled.
    An ExecutorLost is the function's own failure: it comes from another batched function, and this one can go on.
    """

    def __init__(self, function: CollatedFunction) -> None:
        self.is_async = function.is_async
        self._function = function
        self._plain = function.plain
        self._call = function.function

    def run(self, requests: Sequence[Request]) -> Sequence[Any]:
        try:
            first = requests[0]
            if self._plain and first.settings is None and len(first.args) == 1:  # the short way
                return split(self._call([request.args[0] for request in requests]), len(requests))
            function = self._function
            collated = function.collate(requests)
            return function.uncollate(function.call(requests, collated), collated)
        except ExecutorLost as error:
            return failures(error, len(requests))

    async def run_async(self, requests: Sequence[Request]) -> Sequence[Any]:
        try:
            first = requests[0]
            if self._plain and first.settings is None and len(first.args) == 1:
                return split(await self._call([request.args[0] for request in requests]), len(requests))
            function = self._function
            collated = function.collate(requests)
            return function.uncollate(await function.call(requests, collated), collated)
        except ExecutorLost as error:
            return failures(error, len(requests))
