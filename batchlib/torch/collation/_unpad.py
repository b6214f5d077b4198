"""From a padded batch back to items of their own lengths."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from ..._core._execution import Copy
from ...executors._rows import rows_of

Side = Literal["right", "left"]


def unpad(padded: Any, lengths: Any, *, side: Side = "right", dim: int = 0) -> list[Any]:
    """The rows of a padded tensor or array, each cut to its own length; they own their storage.

    padded: one row per item on axis 0.
    lengths: of each item, a sequence of whole numbers or a tensor of them; others are a TypeError. ValueError if there
        is not one per row, or one does not fit.
    side: where the padding is.
    dim: the padded dimension of an item: that of `padded` is one more.

    >>> import torch
    >>> from batchlib.torch import unpad
    >>> unpad(torch.tensor([[1, 2, 3], [4, 0, 0]]), [3, 1])
    [tensor([1, 2, 3]), tensor([4])]
    """
    checked_side(side)
    checked_dim(dim)
    own = _whole(lengths)
    shape = tuple(padded.shape)
    if len(shape) < dim + 2:
        raise ValueError(f"padded must have rows of more than {dim} dimensions, not shape {shape}")
    if len(own) != shape[0]:
        raise ValueError(f"lengths must be one per row: {shape[0]}, not {len(own)}")
    if not all(0 <= length <= shape[dim + 1] for length in own):
        raise ValueError(f"lengths must be from 0 to {shape[dim + 1]}, which the rows have, not {own}")
    return cut(padded, own, side=side, dim=dim, copy=True)


def checked_side(side: object) -> None:
    if side not in ("right", "left"):
        raise ValueError(f"side must be 'right' or 'left', not {side!r}")


def checked_dim(dim: object) -> None:
    if type(dim) is not int or dim < 0:
        raise ValueError(f"dim must be a whole number >= 0, counted from the first dimension, not {dim!r}")


def _whole(lengths: Any) -> list[int]:
    """What is counted by truth or by fractions is a mistake: a mask, or means of one."""
    given = lengths.tolist() if hasattr(lengths, "tolist") else lengths
    try:
        own = [operator.index(length) for length in given if not isinstance(length, bool | np.bool_)]
        if len(own) == len(given):
            return own
    except TypeError:
        pass
    raise TypeError(f"lengths must be a sequence of whole numbers, or a tensor of them, not {lengths!r}")


def cut(padded: Any, lengths: Sequence[int], *, side: Side, dim: int, copy: Copy) -> list[Any]:
    """The first rows, as many as there are lengths."""
    whole = padded.shape[dim + 1]
    before = (slice(None),) * dim
    rows: list[Any] = []
    for index, length in enumerate(lengths):
        begin = whole - length if side == "left" else 0
        view = padded[(index, *before, slice(begin, begin + length))]
        rows.append(own_row(view, copy))
    return rows


def own_row(view: Any, copy: Copy) -> Any:
    """What a caller gets of a view into a batch."""
    (row,) = rows_of(view[None], copy)
    return row
