"""What the benchmarks with verdicts share: tables whose rows carry one, the command, cells spread over processes."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from sections import Check, Table

Given = TypeVar("Given")
Found = TypeVar("Found")
Room = TypeVar("Room")


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

    def as_json(self) -> dict[str, object]:
        return {**super().as_json(), "records": self.records}


def render(table: Table) -> str:
    lines = [["", *table.columns], *table.rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    text = [table.title]
    for line in lines:
        cells = (value.rjust(width) for value, width in zip(line[1:], widths[1:], strict=True))
        text.append("   " + "   ".join([line[0].ljust(widths[0]), *cells]).rstrip())
    return "\n".join([*text, *(f"   {note}" for note in table.notes)])


def options(description: str | None) -> argparse.ArgumentParser:
    """What every command understands."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help="under a minute: fewer rows and repetitions, same bounds")
    parser.add_argument("--json", metavar="FILE", help="write the tables and the figures behind them there too")
    parser.add_argument("--only", metavar="N,N", help="only these sections, by number")
    return parser


def report(given: argparse.Namespace, sections: Sequence[Callable[[Room], Table]], room: Room, **about: object) -> int:
    """Runs the sections that the command line asks for; the exit status. about: for the JSON, beside the tables."""
    numbers = [int(number) for number in given.only.split(",")] if given.only else range(1, len(sections) + 1)
    start = time.monotonic()
    tables: list[Table] = []
    for number in numbers:
        began = time.monotonic()
        tables.append(sections[number - 1](room))
        print(f"{'':24}\r" if sys.stderr.isatty() else "", render(tables[-1]), sep="\n", flush=True)
        print(f"   {time.monotonic() - began:.0f} s", flush=True)
    checks = [check for table in tables for check in table.checks]
    missed = [check for check in checks if not check.kept]
    print(f"\n{len(checks) - len(missed)} of {len(checks)} bounds kept", end=" ")
    print(f"in {time.monotonic() - start:.0f} s, load {os.getloadavg()[0]:.1f} at the end")
    for check in missed:
        print(f"MISSED  {check}")
    if given.json:
        figures = {**about, "quick": given.quick, "tables": [table.as_json() for table in tables]}
        Path(given.json).write_text(json.dumps(figures, indent=1) + "\n")
    return 1 if missed else 0


def command(
    description: str | None,
    sections: Sequence[Callable[[Room], Judged]],
    room: Callable[[bool], AbstractContextManager[Room]],
) -> int:
    """The whole of a command whose sections share the room that `room(quick)` gives; the exit status."""
    given = options(description).parse_args()
    with room(given.quick) as shared:
        return report(given, sections, shared)


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
