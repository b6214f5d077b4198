"""How long items are on the one dimension in which those of a batch may differ."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple

import numpy as np
import torch

from ...errors import ItemTooLarge
from ._items import Item, leaf_key, part_key
from ._structure import Leaf, holds_rows, within


class Measured(NamedTuple):
    """One item: what it may share a batch with, which of its leaves have a length of their own, and that length."""

    key: Hashable
    ragged: list[bool]
    length: int | None
    """None if there is no such leaf."""


def measure(item: Item, dim: int, only: frozenset[str] | None = None) -> Measured:
    """Looks at every leaf that has the dimension, or at those at the places in `only`.

    ValueError if they are not equally long.
    """
    where = () if only is None else item.structure.paths
    chosen = None if only is None else within(where, only)
    keys: list[Hashable] = [item.structure]
    ragged: list[bool] = []
    length: int | None = None
    for index, leaf in enumerate(item.leaves):
        if not holds_rows(leaf) or leaf.ndim <= dim or (chosen is not None and where[index] not in chosen):
            keys.append(leaf_key(leaf))
            ragged.append(False)
            continue
        own = leaf.shape[dim]
        if length is None:
            length = own
        elif length != own:
            lead = item.place(ragged.index(True))
            raise ValueError(
                f"what is padded or packed of one item must be equally long: on dimension {dim}, {lead} has {length} "
                f"and {item.place(index)} has {own}; pass them as two parameters, or leave one out of pad(only=)"
            )
        keys.append(part_key(leaf, dim))
        ragged.append(True)
    return Measured(tuple(keys), ragged, length)


def refuse_longer(lengths: Sequence[int], most: int | None) -> None:
    """ItemTooLarge where one is longer than the function takes."""
    if most is not None and max(lengths) > most:
        raise ItemTooLarge(f"the item is {max(lengths)} long, and max_item_length is {most}: shorten it")


def stretch(item: Item, dim: int, length: int, only: frozenset[str] | None = None) -> Item:
    """An item whose ragged leaves are so long: cropped, or with what they hold repeated."""
    ragged = measure(item, dim, only).ragged
    leaves = [_stretched(leaf, dim, length) if ragged[index] else leaf for index, leaf in enumerate(item.leaves)]
    return Item(tuple(leaves), item.structure)


def _stretched(leaf: Leaf, dim: int, length: int) -> Leaf:
    own = leaf.shape[dim]
    if own:
        repeated = np.arange(length) % own
        chosen = torch.from_numpy(repeated).to(leaf.device) if isinstance(leaf, torch.Tensor) else repeated
        return leaf[(slice(None),) * dim + (chosen,)]
    shape = (*leaf.shape[:dim], length, *leaf.shape[dim + 1 :])
    return leaf.new_zeros(shape) if isinstance(leaf, torch.Tensor) else np.zeros(shape, leaf.dtype)
