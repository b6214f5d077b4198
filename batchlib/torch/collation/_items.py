"""What a caller hands in, checked and taken apart; whatever is wrong with it is said here, where only they hear it."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from ._leaves import can_copy
from ._structure import LEAF, Leaf, Structure, flatten, holds_rows, sealed

NUMERIC = "biufc"  # kinds of NumPy's dtypes: booleans and numbers


class Item(NamedTuple):
    """An item taken apart. A nested one is queued like this; a bare leaf is queued as it is."""

    leaves: tuple[Leaf, ...]
    structure: Structure

    @property
    def queued(self) -> Any:
        return self.leaves[0] if self.structure is LEAF else self

    def place(self, index: int) -> str:
        """Where a leaf is, for messages."""
        return place(self.structure.paths[index], "the item")


class Examples:
    """What `like=` asks of the items: an item for one batched parameter, a tuple of items for several."""

    def __init__(self, like: Any) -> None:
        self._like = like
        self._opened: dict[int, list[Item]] = {}

    def of(self, count: int) -> list[Item]:
        """One for each of so many parameters. TypeError if `like=` has another number."""
        if count not in self._opened:
            likes = [self._like] if count == 1 else self._like
            if count > 1 and (not isinstance(likes, tuple) or len(likes) != count):
                raise TypeError(f"like= must be a tuple of {count} items, one per batched parameter, not {likes!r}")
            self._opened[count] = [open_item(each) for each in likes]
        return self._opened[count]


def place(path: str, whole: str) -> str:
    return f"`{path}`" if path else whole


def open_items(args: tuple[Any, ...], examples: Examples | None) -> list[Item]:
    """The items of one call. TypeError or ValueError, naming the place, for one that nothing can be made of."""
    if examples is None:
        return [open_item(arg) for arg in args]
    return [open_item(arg, example) for arg, example in zip(args, examples.of(len(args)), strict=True)]


def open_item(value: Any, example: Item | None = None) -> Item:
    """`value` may be one that was queued."""
    usual = type(value) is torch.Tensor and value.layout is torch.strided
    if usual and not value.is_nested and not value.is_quantized and can_copy(value.dtype):
        item = Item((value,), LEAF)
    elif type(value) is Item:
        item = value
    elif type(value) is list:
        like = example.leaves[0] if example and example.structure is LEAF else None
        item = Item((_from_list(value, "the item", False, like),), LEAF)
    else:
        leaves, structure = flatten(value)
        arrays = any(isinstance(leaf, np.ndarray) for leaf in leaves)
        arrays = arrays and not any(isinstance(leaf, torch.Tensor) for leaf in leaves)
        likes: Sequence[Any] = example.leaves if example and example.structure == structure else [None] * len(leaves)
        checked = [
            _checked(leaf, place(path, "the item"), arrays, like)
            for leaf, path, like in zip(leaves, structure.paths, likes, strict=True)
        ]
        item = Item(tuple(checked), structure)
    if example is not None:
        _compare(item, example)
    return item


def undense(tensor: torch.Tensor) -> str | None:
    """What a tensor is that has not all its elements side by side, and what to do, for a message."""
    if tensor.is_nested:
        return "nested; .unbind() gives its parts"
    return None if tensor.layout is torch.strided else f"{tensor.layout}; call .to_dense() on it"


def leaf_key(leaf: Leaf) -> Hashable:
    """What leaves must have in common to be stacked."""
    return (_memory_key(leaf), leaf.shape) if holds_rows(leaf) else None


def part_key(leaf: Leaf, dim: int) -> Hashable:
    """What leaves must have in common that may differ along `dim`."""
    shape = leaf.shape
    return _memory_key(leaf), shape[:dim], shape[dim + 1 :]


def _memory_key(leaf: Leaf) -> Hashable:
    """What leaves must have in common beside their shapes, or one caller's would decide what the others' become.

    That is its type, whose code `torch.stack` may run, and whether a graph is kept, on which what works in place fails.
    """
    if isinstance(leaf, torch.Tensor):
        return type(leaf), leaf.dtype, leaf.device, leaf.requires_grad
    return type(leaf), leaf.dtype


def _checked(leaf: Leaf, where: str, arrays: bool, like: Leaf) -> Leaf:
    """A leaf as it is queued: numbers and lists of numbers become arrays beside arrays, otherwise tensors."""
    if isinstance(leaf, torch.Tensor):
        if odd := undense(leaf):
            raise TypeError(f"only dense tensors can be collated: {where} is {odd}")
        if leaf.is_quantized:  # torch would press all of a batch into the scale of the first
            raise TypeError(f"each quantized tensor has its own scale: {where} is one; call .dequantize() on it")
        if not can_copy(leaf.dtype):
            raise TypeError(f"torch cannot even copy a {leaf.dtype}: {where} is one; pass it in another dtype")
        return leaf
    if isinstance(leaf, np.ndarray):
        if leaf.dtype.kind not in NUMERIC:
            raise TypeError(f"only arrays of numbers can be collated: {where} has dtype {leaf.dtype}")
        if isinstance(leaf, np.ma.MaskedArray):
            raise TypeError(f"a batch would lose the mask of a masked array: {where} is one; call .filled() on it")
        return leaf
    if isinstance(leaf, list):
        return _from_list(leaf, where, arrays, like)
    if isinstance(leaf, bool | int | float | complex | np.number | np.bool_):
        return _from_numbers(leaf, where, arrays)
    if why := sealed(leaf):
        raise TypeError(
            f"no other can be made like a {type(leaf).__name__} that {why}, as {where} is: teach register_structure "
            "how one is taken apart and made"
        )
    return leaf


def _from_list(values: list[Any], where: str, arrays: bool, like: Leaf) -> Leaf:
    leaf = _from_numbers(values, where, arrays)
    if 0 in leaf.shape:  # nothing in it tells its dtype: whole numbers, like token ids, unless an example says better
        if isinstance(leaf, np.ndarray):
            return leaf.astype(like.dtype if isinstance(like, np.ndarray) else np.int64)
        return leaf.to(like.dtype if isinstance(like, torch.Tensor) else torch.int64)
    return leaf


def _from_numbers(values: Any, where: str, arrays: bool) -> Leaf:
    try:
        array = np.array(values)
    except ValueError as error:
        raise ValueError(f"a list must have the same number of elements at each depth: {where} has not") from error
    except (TypeError, RuntimeError) as error:  # tensors of another device or dtype, or in a graph
        raise TypeError(
            f"NumPy can make nothing of {where}, a list: {error}; pass one tensor, like torch.stack's"
        ) from error
    if array.dtype.kind not in NUMERIC:
        raise TypeError(
            f"a list must hold numbers: {where} holds {_first_other(values)}; tokenize texts in their caller, and put "
            "what is no sequence of numbers into a tuple or a dict"
        )
    if (
        array.size and array.dtype.kind in "uf" and _is_plain(values) and _all_whole(values)
    ):  # NumPy would make them inexact
        raise TypeError(f"whole numbers in a list must fit 64 bits: those of {where} do not; pass an array")
    if arrays:
        return array
    tensor = torch.from_numpy(array)
    if array.dtype.kind in "fc" and _is_plain(values):  # Python's own have no dtype to be kept
        usual = torch.get_default_dtype()
        return tensor.to(usual if array.dtype.kind == "f" else usual.to_complex())
    return tensor


def _all_whole(values: Any) -> bool:
    """Whether there is nothing but Python's whole numbers in it."""
    return all(map(_all_whole, values)) if isinstance(values, list) else isinstance(values, int)


