"""`oversize="split"`: cuts the arguments of one large call into rows, and puts its results together again."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from itertools import chain
from operator import getitem
from typing import Any

from ._core._request import Request
from ._core._splitting import SplittingBatcher
from .runtimes._calls import ORDINARY, Ways
from .runtimes._driver import Driver
from .runtimes._wholes import SPLITTING, WholeCall

Join = Callable[[list[Any]], Any]
Prepare = Callable[..., Request]


def ways_to_call(driver: Driver, prepare: Prepare, join: Join | None) -> tuple[Prepare, Ways]:
    """How one batcher's requests are made and sent; all that splitting costs is paid by those who asked for it."""
    if isinstance(driver.core, SplittingBatcher):
        return Splitter(driver, prepare, join or joined).request, SPLITTING
    return prepare, ORDINARY


class Splitter:
    """Makes requests, and a whole of a call over a limit of costs.

    prepare: makes the request of a call. join: makes one result of those of the parts, in their order.
    """

    def __init__(self, driver: Driver, prepare: Prepare, join: Join) -> None:
        self._driver = driver
        self._prepare = prepare
        self._join = join

    def request(self, *call: Any) -> Request:
        """Raises, beside what a single call raises, TypeError for arguments that cannot be cut."""
        request = self._prepare(*call)
        core = self._driver.core
        assert isinstance(core, SplittingBatcher)
        with self._driver.lock:
            rows = core.largest_part(request)
        return request if rows is None else WholeCall(request, _cut(request, rows), self._join)


def _cut(request: Request, rows: int) -> list[tuple[tuple[Any, ...], float]]:
    for place, arg in enumerate(request.args, 1):
        length = _length(arg)
        if length != request.cost:
            has = f"is a {type(arg).__name__}, which has no rows" if length is None else f"has {length} rows"
            raise TypeError(
                f'oversize="split" needs a cost that is the length of every argument: the cost is {request.cost:g}, '
                f"and argument {place} {has}"
            )
    parts: list[tuple[tuple[Any, ...], float]] = []
    for start in range(0, int(request.cost), rows):
        size = min(rows, int(request.cost) - start)
        parts.append((tuple(arg[start : start + size] for arg in request.args), size))
    return parts


def _length(arg: Any) -> int | None:
    """How many rows it has; None for what has none, or cannot be sliced, such as a set."""
    if isinstance(arg, Mapping):
        return None
    try:
        getitem(arg, slice(0))
        return len(arg)
    except (TypeError, LookupError):
        return None


def joined(results: list[Any]) -> Any:
    """Results of one kind in a row: lists, tuples and texts by `+`, arrays and tensors on axis 0."""
    kinds = {type(result) for result in results}
    kind = kinds.pop()
    if not kinds:
        if kind is list or kind is tuple:
            return kind(chain.from_iterable(results))
        if kind is str:
            return "".join(results)
        numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")  # whoever has an array has imported it
        if numpy is not None and issubclass(kind, numpy.ndarray):
            return numpy.concatenate(results, axis=0)
        if torch is not None and issubclass(kind, torch.Tensor):
            return torch.cat(results, dim=0)
    names = ", ".join(sorted(each.__name__ for each in {kind, *kinds}))
    raise TypeError(
        f'oversize="split" puts lists, tuples, texts, arrays and tensors together, not {names}: give join=, a function '
        "that makes the result of a call out of the list of its parts' results"
    )
