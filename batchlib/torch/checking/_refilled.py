"""A batch whose padding holds something else, to see whether a result depends on it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from ..._core._execution import Collated
from ..collation._structure import flatten, holds_rows


class Refilled:
    """A collator that pads the first item of a batch with what the item itself holds, and tells nobody."""

    def __init__(self, collator: Any, left: bool, dim: int) -> None:
        self._collator = collator
        self._left = left
        self._dim = dim

    def collate(self, columns: Sequence[list[Any]], **options: Any) -> Collated:
        collated: Collated = self._collator.collate(columns, **options)
        own = tuple([column[0] for column in columns])
        first = [self._refilled(own, index, batch) for index, batch in enumerate(collated.args)]
        filled = [[item, *column[1:]] for item, column in zip(first, columns, strict=True)]
        collated.args = self._collator.collate(filled, **options).args
        return collated

    def __getattr__(self, name: str) -> Any:
        return getattr(self._collator, name)

    def _refilled(self, own: tuple[Any, ...], index: int, batch: Any) -> Any:
        """The item of one parameter, as long as its row in the batch, with itself where the row has it."""
        short = flatten(own[index])[0]
        lengths = {
            row.shape[self._dim + 1]
            for leaf, row in zip(short, flatten(batch)[0], strict=False)  # a queued item ends with its structure
            if holds_rows(leaf) and leaf.ndim > self._dim and leaf.shape[self._dim] != row.shape[self._dim + 1]
        }
        if not lengths:
            return own[index]
        leaves, structure = flatten(self._collator.stretched(own, lengths.pop())[index])
        return structure.rebuild([self._rolled(*pair) for pair in zip(short, leaves, strict=True)])

    def _rolled(self, short: Any, long: Any) -> Any:
        if not self._left or not holds_rows(long) or short.shape == long.shape:
            return long
        if isinstance(long, torch.Tensor):
            return long.roll(-short.shape[self._dim], self._dim)
        return np.roll(long, -short.shape[self._dim], self._dim)
