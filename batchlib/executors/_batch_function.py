"""The decorated function as an executor sees it: how a batch gets into it, and how its result comes apart again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from .._core._execution import Allocate, Collated, Collator, Copy
from .._core._request import Request
from ._outcomes import split


class CollatedFunction:
    """A BatchFunction: a function that takes parallel lists, or what a collation makes of them.

    name: for messages.
    owned: it is a method and gets the instance first.
    collate: makes what the function gets out of each list; None passes the list itself.
    collator: instead of `collate`.
    by_name: batched parameters that have to be given by name, since one that the collator fills stands before them.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        name: str = "the function",
        is_async: bool = False,
        owned: bool = False,
        collate: Callable[[list[Any]], Any] | None = None,
        collator: Collator | None = None,
        by_name: Sequence[str] = (),
    ) -> None:
        self.function = function
        self.name = name
        self.is_async = is_async
        self.collator = collator
        self._owned = owned
        self._collate = collate
        self._by_name = by_name

    @property
    def plain(self) -> bool:
        """Whether it gets its lists and nothing else."""
        return self._collate is None and self.collator is None and not self._owned

    def collate(
        self, requests: Sequence[Request], *, rows: int | None = None, allocate: Allocate | None = None
    ) -> Collated:
        if len(requests[0].args) == 1:
            columns: list[Any] = [[request.args[0] for request in requests]]
        else:
            columns = [list(column) for column in zip(*[request.args for request in requests], strict=True)]
        size = len(requests)
        if self.collator is not None:
            return self.collator.collate(columns, rows=rows, allocate=allocate)
        fillers = 0 if rows is None else rows - size
        if fillers:
            columns = [column + [column[0]] * fillers for column in columns]
        if self._collate is not None:
            columns = [self._collate(column) for column in columns]
        return Collated(tuple(columns), {}, size, size + fillers)

    def call(self, requests: Sequence[Request], collated: Collated) -> Any:
        first = requests[0]
        args = collated.args
        named: dict[str, Any] = {**(first.settings or {}), **collated.extras}
        if self._by_name:
            front = len(args) - len(self._by_name)
            named.update(zip(self._by_name, args[front:], strict=True))
            args = args[:front]
        return self.function(first.owner, *args, **named) if self._owned else self.function(*args, **named)

    def uncollate(self, result: Any, collated: Collated, copy: Copy = "auto") -> Sequence[Any]:
        if self.collator is not None:
            return self.collator.uncollate(result, collated, copy)
        return split(result, collated.rows, copy)[: collated.size]
