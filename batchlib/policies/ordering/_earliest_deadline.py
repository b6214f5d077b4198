"""The order of the deadlines: past capacity it loses the fewest, if a dispatch policy passes over the hopeless."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter

from ..._core._request import Request
from ..structures._deadlines import due
from ..structures._sorted import Sorted


@dataclass(frozen=True, slots=True)
class EarliestDeadline:
    """Serves the request that is due first; those that are never due come last, in the order of admission.

    A request is due at its deadline or at the end of its caller's own cancel scope, whichever is earlier.

    Past capacity this order alone keeps everybody waiting until nobody makes it: use it with `DeadlineAware`.

    >>> from batchlib import batched
    >>> from batchlib.policies import EarliestDeadline
    >>> double = batched(lambda xs: [2 * x for x in xs], ordering=EarliestDeadline())
    >>> double.options(timeout=5).call(4)
    8
    """

    def start(self) -> EarliestDeadlineOrdering:
        return EarliestDeadlineOrdering()


class EarliestDeadlineOrdering:
    """Nothing is shared between groups: the instants are the rank."""

    def queue(self) -> EarliestDeadlineQueue:
        return EarliestDeadlineQueue()


class EarliestDeadlineQueue:
    """Operations: push, leave O(log n); a batch of the first b leaves in O(b); first O(1)."""

    __slots__ = ("_requests",)

    arrival_order = False

    def __init__(self) -> None:
        self._requests: Sorted[tuple[float, int, Request]] = Sorted()

    def push(self, request: Request) -> None:
        self._requests.add(_entry(request))

    def in_order(self) -> Iterator[Request]:
        return map(_request, self._requests)

    def due_from(self, instant: float) -> Iterator[Request]:
        return map(_request, self._requests.since((instant,)))

    def rank(self) -> tuple[float, int]:
        due, sequence, _ = self._requests.first()
        return due, sequence

    def dispatched(self, requests: Sequence[Request], now: float) -> None:
        if len(requests) == 1 and requests[0] is self._requests.first()[2]:  # the next of a tenant whose turn it was
            self._requests.take_first()
        else:
            self._requests.remove_all([_entry(request) for request in requests])

    def removed(self, request: Request) -> None:
        self._requests.remove(_entry(request))


_request = itemgetter(2)


def _entry(request: Request) -> tuple[float, int, Request]:
    return due(request), request.sequence, request
