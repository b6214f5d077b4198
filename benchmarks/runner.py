"""Runs measurements, each in a process of its own, in shuffled rounds, and keeps what they gave."""

from __future__ import annotations

import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from adapters import ADAPTERS

MEASURE = Path(__file__).with_name("measure.py")
LIMIT = 180.0  # seconds; no measurement takes a quarter of it


@dataclass(frozen=True)
class Cell:
    """One measurement: a workload on an adapter. Equal cells are repetitions."""

    workload: str
    adapter: str
    arguments: tuple[tuple[str, object], ...]


def cell(workload: str, adapter: str, **arguments: object) -> Cell:
    return Cell(workload, adapter, tuple(sorted(arguments.items())))


@dataclass
class Samples:
    """What each cell gave in each of its rounds, and why some gave nothing."""

    values: dict[Cell, list[dict[str, float]]] = field(default_factory=dict[Cell, list[dict[str, float]]])
    problems: dict[Cell, str] = field(default_factory=dict[Cell, str])

    def all(self, of: Cell, name: str) -> list[float]:
        return [] if of in self.problems else [sample[name] for sample in self.values.get(of, [])]

    def median(self, of: Cell, name: str) -> float | None:
        found = self.all(of, name)
        return statistics.median(found) if found else None

    def show(self, of: Cell, name: str, form: Callable[[float], str]) -> str:
        value = self.median(of, name)
        return self.problems.get(of, "not run") if value is None else form(value)


class Runner:
    """Starts the processes, one at a time, under the given interpreter."""

    def __init__(self, python: str, quick: bool) -> None:
        self.python, self.quick, self.done = python, quick, 0
        self.installed = json.loads(self._output([str(MEASURE)]))

    def measure(self, rounds: dict[Cell, int]) -> Samples:
        """Every cell as often as said, the rounds interleaved: a slow minute of the machine meets all rows alike."""
        samples, shuffler = Samples(), random.Random(5)
        for number in range(max(rounds.values())):
            turn = [each for each, wanted in rounds.items() if number < wanted]
            shuffler.shuffle(turn)
            for each in turn:
                self._measure(each, number, samples)
        return samples

    def _measure(self, each: Cell, number: int, samples: Samples) -> None:
        distribution = ADAPTERS[each.adapter].distribution
        if distribution is not None and distribution not in self.installed:
            samples.problems[each] = "not installed"
        if each in samples.problems:
            return
        given = {"workload": each.workload, "adapter_name": each.adapter, **dict(each.arguments)}
        if "seed" in given:
            given["seed"] = number  # the same arrivals for all rows of a round
        try:
            output = self._output([str(MEASURE), json.dumps(given)])
            samples.values.setdefault(each, []).append(json.loads(output))
        except (subprocess.SubprocessError, json.JSONDecodeError) as error:
            samples.problems[each] = "failed"
            said = str(getattr(error, "stderr", None) or error).strip().splitlines()
            print(f"failed: {each.adapter}, {given}: {said[-1] if said else error!r}", file=sys.stderr)

    def import_seconds(self, statements: dict[str, str], rounds: int) -> dict[str, float]:
        """The median that each statement takes in a fresh interpreter, in turns; the first only compiles."""
        found: dict[str, list[float]] = {name: [] for name in statements}
        with tempfile.TemporaryDirectory() as cache:
            environment = {**os.environ, "PYTHONPYCACHEPREFIX": cache}
            environment.pop("PYTHONDONTWRITEBYTECODE", None)
            for _ in range(rounds + 1):
                for name, statement in statements.items():
                    code = f"import time; t = time.perf_counter(); {statement}; print(time.perf_counter() - t)"
                    found[name].append(float(self._output(["-c", code], environment)))
        return {name: statistics.median(values[1:]) for name, values in found.items()}

    def _output(self, arguments: list[str], environment: dict[str, str] | None = None) -> str:
        self.done += 1
        if sys.stderr.isatty():
            print(f"\r{self.done} processes ", end="", file=sys.stderr, flush=True)
        ended = subprocess.run(
            [self.python, *arguments],
            check=True,
            capture_output=True,
            text=True,
            timeout=LIMIT,
            cwd=MEASURE.parent,
            env=environment,
        )
        lines = ended.stdout.strip().splitlines()
        return lines[-1] if lines else ""
