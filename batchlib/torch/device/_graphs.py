"""Recorded runs, one for each shape of batch: a replay costs the host one call, however many kernels it starts.

A graph reads the memory it was recorded with and overwrites its own results, so inputs are copied to where it reads
and results to where nothing overwrites them: a few kernels, on the stream that replays. What tensors there are in a
result must therefore be known.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..._core._execution import Collated
from ..collation._structure import ATOMS, Structure, flatten, map_leaves
from ._device import CaptureFailed, Device, Graph

_KNOWN = (Tensor, torch.dtype, torch.device, *ATOMS)


class Graphs:
    """Records a function for each shape of its inputs when it first comes, and replays it from then on.

    Used in the device's worker thread only. What cannot be recorded is called as it is, for good: `reasons` says why,
    by the shape.
    """

    def __init__(self, device: Device) -> None:
        self.reasons: dict[Hashable, str] = {}
        self._device = device
        self._recorded: dict[Hashable, _Recorded] = {}

    def run(self, call: Callable[[Collated], Any], inputs: Collated, key: Hashable = None) -> Any:
        """What `call(inputs)` gives.

        A shape that comes first runs twice, since the function is warmed up before it is recorded, and a third time if
        it cannot be.

        key: what beside the shapes of the tensors and the values of the other inputs tells one call from another.
        """
        leaves, structure = flatten((tuple(inputs.args), dict(inputs.extras)))
        fixed = tuple([_fixed(leaf) for leaf in leaves])
        shape: Hashable = (key, inputs.rows, inputs.bucket, structure, fixed)
        try:
            hash(shape)
        except TypeError:
            shape = (key, inputs.rows, inputs.bucket)
            self.reasons.setdefault(shape, "its lists cannot be known again")
        if shape in self.reasons:
            return call(inputs)
        recorded = self._recorded.get(shape)
        if recorded is None:
            try:
                recorded = self._recorded[shape] = self._record(call, inputs, leaves, structure)
            except CaptureFailed as error:
                self.reasons[shape] = str(error)
        else:
            for target, source in zip(recorded.reads, filter(_is_tensor, leaves), strict=True):
                target.copy_(source)
        if recorded is None:  # only here, or what the call raises would come from what the recording has raised
            return call(inputs)
        with recorded.run.for_batch(call):
            recorded.graph.replay()
        return map_leaves(_kept, recorded.graph.result, lists=True)

    def _record(
        self, call: Callable[[Collated], Any], inputs: Collated, leaves: list[Any], structure: Structure
    ) -> _Recorded:
        own = [_kept(leaf) for leaf in leaves]
        args, extras = structure.rebuild(own)
        run = _Run(replace(inputs, args=args, extras=extras))
        with run.for_batch(call):
            graph = self._device.capture(run)
        for leaf in flatten(graph.result, lists=True)[0]:
            _refuse_opaque(leaf)
        return _Recorded(graph, run, list(filter(_is_tensor, own)))


class _Run:
    """What is recorded, and may be kept to be called again. It knows a batch, and so callers, only while that runs."""

    def __init__(self, inputs: Collated) -> None:
        self._inputs = inputs
        self._call: Callable[[Collated], Any] | None = None

    def __call__(self) -> Any:
        assert self._call is not None
        return self._call(self._inputs)

    @contextmanager
    def for_batch(self, call: Callable[[Collated], Any]) -> Generator[None]:
        self._call = call
        try:
            yield
        finally:
            self._call = None


class _Recorded(NamedTuple):
    graph: Graph
    run: _Run
    reads: list[Tensor]
    """Its inputs."""


def _is_tensor(leaf: Any) -> bool:
    return isinstance(leaf, Tensor)


def _refuse_opaque(leaf: Any) -> None:
    """CaptureFailed for what may hold tensors in which nobody finds them."""
    if isinstance(leaf, list | tuple):
        for each in leaf:
            _refuse_opaque(each)
    elif leaf is not None and not isinstance(leaf, _KNOWN):
        raise CaptureFailed(f"the result has a {type(leaf).__name__}, whose tensors each replay would overwrite")


def _fixed(leaf: Any) -> Hashable:
    """What a recording depends on."""
    return (leaf.dtype, tuple(leaf.shape)) if isinstance(leaf, Tensor) else (type(leaf), leaf)


def _kept(leaf: Any) -> Any:
    return leaf.clone() if isinstance(leaf, Tensor) else leaf
