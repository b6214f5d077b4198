"""`warmup`: runs a function in every shape of batch that it will meet, before its first caller does.

The first run in a shape is the slow one: kernels are chosen, memory is asked for, graphs are compiled or recorded.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, NamedTuple

from ..._core._execution import Collated
from ..._core._groups import LimitedRoom, Limits
from ..._core._policies import Policies
from ..._core._request import Request
from ...policies.structures._counts import checked_count
from ..collation._structure import flatten, holds_rows
from ._lane import Lane
from ._running import DeviceExecutor
from ._trials import Trials, replaced, trials_of

_COUNTED, _USUAL = 1 << 16, 1024  # requests in a batch: a number that is no limit, and what is taken for it


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
    examples: Iterable[Any],
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
    batch_sizes: numbers of rows. None: those of the executor, or else as many as a batch can hold of such items, by
        `max_batch_size` and `max_batch_cost`, and the powers of two below. What it cannot hold is left out.
    settings: the function's keyword-only ones; None: as they are by default.

    Raises what the function raises, ExecutorLost for a lost device, TypeError for a function that runs elsewhere, and
    ValueError without an example, for numbers of rows that no batch can have, and where none can hold the examples.

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
    examples = list(examples)
    if not examples:
        raise ValueError("warmup needs at least one example of an item")
    policies = trials.policies
    assert policies is not None  # what has such an executor is a batched function
    wanted = _wanted(batch_sizes, executor, policies)
    requests = _requests(trials, examples)
    shapes = sorted([shape for row in requests for shape in _shapes(executor, row, wanted, policies)], key=_amount)
    if not shapes:
        raise ValueError(
            f"no batch can hold {'one' if wanted is None else min(wanted)} of the examples: raise max_batch_cost, or "
            "take shorter examples"
        )
    with trials.at_work():
        return [_run(trials, _On(executor, lane), shape) for lane in executor.lanes for shape in shapes[::-1]]


class _Row(NamedTuple):
    """What a batch can be made of: a request, and what it becomes in one."""

    request: Request
    length: int | None
    elements: int


class _Shape(NamedTuple):
    row: _Row
    size: int  # requests
    rows: int


class _On:
    """An executor kept to one of its lanes."""

    is_async = False

    def __init__(self, executor: DeviceExecutor, lane: Lane) -> None:
        self.lane = lane
        self.run_async = executor.run_async
        self._executor = executor

    def run(self, requests: Sequence[Request]) -> Sequence[Any]:
        return self._executor.run(requests, self.lane)


def _wanted(sizes: Sequence[int] | None, executor: DeviceExecutor, policies: Policies) -> list[int] | None:
    """The numbers of rows that were asked for, checked; None for all."""
    if sizes is None:
        return None
    wanted = [checked_count("batch_sizes", size) for size in sizes]
    most = policies.max_batch_size if executor.batch_sizes is None else executor.batch_sizes[-1]
    limit = policies.max_batch_size if policies.max_batch_size < sys.maxsize else None
    if not wanted or max(wanted) > most:
        raise ValueError(
            f"batch_sizes must be numbers of rows that a batch can have, or None for all of them, not {sizes!r}: "
            f"max_batch_size is {limit}, and TorchExecutor(batch_sizes=) is {executor.batch_sizes}"
        )
    return wanted


def _requests(trials: Trials, examples: Sequence[Any]) -> Iterator[_Row]:
    """The examples, brought to every length that a batch can have, once for each shape."""
    collator = trials.collator
    measured = hasattr(collator, "row_length")
    seen: set[Hashable] = set()
    for example in examples:
        request = trials.request(example)
        for args in _stretched(collator, request.args):
            each = replaced(request, args)
            if measured and each.cost == collator.row_length(request.args):  # no cost= has said otherwise
                each.cost = collator.row_length(args)
            bucket, elements = _collated(collator, args)
            key = (each.group, each.cost, bucket)
            if key not in seen:
                seen.add(key)
                length = int(collator.row_length(args)) if measured and trials.collation.pads else None
                yield _Row(each, length, elements)


def _stretched(collator: Any, args: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    """Of several parameters each has a length of its own."""
    lengths = getattr(collator, "lengths_of_buckets", None)
    if not lengths:
        yield args
        return
    by_length = [collator.stretched(args, length) for length in lengths]
    yield from product(*zip(*by_length, strict=True))


def _collated(collator: Any, args: tuple[Any, ...]) -> tuple[Hashable, int]:
    """What the shapes of such a row depend on, and how many numbers are in it."""
    if collator is None:
        return None, 1
    row: Collated = collator.collate([[arg] for arg in args])
    leaves = flatten(row.args)[0]
    return row.bucket, sum([math.prod(leaf.shape) for leaf in leaves if holds_rows(leaf)])


def _shapes(executor: DeviceExecutor, row: _Row, wanted: list[int] | None, policies: Policies) -> Iterator[_Shape]:
    """The batches of such requests. Those of a size that none can have are left out, but for what was asked for."""
    most = _fitting(row.request, policies.max_batch_size if wanted is None else max(wanted), policies)
    sizes = wanted or executor.batch_sizes or [*[1 << power for power in range(most.bit_length())], most]
    for rows in sorted({executor.rows_for(size) for size in sizes}):
        size = min(rows, most)
        if size and executor.rows_for(size) == rows:
            yield _Shape(row, size, rows)


def _fitting(request: Request, size: int, policies: Policies) -> int:
    """How many of such requests a batch can hold, of so many; a usual number where nothing limits them."""
    room = LimitedRoom(Limits(size, [limit.start() for limit in policies.limits], policies.oversize_alone))
    for count in range(min(size, _COUNTED)):
        if not room.add(request):
            return max(count, int(policies.oversize_alone))
    return size if size < _COUNTED else _USUAL


def _amount(shape: _Shape) -> int:
    return shape.rows * shape.row.elements


def _run(trials: Trials, executor: _On, shape: _Shape) -> Warmed:
    seconds: list[float] = []
    for _ in range(2):
        begin = time.perf_counter()
        outcomes = trials.run(*[shape.row.request] * shape.size, executor=executor)
        seconds.append(time.perf_counter() - begin)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome
    return Warmed(str(executor.lane.place), shape.rows, shape.row.length, *seconds)
