"""The way of a batch to a device and back: copied in, computed, copied out, each while its neighbours do the others.

A batch owns a `Buffers` from the moment it is taken until it is given back; as many batches are under way as there are
of them. Three streams work through them: one copies in, the worker's own computes, one copies out. Nothing here has a
thread or a lock: `stage`, `finish` and `clear` are called in any thread, `launch` in the device's worker thread, and
for one `Buffers` always one after the other.

What keeps the order:
1. The compute stream waits for the copy in, the copy out for the computation, the host for the copy out.
2. Host memory is written and device memory copied to only between `clear` and `launch`: the host has then seen the end
   of everything that the last batch did with them.
3. Every tensor that another stream reads is referred to until the host has seen the end of its reading. So nothing has
   to be told to the allocator (`Tensor.record_stream`), and no memory is reused early.
4. New device memory is in the order of the compute stream: the computation before may still write there. The stream
   that copies in waits for that once.
5. Device memory that somebody else refers to when a batch is finished is theirs: the next batch gets other memory. A
   function may keep its inputs, or give them away in whatever it likes.
6. Events belong to a `Buffers`. None is recorded again before every wait for it was given to its stream.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import replace
from functools import partial
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor

from ..._core._execution import Allocate, Collated
from ..collation._structure import flatten, map_leaves
from ._arena import Arena, is_plain
from ._device import Device
from ._graphs import Graphs

Results: TypeAlias = Literal["host", "device", "numpy"]
Call: TypeAlias = Callable[[Collated], Any]


class Buffers:
    """The memory and the events of one batch under way."""

    def __init__(self, device: Device) -> None:
        self.inputs = Arena(device.host_buffer)
        self.outputs = Arena(device.host_buffer)
        self.grown, self.copied_in, self.computed, self.copied_out = (device.event() for _ in range(4))
        self.open = False  # whether the device may still be at it
        self.collated: Collated | None = None
        self.result: Any = None  # where the host will find it
        self.held: Any = None  # what the device may still read


class Direct:
    """The way to the CPU: memory is the host's, and a result is there once it is computed.

    grad: whether results keep their graphs for gradients.
    """

    def __init__(self, device: Device, *, results: Results = "host", grad: bool = True) -> None:
        self._device = device
        self._results = results
        self._grad = grad

    def enter(self) -> None:
        """In the worker thread, before its first `launch`."""
        self._device.enter()

    def buffers(self) -> Buffers:
        """New ones. They serve one batch after the other."""
        return Buffers(self._device)

    def stage(self, buffers: Buffers, collate: Callable[[Allocate], Collated]) -> Collated:
        """Collates into the host's memory, and gives what was collated: `uncollate` needs it.

        Arrays become tensors. TypeError for a tensor that is on another device.
        """
        collated = collate(_plain)
        buffers.collated = _mapped(self._staged, collated)
        return collated

    def launch(self, buffers: Buffers, call: Call, key: Hashable = None) -> None:
        """In the worker thread: has the device call it, with tensors that are where it is.

        key: what beside the shapes of its inputs tells this call from another: settings, the group.
        """
        assert buffers.collated is not None
        buffers.result = self._device.launch(call, buffers.collated)

    def finish(self, buffers: Buffers) -> Any:
        """Waits, and gives the result: tensors of the host or the device, or arrays.

        Unless the device is the CPU, those of the host are memory that the next batch writes to: copy them before
        `clear`.
        """
        if self._results == "numpy":
            return _arrays(buffers.result)
        return buffers.result if self._grad else _detached(buffers.result)

    def clear(self, buffers: Buffers) -> None:
        """Forgets the batch: the buffers may be used again. Whatever became of it, and also where it has failed."""
        buffers.collated = buffers.result = None

    def _staged(self, leaf: Any) -> Any:
        tensor = _tensor(leaf)
        if isinstance(tensor, Tensor) and tensor.device.type != "cpu":
            raise _misplaced(tensor, self._device)
        return tensor


class Pipeline:
    """The way to a device with a memory of its own, and back. Its methods are those of `Direct`.

    results: "host" and "numpy" copy a function's results out, "device" leaves them there.
    graphs: what records the function and replays it; None for none.
    """

    def __init__(self, device: Device, *, results: Results = "host", graphs: Graphs | None = None) -> None:
        self._device = device
        self._results = results
        self._graphs = graphs
        self._in: Any = None
        self._out: Any = None
        self._compute: Any = None

    def enter(self) -> None:
        """In the worker thread, before its first `launch`. Waits for all that was given to the device before."""
        device = self._device
        device.enter()
        self._in, self._out, self._compute = device.stream(), device.stream(), device.compute_stream()
        device.synchronize_all()  # weights were copied there in the stream of another thread

    def buffers(self) -> Buffers:
        return Buffers(self._device)

    def stage(self, buffers: Buffers, collate: Callable[[Allocate], Collated]) -> Collated:
        """As `Direct.stage`. What is not collated into memory that can be copied from is copied there."""
        with torch.no_grad():  # memory that is used again is no part of anybody's graph
            collated = collate(buffers.inputs.allocate)
            buffers.collated = _mapped(partial(self._staged, buffers.inputs), collated)
        return collated

    def launch(self, buffers: Buffers, call: Call, key: Hashable = None) -> None:
        """As `Direct.launch`, but waits for nothing: gives the streams a copy in, a call and a copy out."""
        device = self._device
        buffers.open = True
        inputs = self._copy_in(buffers)
        device.wait(self._compute, buffers.copied_in)
        buffers.held = result = device.launch(partial(self._run, call, key), inputs)
        device.record(buffers.computed, self._compute)
        if self._results == "device":
            buffers.result = result
            return
        device.wait(self._out, buffers.computed)
        buffers.result = map_leaves(partial(self._copy_out, buffers.outputs), result, lists=True)
        device.record(buffers.copied_out, self._out)

    def finish(self, buffers: Buffers) -> Any:
        self._device.synchronize(buffers.computed if self._results == "device" else buffers.copied_out)
        buffers.open = False
        buffers.held = None
        buffers.inputs.let_go()  # now: what is begun on the result from here on is not waited for
        return _arrays(buffers.result) if self._results == "numpy" else buffers.result

    def clear(self, buffers: Buffers) -> None:
        """As `Direct.clear`. Where `launch` or `finish` has failed it waits for the device, and raises its errors."""
        if buffers.open:
            self._device.synchronize_all()  # what the function had begun before the error still reads
            buffers.open = False
        buffers.collated = buffers.result = buffers.held = None
        buffers.inputs.let_go()
        buffers.inputs.clear()
        buffers.outputs.clear()

    def _staged(self, arena: Arena, leaf: Any) -> Any:
        tensor = _tensor(leaf)
        if not isinstance(tensor, Tensor) or arena.find(tensor) is not None:
            return tensor
        if not is_plain(tensor):
            return tensor.to(self._device.place)
        if tensor.device.type == "cpu":
            return arena.allocate(tuple(tensor.shape), tensor.dtype).copy_(tensor)
        # On the device already, by the stream on which it computes: threads that choose no other all have this one.
        if tensor.device != self._device.place:
            raise _misplaced(tensor, self._device)
        return tensor

    def _copy_in(self, buffers: Buffers) -> Collated:
        device, arena = self._device, buffers.inputs
        new = [chunk for chunk in arena.chunks if chunk.device is None]
        for chunk in new:
            chunk.take(device.device_buffer(chunk.host.numel()))
        if new:
            device.record(buffers.grown, self._compute)
            device.wait(self._in, buffers.grown)
        for chunk in arena.chunks:
            assert chunk.device is not None
            device.copy(self._in, chunk.device[: chunk.used], chunk.host[: chunk.used])
        device.record(buffers.copied_in, self._in)

        def on_device(leaf: Any) -> Any:
            chunk = arena.find(leaf) if isinstance(leaf, Tensor) else None
            return leaf if chunk is None else chunk.on_device(leaf)

        assert buffers.collated is not None
        return _mapped(on_device, buffers.collated)

    def _run(self, call: Call, key: Hashable, inputs: Collated) -> Any:
        """The user's code, and what makes its results fit to be copied out or kept."""
        result = call(inputs) if self._graphs is None else self._graphs.run(call, inputs, key)
        return map_leaves(self._settled, result, lists=True)

    def _settled(self, leaf: Any) -> Any:
        if not isinstance(leaf, Tensor) or leaf.device.type == "cpu" != self._device.place.type:
            return leaf
        if not is_plain(leaf):
            return leaf if self._results == "device" else leaf.detach().cpu()
        leaf = leaf.to(self._device.place)  # a model over several devices may end on another one
        return leaf if self._results == "device" else leaf.detach().resolve_conj().resolve_neg().contiguous()

    def _copy_out(self, arena: Arena, leaf: Any) -> Any:
        if not isinstance(leaf, Tensor) or leaf.device != self._device.place or not is_plain(leaf):
            return leaf
        target = arena.allocate(tuple(leaf.shape), leaf.dtype)
        self._device.copy(self._out, target, leaf)
        return target


