"""What the demo measures and prints: the work of each run, counted where the model is called, and the table of it."""

import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from batchlib import BatchEnded, BatchStarted, RequestEnded


@dataclass
class Run:
    """One way to embed the texts: what it gave and what it cost. Seconds and numbers of tokens."""

    name: str
    texts: int
    vectors: list[Tensor] = field(default_factory=list)
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    sizes: list[int] = field(default_factory=list)
    tokens: int = 0
    computed: int = 0
    queue_delays: list[float] = field(default_factory=list)

    @property
    def per_cpu_second(self) -> float:
        return self.texts / self.cpu_seconds

    @property
    def waste(self) -> float:
        """Padding's share of the computed tokens."""
        return 1 - self.tokens / self.computed

    def over(self, reference: "Run") -> float:
        """How many times as many texts a CPU-second gave."""
        return self.per_cpu_second / reference.per_cpu_second

    def difference(self, reference: "Run") -> float:
        """The greatest difference of any number in any vector."""
        return float((torch.stack(self.vectors) - torch.stack(reference.vectors)).abs().max())


class Meter:
    """Measures one run after the other: the functions that it is handed to fill in the run of the moment."""

    def __init__(self) -> None:
        self._run = Run("warm-up", 0)
        self._bar = tqdm(disable=True)
        self._runs_expected = self._runs_begun = 0

    def expect(self, runs: int) -> None:
        """For the progress bars: how many runs there will be."""
        self._runs_expected = runs

    def measure(self, name: str, embed_all: Callable[[list[str]], list[Tensor]], texts: list[str]) -> Run:
        run = self._run = Run(name, len(texts))
        self._runs_begun += 1
        title = f"run {self._runs_begun} of {self._runs_expected}: {name:<16}"
        form = "{desc} {percentage:3.0f}% |{bar}| {n_fmt}/{total_fmt} texts, {elapsed}"
        often = 0.2 if sys.stderr.isatty() else 10.0
        width = min(78, shutil.get_terminal_size().columns)
        with tqdm(total=len(texts), desc=title, ncols=width, bar_format=form, mininterval=often) as self._bar:
            start, cpu_start = time.perf_counter(), time.process_time()
            run.vectors = embed_all(texts)
            run.seconds, run.cpu_seconds = time.perf_counter() - start, time.process_time() - cpu_start
        return run

    def count(self, size: int, tokens: int, computed: int) -> None:
        """Called with every batch that the model is given: its texts, their tokens, and with padding."""
        self._run.sizes.append(size)
        self._run.tokens += tokens
        self._run.computed += computed
        self._bar.update(size)

    def hook(self, event: BatchStarted | BatchEnded | RequestEnded) -> None:
        """For `hooks=`: how long the requests of each batch have waited."""
        if isinstance(event, BatchStarted):
            self._run.queue_delays.extend(event.queue_delays)


HEAD = """
                 texts/       texts/ batch size padding queue delay, s   vectors
                  CPU-s ratio second  mean  max   waste     p50    p99 differ by
"""


def table(runs: list[Run]) -> str:
    """The first run is what the others are compared with."""
    return HEAD + "\n".join(_line(run, runs[0]) for run in runs)


def _line(run: Run, reference: Run) -> str:
    p50, p99 = (f"{p:.2f}" for p in np.percentile(run.queue_delays, [50, 99])) if run.queue_delays else "--"
    difference = "-" if run is reference else f"{run.difference(reference):.1e}"
    return (
        f"{run.name:<16} {run.per_cpu_second:6.1f} {run.over(reference):5.2f}"
        f" {run.texts / run.seconds:6.1f} {np.mean(run.sizes):5.1f} {max(run.sizes):4d} {run.waste:7.0%}"
        f" {p50:>7} {p99:>6} {difference:>9}"
    )
