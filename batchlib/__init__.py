"""Puts any callable that works on a list behind a batcher; callers use it one item at a time.

from batchlib import batched

@batched(max_batch_size=32)
def embed(texts: list[str]) -> list[Vector]: ...

vector = await embed("hello")      # asyncio or trio
vector = embed.call("hello")       # a plain thread
"""

from ._batched import Batched
from ._context import BatchContext, batch_context, request_options
from ._core._events import BatchEnded, BatchStarted, RequestEnded
from ._core._statistics import Statistics
from ._decorator import batched
from ._map import Results
from .errors import (
    BatchContractError,
    BatchFailed,
    BatchlibError,
    BlockingCallError,
    Closed,
    DeadlineExceeded,
    ExecutorLost,
    ItemTooLarge,
    Overloaded,
    ReentrantCallError,
    Rejected,
    Shed,
)

__version__ = "0.1.0"

__all__ = [
    "BatchContext",
    "BatchContractError",
    "BatchEnded",
    "BatchFailed",
    "BatchStarted",
    "Batched",
    "BatchlibError",
    "BlockingCallError",
    "Closed",
    "DeadlineExceeded",
    "ExecutorLost",
    "ItemTooLarge",
    "Overloaded",
    "ReentrantCallError",
    "Rejected",
    "RequestEnded",
    "Results",
    "Shed",
    "Statistics",
    "batch_context",
    "batched",
    "request_options",
]
