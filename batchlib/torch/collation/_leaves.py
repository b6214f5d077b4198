"""Makes one tensor or array of many: stacked, padded, or put end to end."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from ..._core._execution import Allocate
from ._structure import Leaf


def stacked(leaves: Sequence[Leaf], allocate: Allocate | None) -> Any:
    """Leaves of equal shapes on a new axis 0. What is neither a tensor nor an array is gathered into a list."""
    first = leaves[0]
    if isinstance(first, np.ndarray):
        whole, target = _memory(first, (len(leaves), *first.shape), allocate)
        np.stack(leaves, out=target)
        return whole
    if not isinstance(first, torch.Tensor):
        return list(leaves)
    if _here(first, allocate):
        return torch.stack(list(leaves))
    whole, _ = _memory(first, (len(leaves), *first.shape), allocate)
    return torch.stack(list(leaves), out=whole)


def padded(
    leaves: Sequence[Leaf], length: int, value: float, *, dim: int, left: bool, allocate: Allocate | None
) -> Any:
    """Leaves that may differ along `dim`, on a new axis 0, each made `length` long by `value`."""
    first = leaves[0]
    if all(leaf.shape[dim] == length for leaf in leaves):
        return stacked(leaves, allocate)
    shape = first.shape
    whole, target = _memory(first, (len(leaves), *shape[:dim], length, *shape[dim + 1 :]), allocate)
    if isinstance(first, np.ndarray):
        target.fill(value)
        before = (slice(None),) * dim
        for row, leaf in zip(target, leaves, strict=True):
            begin = length - leaf.shape[dim] if left else 0
            row[(*before, slice(begin, begin + leaf.shape[dim]))] = leaf
        return whole
    target.fill_(value)
    for index, leaf in enumerate(leaves):
        own = leaf.shape[dim]
        # `select`, not `unbind`: autograd lets nobody write into one of several views made at once
        target.select(0, index).narrow(dim, length - own if left else 0, own).copy_(leaf)
    return whole


def packed(leaves: Sequence[Leaf], total: int, allocate: Allocate | None) -> Any:
    """Leaves that may differ along axis 0, end to end on it."""
    first = leaves[0]
    if isinstance(first, np.ndarray):
        whole, target = _memory(first, (total, *first.shape[1:]), allocate)
        np.concatenate(leaves, out=target)
        return whole
    if _here(first, allocate):
        return torch.cat(list(leaves))
    whole, _ = _memory(first, (total, *first.shape[1:]), allocate)
    return torch.cat(list(leaves), out=whole)


def beside(values: np.ndarray, leaf: Leaf, allocate: Allocate | None) -> Any:
    """What was computed of the items, as what they are: an array, or a tensor where their tensors are."""
    if allocate is not None:
        whole, target = _memory(values, values.shape, allocate)
        target[...] = values
        return whole
    return values if isinstance(leaf, np.ndarray) else torch.from_numpy(values).to(leaf.device)


def _here(leaf: torch.Tensor, allocate: Allocate | None) -> bool:
    """Whether the result is made where the items are: what is on a device already needs no memory to be sent from."""
    return allocate is None or leaf.device.type != "cpu"


@lru_cache(64)
def dtype_of(dtype: np.dtype[Any]) -> torch.dtype | None:
    """Torch's for NumPy's, in whatever byte order; None if it has none."""
    try:
        return torch.from_numpy(np.empty(0, dtype.newbyteorder("="))).dtype
    except TypeError:
        return None


@lru_cache(64)
def can_copy(dtype: torch.dtype) -> bool:
    """Whether torch has more of this dtype than its name."""
    try:
        torch.empty(1, dtype=dtype, device="cpu").clone()
    except NotImplementedError:
        return False
    return True


def _memory(first: Leaf, shape: tuple[int, ...], allocate: Allocate | None) -> tuple[Any, Any]:
    """Memory for a batch: as it is handed on, and as it is written to."""
    if isinstance(first, np.ndarray):
        if allocate is None:  # in the machine's byte order, in which alone it can become a tensor
            array = np.empty(shape, first.dtype.newbyteorder("="))
            return array, array
        tensor = allocate(shape, dtype_of(first.dtype))
        return tensor, tensor.numpy()
    if _here(first, allocate) or allocate is None:
        tensor = torch.empty(shape, dtype=first.dtype, device=first.device)
    else:
        tensor = allocate(shape, first.dtype)
    return tensor, tensor
