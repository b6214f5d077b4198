"""What the sections of policies.py share: tables whose rows carry a verdict, and cells spread over processes."""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self, TypeVar

from sections import Check, Table

Given = TypeVar("Given")
Found = TypeVar("Found")


@dataclass
class Judged(Table):
    """A table with a bound and a verdict at the end of each row, and the figures behind it as records for plots."""

    records: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])

    def __post_init__(self) -> None:
        self.columns = [*self.columns, "bound", "verdict"]

    def row(self, label: str, *figures: str, checks: Iterable[Check] = (), bound: str = "") -> None:
        """One row; without checks it stands there for comparison."""
        judged = list(checks)
        self.checks += judged
        verdict = "" if not judged else "kept" if all(check.kept for check in judged) else "MISSED"
        self.rows.append([label, *figures, bound, verdict])


class Workers:
    """Runs the cells of a section, each of which depends on its arguments alone, on all processors.

    What measures the machine itself, and not the policies, must not use them.
    """

    def __init__(self, quick: bool) -> None:
        self.quick = quick
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # there is a process for every processor already
        self._pool = ProcessPoolExecutor(os.cpu_count(), multiprocessing.get_context("spawn"))

    def each(self, function: Callable[[Given], Found], cells: Iterable[Given]) -> list[Found]:
        """What the function gives for each cell, in their order."""
        waiting = [self._pool.submit(function, cell) for cell in cells]
        found: list[Found] = []
        for number, future in enumerate(waiting, 1):
            found.append(future.result())
            if sys.stderr.isatty():
                print(f"\r{number} of {len(waiting)} cells ", end="", file=sys.stderr, flush=True)
        return found

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown(cancel_futures=True)
