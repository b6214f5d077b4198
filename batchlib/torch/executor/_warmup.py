"""`warmup`: runs a function in every shape of batch that it will meet, before its first caller does.

The first run in a shape is the slow one: kernels are chosen, memory is asked for, graphs are compiled or recorded.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..._core._protocols import Limit
from ..._core._request import Request
from ...policies.structures._counts import checked_count
from ._lane import Lane
from ._running import DeviceExecutor
from ._trials import Trials, replaced, trials_of

_MOST = 1024  # rows, where `max_batch_size` is no limit


@dataclass(frozen=True, slots=True)
class Warmed:
    """One shape of batch, run on one device.

    rows: items and fillers. length: that of each item; None where items have no other length than their own.
    first_seconds, seconds: what the first run took, and the one after it.

    >>> from batchlib.torch import Warmed
    >>> Warmed(device="cuda:0", rows=32, length=128, first_seconds=1.5, seconds=0.01).rows
    32
    """

    device: str
    rows: int
    length: int | None
    first_seconds: float
    seconds: float


def warmup(
    function: Callable[..., Any],
    examples: Sequence[Any],
    *,
    batch_sizes: Sequence[int] | None = None,
    settings: Mapping[str, Any] | None = None,
) -> list[Warmed]:
    """Runs a batched function in every shape that its batches can have, the largest first, twice each.

    To be called before a service says that it is ready. The batches go past the queue: nothing is counted, no hook is
    called, and nobody gets their results. A shape that runs out of memory is run in halves, as it will be later.

    function: a batched one with `executor=TorchExecutor(...)`.
    examples: items, one of each kind that will come; tuples of items for several batched parameters. With
        `pad(sizes=...)` each is brought to every size, otherwise it keeps its length.
    batch_sizes: numbers of rows. None: those of the executor, or else the powers of two up to `max_batch_size`, and
        that. Batches over `max_batch_cost` are left out.
    settings: the function's keyword-only ones; None: as they are by default.

    Raises what the function raises, ExecutorLost for a lost device, TypeError for a function that runs elsewhere, and
    ValueError without an example, and where no batch can hold one.

    >>> import torch
    >>> from batchlib import batched
    >>> from batchlib.torch import TorchExecutor, stack, warmup
    >>> double = batched(lambda batch: 2 * batch, max_batch_size=4, collate=stack(), executor=TorchExecutor("cpu"))
    >>> [warmed.rows for warmed in warmup(double, [torch.zeros(3)])]
    [4, 2, 1]
    """
    trials = trials_of(function, None, settings or {})
    executor = trials.executor
    if not isinstance(executor, DeviceExecutor):
        raise TypeError(f"warmup needs a batched function with executor=TorchExecutor(...), not {function!r}")
    if len(examples) == 0:
        raise ValueError("warmup needs at least one example of an item")
    batched: Any = function
    policies = batched._live.given.resolve(trials.name).policies
    sizes = _sizes(batch_sizes or executor.batch_sizes, policies.max_batch_size)
    shapes = sorted(_shapes(executor, _requests(trials, examples), sizes, policies.limits), key=_amount)
    if not shapes:
        raise ValueError("no batch can hold even one of the examples: raise max_batch_cost, or take shorter examples")
    with trials.at_work():
        return [_run(trials, _On(executor, lane), shape) for lane in executor.lanes for shape in shapes[::-1]]


class _Shape(NamedTuple):
    requests: list[Request]
    rows: int
    length: int | None


class _On:
    """An executor kept to one of its lanes."""

    is_async = False

    def __init__(self, executor: DeviceExecutor, lane: Lane) -> None:
        self.lane = lane
        self.run_async = executor.run_async
        self._executor = executor

    def run(self, requests: Sequence[Request]) -> Sequence[Any]:
        return self._executor.run(requests, self.lane)


def _sizes(wanted: Sequence[int] | None, most: int) -> list[int]:
    """How many requests to put into a batch, in ascending order."""
    if wanted is None:
        most = min(most, _MOST)
        wanted = [*[1 << power for power in range(most.bit_length()) if 1 << power < most], most]
    return sorted({checked_count("batch_sizes", size) for size in wanted})


def _requests(trials: Trials, examples: Sequence[Any]) -> Iterator[tuple[Request, int | None]]:
    """Those of the examples, brought to every length that a batch can have, once for each group."""
    collator = trials.collator
    seen: set[Hashable] = set()
    for example in examples:
        request = trials.request(example)
        measured = hasattr(collator, "row_length")
        for length in getattr(collator, "lengths_of_buckets", None) or [None]:
            args = request.args if length is None else collator.stretched(request.args, length)
            each = replaced(request, args)
            if measured and each.cost == collator.row_length(request.args):  # no cost= has said otherwise
                each.cost = collator.row_length(args)
            if (key := (each.group, each.cost)) not in seen:
                seen.add(key)
                yield each, int(collator.row_length(args)) if measured and trials.collation.pads else length


def _shapes(
    executor: DeviceExecutor, requests: Iterable[tuple[Request, int | None]], sizes: list[int], limits: Sequence[Limit]
) -> Iterator[_Shape]:
    for request, length in requests:
        below = 0
        for size in sizes:
            fitting = _fitting(request, size, limits)
            if fitting == size or (fitting > below and executor.batch_sizes is not None):  # fillers make up for others
                yield _Shape([request] * fitting, executor.rows_for(fitting), length)
            below = size


def _fitting(request: Request, size: int, limits: Sequence[Limit]) -> int:
    """How many of such requests a batch can hold."""
    rooms = [limit.start().open() for limit in limits]
    for count in range(size):
        if not all([room.add(request) for room in rooms]):
            return count
    return size


def _amount(shape: _Shape) -> int:
    return shape.rows * (shape.length or 1)


def _run(trials: Trials, executor: _On, shape: _Shape) -> Warmed:
    seconds: list[float] = []
    for _ in range(2):
        begin = time.perf_counter()
        outcomes = trials.run(*shape.requests, executor=executor)
        seconds.append(time.perf_counter() - begin)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome
    return Warmed(str(executor.lane.place), shape.rows, shape.length, *seconds)
