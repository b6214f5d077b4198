"""The extension points, for type annotations and for reading: who calls what, when, and what it may do."""

from ._core._batch import Batch
from ._core._events import BatchEnded, BatchStarted, RequestEnded
from ._core._execution import (
    Accepted,
    Allocate,
    BatchFunction,
    Collated,
    Collation,
    Collator,
    Executor,
    ExecutorFactory,
)
from ._core._latency_model import LatencyEstimate, LatencyModel
from ._core._protocols import (
    Admission,
    AdmissionPolicy,
    Clock,
    Decision,
    Dispatcher,
    DispatchPolicy,
    Filled,
    Group,
    Hook,
    Limit,
    Limiter,
    Ordering,
    OrderingPolicy,
    Queue,
    Room,
    WaitingRoom,
)
from ._core._request import Request
from ._core._transitions import State

__all__ = [
    "Accepted",
    "Admission",
    "AdmissionPolicy",
    "Allocate",
    "Batch",
    "BatchEnded",
    "BatchFunction",
    "BatchStarted",
    "Clock",
    "Collated",
    "Collation",
    "Collator",
    "Decision",
    "DispatchPolicy",
    "Dispatcher",
    "Executor",
    "ExecutorFactory",
    "Filled",
    "Group",
    "Hook",
    "LatencyEstimate",
    "LatencyModel",
    "Limit",
    "Limiter",
    "Ordering",
    "OrderingPolicy",
    "Queue",
    "Request",
    "RequestEnded",
    "Room",
    "State",
    "WaitingRoom",
]
