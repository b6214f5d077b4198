"""The mean latency of the default, held against the best that any policy could do, and one batch per tick."""

from __future__ import annotations

import asyncio
import statistics
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from common import echo
from judged import Judged, Workers
from sections import Check

from batchlib import batched
from batchlib.simulation import Affine, Workload, exact_mean_latency, optimal_mean_latency, simulate

LOADS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
PER_ITEM = 0.001  # seconds


@dataclass(frozen=True)
class Cell:
    """A server that takes `PER_ITEM` seconds a request and so many times that for every batch; Poisson arrivals."""

    base: int
    max_batch_size: int
    load: float
    arrivals: int
    seeds: int

    @property
    def model(self) -> Affine:
        return Affine(self.base * PER_ITEM, PER_ITEM)


@dataclass(frozen=True)
class Latencies:
    """Means in seconds."""

    optimum: float  # the least of any policy without foresight
    exact: float  # greedy's, by its Markov chain
    simulated: float  # the core's on its traces
    recursion: float  # greedy's on the same traces

    @property
    def controlled(self) -> float:
        """The simulated mean with greedy on the same traces as its control variate: what chance did to both is out."""
        return self.simulated - self.recursion + self.exact


def measure(cell: Cell) -> Latencies:
    model, size = cell.model, cell.max_batch_size
    rate = cell.load * model.capacity(size)
    simulated, recursion = [], []
    for seed in range(cell.seeds):
        workload = Workload.poisson(rate, cell.arrivals, seed)
        simulated.append(simulate({"max_batch_size": size, "max_waiting": None}, workload, model).mean_latency)
        recursion.append(greedy_mean([arrival.at for arrival in workload], model, size))
    return Latencies(
        optimum=optimal_mean_latency(rate, model.base, model.per_item, size),
        exact=exact_mean_latency(rate, model.base, model.per_item, size),
        simulated=statistics.fmean(simulated),
        recursion=statistics.fmean(recursion),
    )


def greedy_mean(instants: Sequence[float], model: Affine, max_batch_size: int) -> float:
    """Greedy's mean latency on a trace, by its recursion: a batch starts when the last one ends or somebody arrives."""
    free = total = 0.0
    first = 0
    while first < len(instants):
        start = max(free, instants[first])
        end = min(bisect_right(instants, start, first), first + max_batch_size)
        free = start + model.seconds(end - first)
        total += sum([free - instant for instant in instants[first:end]])
        first = end
    return total / len(instants)


def greedy(workers: Workers) -> Judged:
    arrivals, seeds = (1_000, 2) if workers.quick else (20_000, 4)
    rows = [(base, size) for base in (1, 5, 13) for size in (8, 32)]
    cells = [Cell(base, size, load, arrivals, seeds) for base, size in rows for load in LOADS]
    found = iter(workers.each(measure, cells))
    table = Judged(
        "3. Greedy, the default: % of mean latency over the optimum, by load, Poisson arrivals",
        [*(f"{load:g}" for load in LOADS), "noise"],
    )
    for base, size in rows:
        here = {load: next(found) for load in LOADS}
        name = f"a/c = {base}, at most {size}"
        over = {load: 100 * (each.controlled / each.optimum - 1) for load, each in here.items()}
        noise = max(abs(each.simulated / each.exact - 1) for each in here.values())
        table.row(
            name,
            *(f"{excess:.2f}" for excess in over.values()),
            f"{100 * noise:.1f}",
            bound="1 %",
            checks=[
                Check(f"greedy, {name}, worst mean latency over the optimum", max(over.values()), 1.0, "%"),
                Check(f"greedy, {name}, below the optimum", -min(over.values()), 0.001, "%"),
            ],
        )
        for load, each in here.items():
            table.records.append({"base_over_item": base, "max_batch_size": size, "load": load} | vars(each))
    for name, sizes in bursts().items():
        table.row(
            name,
            *(["", "all 8" if set(sizes) == {8} else f"{sizes[:6]}"] + [""] * (len(LOADS) - 1)),
            bound="8",
            checks=[
                Check(f"{name}, smallest batch", min(sizes), 8, "", at_least=True),
                Check(f"{name}, largest batch", max(sizes), 8, ""),
            ],
        )
    table.notes += [
        f"{seeds} traces of {arrivals:,} through the core, corrected by greedy's recursion on the same traces, whose",
        "mean is known exactly. noise: how far the uncorrected mean is off that, in % at the worst load.",
    ]
    return table


def bursts() -> dict[str, list[int]]:
    """Batch sizes of bursts of 8 that come while nothing runs: in virtual time, and as a gather on asyncio."""
    model = Affine(5 * PER_ITEM, PER_ITEM)
    rare = Workload.bursts(8, rate=8, n=800, seed=1)
    apart = Workload([arrival for place, arrival in enumerate(rare) if place // 8 % 2 == 0])
    sizes: list[int] = []

    @batched
    async def measured(items: list[int]) -> list[int]:
        sizes.append(len(items))
        return echo(items)

    async def gather() -> None:
        for _ in range(50):
            await asyncio.gather(*(measured(item) for item in range(8)))

    asyncio.run(gather())
    return {
        "bursts of 8, simulated": [batch.size for batch in simulate({}, apart, model).batches],
        "a gather of 8, asyncio": sizes,
    }
