"""What all collations share: names for what a function may be given, and the way from its result to rows."""

from __future__ import annotations

import numbers
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import numpy as np
import torch

from ..._core._execution import Allocate, Collated, Copy
from ...errors import BatchContractError
from ...executors._outcomes import split
from ...executors._rows import rows_of
from ._items import Item, place, undense
from ._leaves import dtype_of
from ._structure import LEAF, astray, flatten, holds_rows, within

Paths = frozenset[str] | None
"""Places in a structure, each with all that is in it; None for every place."""


def paths(option: str, given: object) -> Paths:
    """From what a parameter like `unpad=` may be: a bool, a path or several."""
    if isinstance(given, bool):
        return None if given else frozenset()
    if isinstance(given, str):
        return frozenset([given])
    if isinstance(given, Iterable):
        wanted = frozenset(given)
        if all(isinstance(path, str) for path in wanted):
            return wanted
    raise TypeError(f"{option} must be a path in a structure, like 'logits' or '[0].mask', or several, not {given!r}")


def parameter_names(**switches: object) -> dict[str, str]:
    """What to give a function, by the name of its parameter; a switch is True, another name, or False."""
    named: dict[str, str] = {}
    for what, switch in switches.items():
        if not isinstance(switch, bool | str):
            raise TypeError(f"{what}= must be True, False or the name of a parameter, not {switch!r}")
        name = what if switch is True else switch
        if name is False:
            continue
        if not name.isidentifier() or name in named:
            raise ValueError(f"{what}= must be the name of a parameter that nothing else has, not {switch!r}")
        named[name] = what
    return named


def refuse_unless_told(collation: str, function: str, needed: Collection[str], taken: Collection[str]) -> None:
    """TypeError for a function that takes none of what tells it where each item is."""
    if needed and not set(needed) & set(taken):
        raise TypeError(
            f"{function} takes none of the parameters {', '.join(needed)}, so it cannot tell where each item of a "
            "batch is: give it one (of a module only `*args` are seen: wrap it in a function that names it), or switch "
            f"them off by name where it needs none: collate={collation}"
        )


def columns_of(items: Sequence[Any], rows: int | None, allocate: Allocate | None) -> tuple[Item, list[tuple[Any, ...]]]:
    """The first of a batch's items, and for each leaf that of all items and of the fillers, which repeat the first.

    TypeError, naming the place, for arrays that no tensor can be allocated for: those of all the items, then.
    """
    opened = [item if type(item) is Item else Item((item,), LEAF) for item in items]
    if rows is not None:
        if rows < len(items):
            raise ValueError(f"rows must be at least the number of items: {len(items)}, not {rows}")
        opened += [opened[0]] * (rows - len(items))
    if allocate is not None:
        _refuse_what_torch_lacks(opened[0])
    return opened[0], list(zip(*[item.leaves for item in opened], strict=True))


def _refuse_what_torch_lacks(item: Item) -> None:
    for index, leaf in enumerate(item.leaves):
        if isinstance(leaf, np.ndarray) and dtype_of(leaf.dtype) is None:
            usual = "complex128" if leaf.dtype.kind == "c" else "float64"
            raise TypeError(
                f"torch has no {leaf.dtype}, which {item.place(index)} is an array of: convert it before the call, as "
                f"by .astype({usual!r})"
            )


def one_or_each(values: list[Any]) -> Any:
    """What belongs to a parameter: alone if there is one, in a tuple if there are several."""
    return values[0] if len(values) == 1 else tuple(values)


def outcomes(
    result: Any,
    collated: Collated,
    copy: Copy,
    *,
    along: Paths = frozenset(),
    cut: Callable[[str, Any], list[Any]] | None = None,
    trim: Callable[[str, Any, int], Any] | None = None,
) -> Sequence[Any]:
    """One outcome per item: of a list, its elements; of anything else, the rows of each of its leaves.

    along: the leaves that `cut` makes rows of, from their path and what they are; the others have rows on axis 0.
    trim: likewise for such a leaf of a list's element, with the number of the item.
    """
    if isinstance(result, list):
        return _listed(result, collated, copy, along, trim)
    leaves, structure = flatten(result, lists=True)
    if structure is LEAF and not holds_rows(result) and not isinstance(result, tuple):
        return _listed(result, collated, copy, along, trim)  # says what it is, unless it is another sequence
    where = structure.paths
    chosen = _chosen(along, where)
    if not any(holds_rows(leaf) for leaf in leaves):
        raise BatchContractError(
            f"the function must give back a list of one outcome per item, or tensors with a row for each: "
            f"{collated.rows}; it gave a {type(result).__name__} without a tensor or array in it"
        )
    columns: list[list[Any]] = []
    for path, leaf in zip(where, leaves, strict=True):
        if isinstance(leaf, torch.Tensor) and (odd := undense(leaf)):
            raise BatchContractError(
                f"only dense tensors can be taken apart into rows: {place(path, 'the result')} is {odd}"
            )
        if not holds_rows(leaf):
            columns.append([_constant(path, leaf)] * collated.size)
        elif cut is not None and path in chosen:
            columns.append(cut(path, leaf))
        else:
            columns.append(_rows(path, leaf, collated, copy))
    if structure is LEAF:
        return columns[0]
    return [structure.rebuild(row) for row in zip(*columns, strict=True)]


def _listed(
    result: Any, collated: Collated, copy: Copy, along: Paths, trim: Callable[[str, Any, int], Any] | None
) -> Sequence[Any]:
    given = split(result, collated.rows, copy)[: collated.size]
    if trim is None or along == frozenset():
        return given
    trimmed: list[Any] = []
    for index, outcome in enumerate(given):
        if not isinstance(outcome, BaseException):
            leaves, structure = flatten(outcome, lists=True)
            where = structure.paths
            chosen = _chosen(along, where)
            outcome = structure.rebuild(
                [trim(path, leaf, index) if path in chosen else leaf for path, leaf in zip(where, leaves, strict=True)]
            )
        trimmed.append(outcome)
    return trimmed


def _chosen(along: Paths, where: tuple[str, ...]) -> frozenset[str]:
    """Of the leaves at these places. BatchContractError for what names none of them."""
    if along is None:
        return frozenset(where)
    if missing := astray(along, where):
        raise BatchContractError(
            f"unpad=, or unpack=, must name leaves of the result: {', '.join(missing)} is none of {', '.join(where)}"
        )
    return within(where, along)


def _rows(path: str, leaf: Any, collated: Collated, copy: Copy) -> list[Any]:
    if not leaf.shape or leaf.shape[0] != collated.rows:
        raise BatchContractError(
            f"each tensor of the result must have one row per item on axis 0, {collated.rows} here; "
            f"{place(path, 'it')} has shape {tuple(leaf.shape)}: leave out what does not belong to single items"
        )
    return rows_of(leaf[: collated.size], copy)


def _constant(path: str, leaf: Any) -> Any:
    if leaf is None or isinstance(leaf, str | bytes | numbers.Number | np.generic | torch.dtype | torch.device):
        return leaf
    raise BatchContractError(
        f"a {type(leaf).__name__} cannot be split into rows: {place(path, 'it')} must be a tensor or array; return "
        f"only what callers need, or a list of one outcome per item"
    )
