"""Every exception that batchlib raises, in one tree.

    BatchlibError
    ├── Rejected                 the request never ran: it is safe to send it elsewhere
    │   ├── Overloaded           refused at admission; `retry_after` is an estimate in seconds or None
    │   │   └── Shed             admitted, then given up by policy before it ran
    │   ├── ItemTooLarge         no batch can ever hold the item
    │   └── Closed               the batcher takes no more, or closed before the request was done
    ├── DeadlineExceeded         the request's deadline passed (also a TimeoutError)
    ├── BatchContractError       the function gave back what cannot be split into one outcome per item
    ├── BatchFailed              the function failed with what cannot be handed to a caller as it is
    ├── BlockingCallError        a blocking call on an event loop's thread
    ├── ReentrantCallError       a call from inside a batch to a batcher that this batch keeps busy
    └── ExecutorLost             the executor is gone for good; nothing more can run on it

Errors of the function itself reach their callers with their own type and are not in this tree.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType


class BatchlibError(Exception):
    """The root of every error that batchlib itself raises."""


class Rejected(BatchlibError):
    """The request never ran, so it is safe to send it elsewhere."""


class Overloaded(Rejected):
    """The batcher had no room for the request.

    `retry_after`: seconds after which room is likely, or None if that cannot be told.
    """

    def __init__(self, message: str = "", *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class Shed(Overloaded):
    """The request was admitted, then given up by policy before it ran."""


class ItemTooLarge(Rejected):
    """The item can never fit into a batch, not even alone."""


class Closed(Rejected):
    """The batcher was closed: it takes no more requests, or gave this one up unfinished."""


class DeadlineExceeded(BatchlibError, TimeoutError):
    """The request's deadline passed before it had an outcome."""


class BatchContractError(BatchlibError):
    """The function did not give back one outcome per item."""


class BatchFailed(BatchlibError):
    """The function failed with what a caller cannot be given as it is; see `__cause__`."""


class BlockingCallError(BatchlibError):
    """A blocking call was made on an event loop's thread; the message names what to await instead."""


class ReentrantCallError(BatchlibError):
    """A batch called, directly or through others, the batcher that is waiting for it."""


class ExecutorLost(BatchlibError):
    """The executor is gone for good; the batcher cannot run anything more.

    `outcomes`: what an executor that raises it has for some of the batch's requests, by their place in it from 0. They
    get that, and only the others get the error.
    """

    outcomes: Mapping[int, object] = MappingProxyType({})  # also of a subclass that does not call __init__

    def __init__(self, message: str = "", *, outcomes: Mapping[int, object] | None = None) -> None:
        super().__init__(message)
        if outcomes is not None:
            self.outcomes = outcomes
