"""Calls whose item is split: how the outcomes of the parts become one, for all ways of calling.

The caller waits for a whole as for any other request. A part is delivered where its whole will be; the last of them, or
the first that has no result, ends the whole and has it delivered. Results are put together where they are received.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from .._core._request import Request
from .._core._splitting import Part, Whole
from .._core._transitions import FINAL, State
from ._calls import Ways, batched_call, call_blocking, submit
from ._threads import RequestFuture, outcome_of

if TYPE_CHECKING:
    from ._driver import Driver


class WholeCall(Whole):
    """One call of this kind. `join` makes its result out of the results of its parts."""

    __slots__ = ("_left", "_lock", "join")

    def __init__(
        self,
        request: Request,
        slices: Sequence[tuple[tuple[Any, ...], float]],
        join: Callable[[list[Any]], Any],
    ) -> None:
        super().__init__(request, slices)
        self.join = join
        self._left = len(slices)
        self._lock = threading.Lock()  # parts of a caller in a thread end in any thread

    def attach(self, part: Part) -> None:
        self.channel.attach_callback(part, self._arrived)

    def _arrived(self, part: Request) -> None:
        part.waiter = None  # it knows its whole
        with self._lock:
            if self.state in FINAL:  # it failed, or its caller left
                part.outcome = None
                return
            if part.state is State.COMPLETED:
                self._left -= 1
                if self._left:
                    return
                self.outcome = [each.outcome for each in self.parts]
            else:
                self.outcome, part.outcome = part.outcome, None
            self.state = part.state
            for each in self.parts:
                each.whole = None
        self.channel.deliver((self,))


class WholeFuture(RequestFuture):
    """The future of such a call. It can be cancelled until a part runs; `join` runs in the thread that resolves it."""

    def running(self) -> bool:
        request = self._request
        return request is not None and any(part.state is not State.WAITING for part in request.portions)

    def release(self) -> None:
        whole = self._request
        assert isinstance(whole, WholeCall)
        if whole.state is State.COMPLETED:
            try:
                whole.outcome = whole.join(whole.outcome)
            except BaseException as error:
                whole.state, whole.outcome = State.FAILED, error
        super().release()


async def _awaited(driver: Driver, request: Request) -> Any:
    result = await batched_call(driver, request)
    return request.join(result) if isinstance(request, WholeCall) else result


def _called(driver: Driver, request: Request) -> Any:
    result = call_blocking(driver, request)
    return request.join(result) if isinstance(request, WholeCall) else result


def _submitted(driver: Driver, request: Request) -> RequestFuture:
    return submit(driver, request, WholeFuture if isinstance(request, WholeCall) else RequestFuture)


def _result_of(request: Request) -> Any:
    result = outcome_of(request)
    return request.join(result) if isinstance(request, WholeCall) else result


SPLITTING = Ways(_awaited, _called, _submitted, _result_of)
