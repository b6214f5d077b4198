"""Items of equal shapes, stacked: the collation that never pads."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

import torch

from ..._core._execution import Accepted, Allocate, Collated, Copy
from ._collation import columns_of, one_or_each, outcomes
from ._items import Examples, leaf_key, open_items
from ._leaves import stacked


@dataclass(eq=False)
class stack:
    """Stacks items of equal shapes on a new axis 0; others share no batch. Nothing is padded and no dtype changed.

    Items are tensors, arrays, numbers, lists of numbers, and what is nested of these: tuples, named tuples, dicts,
    dataclass instances and registered types. The function gets one such structure of tensors (of arrays, where the
    items hold arrays), and of anything else in it a list. It gives back one with a row per item on axis 0 of each
    tensor, or a list of one outcome per item.

    like: an example of the items, a tuple of them for several batched parameters: a call with another structure, dtype
        or number of dimensions is a TypeError. None: items of another kind have batches of their own.

    >>> import torch
    >>> from batchlib import batched
    >>> from batchlib.torch import stack
    >>> @batched(collate=stack())
    ... def total(vectors):
    ...     return vectors.sum(1)
    >>> total.call(torch.tensor([1.0, 2.0]))
    tensor(3.)
    """

    _: KW_ONLY
    like: Any = None
    names: Sequence[str] = field(default=(), init=False, repr=False)
    pads: bool = field(default=False, init=False, repr=False)
    usual_batch_cost: float | None = field(default=None, init=False, repr=False)

    def start(self, taken: Collection[str], function: str) -> StackCollator:
        """For one function."""
        return StackCollator(None if self.like is None else Examples(self.like))


class StackCollator:
    """Remembers nothing."""

    lengths_of_buckets: Sequence[int] = ()
    fixed_shapes = True

    def __init__(self, examples: Examples | None) -> None:
        self._examples = examples

    def expect(self, parameters: int) -> None:
        """At decoration: so many are batched. TypeError or ValueError for a `like=` that no call could be like."""
        if self._examples is not None:
            self._examples.of(parameters)

    def accept(self, args: tuple[Any, ...]) -> Accepted:
        items = open_items(args, self._examples)
        keys = [(item.structure, *[leaf_key(leaf) for leaf in item.leaves]) for item in items]
        return Accepted(tuple([item.queued for item in items]), one_or_each(keys), 1)

    def collate(
        self, columns: Sequence[list[Any]], *, rows: int | None = None, allocate: Allocate | None = None
    ) -> Collated:
        size = len(columns[0])
        batched: list[Any] = []
        keys: list[Any] = []
        with torch.set_grad_enabled(torch.is_grad_enabled() and allocate is None):
            for items in columns:
                first, leaves = columns_of(items, rows, allocate)
                batched.append(first.structure.rebuild([stacked(each, allocate) for each in leaves]))
                keys.append((first.structure, *[leaf_key(leaf) for leaf in first.leaves]))
        return Collated(tuple(batched), {}, size, rows or size, tuple(keys))

    def uncollate(self, result: Any, collated: Collated, copy: Copy) -> Sequence[Any]:
        return outcomes(result, collated, copy)

    def stretched(self, args: tuple[Any, ...], length: int) -> tuple[Any, ...]:
        return args

    def row_length(self, args: tuple[Any, ...]) -> int:
        return 1
