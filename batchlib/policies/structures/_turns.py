"""Taking turns: what the orderings share that keep a line for each tenant or class, and nest a policy in each."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Generic, Protocol, TypeVar

from ..._core._protocols import Ordering, OrderingPolicy, Queue
from ..._core._request import Request

Key = tuple[float, float]


class Party(Protocol):
    """Who takes turns: a tenant, a class of priority. One for all groups, while it has requests waiting."""

    ordering: Ordering


P = TypeVar("P", bound=Party)


class Line(Generic[P]):
    """The requests of one party in one group. `key` is its place in the order; by now the true one may be larger."""

    __slots__ = ("key", "name", "party", "queue", "waiting")

    def __init__(self, name: Hashable, party: P) -> None:
        self.name = name
        self.party = party
        self.queue: Queue = party.ordering.queue()
        self.waiting = 0
        self.key: Key = (0.0, 0.0)


After = Callable[[Line[P], Key, Request], Key]
"""(line, its key, the request served next) -> its key after that. Asked in the order of service."""


class Parties(Protocol[P]):
    """Whose turn it is: the state of a policy, shared by the queues of all groups. Keys of different parties differ."""

    def party(self, request: Request) -> P:
        """The party that the request belongs to, new if need be. Remembers nothing; may raise."""
        ...

    def joined(self, line: Line[P], request: Request) -> None: ...

    def key(self, line: Line[P]) -> Key:
        """Of the line's next request; the smallest is next. Only grows while the line has requests."""
        ...

    def looking(self) -> After[P]:
        """For one look ahead, which serves nobody."""
        ...

    def served(self, lines: Sequence[Line[P]], requests: Sequence[Request]) -> None:
        """One of each, in the order of service; called before `left`."""
        ...

    def left(self, leaving: Mapping[Line[P], Sequence[Request]]) -> None:
        """These have stopped waiting, served or not."""
        ...


def checked_inside(policy: OrderingPolicy) -> OrderingPolicy:
    """What a policy is given to nest. TypeError if it is no ordering policy."""
    starts = not isinstance(policy, type) and callable(getattr(policy, "start", None))
    if not starts or not callable(getattr(policy.start(), "queue", None)):
        raise TypeError(f"within must be an ordering policy, such as Fifo(), not {policy!r}")
    return policy
