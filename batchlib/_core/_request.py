"""A request: the library's record of one call, from submit to outcome.

One object per call, so its fields are what must be kept while it waits and nothing else. Only the core writes
`state`, `outcome` and `batch`; the runtime fills in the rest before it submits.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from contextvars import Context
from typing import TYPE_CHECKING, Any

from ._transitions import State

if TYPE_CHECKING:
    from ._batch import Batch

_NEW = State.NEW


class Request:
    """One item on its way through a batcher; policies read it and change nothing."""

    limits: object

    __slots__ = (
        "arrival",  # instant of submission on the batcher's clock
        "args",  # the call's positional arguments: one value per batched parameter
        "batch",  # the batch it runs in, only while RUNNING (no cycle outlives the batch)
        "chain",  # batches inside which the call was made, outermost first; () for a call from outside
        "channel",  # the runtime's: where its outcome is delivered; opaque here
        "context",  # the caller's context variables at the call
        "cost",  # use of the scarce resource, in the unit of `cost=`; 1 without one
        "deadline",  # instant after which it is given up, or None
        "group",  # group key: only requests with equal keys share a batch
        "hint",  # instant at which the caller's own cancel scope ends, or None; orders, never expires
        "limits",  # those of the batcher that it was admitted to, by which it is known; unset before that
        "outcome",  # its result, or the exception for its caller; before it is submitted, why its items are refused
        "owner",  # the instance a batched method was called on; kept alive until the outcome is there
        "priority",  # lower is more urgent
        "sequence",  # position in the order of admission; breaks every tie
        "settings",  # keyword-only arguments, shared by the whole group
        "state",
        "tenant",  # the party that fairness is accounted to, or None
        "waiter",  # the runtime's: what the caller waits on; opaque here
    )

    def __init__(
        self,
        args: tuple[Any, ...],
        group: Hashable,
        arrival: float,
        context: Context | None = None,
        channel: Any = None,
        waiter: Any = None,
    ) -> None:
        self.args = args
        self.group = group
        self.arrival = arrival
        self.context = context
        self.channel = channel
        self.waiter = waiter
        self.state = _NEW
        self.cost: float = 1
        self.deadline: float | None = None
        self.hint: float | None = None
        self.priority: float = 0
        self.tenant: Hashable = None
        self.settings: dict[str, Any] | None = None
        self.owner: Any = None
        self.chain: tuple[Batch, ...] = ()
        self.batch: Batch | None = None
        self.outcome: Any = None
        self.sequence = 0

    @property
    def portions(self) -> Sequence[Request]:
        """What is queued and run for it: itself, unless it was split."""
        return (self,)

    def __repr__(self) -> str:
        return f"<Request {self.sequence} {self.state.value} arrival={self.arrival:.6g} cost={self.cost:g}>"
