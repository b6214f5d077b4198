"""A list that stays sorted under steady change, for orders that are not the order of arrival."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from itertools import chain, islice
from typing import Any, Generic, TypeVar

E = TypeVar("E", bound=tuple[Any, ...])

_FULL = 512  # entries of a chunk, at most: moving half of them costs less than the search for the place


class Sorted(Generic[E]):
    """Entries that compare, can be hashed and are all different, smallest first.

    Operations: add, remove O(log n) and a move of at most _FULL pointers; first O(1); remove the first k O(k);
    iterate at C speed. A list of chunks, each sorted, none empty.

    Goals: the entries in order without taking them out, and nothing stale that iteration would have to skip, so the
    first few cost the same whatever waits behind them and whoever has left.
    """

    __slots__ = ("_chunks", "_last")

    def __init__(self) -> None:
        self._chunks: list[list[E]] = []
        self._last: list[E] = []  # of each chunk, for the search

    def __bool__(self) -> bool:
        return bool(self._chunks)

    def __iter__(self) -> Iterator[E]:
        return chain.from_iterable(self._chunks)

    def since(self, entry: tuple[Any, ...]) -> Iterator[E]:
        """Those that are not smaller; the first is found in O(log n)."""
        place = bisect_left(self._last, entry)
        if place == len(self._last):
            return iter(())
        chunk = self._chunks[place]
        following = self._chunks[place + 1 :] if len(self._chunks) > place + 1 else []
        return chain(islice(chunk, bisect_left(chunk, entry), None), chain.from_iterable(following))

    def first(self) -> E:
        """The smallest entry; IndexError if there is none."""
        return self._chunks[0][0]

    def take_first(self) -> E:
        chunk = self._chunks[0]
        entry = chunk.pop(0)
        if not chunk:
            self._tidy(0)
        return entry

    def add(self, entry: E) -> None:
        place = bisect_left(self._last, entry)
        if place < len(self._last):
            chunk = self._chunks[place]
            insort(chunk, entry)
        elif place:
            place -= 1
            chunk = self._chunks[place]
            chunk.append(entry)
            self._last[place] = entry
        else:
            self._chunks.append([entry])
            self._last.append(entry)
            return
        if len(chunk) > _FULL:
            half = _FULL // 2
            self._chunks[place : place + 1] = chunk[:half], chunk[half:]
            self._last.insert(place, chunk[half - 1])

    def remove(self, entry: E) -> None:
        """KeyError if it is not there."""
        place = bisect_left(self._last, entry)
        chunk = self._chunks[place] if place < len(self._last) else []
        inside = bisect_left(chunk, entry)
        if inside == len(chunk) or chunk[inside] != entry:
            raise KeyError(entry)
        del chunk[inside]
        self._tidy(place)

    def remove_all(self, entries: list[E]) -> None:
        """Removes several, for little more than one if they are near each other, as who leaves in a batch mostly is."""
        if not entries:
            return
        size, place = len(entries), min(bisect_left(self._last, entries[0]), len(self._last) - 1)
        chunk = self._chunks[place]
        begin = bisect_left(chunk, entries[0])
        near = chunk[begin : begin + 2 * size]
        if near[:size] == entries:
            kept = near[size:]
        else:
            gone = set(entries)
            kept = [entry for entry in near if entry not in gone]
        if len(kept) + size > len(near):
            for entry in entries:
                self.remove(entry)
            return
        chunk[begin : begin + len(near)] = kept
        self._tidy(place)

    def _tidy(self, place: int) -> None:
        """Something has left the chunk. The search could do without the last, but it would keep alive what has left."""
        if chunk := self._chunks[place]:
            self._last[place] = chunk[-1]
        else:
            del self._chunks[place], self._last[place]
