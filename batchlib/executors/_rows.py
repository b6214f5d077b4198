"""Rows that own their storage.

A row of an array is a view: a caller who keeps one would keep the whole batch, and two that overlap would share what
either writes. Arrays are known by their look and copied by their own method, so that nothing is imported here.
"""

from __future__ import annotations

import math
from typing import Any

from .._core._execution import Copy


def is_array(value: Any) -> bool:
    """Whether it is an array or tensor with an axis to split (NumPy, torch, jax, cupy)."""
    return hasattr(value, "__dlpack__") and bool(value.shape)


def rows_of(array: Any, copy: Copy = "auto") -> list[Any]:
    """The rows of an array or tensor on axis 0.

    copy: False gives views; True copies each row; "auto" copies unless there is one row, which then keeps nothing else
        alive. A tensor made in inference mode is copied as well: outside of it nobody could write to it or train with
        it.
    """
    rows = list(array.unbind(0) if hasattr(array, "unbind") else array)
    if copy is False or not rows or not hasattr(rows[0], "__dlpack__"):  # what is no array is no view either
        return rows
    if copy == "auto" and len(rows) == 1 and _alone(rows[0]):
        return rows
    return [row.clone() if hasattr(row, "clone") else row.copy() for row in rows]


def _alone(row: Any) -> bool:
    """Whether it holds at least half of the memory that it keeps alive."""
    if hasattr(row, "untyped_storage"):
        kept: int = row.untyped_storage().nbytes()
        return not row.is_inference() and kept <= 2 * row.nbytes
    base = getattr(row, "base", None)
    return base is None or getattr(base, "nbytes", math.inf) <= 2 * row.nbytes
