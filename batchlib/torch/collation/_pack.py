"""Items of different lengths in one batch without padding: put end to end, with what tells them apart."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import KW_ONLY, dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from ..._core._execution import Accepted, Allocate, Collated, Copy
from ...errors import BatchContractError
from ...policies.structures._counts import checked_count
from ._collation import columns_of, one_or_each, outcomes, parameter_names, paths, refuse_unless_told
from ._items import Examples, open_items, place
from ._leaves import beside, packed, stacked
from ._lengths import measure, refuse_longer, stretch
from ._unpad import own_row


@dataclass(eq=False)
class pack:
    """Puts items end to end on their first dimension, so that nothing is padded, and tells the function where each is.

    Items are what `stack` takes; of a nested one, all leaves that have a first dimension must be equally long, and
    numbers are stacked. The function gets for a batched parameter one tensor (total, ...) and by name, where it has
    such parameters: `positions` (total,), which begin at 0 for each item; `cumulative_lengths` (items + 1,), which
    begin at 0, as int32, and `max_length`, as attention kernels for variable lengths want them; and `lengths` (items,).
    With several batched parameters these are tuples. It must keep the items apart, by masks or by such a kernel.

    positions, cumulative_lengths, lengths, max_length: False switches one off, a string is another name for it. A
        function that takes none of the first three, unless they are off, is a TypeError at decoration.
    unpack: what the function gives back is packed too: cut it into items, by the lengths of the first of several
        parameters. True for all of the result, or the paths in it. Otherwise it has one row per item.
    max_item_length: the longest that an item may be: a model's number of positions, say. A longer one is refused with
        ItemTooLarge instead of failing its batch. None for no limit.
    like: as for `stack`.

    >>> import torch
    >>> from batchlib import batched
    >>> from batchlib.torch import pack
    >>> @batched(collate=pack(unpack=True))
    ... def numbered(tokens, positions):
    ...     return tokens * 10 + positions
    >>> numbered.call([7, 7, 7])
    tensor([70, 71, 72])
    """

    _: KW_ONLY
    positions: bool | str = True
    cumulative_lengths: bool | str = True
    lengths: bool | str = True
    max_length: bool | str = True
    unpack: bool | str | Sequence[str] = False
    max_item_length: int | None = None
    like: Any = None
    names: Sequence[str] = field(init=False, repr=False)
    pads: bool = field(default=False, init=False, repr=False)
    usual_batch_cost: float | None = field(default=1024, init=False, repr=False)

    def __post_init__(self) -> None:
        paths("unpack", self.unpack)
        if self.max_item_length is not None:
            self.max_item_length = checked_count("max_item_length", self.max_item_length)
        self.names = tuple(self.parameters())

    def parameters(self) -> dict[str, str]:
        """What the function can be given, by the name of its parameter."""
        return parameter_names(
            positions=self.positions,
            cumulative_lengths=self.cumulative_lengths,
            lengths=self.lengths,
            max_length=self.max_length,
        )

    def start(self, taken: Collection[str], function: str) -> PackCollator:
        """For one function, which takes parameters of these names. TypeError if it takes none that tells borders."""
        telling = [name for name, what in self.parameters().items() if what != "max_length"]
        refuse_unless_told("pack(positions=False, cumulative_lengths=False, lengths=False)", function, telling, taken)
        return PackCollator(self, taken)


class PackCollator:
    """Remembers nothing of a batch."""

    lengths_of_buckets: Sequence[int] = ()
    fixed_shapes = False

    def __init__(self, options: pack, taken: Collection[str]) -> None:
        self._unpack = paths("unpack", options.unpack)
        self._longest = options.max_item_length
        self._examples = None if options.like is None else Examples(options.like)
        self._extras = {name: what for name, what in options.parameters().items() if name in taken}

    def expect(self, parameters: int) -> None:
        """At decoration: so many are batched. TypeError or ValueError for a `like=` that no call could be like."""
        if self._examples is not None:
            self._examples.of(parameters)

    def accept(self, args: tuple[Any, ...]) -> Accepted:
        items = open_items(args, self._examples)
        measured = [measure(item, 0) for item in items]
        lengths = [each.length for each in measured if each.length is not None]
        if not lengths:
            raise TypeError(
                "pack() needs a tensor, array or list to put end to end. Use stack() for items without a length"
            )
        refuse_longer(lengths, self._longest)
        keys = [each.key for each in measured]
        return Accepted(tuple([item.queued for item in items]), one_or_each(keys), sum(lengths))

    def collate(
        self, columns: Sequence[list[Any]], *, rows: int | None = None, allocate: Allocate | None = None
    ) -> Collated:
        size = len(columns[0])
        if rows not in (None, size):
            raise TypeError(f"a packed batch has no rows to fill: its {size} items cannot be made {rows}")
        batched: list[Any] = []
        extras: dict[str, list[Any]] = {name: [] for name in self._extras}
        shapes: list[Any] = []
        bounds: list[int] | None = None
        with torch.set_grad_enabled(torch.is_grad_enabled() and allocate is None):
            for items in columns:
                first, leaves = columns_of(items, None, allocate)
                key, ragged, length = measure(first, 0)
                lead = leaves[ragged.index(True)] if length is not None else ()
                lengths = np.array([leaf.shape[0] for leaf in lead], np.int64)
                total = int(lengths.sum())
                batched.append(
                    first.structure.rebuild(
                        [
                            packed(each, total, allocate) if ragged[index] else stacked(each, allocate)
                            for index, each in enumerate(leaves)
                        ]
                    )
                )
                shapes.append((key, 1 << max(total - 1, 0).bit_length()))
                for name, what in self._extras.items():
                    extras[name].append(_told(what, lengths, lead[0], allocate) if lead else None)
                if bounds is None and lead:
                    bounds = [0, *np.cumsum(lengths).tolist()]
        named = {name: one_or_each(each) for name, each in extras.items()}
        return Collated(tuple(batched), named, size, size, tuple(shapes), bounds)

    def uncollate(self, result: Any, collated: Collated, copy: Copy) -> Sequence[Any]:
        bounds: list[int] = collated.note

        def unpacked(path: str, leaf: Any) -> list[Any]:
            shape = tuple(leaf.shape)
            if not shape or shape[0] != bounds[-1]:
                raise BatchContractError(
                    f"unpack= needs all items end to end on axis 0: {bounds[-1]}; "
                    f"{place(path, 'the result')} has shape {shape}"
                )
            return [own_row(leaf[begin:end], copy) for begin, end in pairwise(bounds)]

        return outcomes(result, collated, copy, along=self._unpack, cut=unpacked)

    def stretched(self, args: tuple[Any, ...], length: int) -> tuple[Any, ...]:
        """Accepted items made so long, by cropping or repeating what they hold."""
        return tuple([stretch(item, 0, length).queued for item in open_items(args, self._examples)])

    def row_length(self, args: tuple[Any, ...]) -> int:
        """How much such items add to a batch."""
        return sum([measure(item, 0).length or 0 for item in open_items(args, self._examples)])


def _told(what: str, lengths: np.ndarray, leaf: Any, allocate: Allocate | None) -> Any:
    if what == "max_length":
        return int(lengths.max())
    if what == "lengths":
        return beside(lengths, leaf, allocate)
    ends = np.cumsum(lengths)
    if what == "cumulative_lengths":
        return beside(np.concatenate([[0], ends]).astype(np.int32), leaf, allocate)
    return beside(np.arange(ends[-1]) - np.repeat(ends - lengths, lengths), leaf, allocate)
