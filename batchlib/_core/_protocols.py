"""The extension points of deciding, on one page; `_execution` has those of running. Both are in `batchlib.protocols`.

A policy is an immutable description: its `start()` makes the state, so that one object can decorate many functions,
be pickled and be shared. The core calls every method below under its batcher's lock, from whatever thread an event
happens on, and never two at once for the same batcher. So a method must be quick, must not block, must not call the
batcher, and may keep what it likes on its own state object. Time is always the argument `now`, in seconds of the
batcher's clock. Requests are read, never written.

What happens when a method raises is said with each protocol; no failing policy stops a batcher or strands a caller.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from ..errors import Rejected
from ._latency_model import LatencyModel
from ._request import Request

if TYPE_CHECKING:
    from ._batch import Batch
    from ._events import BatchEnded, BatchStarted, RequestEnded


class WaitingRoom(Protocol):
    """What an admission policy may know: the batcher as a whole."""

    @property
    def waiting(self) -> int:
        """Requests admitted and not dispatched."""
        ...

    @property
    def running(self) -> int:
        """Requests in executing batches whose callers still wait."""
        ...

    @property
    def max_batch_size(self) -> int: ...

    @property
    def max_concurrent_batches(self) -> int: ...

    @property
    def running_batches(self) -> Sequence[Batch]:
        """The batches that run now, in the order of their dispatch."""
        ...

    @property
    def latency_model(self) -> LatencyModel:
        """How long batches take: learned from the moment that somebody first asks for it."""
        ...


class AdmissionPolicy(Protocol):
    """Answers: may this request join? A description; several combine, the first refusal counts."""

    def start(self) -> Admission:
        """New state for one batcher."""
        ...


class Admission(Protocol):
    """State of an AdmissionPolicy.

    `admit` is called once per request, at submit. It gives None to admit, or the exception that the caller gets. If it
    raises, that one call fails with what it raised.

    Optional: `can_refuse`, an attribute that is False where `admit` always gives None and need not be called.
    Optional methods, called where they exist: `holds_back(room) -> bool` (should those who run ahead of their results,
    `submit` in a thread and `map`, pause?), `dispatched(request)` and `ended(request)` (a request that this policy
    admitted has left the queue for a batch; has got its outcome, left, or been refused by the next policy).
    """

    def admit(self, request: Request, room: WaitingRoom, now: float) -> Rejected | None: ...


class OrderingPolicy(Protocol):
    """Answers: who is served first? A description; the state is one Ordering per batcher and nesting.

    Optional: `needs_runs`, an attribute that is True where the order only makes sense if those next to each other share
    a batch. A policy that takes turns, such as FairShare, refuses to nest it.
    """

    def start(self) -> Ordering:
        """New state for one batcher, or for one place in another policy that nests this one."""
        ...


class Ordering(Protocol):
    """State of an OrderingPolicy, shared by the queues of all groups (a tenant's account, for one).

    Optional: `tenants_tracked`, how many tenants it keeps an account for, for `statistics()`.
    """

    def queue(self) -> Queue:
        """A new, empty queue for a group that has just got its first request."""
        ...


class Queue(Protocol):
    """The waiting requests of one group, in order of service.

    A request whose state is no longer WAITING has left, and must not be given out any more; `dispatched` or `removed`
    says so right after. If a method raises, the requests concerned fail with it as the cause.

    Optional: `due_from(instant)`, those of `in_order` that are due at the instant or later, quickly found. A queue has
    it where its order is that of the deadlines (a request is due at `deadline` or at `hint`, whichever is earlier) and
    of nothing else, so that a dispatch policy may pass over those who cannot make it.
    """

    arrival_order: bool
    """Whether `in_order` is the order of arrival, leaves nobody out and cannot raise.

    It saves the core a second record of who waits and a check of each batch, so it is taken at its word.
    """

    def push(self, request: Request, /) -> None:
        """A request has been admitted to this group."""
        ...

    def in_order(self) -> Iterator[Request]:
        """Those that wait, most urgent first. Lazy: usually only the first few are looked at."""
        ...

    def rank(self) -> Any:
        """A key of the first in order, compared with the other queues of the same Ordering: the smallest is served.

        Only a push may make it smaller.
        """
        ...

    def dispatched(self, requests: Sequence[Request], now: float) -> None:
        """These have left in a batch: the moment to charge for them."""
        ...

    def removed(self, request: Request) -> None:
        """This one has left without running (cancelled, expired, shed): charges nothing."""
        ...


class Limit(Protocol):
    """Bounds what may share a batch, beside `max_batch_size`: a description."""

    def start(self) -> Limiter:
        """New state for one batcher."""
        ...


class Limiter(Protocol):
    """State of a Limit. Optional: `observe(batch, execution_time)`, called after every batch that ran."""

    def open(self) -> Room:
        """The room of a batch that is about to be formed."""
        ...

    def exceeds(self, request: Request) -> tuple[float, float] | None:
        """(needed, allowed) if the request can never fit, not even alone; None if it can."""
        ...


class Room(Protocol):
    """What is left of one batch while it is formed."""

    def add(self, request: Request) -> bool:
        """Takes the request in if it fits, and says whether it did."""
        ...

    @property
    def full(self) -> bool:
        """Whether no further request, however small, could fit."""
        ...


@dataclass(slots=True)
class Filled:
    """The batch that could be formed from a group now."""

    requests: tuple[Request, ...]
    full: bool
    """A limit closed it: waiting for company would be in vain."""


class Group(Protocol):
    """What a dispatch policy may know of the requests that may share a batch."""

    @property
    def waiting(self) -> int:
        """How many wait; at least 1."""
        ...

    @property
    def oldest_arrival(self) -> float:
        """Instant at which the longest-waiting of them arrived."""
        ...

    @property
    def max_batch_size(self) -> int: ...

    @property
    def running_batches(self) -> int:
        """How many batches of the batcher run now; 0 means that it is idle."""
        ...

    @property
    def deadline_order(self) -> bool:
        """Whether `in_order` is the order of the deadlines and of nothing else."""
        ...

    def due_from(self, instant: float) -> Iterator[Request]:
        """Those of `in_order` that are due at the instant or later; only with `deadline_order`."""
        ...

    @property
    def latency_model(self) -> LatencyModel:
        """How long batches take: learned from the moment that somebody first asks for it."""
        ...

    def in_order(self) -> Iterator[Request]:
        """Those that wait, in the order of the ordering policy."""
        ...

    def fill(self) -> Filled:
        """The first in order that fit together, closed at the first that does not. Changes nothing."""
        ...

    def room(self) -> Room:
        """An empty room under all limits, `max_batch_size` included, for a policy that chooses by itself."""
        ...


@dataclass(slots=True)
class Decision:
    """What a dispatch policy wants done with a group, now that an executor is free. Made anew for each answer.

    dispatch: run these as one batch (they wait in this group and fit together); () to run nothing yet.
    drop: give these up; their callers get `Shed`.
    wake_at: the instant at which to ask again at the latest. Needed where requests are left to wait and nothing is
        dispatched: an idle executor either gets work or has a time to look again. Any arrival in the group asks sooner.
    reason: why the batch leaves, for events and statistics.
    """

    dispatch: Sequence[Request] = ()
    drop: Sequence[Request] = ()
    wake_at: float | None = None
    reason: str = ""


class DispatchPolicy(Protocol):
    """Answers: is it time, how many, and who is given up? A description."""

    def start(self) -> Dispatcher:
        """New state for one batcher."""
        ...


class Dispatcher(Protocol):
    """State of a DispatchPolicy.

    `decide` is asked only while an executor is free: after arrivals (once per loop tick), when a batch ends, and at
    `wake_at`. The groups are asked in the order of their first requests until one dispatches. If it raises, or decides
    neither to dispatch nor when to look again, the requests that would have been next fail with that as the cause.

    Optional: `observe(batch: Batch, execution_time: float)`, called after every batch that ran, with its requests.
    """

    def decide(self, group: Group, now: float) -> Decision: ...


class Clock(Protocol):
    """Where a batcher gets its time from."""

    def now(self) -> float:
        """Seconds; never goes back."""
        ...

    def call_at(self, instant: float, callback: Callable[[], object]) -> object:
        """Calls `callback` once, from any thread, as soon as `now()` has reached `instant`.

        RuntimeError if that cannot be had now, as when no thread can be started: it is asked again at the next event.
        """
        ...


class Hook(Protocol):
    """Observes: called with a frozen event after it has happened, outside every lock.

    On whatever thread the event happened, an event loop's included: be quick. What it raises is logged and changes
    nothing.
    """

    def __call__(self, event: BatchStarted | BatchEnded | RequestEnded, /) -> object: ...
