"""Outcomes that a function gave in a list, as callers get them: with tensors and arrays that nobody else has.

What is beside a tensor in its memory may be somebody else's, the function may keep it, and it may have given it to two
callers. A copy is safe and slow, so a tensor that is alone in its memory is given as it is. Whether it is alone can be
counted once all is forgotten that the batch knew it by; where counting finds one too many, a copy is made for nothing.
"""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..._core._execution import Copy
from ..collation._structure import ATOMS, Structure, flatten, holds_rows
from ..device._arena import holders, is_plain

_one = [object()]
_ALONE = sys.getrefcount(_one[0])  # known to one list, as this interpreter counts
_ITS_OWN = holders(torch.empty(1, device="cpu"))  # memory that only its tensor has; no other is, if torch cannot tell


class _Opened(NamedTuple):
    leaves: list[Any]
    structure: Structure


def owned(outcomes: list[Any], copy: Copy) -> list[Any]:
    """The same list, with what callers may have in it. Nothing else of the batch may know by now what it held.

    copy: True copies what is alone in its memory too.
    """
    for index in range(len(outcomes)):  # without a name for each: that would be counted
        outcomes[index] = _opened(outcomes[index])
    _own(outcomes, copy)
    for index, outcome in enumerate(outcomes):
        if type(outcome) is _Opened:
            _own(outcome.leaves, copy)
            outcomes[index] = outcome.structure.rebuild(outcome.leaves)
    return outcomes


def _opened(outcome: Any) -> Any:
    """What holds tensors or arrays as `_Opened`, other things as they are."""
    if type(outcome) is Tensor or isinstance(outcome, ATOMS):
        return outcome
    if isinstance(outcome, list) and all([isinstance(each, ATOMS) for each in outcome]):
        return outcome  # perhaps very many of them
    leaves, structure = flatten(outcome, lists=True)
    return _Opened(leaves, structure) if any([holds_rows(leaf) for leaf in leaves]) else outcome


def _own(held: list[Any], copy: Copy) -> None:
    for index in range(len(held)):
        if copy == "auto" and type(held[index]) is Tensor and _is_alone(held, index):
            continue
        if isinstance(held[index], Tensor):
            held[index] = held[index].clone()
        elif isinstance(held[index], np.ndarray):  # who has its memory beside it is not known
            held[index] = held[index].copy()


def _is_alone(held: list[Any], index: int) -> bool:
    """Whether a tensor fills its memory, and nothing but this list knows the one or the other."""
    if sys.getrefcount(held[index]) > _ALONE:
        return False
    tensor = held[index]
    if not is_plain(tensor) or tensor.is_inference():
        return False
    storage = tensor.untyped_storage()
    if storage.nbytes() > tensor.nbytes or not storage.resizable():  # what an array has, too, is of one size
        return False
    del storage  # which would be counted
    return holders(tensor) == _ITS_OWN
