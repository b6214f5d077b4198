"""A device without a device: it does what it is told as late and in as odd an order as a real one may.

A missing wait shows on a real device as a wrong number, rarely, under load. Here every legal schedule is about as
likely as the next, and a seed gives the same one again.
"""

from __future__ import annotations

import random
import threading
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..._core._execution import Collated
from ..collation._structure import flatten, map_leaves
from ._arena import ALIGNMENT, address, at, is_plain
from ._device import Graph

_GARBAGE = 0xFF  # NaN in every float, -1 in every signed integer
_TEMPORARIES = (256, 4096, 8192, 32768)  # bytes that a computation may use and let go of


@dataclass(slots=True)
class _Event:
    recorded: int = 0  # times
    done: int = 0  # the last recording that its stream has come to


class _Op(NamedTuple):
    run: Callable[[], object]
    event: _Event | None = None  # runs once this one has come to that recording
    recording: int = 0


@dataclass(slots=True)
class _Block:
    """Memory of the device. Who has it holds a tensor over `view`; once that is gone it may be given to another."""

    raw: Tensor  # the same memory for the device itself, which does not count as having it
    bytes: bytearray
    view: weakref.ref[memoryview]
    late: Tensor | None = None  # what the device has come to, where a function has been shown what will be
    ahead: int = 0  # computations that have been shown, and have not run

    @property
    def now(self) -> Tensor:
        """What the device's streams read and write."""
        return self.raw if self.late is None else self.late


class _Memory(NamedTuple):
    """A tensor as the streams see it."""

    tensor: Tensor
    block: _Block | None  # None: it is the host's

    @property
    def now(self) -> Tensor:
        return self.tensor if self.block is None else at(self.block.now, self.tensor)


class _Copy(NamedTuple):
    target: _Memory
    source: _Memory


@dataclass(slots=True)
class _Read:
    """A block that a computation reads."""

    block: _Block
    before: Tensor  # what it will hold if everything is done in order
    end: int = 0  # bytes, beyond which nothing is read
    after: Any = None  # those bytes, as the function leaves them