def _first_other(values: Any) -> str:
    """What in a list is no number, for a message."""
    found = next((each for each in _elements(values) if not isinstance(each, int | float | complex | np.generic)), None)
    return "numbers of more than 64 bits" if found is None and None not in _elements(values) else f"{found!r}"[:40]


def _elements(values: Any) -> list[Any]:
    return [each for value in values for each in _elements(value)] if isinstance(values, list) else [values]


def _is_plain(values: Any) -> bool:
    """Whether there are nothing but Python's own numbers in it."""
    if not isinstance(values, list | tuple):
        return not hasattr(values, "dtype")
    kinds = set(map(type, values))
    if any(issubclass(kind, list | tuple) for kind in kinds):
        return all(map(_is_plain, values))
    return not any(hasattr(kind, "dtype") for kind in kinds)


def _compare(item: Item, example: Item) -> None:
    if item.structure != example.structure:
        raise TypeError(f"the item must be a {example.structure!r}, like like=; it is a {item.structure!r}")
    for index, (leaf, like) in enumerate(zip(item.leaves, example.leaves, strict=True)):
        if kind(leaf) != kind(like):
            raise TypeError(f"{item.place(index)} must be {kind(like)}, like like=; it is {kind(leaf)}")


def kind(leaf: Leaf) -> str:
    """What a leaf is, for messages."""
    if isinstance(leaf, torch.Tensor):
        return f"a {leaf.dtype} tensor of {leaf.ndim} dimensions"
    if isinstance(leaf, np.ndarray):
        return f"a {leaf.dtype} array of {leaf.ndim} dimensions"
    return f"a {type(leaf).__name__}"