def pipeline_for(
    device: Device, *, results: Results = "host", graphs: Graphs | None = None, grad: bool = True
) -> Direct | Pipeline:
    """The way to that device."""
    if device.staged:
        return Pipeline(device, results=results, graphs=graphs)
    return Direct(device, results=results, grad=grad)


def _plain(shape: tuple[int, ...], dtype: torch.dtype, /) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="cpu")


def _mapped(function: Callable[[Any], Any], collated: Collated) -> Collated:
    extras = {name: map_leaves(function, extra) for name, extra in collated.extras.items()}
    return replace(collated, args=tuple([map_leaves(function, arg) for arg in collated.args]), extras=extras)


def _tensor(leaf: Any) -> Any:
    """An array of numbers as a tensor of the same memory; what is none, as it is."""
    if not isinstance(leaf, np.ndarray):
        return leaf
    try:
        return torch.from_numpy(leaf)
    except (TypeError, ValueError):  # of strings or objects; strides that tensors cannot have
        return leaf


def _detached(result: Any) -> Any:
    """The result itself, unless it has part in a graph."""
    leaves, structure = flatten(result, lists=True)
    free = [leaf.detach() if isinstance(leaf, Tensor) and leaf.requires_grad else leaf for leaf in leaves]
    same = all([one is other for one, other in zip(free, leaves, strict=True)])
    return result if same else structure.rebuild(free)


def _arrays(result: Any) -> Any:
    return map_leaves(_array, result, lists=True)


def _array(leaf: Any) -> Any:
    if not isinstance(leaf, Tensor):
        return leaf
    try:
        return leaf.detach().cpu().resolve_conj().resolve_neg().numpy()
    except (TypeError, RuntimeError) as error:
        what = f"of {leaf.dtype}" if is_plain(leaf) else "that is sparse, nested or quantized"
        raise TypeError(f'a result {what} has no NumPy array: convert it, or use results="host"') from error


def _misplaced(tensor: Tensor, device: Device) -> TypeError:
    return TypeError(
        f"an item's tensor is on {tensor.device}, the executor's device is {device.place}: pass tensors that are there "
        "or on the CPU"
    )
