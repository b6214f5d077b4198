"""The cost of an item of several lengths, each of which is padded by itself."""

from __future__ import annotations

from collections.abc import Iterable


class Lengths(float):
    """Their sum, which knows what it is the sum of: a padded batch has the longest of each."""

    __slots__ = ("each",)

    each: tuple[float, ...]

    def __new__(cls, each: Iterable[float]) -> Lengths:
        lengths = tuple(each)
        total = super().__new__(cls, sum(lengths))
        total.each = lengths
        return total

    def __reduce__(self) -> tuple[type[Lengths], tuple[tuple[float, ...]]]:
        return Lengths, (self.each,)


def longest(one: float, other: float) -> float:
    """The cost of a row that holds either of two items. Those of one group have equally many lengths."""
    if isinstance(one, Lengths) and isinstance(other, Lengths):
        return Lengths(map(max, one.each, other.each))
    return max(one, other)
