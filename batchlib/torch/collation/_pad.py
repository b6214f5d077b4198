"""Items of different lengths in one batch: filled up to the longest, or to one of a few lengths."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import lru_cache
from numbers import Number
from typing import Any, NamedTuple

import numpy as np
import torch

from ..._core._execution import Accepted, Allocate, Collated, Copy
from ...errors import BatchContractError, ItemTooLarge
from ...policies.structures._counts import checked_count, checked_counts
from ...policies.structures._lengths import Lengths
from ._collation import columns_of, one_or_each, outcomes, parameter_names, paths, refuse_unless_told
from ._items import Examples, Item, kind, open_items, place
from ._leaves import beside, padded, stacked
from ._lengths import Measured, measure, refuse_longer, stretch
from ._structure import astray, holds_rows, within
from ._unpad import Side, checked_dim, checked_side, cut, own_row


@dataclass(eq=False)
class pad:
    """Pads items to the longest of their batch on one dimension, and tells the function where they are.

    Items are what `stack` takes, lists of token ids among them. The function gets for a batched parameter one tensor
    (rows, length, ...), and by name, where it has such parameters: `mask` (rows, length), true where the item is, and
    `lengths` (rows,), whole numbers. With several batched parameters these two are tuples.

    value: what is filled in: a number, or a mapping from paths of leaves, like "input_ids", to numbers; 0 for others. A
        dtype that cannot hold it is a TypeError at the call.
    side: where: "right" or "left".
    dim: the dimension of an item that is padded; leaves of fewer dimensions are stacked. The padded leaves of an item
        must be equally long, which is a ValueError at the call otherwise.
    multiple_of: the padded length is a multiple of it. None: of 1.
    sizes: the lengths to which batches are padded, the smallest that holds the longest item. A longer item is refused
        with ItemTooLarge. None for any length. Together with `multiple_of` it is a TypeError.
    max_item_length: the longest that an item may be, a multiple of `multiple_of`: a model's number of positions, say. A
        longer one is refused with ItemTooLarge instead of failing its batch. None for no limit, or that of `sizes`.
    mask, lengths: False switches one off, a string is another name for it. A function that takes neither, unless both
        are off, is a TypeError at decoration: it would take padding for items.
    only: paths of the leaves that are padded. None for all that have the dimension.
    unpad: what the function gives back is padded too: each row is cut to its item's length, which is that of the first
        parameter that is padded. True for all of the result, or the paths in it. In a list its elements are cut.
    like: as for `stack`.

    >>> import torch
    >>> from batchlib import batched
    >>> from batchlib.torch import pad
    >>> @batched(collate=pad(), max_batch_cost=768)
    ... def mean(values, mask, lengths):
    ...     return (values * mask).sum(1) / lengths
    >>> mean.call([1.0, 2.0])
    tensor(1.5000)
    """

    value: float | Mapping[str, float] = 0
    _: KW_ONLY
    side: Side = "right"
    dim: int = 0
    multiple_of: int | None = None
    sizes: Sequence[int] | None = None
    max_item_length: int | None = None
    mask: bool | str = True
    lengths: bool | str = True
    only: str | Sequence[str] | None = None
    unpad: bool | str | Sequence[str] = False
    like: Any = None
    names: Sequence[str] = field(init=False, repr=False)
    pads: bool = field(default=True, init=False, repr=False)
    usual_batch_cost: float | None = field(default=768, init=False, repr=False)

    def __post_init__(self) -> None:
        checked_side(self.side)
        checked_dim(self.dim)
        if self.multiple_of is not None:
            self.multiple_of = checked_count("multiple_of", self.multiple_of)
            if self.sizes is not None:
                raise TypeError("give sizes= or multiple_of=, not both: each of them says what lengths are padded to")
        if self.max_item_length is not None:
            self.max_item_length = checked_count("max_item_length", self.max_item_length)
            if self.sizes is not None:
                raise TypeError("give sizes= or max_item_length=, not both: no item may be longer than all of sizes")
            if self.max_item_length % (self.multiple_of or 1):
                raise ValueError(
                    f"max_item_length must be a multiple of multiple_of={self.multiple_of}, since no batch may be "
                    f"longer either, not {self.max_item_length}"
                )
        if self.sizes is not None:
            self.sizes = checked_counts("sizes", self.sizes)
        for value in self.value.values() if isinstance(self.value, Mapping) else [self.value]:
            if not isinstance(value, Number | np.generic):
                raise TypeError(f"value must be a number or a mapping from paths to numbers, not {self.value!r}")
        self.value = _plain(self.value)
        paths("only", True if self.only is None else self.only)
        paths("unpad", self.unpad)
        self.names = tuple(parameter_names(mask=self.mask, lengths=self.lengths))

    def start(self, taken: Collection[str], function: str) -> PadCollator:
        """For one function, which takes parameters of these names. TypeError if it takes none that tells padding."""
        refuse_unless_told("pad(mask=False, lengths=False)", function, self.names, taken)
        return PadCollator(self, taken)


def _plain(value: Any) -> Any:
    """Python's numbers for NumPy's."""
    if isinstance(value, Mapping):
        return {path: _plain(each) for path, each in value.items()}
    return value.item() if isinstance(value, np.generic) else value


class _Batch(NamedTuple):
    """What `uncollate` has to know of a batch: the first parameter that was padded."""

    lengths: Sequence[int]
    longest: int


class PadCollator:
    """Remembers nothing of a batch."""

    def __init__(self, options: pad, taken: Collection[str]) -> None:
        self._options = options
        self._dim = options.dim
        self._left = options.side == "left"
        self._only = paths("only", True if options.only is None else options.only)
        filled = options.value if isinstance(options.value, Mapping) else ()
        self._named = frozenset([*(self._only or ()), *filled])
        self._unpad = paths("unpad", options.unpad)
        self._examples = None if options.like is None else Examples(options.like)
        named = parameter_names(mask=options.mask, lengths=options.lengths)
        self._extras = {name: what for name, what in named.items() if name in taken}
        self.lengths_of_buckets: Sequence[int] = options.sizes or ()
        self.fixed_shapes = bool(options.sizes or options.multiple_of)

    def expect(self, parameters: int) -> None:
        """At decoration: so many are batched. TypeError or ValueError for a `like=` that no call could be like."""
        if self._examples is not None:
            self._examples.of(parameters)

    def accept(self, args: tuple[Any, ...]) -> Accepted:
        items = open_items(args, self._examples)
        measured = [self._measured(item) for item in items]
        lengths = [each.length for each in measured if each.length is not None]
        if not lengths or (self._named and astray(self._named, _places(items))):
            raise TypeError(self._unpaddable(items))
        refuse_longer(lengths, self._options.max_item_length)
        keys = [each.key for each in measured]
        rows = [self._padded_length(length) for length in lengths]
        cost = rows[0] if len(rows) == 1 else Lengths(rows)
        return Accepted(tuple([item.queued for item in items]), one_or_each(keys), cost)

    def collate(
        self, columns: Sequence[list[Any]], *, rows: int | None = None, allocate: Allocate | None = None
    ) -> Collated:
        size = len(columns[0])
        batched: list[Any] = []
        extras: dict[str, list[Any]] = {name: [] for name in self._extras}
        shapes: list[Any] = []
        note: _Batch | None = None
        with torch.set_grad_enabled(torch.is_grad_enabled() and allocate is None):
            for items in columns:
                first, leaves = columns_of(items, rows, allocate)
                key, ragged, length = measure(first, self._dim, self._only)
                own, longest, lead = self._lengths(leaves, ragged)
                batched.append(first.structure.rebuild(self._joined(first, leaves, ragged, longest, allocate)))
                shapes.append((key, longest))
                for name, what in self._extras.items():
                    told = None if length is None else self._told(what, own, longest)
                    extras[name].append(None if told is None else beside(told, lead, allocate))
                if note is None and length is not None:
                    note = _Batch(own[:size], longest)
        return Collated(
            tuple(batched),
            {name: one_or_each(each) for name, each in extras.items()},
            size,
            rows or size,
            tuple(shapes),
            note,
        )

    def uncollate(self, result: Any, collated: Collated, copy: Copy) -> Sequence[Any]:
        batch: _Batch = collated.note

        def unpadded(path: str, leaf: Any) -> list[Any]:
            shape = tuple(leaf.shape)
            if len(shape) < self._dim + 2 or shape[0] != collated.rows or shape[self._dim + 1] != batch.longest:
                raise BatchContractError(
                    f"unpad= needs {collated.rows} rows on axis 0 and the padded length on axis {self._dim + 1}: "
                    f"{batch.longest}; {place(path, 'the result')} has shape {shape}"
                )
            return cut(leaf, batch.lengths, side=self._options.side, dim=self._dim, copy=copy)

        def trimmed(path: str, leaf: Any, index: int) -> Any:
            """Of a list's element, which may also be so long as its item already."""
            if not holds_rows(leaf) and type(leaf) not in (list, tuple):
                return leaf
            shape = tuple(leaf.shape) if holds_rows(leaf) else (len(leaf),)
            own = batch.lengths[index]
            if len(shape) <= self._dim or shape[self._dim] not in (own, batch.longest):
                raise BatchContractError(
                    f"unpad= needs the padded length on axis {self._dim} of what is in a list: {batch.longest}; "
                    f"{place(path, 'an element')} has shape {shape}"
                )
            begin = shape[self._dim] - own if self._left else 0
            part = slice(begin, begin + own)
            return own_row(leaf[(slice(None),) * self._dim + (part,)], copy) if holds_rows(leaf) else leaf[part]

        return outcomes(result, collated, copy, along=self._unpad, cut=unpadded, trim=trimmed)

    def stretched(self, args: tuple[Any, ...], length: int) -> tuple[Any, ...]:
        """Accepted items made so long, by cropping or repeating what they hold."""
        items = open_items(args, self._examples)
        return tuple([stretch(item, self._dim, length, self._only).queued for item in items])

    def row_length(self, args: tuple[Any, ...]) -> int:
        """How long the row of such items is when they are alone."""
        lengths = [self._measured(item).length for item in open_items(args, self._examples)]
        return sum([self._padded_length(length) for length in lengths if length is not None])

    def _measured(self, item: Item) -> Measured:
        measured = measure(item, self._dim, self._only)
        for index, (leaf, value) in enumerate(zip(item.leaves, self._values(item), strict=True)):
            if measured.ragged[index] and not fits(value, leaf.dtype):  # some dtypes of torch not even a 0
                raise TypeError(f"pad(value={value!r}) cannot be held by {leaf.dtype}, as {item.place(index)} is")
        return measured

    def _values(self, item: Item) -> list[float]:
        """What fills up each leaf."""
        value = self._options.value
        if not isinstance(value, Mapping):
            return [value] * len(item.leaves)
        where = item.structure.paths
        filled: dict[str, float] = {}
        for named in sorted(value, key=len):  # what is further inside is told later, and counts
            filled.update(dict.fromkeys(within(where, frozenset([named])), value[named]))
        return [filled.get(path, 0) for path in where]

    def _padded_length(self, length: int) -> int:
        """That of a batch whose longest item has this one."""
        sizes, step = self.lengths_of_buckets, self._options.multiple_of
        if sizes:
            if length > sizes[-1]:
                raise ItemTooLarge(f"the item is {length} long, and the largest of sizes= is {sizes[-1]}: shorten it")
            return sizes[bisect_left(sizes, length)]
        return length if step is None else -(-length // step) * step

    def _lengths(self, leaves: list[tuple[Any, ...]], ragged: list[bool]) -> tuple[list[int], int, Any]:
        """Of each row, of the batch, and a leaf that has them."""
        if True not in ragged:
            return [], 0, None
        lead = leaves[ragged.index(True)]
        own = [leaf.shape[self._dim] for leaf in lead]
        return own, self._padded_length(max(own)), lead[0]

    def _joined(
        self,
        first: Item,
        leaves: list[tuple[Any, ...]],
        ragged: list[bool],
        longest: int,
        allocate: Allocate | None,
    ) -> list[Any]:
        return [
            padded(each, longest, value, dim=self._dim, left=self._left, allocate=allocate)
            if is_ragged
            else stacked(each, allocate)
            for each, value, is_ragged in zip(leaves, self._values(first), ragged, strict=True)
        ]

    def _told(self, what: str, own: list[int], longest: int) -> np.ndarray:
        lengths = np.array(own, np.int64)
        if what == "lengths":
            return lengths
        positions = np.arange(longest)
        return positions >= longest - lengths[:, None] if self._left else positions < lengths[:, None]

    def _unpaddable(self, items: list[Item]) -> str:
        present = [f"{each.place(index)}: {kind(leaf)}" for each in items for index, leaf in enumerate(each.leaves)]
        has = f"The call has {'; '.join(present) or 'none'}"
        missing = ", ".join([repr(path) for path in astray(self._named, _places(items))])
        if missing:
            return f"pad(value=, only=) must name leaves of the call: {missing} is none. {has}"
        return (
            f"pad(dim={self._dim}) needs a tensor, an array or a list of numbers of more than {self._dim} dimensions. "
            f"{has}. Texts are tokenized in their caller; stack() takes items without a length"
        )


def _places(items: list[Item]) -> tuple[str, ...]:
    return tuple([path for item in items for path in item.structure.paths])


@lru_cache(256)
def fits(value: complex, dtype: Any) -> bool:
    """Whether a padding value stays what it is in memory of this dtype, but for rounding."""
    try:
        if isinstance(dtype, torch.dtype):
            # two numbers: of what is too large for one number alone, torch makes an infinity
            held = torch.empty(2, dtype=dtype, device="cpu").fill_(value)[0].item()
            inexact = dtype.is_floating_point or dtype.is_complex
        else:
            with np.errstate(over="raise"):
                held, inexact = np.full((), value, dtype).item(), dtype.kind in "fc"
    except (ArithmeticError, RuntimeError, TypeError, ValueError):
        return False
    return inexact or held == value