class SimulatedDevice:
    """Serves a `TorchExecutor` like an accelerator, on the CPU: for tests of what runs on one, where there is none.

    Copies and computations wait in their streams. They run when the host waits for one of them, and now and then when
    it asks for something else: in an order that is drawn by lot from those which the streams and events allow. Until
    then results are garbage. Memory that nobody has any more is given to the next who asks, as soon as on a device.

    A function is called once, when it is launched. Its inputs, in the device's memory, then show what will be there if
    everything is done in order. If that is anything else when its turn comes, its results are garbage, and
    `reads_out_of_order` counts one more. A recorded function is called again by every replay. Gradients do not leave
    the device.

    seed: of the lot. In one thread, equal seeds have equal schedules, and so has a pickled copy. Thread-safe.
    busy: how likely something runs that nobody waits for yet, from 0 to below 1; None draws that by lot too.

    >>> import torch
    >>> from batchlib import batched
    >>> from batchlib.torch import SimulatedDevice, TorchExecutor, stack
    >>> device = SimulatedDevice(seed=7)
    >>> double = batched(lambda x: 2 * x, collate=stack(), executor=TorchExecutor(device))
    >>> double.call(torch.tensor([1.0, 2.0]))
    tensor([2., 4.])
    >>> device.reads_out_of_order
    0
    """

    staged = True
    place = torch.device("cpu")

    def __init__(self, seed: int = 0, *, busy: float | None = None) -> None:
        self.reads_out_of_order = 0
        self._made_with = seed, busy
        self._random = random.Random(seed)
        self._busy = self._random.choice((0.0, 0.3, 0.6, 0.9)) if busy is None else busy
        self._lock = threading.Lock()
        self._streams: list[deque[_Op]] = []
        self._blocks: dict[int, _Block] = {}  # by address
        self._copies: dict[int, _Copy] = {}  # in the order in which they were asked for; shown and run ones not
        self._asked = 0
        self._compute = self.stream()

    def __repr__(self) -> str:
        seed, busy = self._made_with
        return f"SimulatedDevice({seed}, busy={busy})"

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy begins anew: nothing is under way there."""
        seed, busy = self._made_with
        return partial(type(self), seed, busy=busy), ()

    def enter(self) -> None: ...

    def stream(self) -> Any:
        made: deque[_Op] = deque()
        self._streams.append(made)
        return made

    def compute_stream(self) -> Any:
        return self._compute

    def event(self) -> Any:
        return _Event()

    def record(self, event: _Event, stream: deque[_Op]) -> None:
        with self._lock:
            event.recorded += 1
            recording = event.recorded

            def reach() -> None:
                event.done = max(event.done, recording)

            self._give(stream, _Op(reach))

    def wait(self, stream: deque[_Op], event: _Event) -> None:
        with self._lock:
            self._give(stream, _Op(_nothing, event, event.recorded))

    def synchronize(self, event: _Event) -> None:
        with self._lock:
            recording = event.recorded
            self._run_while(lambda: event.done < recording)
            self._wander()

    def synchronize_all(self) -> None:
        with self._lock:
            self._run_while(lambda: any(self._streams))

    def host_buffer(self, nbytes: int) -> Tensor:
        return torch.full((nbytes,), _GARBAGE, dtype=torch.uint8, device="cpu")

    def device_buffer(self, nbytes: int) -> Tensor:
        with self._lock:
            return self._allocate(nbytes)

    def copy(self, stream: deque[_Op], target: Tensor, source: Tensor) -> None:
        with self._lock:
            self._asked = number = self._asked + 1
            copy = self._copies[number] = _Copy(self._memory(target), self._memory(source))

            def run() -> None:
                copy.target.now.copy_(copy.source.now)
                self._copies.pop(number, None)

            self._give(stream, _Op(run))

    def launch(self, function: Callable[[Collated], Any], inputs: Collated) -> Any:
        reads: dict[int, _Read] = {}
        writes: list[tuple[_Memory, Tensor]] = []
        with self._lock, torch.inference_mode():
            for leaf in flatten((tuple(inputs.args), dict(inputs.extras)))[0]:
                self._foresee(reads, leaf)
        made = None
        try:
            result = function(inputs)  # without the lock: it may take its time, and wait for others
            with self._lock:
                # Temporaries: once the function has returned nobody has them any more, and yet it will write there.
                temporary = self._allocate(self._random.choice(_TEMPORARIES))
                writes.append((self._memory(temporary), torch.full_like(temporary, _GARBAGE)))
                made = map_leaves(partial(self._give_out, writes), result, lists=True)
        finally:  # what it began before an error is done all the same
            with self._lock:
                for read in reads.values():
                    read.after = read.block.raw[: read.end].clone()
                self._give(self._compute, _Op(partial(self._compute_now, list(reads.values()), writes)))
        return made

    def capture(self, function: Callable[[], Any]) -> Graph:
        function()
        return _Replayed(function, function())

    def release_cache(self) -> None: ...

    def _foresee(self, reads: dict[int, _Read], leaf: Any) -> None:
        """Shows an input as it will be. The streams go on with what it is."""
        block = self._blocks.get(address(leaf)) if isinstance(leaf, Tensor) else None
        if block is None:
            return
        place = block.raw.data_ptr()
        if place not in reads:
            block.late = block.now.clone()
            block.ahead += 1
            for number, copy in list(self._copies.items()):
                if copy.target.block is block:
                    copy.target.tensor.copy_(copy.source.now)
                    del self._copies[number]
            reads[place] = _Read(block, block.raw.clone())
        reads[place].end = max(reads[place].end, _end(leaf))

    def _give_out(self, writes: list[tuple[_Memory, Tensor]], leaf: Any) -> Any:
        """A result in the device's memory: where it is, if it is a view of an input, else memory of its own."""
        if not isinstance(leaf, Tensor) or not is_plain(leaf):
            return leaf
        if address(leaf) in self._blocks:
            return leaf.detach()
        value = leaf.detach().resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)
        value_bytes = value.reshape(-1).view(torch.uint8)
        memory = self._allocate(value_bytes.numel())[: value_bytes.numel()]
        writes.append((self._memory(memory), value_bytes))
        return memory.view(leaf.dtype).view(leaf.shape)

    def _compute_now(self, reads: list[_Read], writes: list[tuple[_Memory, Tensor]]) -> None:
        in_order = all([torch.equal(read.block.now[: read.end], read.before[: read.end]) for read in reads])
        self.reads_out_of_order += not in_order
        for read in reads:
            _write(read.block.now[: read.end], read.after, in_order)
            read.block.ahead -= 1
            if not read.block.ahead:
                read.block.late = None
            if not in_order:
                read.block.raw[: read.end].fill_(_GARBAGE)
        for target, value in writes:
            _write(target.now, value, in_order)

    def _allocate(self, nbytes: int) -> Tensor:
        """Memory that nobody has, as it was left, though what was left may still be in a stream to be written there."""
        size = max(1, -(-nbytes // ALIGNMENT)) * ALIGNMENT
        free = [block for block in self._blocks.values() if block.view() is None and len(block.bytes) >= size]
        if free:
            block = self._random.choice(free)
            view = memoryview(block.bytes)
            block.view = weakref.ref(view)
        else:
            memory = bytearray((_GARBAGE,)) * size
            view = memoryview(memory)
            block = _Block(torch.frombuffer(memory, dtype=torch.uint8), memory, weakref.ref(view))
            self._blocks[block.raw.data_ptr()] = block
        return torch.frombuffer(view, dtype=torch.uint8)[:nbytes]

    def _memory(self, tensor: Tensor) -> _Memory:
        """The tensor, but without having the memory."""
        block = self._blocks.get(address(tensor))
        return _Memory(tensor if block is None else at(block.raw, tensor), block)

    def _give(self, stream: deque[_Op], op: _Op) -> None:
        stream.append(op)
        self._wander()

    def _wander(self) -> None:
        """Some of what may run."""
        while self._random.random() < self._busy and (ready := self._ready()):
            self._step(ready)

    def _run_while(self, condition: Callable[[], bool]) -> None:
        while condition():  # a wait is for what was recorded before it: something may always run
            self._step(self._ready())

    def _ready(self) -> list[deque[_Op]]:
        return [stream for stream in self._streams if stream and _may_run(stream[0])]

    def _step(self, ready: list[deque[_Op]]) -> None:
        op = self._random.choice(ready).popleft()
        with torch.inference_mode():  # tensors that were made in it can be written to in no other
            op.run()


@dataclass
class _Replayed:
    function: Callable[[], Any]
    result: Any

    def replay(self) -> None:
        again, _ = flatten(self.function(), lists=True)
        for target, source in zip(flatten(self.result, lists=True)[0], again, strict=True):
            if isinstance(target, Tensor):
                target.copy_(source)


def _write(target: Tensor, value: Tensor, in_order: bool) -> None:
    if in_order:
        target.copy_(value)
    else:
        target.fill_(_GARBAGE)


def _may_run(op: _Op) -> bool:
    return op.event is None or op.event.done >= op.recording


def _nothing() -> None: ...


def _end(tensor: Tensor) -> int:
    """How many bytes of its memory there are up to its last element."""
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return (int(tensor.storage_offset()) + last + 1) * tensor.dtype.itemsize if tensor.numel() else 0
