"""Rows that own their storage.

A row of an array is a view: a caller who keeps one would keep the whole batch, and two that overlap would share what
either writes. Arrays are known by their look and copied by their own method, so that nothing is imported here.
"""

from __future__ import annotations

from typing import Any

from .._core._execution import Copy


def is_array(value: Any) -> bool:
    """Whether it is an array or tensor with an axis to split (NumPy, torch, jax, cupy)."""
    return hasattr(value, "__dlpack__") and bool(value.shape)


def rows_of(array: Any, copy: Copy = "auto") -> list[Any]:
    """The rows of an array or tensor on axis 0.

    copy: False gives views. Otherwise each row is a copy, and a lone one too: the function may use its memory again.
    """
    rows = list(array.unbind(0) if hasattr(array, "unbind") else array)
    if copy is False or not rows or not hasattr(rows[0], "dtype"):  # an object, of which the array has but a reference
        return rows
    return [row.clone() if hasattr(row, "clone") else row.copy() for row in rows]
