"""Takes nested values apart into leaves and puts them together again.

Torch's own walker is private and knows no plain dataclass; this one knows what models are given and give back, and
nothing of tensors but that they are leaves. It imports no model library: their containers are mappings and dataclasses.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache, partial
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np
import torch

Leaf: TypeAlias = Any
T = TypeVar("T")

ATOMS = (bool, int, float, complex, str, bytes, np.generic)
"""Leaves that are no rows of a batch, and of which a list tells nothing."""
_ATOMIC = frozenset(ATOMS)


class Structure:
    """What a value was beside its leaves. Equal and hashable; `Structure.rebuild` puts new leaves into it.

    Two dicts of the same keys have equal structures whatever the order of their keys.
    """

    __slots__ = ("_children", "_hash", "_how", "_kind", "_labels", "_pack")

    def __init__(self, opened: Opened | None, children: tuple[Structure, ...]) -> None:
        self._kind = opened and opened.kind
        self._how = opened and opened.how
        self._labels = opened and opened.labels
        self._pack = opened and opened.pack
        self._children = children
        self._hash = hash((self._kind, self._how, children))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (
            isinstance(other, Structure)
            and self._kind is other._kind
            and self._how == other._how
            and self._children == other._children
        )

    def __repr__(self) -> str:
        if self._kind is None:
            return "leaf"
        held = [f"{label}: {child!r}" for label, child in zip(self._labels or "", self._children, strict=False)]
        return f"{self._kind.__name__}({', '.join(held or map(repr, self._children))})"

    @property
    def paths(self) -> tuple[str, ...]:
        """Where each leaf is, as one would write it behind the value: `logits`, `[0].mask`; empty for a bare leaf."""
        return tuple(path.removeprefix(".") for path in self._paths())

    def rebuild(self, leaves: Sequence[Leaf]) -> Any:
        """The value with these leaves in place of its own."""
        return leaves[0] if self._pack is None else self._built(iter(leaves))

    def _paths(self) -> Iterator[str]:
        if self._pack is None:
            yield ""
        for index, child in enumerate(self._children):
            label: object = index if self._labels is None else self._labels[index]
            step = f".{label}" if isinstance(label, str) else f"[{label!r}]"
            for path in child._paths():
                yield step + path

    def _built(self, leaves: Iterator[Leaf]) -> Any:
        if self._pack is None:
            return next(leaves)
        parts = [child._built(leaves) for child in self._children]
        try:
            return self._pack(parts)
        except Exception as error:
            error.add_note(
                f"while a batch or a row was made a {self!r}; register_structure can say another way to make it"
            )
            raise


class Opened(NamedTuple):
    """A container taken apart."""

    kind: type
    how: Hashable
    """What, beside its kind and its children, makes it equal to another: the keys."""
    children: Sequence[Any]
    labels: Sequence[object] | None
    """What leads to each child; None for their numbers."""
    pack: Callable[[list[Any]], Any]


class _Registered(NamedTuple):
    unpack: Callable[[Any], tuple[list[Any], Hashable]]
    pack: Callable[[Any, list[Any]], Any]


LEAF = Structure(None, ())
"""The structure of a bare leaf."""

# State of the module, because what a type is made of is a fact about the type, and the same for every function: like
# `copyreg` and `functools.singledispatch`.
_registered: dict[type, _Registered] = {}


def register_structure(
    kind: type[T], unpack: Callable[[T], tuple[list[Any], Hashable]], pack: Callable[[Any, list[Any]], T]
) -> None:
    """Teaches every collation how values of a type are taken apart; otherwise they are opaque leaves.

    kind: the type itself, without its subclasses. One that is known already is replaced. TypeError if it is no class.
    unpack: gives, for a value, what it holds (a list), and what else it is made of: hashable, and equal for values that
        may share a batch.
    pack: makes a value of what `unpack` gave, in reverse order: the second first, then a list like the first.

    >>> import torch
    >>> from batchlib.torch import register_structure, stack
    >>> class Boxes:
    ...     def __init__(self, corners, format):
    ...         self.corners, self.format = corners, format
    >>> register_structure(Boxes, lambda b: ([b.corners], b.format), lambda format, held: Boxes(held[0], format))
    >>> collator = stack().start((), "detect")
    >>> boxes = [Boxes(torch.zeros(4), "xyxy"), Boxes(torch.ones(4), "xyxy")]
    >>> accepted = [collator.accept((each,)) for each in boxes]
    >>> (batch,) = collator.collate([[each.args[0] for each in accepted]]).args
    >>> batch.format, batch.corners.shape
    ('xyxy', torch.Size([2, 4]))
    """
    if not isinstance(kind, type):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"register_structure needs a class, not {kind!r}")
    _registered[kind] = _Registered(unpack, pack)


def flatten(value: Any, *, lists: bool = False) -> tuple[list[Leaf], Structure]:
    """The leaves of a value, in the order of `Structure.paths`, and what it was beside them.

    Containers are tuples, named tuples, dicts and other mappings, dataclass instances and registered types.

    lists: whether lists are containers too, as they are in what a function gives back; an item's list is a leaf, a
        sequence of numbers. Where they are, a list or tuple that holds neither a tensor nor an array is a leaf all the
        same: nothing says whether its elements belong to the rows or to the batch. A tuple of nothing but None is none.

    ValueError for what is nested in itself, or too deeply to be walked through.
    """
    leaves: list[Leaf] = []
    try:
        return leaves, _walk(value, lists, leaves)
    except RecursionError:
        raise ValueError(f"a {type(value).__name__} that is nested in itself, or too deeply, has no leaves") from None


def map_leaves(function: Callable[[Leaf], Any], value: Any, *, lists: bool = False) -> Any:
    """The value with what `function` makes of each of its leaves. `lists` as for `flatten`."""
    leaves, structure = flatten(value, lists=lists)
    return structure.rebuild([function(leaf) for leaf in leaves])


@lru_cache(256)
def within(where: tuple[str, ...], wanted: frozenset[str]) -> frozenset[str]:
    """Of the leaves at these places, those at a wanted one, or at a place in it: `deep` stands for `deep[0].mask`."""
    inside = tuple([f"{place}{step}" for place in wanted for step in ".["])
    return frozenset([path for path in where if path in wanted or path.startswith(inside)])


def astray(wanted: frozenset[str], where: tuple[str, ...]) -> list[str]:
    """The places that are none of these and have none of them in them."""
    return sorted([place for place in wanted if not within(where, frozenset([place]))])


def sealed(value: Any) -> str | None:
    """Why a container is a leaf all the same, for a message; None for one that is not, and for what is no container."""
    kind: Any = type(value)
    names: Collection[Any] = _names(kind)
    if isinstance(value, dict):
        names = {*names, *value}
    elif dataclasses.is_dataclass(type(value)):
        if kind.__new__ is not object.__new__:
            return "has a __new__ of its own"
    elif isinstance(value, Mapping):
        return None if _takes_a_mapping(kind) else "has a constructor that takes no mapping, or more than that"
    elif not isinstance(value, tuple):
        return None
    extra = [name for name in _state(value) if name not in names and not _is_derived(kind, name)]
    return f"holds {', '.join(sorted(extra)[:3])} besides" if extra else None


def holds_rows(leaf: Leaf) -> bool:
    """Whether a leaf is a tensor or an array."""
    return isinstance(leaf, torch.Tensor | np.ndarray)


def _walk(value: Any, lists: bool, leaves: list[Leaf]) -> Structure:
    opened = None if value is None or holds_rows(value) or isinstance(value, ATOMS) else _open(value, lists)
    if opened is None or (lists and opened.kind is list and value and _ATOMIC.issuperset(map(type, opened.children))):
        leaves.append(value)
        return LEAF
    begin = len(leaves)
    children = tuple([_walk(child, lists, leaves) for child in opened.children])
    if lists and isinstance(value, list | tuple) and opened.labels is None:
        found = leaves[begin:]
        if not any(map(holds_rows, found)) and any(isinstance(value, list) or leaf is not None for leaf in found):
            leaves[begin:] = [value]
            return LEAF
    return Structure(opened, children)


def _open(value: Any, lists: bool) -> Opened | None:
    """None for a leaf."""
    kind: Any = type(value)
    known = _registered.get(kind)
    if known is not None:
        children, how = known.unpack(value)
        return Opened(kind, how, children, None, lambda parts: known.pack(how, parts))
    if isinstance(value, tuple):
        return _open_tuple(value)
    if isinstance(value, list):
        return _open_list(value) if lists else None
    if kind is dict or kind is defaultdict:
        return _open_keys(dict, value, dict)
    has_fields = dataclasses.is_dataclass(type(value))
    if not (has_fields or isinstance(value, Mapping)) or sealed(value):
        return None
    if isinstance(value, dict):
        return _open_dict(kind, value)
    if has_fields:
        return _open_keys(kind, _fields_of(value), partial(_made_of_fields, kind))
    return _open_keys(kind, value, partial(_made_by_constructor, kind))


def _open_dict(kind: Any, value: dict[Any, Any]) -> Opened:
    """A subclass; as for a model's output, some of what it holds may be attributes too: those tell what is there now.

    Of a field whose attribute is None nothing is held, whatever the mapping has kept of it.
    """
    held: dict[Any, Any] = {key: each for key, each in _base(kind).items(value) if key not in _names(kind)}
    held = {name: each for name, each in _fields_of(value).items() if each is not None} | held
    attributes = frozenset([*_names(kind), *_state(value)])
    return _open_keys(kind, held, partial(_made_of_keys, kind, attributes))


def _base(kind: Any) -> Any:
    return next(each for each in kind.__mro__ if each in (OrderedDict, defaultdict, dict))


def _made_of_keys(kind: Any, attributes: frozenset[str], held: dict[Any, Any]) -> Any:
    """Without its constructor, which may change what it is given, or have done so already."""
    base = _base(kind)
    made = base.__new__(kind)
    for key, each in held.items():
        base.__setitem__(made, key, each)
    for name in attributes:
        if name in held or name in _names(kind):
            object.__setattr__(made, name, held.get(name))
    return made


def _made_of_fields(kind: Any, held: dict[str, Any]) -> Any:
    """As `_made_of_keys`."""
    made = object.__new__(kind)
    for name, each in held.items():
        object.__setattr__(made, name, each)
    return made


def _made_by_constructor(kind: Any, held: dict[Any, Any]) -> Any:
    made = kind(held)
    if len(made) != len(held) or not all(made[key] is each for key, each in held.items()):
        raise TypeError(f"the constructor of {kind.__name__} changes what it is given")
    return made


def _fields_of(value: Any) -> dict[str, Any]:
    """Those that are set: one that is made after the constructor may not be."""
    kind: Any = type(value)
    return {name: getattr(value, name) for name in _names(kind) if hasattr(value, name)}


@lru_cache(256)
def _names(kind: Any) -> tuple[str, ...]:
    """Of the fields; of none if it is no dataclass."""
    return tuple([field.name for field in dataclasses.fields(kind)]) if dataclasses.is_dataclass(kind) else ()


def _state(value: Any) -> dict[str, Any]:
    """All its attributes, those in slots too."""
    state: Any = object.__getstate__(value)
    return {**(state[0] or {}), **state[1]} if isinstance(state, tuple) else state or {}


def _is_derived(kind: type, name: str) -> bool:
    """Whether it is computed from the others when it is asked for, and only kept, or nothing of the user's."""
    return name == "__orig_class__" or isinstance(inspect.getattr_static(kind, name, None), cached_property)


