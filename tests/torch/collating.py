"""Collators by hand: what a batcher does with the items of several calls, and a function in the place of a model."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from hypothesis import strategies as st

from batchlib.protocols import Allocate, Collated
from batchlib.torch.collation._structure import flatten


class Pair(NamedTuple):
    left: Any
    right: Any


@dataclasses.dataclass
class Page:
    pixels: Any
    label: Any = None


def started(collation: Any, *taken: str) -> Any:
    return collation.start(taken or tuple(collation.names), "f")


def arena(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Memory that holds what was there before, as a device's staging memory does."""
    memory = torch.full((int(np.prod(shape)) * dtype.itemsize,), 0x5A, dtype=torch.uint8)
    return memory.view(dtype).view(shape)


def accepted(collator: Any, items: Sequence[Any]) -> list[Any]:
    """What is queued for calls with one item each, all of one key."""
    calls = [collator.accept((item,)) for item in items]
    assert len({call.key for call in calls}) == 1
    return [call.args[0] for call in calls]


def collated(
    collator: Any, items: Sequence[Any], rows: int | None = None, allocate: Allocate | None = None
) -> Collated:
    return collator.collate([accepted(collator, items)], rows=rows, allocate=allocate)


def outcomes(
    collator: Any,
    items: Sequence[Any],
    function: Callable[..., Any] = lambda value, **extras: value,
    *,
    rows: int | None = None,
    allocate: Allocate | None = None,
    copy: Any = "auto",
) -> list[Any]:
    batch = collated(collator, items, rows, allocate)
    return list(collator.uncollate(function(*batch.args, **batch.extras), batch, copy))


def same(one: Any, other: Any) -> bool:
    """Equal in value, type, dtype and shape, all the way down; NaN equals NaN."""
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        alike = (one.dtype, one.device, one.shape) == (other.dtype, other.device, other.shape)
        return alike and bool(torch.equal(bits(one), bits(other)))
    if isinstance(one, np.ndarray | np.generic):
        return one.dtype == other.dtype and np.array_equal(one, other, equal_nan=one.dtype.kind == "f")
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, tuple | list):
        return len(one) == len(other) and all(map(same, one, other))
    if dataclasses.is_dataclass(one):
        return same(vars(one), vars(other))
    return one == other


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor.detach()).view(-1).view(torch.uint8)


# Items of one kind: what they are but for their length, then several of them.

LACKED_BY_NUMPY = [torch.bfloat16, torch.float8_e4m3fn]
DTYPES = [
    *(torch.int64, torch.float32, torch.bool, torch.uint8, torch.uint16, torch.float16, torch.float64, torch.complex64),
    *LACKED_BY_NUMPY,
]
LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "dense": lambda tensor: tensor,
    "every second": lambda tensor: torch.stack([tensor, tensor], -1)[..., 0],
    "turned": lambda tensor: tensor.T.contiguous().T if tensor.ndim == 2 else tensor,
    "repeated": lambda tensor: tensor[..., :1].expand(tensor.shape) if tensor.shape[-1:].numel() else tensor,
    "inference": torch.inference_mode()(torch.clone),
    "in a graph": lambda tensor: tensor.requires_grad_(tensor.is_floating_point()),
}


def tensors(shape: tuple[int, ...], dtype: torch.dtype, layout: str = "dense") -> st.SearchStrategy[torch.Tensor]:
    def made(seed: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(seed)
        tensor = torch.randint(0, 100, shape, generator=generator).to(dtype)
        if dtype is torch.float32 and tensor.numel():
            tensor.view(-1)[seed % tensor.numel()] = float("nan")
        return LAYOUTS[layout](tensor)

    return st.integers(0, 2**20).map(made)


def arrays(shape: tuple[int, ...], dtype: str) -> st.SearchStrategy[np.ndarray]:
    return st.integers(0, 2**20).map(lambda seed: np.random.default_rng(seed).integers(0, 100, shape).astype(dtype))


@st.composite
def ragged_items(draw: st.DrawFn, dim: int) -> list[Any]:
    """Items that one batch can hold: equal but for their length on `dim`."""
    dtype = draw(st.sampled_from(DTYPES))
    before = tuple(draw(st.lists(st.integers(0, 3), min_size=dim, max_size=dim)))
    after = tuple(draw(st.lists(st.integers(1, 3), max_size=2)))
    flat = draw(st.sampled_from([(), (2,)])) if dim >= 2 else ()
    lengths = draw(st.lists(st.integers(0, 6), min_size=1, max_size=5))
    layout = draw(st.sampled_from([*LAYOUTS]))
    nesting = draw(st.sampled_from(["bare", "array", "tuple", "dict", "pair", "page"]))
    items: list[Any] = []
    for length in lengths:
        main = draw(tensors((*before, length, *after), dtype, layout))
        beside = draw(tensors((*before, length), torch.int64))
        fixed = draw(tensors(flat, torch.float32))
        items.append(
            {
                "bare": main,
                "array": main if dtype in LACKED_BY_NUMPY else main.detach().numpy(),
                "tuple": (main, (fixed, beside)),
                "dict": {"main": main, "fixed": fixed, "deep": {"beside": beside}},
                "pair": Pair(main, fixed),
                "page": Page(main, beside),
            }[nesting]
        )
    return items


def ragged_paths(item: Any) -> list[str]:
    """Where the leaves are that differ in length from item to item."""
    return [path for path in flatten(item)[1].paths if path not in ("[1][0]", "fixed", "right")]


def leaf_at(value: Any, path: str) -> Any:
    leaves, structure = flatten(value)
    return leaves[structure.paths.index(path)]
