"""The outcomes of a batch that ran in several parts: what one part raises is not the others' business."""

from __future__ import annotations

from typing import Any

from ._bisect import Range
from ._errors import failures


class InParts(list[Any]):
    """One outcome per request, in order; each request of a part that failed has an error object of its own.

    failed: what each part raised that failed as a whole, by its range. Culprits may be searched for there.
    """

    def __init__(self) -> None:
        super().__init__()
        self.failed: dict[Range, BaseException] = {}

    def fail(self, error: BaseException, size: int) -> None:
        """The next part, of so many requests, raised this."""
        self.failed[len(self), len(self) + size] = error
        self += failures(error, size)
