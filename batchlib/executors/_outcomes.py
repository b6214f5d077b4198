"""From what a batch function gave back to one outcome per request, or an error that says what was wrong with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

from .._core._execution import Copy
from ..errors import BatchContractError
from ._rows import is_array, rows_of

NEVER = (str, bytes, bytearray, memoryview, Mapping, AbstractSet)


def split(result: Any, size: int, copy: Copy = "auto") -> Sequence[Any]:
    """One outcome per request, in order.

    result: a list, tuple or other ordered sequence, or an array or tensor (numpy, torch, jax, cupy), split on axis 0.
    size: how many outcomes are needed.
    copy: whether the rows of an array or tensor are copies; "auto" lets no row keep a whole batch alive. What is in a
        list is given as it is.

    Raises BatchContractError for anything else, whatever its length: a mapping with as many keys as there are items
    would pass a check of the length and give every caller nonsense.
    """
    if type(result) is list or type(result) is tuple:
        rows: Sequence[Any] = result
    elif isinstance(result, NEVER) or hasattr(result, "_fields"):
        raise BatchContractError(_message(f"a {type(result).__name__}", size))
    elif is_array(result):
        rows = rows_of(result, copy)
    elif isinstance(result, Sequence):
        rows = list(result)  # here, where what a foreign class raises is still the function's own failure
    else:
        raise BatchContractError(_message(f"a {type(result).__name__}", size))
    if len(rows) != size:
        raise BatchContractError(_message(f"a {type(result).__name__} of {len(rows)}", size))
    return rows


def _message(actual: str, size: int) -> str:
    return (
        f"the function must give back one outcome per item, in order: a list, tuple, array or tensor of {size}; "
        f"it gave {actual}"
    )