@lru_cache(256)
def _takes_a_mapping(kind: type) -> bool:
    """Whether the constructor does, and needs nothing else."""
    try:
        inspect.signature(kind).bind({})
    except ValueError:  # built in, without a signature
        return True
    except TypeError:
        return False
    return True


def _open_tuple(value: tuple[Any, ...]) -> Opened | None:
    kind: Any = type(value)
    if hasattr(kind, "n_sequence_fields"):  # what torch.max and others give
        return Opened(kind, len(value), value, None, kind)
    if getattr(value, "__dict__", None) and sealed(value):
        return None
    kind = tuple if kind is torch.Size else kind  # of tensors there is no size
    return Opened(kind, len(value), value, getattr(kind, "_fields", None), partial(tuple.__new__, kind))


def _open_list(value: list[Any]) -> Opened:
    """What a subclass holds besides is the batch's: rows are lists without it."""
    kind: Any = list if type(value) is list or _state(value) else type(value)
    return Opened(kind, len(value), value, None, partial(_made_of_elements, kind))


def _made_of_elements(kind: Any, elements: list[Any]) -> Any:
    made = list.__new__(kind)  # as `_made_of_keys`
    list.extend(made, elements)
    return made


def _open_keys(kind: type, held: Mapping[Any, Any], make: Callable[[dict[Any, Any]], Any]) -> Opened:
    order = tuple(held)
    try:
        keys = tuple(sorted(order))
    except TypeError:  # keys of several types: in the order in which they are
        keys = order

    def pack(parts: list[Any]) -> Any:
        by_key = dict(zip(keys, parts, strict=True))
        return make(by_key if keys == order else {key: by_key[key] for key in order})

    return Opened(kind, keys, [held[key] for key in keys], keys, pack)
