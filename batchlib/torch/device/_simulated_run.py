"""Batches through a pipeline over a simulated device, as its contract allows them to come, and whether all were right.

For the tests and the benchmark: one seed is one run.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..._core._execution import Allocate, Collated
from ..collation._structure import flatten, map_leaves
from ._ring import Buffers, Pipeline, Results
from ._simulated import SimulatedDevice

_RESULTS: tuple[Results, ...] = ("host", "host", "numpy", "device")


class _Refused(Exception):
    """What the user's code raises now and then."""


@dataclass(slots=True)
class _Batch:
    number: int
    function: Callable[[Collated], Any]
    buffers: Buffers
    inputs: Collated
    outcome: Any = None


def simulated_run(
    seed: int,
    *,
    device: Callable[[int], SimulatedDevice] = SimulatedDevice,
    pipeline: Callable[..., Pipeline] = Pipeline,
    copy: Callable[[Tensor], Tensor] = torch.clone,
) -> list[int]:
    """Sends 8 to 12 batches through 2 or 3 buffers; gives the numbers of those whose results were wrong.

    Which batch is staged, launched, finished or cleared next is drawn by lot from what the contract of `Pipeline`
    allows; so are their shapes, their functions, where results are wanted, and the schedule of the device.

    device, pipeline: what makes them; others leave out a safeguard, to see that it is missed.
    copy: what is done with a result's tensors on the host before its buffers are cleared.
    """
    lot = random.Random(seed)
    results = lot.choice(_RESULTS)
    on = device(seed)
    way = pipeline(on, results=results)
    weights = _loading(on)
    way.enter()
    free = [way.buffers() for _ in range(lot.randint(2, 3))]
    staged: list[_Batch] = []
    launched: list[_Batch] = []
    finished: list[_Batch] = []
    done: list[_Batch] = []
    coming = list(range(lot.randint(8, 12)))
    while coming or staged or launched or finished:
        step = lot.randrange(4)
        if step == 0 and coming and free:
            staged.append(_stage(way, lot, coming.pop(0), free.pop(lot.randrange(len(free))), weights))
        elif step == 1 and staged:
            batch = staged.pop(lot.randrange(len(staged)))
            try:
                way.launch(batch.buffers, batch.function)
            except _Refused:
                way.clear(batch.buffers)
                free.append(batch.buffers)
            else:
                launched.append(batch)
        elif step == 2 and launched:
            batch = launched.pop(lot.randrange(len(launched)))
            outcome = way.finish(batch.buffers)
            if results != "device":
                outcome = map_leaves(lambda leaf: _host_copy(copy, leaf), outcome, lists=True)
            batch.outcome = outcome
            finished.append(batch)
        elif step == 3 and finished:
            batch = finished.pop(lot.randrange(len(finished)))
            way.clear(batch.buffers)
            free.append(batch.buffers)
            done.append(batch)
    # Last of all, so that what overwrites a result later is seen too.
    return [batch.number for batch in done if not _equal(batch.outcome, batch.function(batch.inputs))]


def _loading(device: SimulatedDevice) -> Tensor:
    """Weights, as another thread may leave them: their copy was begun, and nobody has waited for it."""
    values = torch.arange(1.0, 5.0, device="cpu")
    weights = device.device_buffer(values.nbytes).view(values.dtype)
    device.copy(device.stream(), weights, values)
    return weights


def _stage(way: Pipeline, lot: random.Random, number: int, buffers: Buffers, weights: Tensor) -> _Batch:
    rows, length = lot.randint(1, 4), lot.choice((0, 1, 7, 33, lot.randint(200, 900)))

    def collate(allocate: Allocate) -> Collated:
        items = allocate((rows, length), torch.float32)
        items.fill_(number + 0.5)
        items[:, ::3] = lot.random()
        names = allocate((rows,), lot.choice((torch.int64, torch.uint8, torch.int16)))
        names.fill_(100 + number)
        mask = torch.full((rows, 2), bool(number % 2), device="cpu")  # not in the memory that was given
        return Collated((items, {"names": names}), {"mask": mask, "limit": number}, rows, rows)

    choices: tuple[Callable[[Collated], Any], ...] = (*_FUNCTIONS, *_FUNCTIONS, _refuse, partial(_weighted, weights))
    function = lot.choice(choices)
    collated = way.stage(buffers, collate)
    return _Batch(number, function, buffers, _copied(collated))


def _copied(collated: Collated) -> Collated:
    args = map_leaves(_clone, tuple(collated.args))
    return Collated(args, map_leaves(_clone, dict(collated.extras)), collated.size, collated.rows)


def _clone(leaf: Any) -> Any:
    return leaf.clone() if isinstance(leaf, Tensor) else leaf


def _identity(batch: Collated) -> Any:
    return batch.args


def _nested(batch: Collated) -> Any:
    items, names = batch.args
    return {"sums": items.sum(1), "pair": [names["names"] + 1, ~batch.extras["mask"]], "limit": batch.extras["limit"]}


def _views(batch: Collated) -> Any:
    return batch.args[0].t(), batch.args[0][:, :1], batch.args[0][:, :0]


def _in_place(batch: Collated) -> Any:
    return batch.args[0].add_(1), batch.args[0].double().mean()


def _twice(batch: Collated) -> Any:
    doubled = batch.args[0] * 2
    return doubled, doubled[:1].expand(batch.rows, -1), doubled.half()


def _keep(batch: Collated) -> Any:
    return batch.args[0].sum(1), _Kept(batch.args[0][-1], batch.args[1]["names"][:1])


def _weighted(weights: Tensor, batch: Collated) -> Any:
    return batch.args[1]["names"][:, None] * weights


def _refuse(batch: Collated) -> Any:
    raise _Refused


_FUNCTIONS: tuple[Callable[[Collated], Any], ...] = (_identity, _nested, _views, _in_place, _twice, _keep)


class _Kept:
    """Tensors that nobody finds: they stay where they are."""

    def __init__(self, *tensors: Tensor) -> None:
        self._tensors = tensors

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Kept) and all(map(_same, self._tensors, other._tensors))


def _host_copy(copy: Callable[[Tensor], Tensor], leaf: Any) -> Any:
    tensor = torch.from_numpy(leaf) if isinstance(leaf, np.ndarray) else leaf
    return copy(tensor) if isinstance(tensor, Tensor) else tensor


def _equal(outcome: Any, right: Any) -> bool:
    found, found_structure = flatten(outcome, lists=True)
    expected, structure = flatten(right, lists=True)
    return found_structure == structure and all(map(_same, found, expected))


def _same(one: Any, other: Any) -> bool:
    """Bit by bit, where they are tensors: a NaN stays the NaN that it was."""
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        same_kind = one.dtype == other.dtype and one.shape == other.shape
        return same_kind and torch.equal(_bits(one), _bits(other))
    return bool(one == other)


def _bits(tensor: Tensor) -> Tensor:
    return tensor.clone(memory_format=torch.contiguous_format).reshape(-1).view(torch.uint8)
