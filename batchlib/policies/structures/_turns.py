"""Taking turns: what the orderings share that keep a line for each tenant or class, and nest a policy in each."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
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


Turns = Callable[[Line[P]], Iterator[tuple[Request, Key]]]
"""What would come of serving a line: its requests in order, each with the key that the line has after it."""


class Parties(Protocol[P]):
    """Whose turn it is: the state of a policy, shared by the queues of all groups. Keys of different parties differ."""

    def party(self, request: Request) -> P:
        """The party that the request belongs to, new if need be. Remembers nothing; may raise."""
        ...

    def joined(self, line: Line[P], request: Request) -> None: ...

    def key(self, line: Line[P]) -> Key:
        """Of the line's next request; the smallest is next. Only grows while the line has requests."""
        ...

    def turns(self) -> Turns[P]: ...

    def served(self, line: Line[P], request: Request) -> None:
        """Called in the order of service, before `left`."""
        ...

    def left(self, line: Line[P], requests: Sequence[Request]) -> None: ...


def checked_inside(policy: OrderingPolicy) -> OrderingPolicy:
    """What a policy is given to nest. TypeError if it is no ordering policy."""
    if isinstance(policy, type) or not callable(getattr(policy, "start", None)):
        raise TypeError(f"within must be an ordering policy, such as Fifo(), not {policy!r}")
    return policy
