"""Memory that batches follow each other in: many tensors side by side in a few large pieces.

Memory that a device can copy from while it computes takes long to get, and a copy has a price of its own however small
it is. So a batch's tensors lie in one piece, which stays for the next one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

ALIGNMENT = 256
"""What every tensor's address is a multiple of: enough for vector loads, and what CUDA's own allocator gives."""
_SMALLEST = 1 << 12


@dataclass(slots=True)
class Chunk:
    """A piece of host memory, and of the device's own for what is copied in."""

    host: Tensor
    device: Tensor | None = None
    used: int = 0
    """Bytes."""

    def on_device(self, tensor: Tensor) -> Tensor:
        """What lies on the device where this one, or a view of it, lies on the host."""
        assert self.device is not None
        return at(self.device, tensor)


class Arena:
    """Chunks that grow with the batches. All tensors given since the last `clear` lie apart from each other.

    make: gives so many bytes of host memory.
    """

    def __init__(self, make: Callable[[int], Tensor]) -> None:
        self._make = make
        self._wanted = 0  # bytes of the next chunk, at least
        self._chunks: dict[int, Chunk] = {}  # by address, in the order in which they were made
        self._last: Chunk | None = None

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

    def clear(self) -> None:
        """Its memory is given again. Several chunks make way for one that holds as much as all of them."""
        if len(self._chunks) > 1:
            self._wanted = sum(chunk.used for chunk in self._chunks.values())
            self._chunks.clear()
            self._last = None
        for chunk in self._chunks.values():
            chunk.used = 0

    def _grow(self, nbytes: int) -> Chunk:
        # A power of two, so that batches which grow little by little ask for memory a few times and not each time.
        size = max(nbytes, self._wanted, _SMALLEST)
        host = self._make(1 << (size - 1).bit_length())
        self._wanted = 0
        self._last = self._chunks[host.data_ptr()] = Chunk(host)
        return self._last


def address(tensor: Tensor) -> int:
    """Of the memory that it is a view of; 0 if it is sparse and has several."""
    return tensor.untyped_storage().data_ptr() if tensor.layout is torch.strided else 0


def at(memory: Tensor, like: Tensor) -> Tensor:
    """What lies in this memory where that tensor lies in its own."""
    return memory.view(like.dtype).as_strided(like.shape, like.stride(), like.storage_offset())
