"""Whether two outcomes of one item are the same but for rounding, and where they are not."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import torch

from ..collation._structure import flatten

Kind = Literal["values", "shape", "type", "error"]

USUAL_ATOL = 1e-5


class Unlike(NamedTuple):
    """One place in which an outcome differs from what the item gets alone."""

    path: str
    kind: Kind
    amount: float
    """The largest absolute difference; infinite where nothing can be subtracted."""
    what: str
    over: float = math.inf
    """How many times the tolerance that is, at its worst element."""
    grains: float = math.inf
    """How many times the rounding of one number that is."""


@dataclass(frozen=True, slots=True)
class Tolerance:
    """How far apart numbers may be: `atol + rtol * |alone|`.

    atol: None for 1e-5, or where results are small a thousandth of their usual size: probabilities of many classes
        would otherwise be equal whatever they are.
    eps: of the coarsest number format that the function computes in.
    widened: whether four times its rounding is always allowed.
    """

    rtol: float = 1e-4
    atol: float | None = None
    eps: float = 0.0
    widened: bool = True

    @property
    def relative(self) -> float:
        return max(self.rtol, 4 * self.eps * self.widened)

    def allowed(self, size: torch.Tensor) -> torch.Tensor:
        """How far from each number of an outcome, of which this is the size, another may be."""
        usual = _usual(size)
        atol = min(USUAL_ATOL, 1e-3 * usual or USUAL_ATOL) if self.atol is None else self.atol
        return max(atol, 4 * self.eps * self.widened * usual) + self.relative * size

    def grain(self, size: torch.Tensor, eps: float) -> torch.Tensor:
        """What rounding each of them once can come to, at most. eps: of their format; 0: whole numbers never round."""
        return max(self.eps, eps) * size.clamp_min(_usual(size)) if eps else torch.zeros_like(size)


def _usual(size: torch.Tensor) -> float:
    counted = size[(size > 0) & (size < 1e30)]  # without zeros and the huge fills of masks
    return float(counted.median()) if counted.numel() else 0.0


def unlike(alone: Any, here: Any, tolerance: Tolerance) -> list[Unlike]:
    """Where `here` differs from `alone`; empty if nowhere.

    Raises TypeError for values that have no equality of their own.
    """
    if isinstance(alone, BaseException) or isinstance(here, BaseException):
        if type(alone) is type(here) and str(alone) == str(here):
            return []
        return [Unlike("", "error", math.inf, f"{_said(alone)} alone, {_said(here)} here")]
    return list(_values("", alone, here, tolerance))


def coarsest(value: Any) -> float:
    """The `eps` of the coarsest number format among the leaves of a value; 0 where none rounds."""
    formats = [_eps(leaf.dtype) for leaf in flatten(value, lists=True)[0] if hasattr(leaf, "dtype")]
    return max(formats, default=0.0)


def _values(path: str, alone: Any, here: Any, tolerance: Tolerance) -> Iterator[Unlike]:
    (left, structure), (right, other) = flatten(alone, lists=True), flatten(here, lists=True)
    if structure != other:
        paths = f"{_places(structure.paths)} alone, {_places(other.paths)} here"
        yield Unlike(path, "type", math.inf, paths)
        return
    for step, one, another in zip(structure.paths, left, right, strict=True):
        place = f"{path}.{step}" if path and step and not step.startswith("[") else path + step
        yield from _leaves(place, one, another, tolerance)


def _leaves(path: str, alone: Any, here: Any, tolerance: Tolerance) -> Iterator[Unlike]:
    if alone is here:
        return
    one, another = _numbers(alone), _numbers(here)
    if one is not None and another is not None:
        yield from _tensors(path, one, another, tolerance)
        return
    alike = type(alone) is type(here)
    if alike and isinstance(alone, list | tuple) and len(alone) == len(here):  # of labels and scores, say
        for index, (left, right) in enumerate(zip(alone, here, strict=True)):
            yield from _values(f"{path}[{index}]", left, right, tolerance)
        return
    if alike and not _has_equality(alone):
        name = type(alone).__name__
        raise TypeError(
            f"the result{f' at {path}' if path else ''} is a {name}, which cannot be compared: give {name} an "
            "__eq__, or use register_structure to say what it holds"
        )
    if not alike or alone != here:
        said = f"{_said(alone)} alone, {_said(here)} here"
        yield Unlike(path, "values" if alike else "type", math.inf, said)


def _has_equality(value: Any) -> bool:
    comparison: Any = type(value).__eq__
    return comparison is not object.__eq__


def _tensors(path: str, alone: torch.Tensor, here: torch.Tensor, tolerance: Tolerance) -> Iterator[Unlike]:
    if alone.shape != here.shape:
        what = f"shape {tuple(alone.shape)} alone, {tuple(here.shape)} here"
        yield Unlike(path, "shape", math.inf, what)
        return
    if alone.dtype != here.dtype:
        yield Unlike(path, "type", math.inf, f"{alone.dtype} alone, {here.dtype} here")
        return
    wide = torch.complex128 if alone.dtype.is_complex else torch.float64
    one, another, size = alone.to(wide), here.to(wide), alone.to(wide).abs()
    same = (one == another) | (one.isnan() & another.isnan())
    apart = (one - another).abs().nan_to_num(math.inf, math.inf)
    # An infinity that is not met by the same one is a difference, and so is every other whole number.
    rounds = alone.dtype.is_floating_point or alone.dtype.is_complex
    allowed = tolerance.allowed(size).nan_to_num(0.0, 0.0) if rounds else torch.zeros_like(apart)
    beyond = (apart > allowed) & ~same
    count, numbers = int(beyond.sum()), beyond.numel()
    if count:
        amount = float(apart[beyond].max())
        over = float((apart / allowed)[beyond].max())
        grains = float((apart / tolerance.grain(size, _eps(alone.dtype)))[beyond].nan_to_num(math.inf).max())
        where = f" in {count} of {numbers} numbers" if numbers > 1 else ""
        yield Unlike(path, "values", amount, f"differs by up to {amount:.3g}{where}", over, grains)


def _numbers(leaf: Any) -> torch.Tensor | None:
    """A leaf as a tensor on the CPU; None if it is not made of numbers."""
    if isinstance(leaf, torch.Tensor):
        return leaf.detach().to_dense().cpu() if leaf.layout is not torch.strided else leaf.detach().cpu()
    if isinstance(leaf, str | bytes) or not isinstance(
        leaf, np.ndarray | np.generic | bool | int | float | complex | list
    ):
        return None
    try:
        array = np.array(leaf)
    except ValueError:  # a ragged list
        return None
    return torch.from_numpy(array) if array.dtype.kind in "biufc" else None


def _eps(dtype: Any) -> float:
    """What rounding in a number format comes to, relative to the number."""
    if isinstance(dtype, torch.dtype):
        return torch.finfo(dtype).eps if dtype.is_floating_point or dtype.is_complex else 0.0
    return float(np.finfo(dtype).eps) if getattr(dtype, "kind", "") in ("f", "c") else 0.0


def _said(value: Any) -> str:
    if isinstance(value, BaseException):
        return f"it raises {type(value).__name__}: {_short(str(value))}"
    if isinstance(value, torch.Tensor | np.ndarray):
        return f"{type(value).__name__} of shape {tuple(value.shape)}"
    return _short(repr(value))


def _places(paths: tuple[str, ...]) -> str:
    return "one value" if paths == ("",) else f"values at {_short(', '.join(paths))}"


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 160 else f"{line[:157]}..."
