"""Memory that batches follow each other in: many tensors side by side in a few large pieces.

Memory that a device can copy from while it computes takes long to get, and a copy has a price of its own however small
it is. So a batch's tensors lie in one piece, which stays for the next one.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

ALIGNMENT = 256
"""What every tensor's address is a multiple of: enough for vector loads, and what CUDA's own allocator gives."""
_SMALLEST = 1 << 12
_STEP = 1 << 26
MAKESHIFT_BATCHES = 100
"""How long ordinary memory stands in for the other kind. Asking for that again takes its time, on the device, too."""

# Torch's own, for its recordings: nothing public tells. None if this torch has no such function.
_references: Any = getattr(torch._C, "_storage_Use_Count", None)  # pyright: ignore[reportPrivateUsage]


@dataclass(slots=True)
class Chunk:
    """A piece of host memory, and of the device's own for what is copied in."""

    host: Tensor
    device: Tensor | None = None
    used: int = 0
    """Bytes."""
    holders: object = None
    """Of the device's memory, when nobody else had it yet."""

    def take(self, device: Tensor) -> None:
        """This is the device's memory from now on; nobody else refers to it."""
        self.device, self.holders = device, holders(device)

    def on_device(self, tensor: Tensor) -> Tensor:
        """What lies on the device where this one, or a view of it, lies on the host."""
        assert self.device is not None
        return at(self.device, tensor)


class Arena:
    """Chunks that grow with the batches. All tensors given since the last `clear` lie apart from each other.

    make: gives so many bytes of host memory. MemoryError if there are none now: for some batches ordinary memory then
        stands in for them.
    """

    def __init__(self, make: Callable[[int], Tensor]) -> None:
        self._make = make
        self._wanted = 0  # bytes of the next chunk, at least
        self._chunks: dict[int, Chunk] = {}  # by address, in the order in which they were made
        self._last: Chunk | None = None
        self._serves = math.inf  # so many batches, until memory is asked for anew

    @property
    def chunks(self) -> list[Chunk]:
        """Those that hold something."""
        return [chunk for chunk in self._chunks.values() if chunk.used]

    def allocate(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """An uninitialised tensor. Amortised O(1)."""
        nbytes = math.prod(shape) * dtype.itemsize
        taken = max(1, -(-nbytes // ALIGNMENT)) * ALIGNMENT  # an empty tensor has its place too
        chunk = self._last
        if chunk is None or chunk.used + taken > chunk.host.numel():
            chunk = self._grow(taken)
        begin = chunk.used
        chunk.used += taken
        return chunk.host[begin : begin + nbytes].view(dtype).view(shape)

    def find(self, tensor: Tensor) -> Chunk | None:
        """The chunk in which a tensor lies."""
        return self._chunks.get(address(tensor))

    def let_go(self) -> None:
        """The device's memory that somebody else refers to is theirs for good: it is not written to again."""
        for chunk in self._chunks.values():
            if chunk.device is not None and holders(chunk.device) != chunk.holders:
                chunk.device = None

    def clear(self) -> None:
        """Its memory is given again. Several chunks make way for one that holds as much as all of them."""
        self._serves -= 1
        if len(self._chunks) > 1 or self._serves <= 0:
            self._serves = math.inf
            self._wanted = sum(chunk.used for chunk in self._chunks.values())
            self._chunks.clear()
            self._last = None
        for chunk in self._chunks.values():
            chunk.used = 0

    def _grow(self, nbytes: int) -> Chunk:
        # In steps, so that batches which grow little by little ask for memory a few times and not each time.
        size = max(nbytes, self._wanted, _SMALLEST)
        size = 1 << (size - 1).bit_length() if size <= _STEP else -(-size // _STEP) * _STEP
        try:
            host = self._make(size)
        except MemoryError:
            host = torch.empty(size, dtype=torch.uint8, device="cpu")
            self._serves = min(self._serves, MAKESHIFT_BATCHES)
        self._wanted = 0
        self._last = self._chunks[host.data_ptr()] = Chunk(host)
        return self._last


def address(tensor: Tensor) -> int:
    """Of the memory that it is a view of; 0 if it is sparse and has several."""
    return tensor.untyped_storage().data_ptr() if tensor.layout is torch.strided else 0


def at(memory: Tensor, like: Tensor) -> Tensor:
    """What lies in this memory where that tensor lies in its own."""
    return memory.view(like.dtype).as_strided(like.shape, like.stride(), like.storage_offset())


def holders(tensor: Tensor) -> object:
    """Equal as long as equally many refer to the memory of a tensor; never equal if this torch cannot tell."""
    storage: Any = tensor.untyped_storage()
    # All who have it in Python have this one object, which counts as one for torch.
    return object() if _references is None else (_references(storage._cdata), sys.getrefcount(storage))


def is_plain(tensor: Tensor) -> bool:
    """Whether it is memory that can be copied as it is: neither sparse nor nested, and without scales beside it."""
    return tensor.layout is torch.strided and not tensor.is_nested and not tensor.is_quantized
