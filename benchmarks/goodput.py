"""Goodput, the requests completed by their deadlines, as a share of what a schedule that knows the future completes."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from judged import Judged, Workers
from sections import Check

from batchlib.policies import DeadlineAware, DeadlineFeasible, EarliestDeadline
from batchlib.protocols import Batch
from batchlib.simulation import Affine, ExecutorModel, Simulation, Workload, clairvoyant_goodput, simulate

SIZE = 32
REGIMES = {
    "overhead": Affine(0.001887, 0.0001438),
    "balanced": Affine(0.005, 0.001),
    "compute": Affine(0.001, 0.001),
}
TARGETS = (1.2, 2.0)  # times what a full batch takes
LOADS = (0.3, 0.5, 0.7, 0.9, 1.0, 1.1, 1.25, 1.5)
POISSON, ON_OFF, BURSTS = "Poisson", "on-off", "bursts of 8"
SPELL = 10  # full batches: how long the busy spells of on-off arrivals are in the mean, and the quiet ones
TRACES = {POISSON: 6, ON_OFF: 20, BURSTS: 6}  # of a cell with stragglers: how many it meets when it matters is chance
FACTOR = 5.0  # how many times as long stragglers and slow spells take
AWARE, LEARNED = "DeadlineAware", "DeadlineAware, learned"
COMPARED = (AWARE, "DeadlineFeasible", "MaxWaiting", "EarliestDeadline", "Fifo")


@dataclass(frozen=True)
class Cell:
    regime: str
    target: float
    arrivals: str
    load: float
    count: int
    seed: int = 1

    @property
    def model(self) -> Affine:
        return REGIMES[self.regime]

    @property
    def timeout(self) -> float:
        return self.target * self.model.seconds(SIZE)

    @property
    def bound(self) -> float:
        """% of the optimum."""
        return 98.0 if self.arrivals == POISSON else 97.0 if self.target == 2.0 else 95.0

    @property
    def name(self) -> str:
        return f"{self.regime}, {self.target:g}x, {self.arrivals}, load {self.load:g}"

    def workload(self) -> Workload:
        rate = self.load * self.model.capacity(SIZE)
        if self.arrivals == POISSON:
            return Workload.poisson(rate, self.count, self.seed)
        if self.arrivals == BURSTS:
            return Workload.bursts(8, rate, self.count, self.seed)
        spell = SPELL * self.model.seconds(SIZE)
        return Workload.on_off(rate, self.count, self.seed, on=spell, off=spell)

    def options(self, policy: str) -> dict[str, Any]:
        """All have the same deadline. `max_waiting` is what still is in time behind full batches."""
        told = self.model.seconds
        full_batches = max(1, int(self.target) - 1)
        own: Mapping[str, Mapping[str, Any]] = {
            AWARE: {"dispatch": DeadlineAware(execution_time=told), "ordering": EarliestDeadline()},
            LEARNED: {"dispatch": DeadlineAware(), "ordering": EarliestDeadline()},
            "DeadlineFeasible": {"admission": DeadlineFeasible(execution_time=told)},
            "MaxWaiting": {"max_waiting": SIZE * full_batches, "overflow": "reject"},
            "EarliestDeadline": {"ordering": EarliestDeadline()},
            "Fifo": {},
        }
        return {"max_batch_size": SIZE, "timeout": self.timeout, **own[policy]}

    def simulate(self, policy: str, model: ExecutorModel, workload: Workload) -> Simulation:
        return simulate(self.options(policy), workload, model)


@dataclass(frozen=True)
class Served:
    """Shares are of the reference, latencies those of the requests that got a result, in seconds."""

    share: float
    p50: float
    p99: float
    mean_batch_size: float

    @classmethod
    def of(cls, simulation: Simulation, reference: int) -> Served:
        latencies = simulation.latency(0.5), simulation.latency(0.99)
        return cls(100 * simulation.goodput / reference, *latencies, simulation.mean_batch_size)


def cells(patterns: Sequence[str], count: int, loads: Sequence[float]) -> Iterator[Cell]:
    for regime in REGIMES:
        for target in TARGETS:
            for arrivals in patterns:
                for load in loads:
                    yield Cell(regime, target, arrivals, load, count)


def share_of_the_optimum(cell: Cell) -> tuple[float, dict[str, Served]]:
    """The optimum in % of the arrivals, and what each policy got."""
    workload = cell.workload()
    optimum = clairvoyant_goodput(workload, cell.timeout, cell.model.seconds, SIZE)
    found = {policy: Served.of(cell.simulate(policy, cell.model, workload), optimum) for policy in COMPARED}
    return 100 * optimum / len(workload), found


def told(workers: Workers) -> Judged:
    count = 6_000
    loads = (1.1,) if workers.quick else LOADS
    here = list(cells((POISSON, ON_OFF, BURSTS), count, loads))
    found = workers.each(share_of_the_optimum, here)
    table = Judged(
        "1. Goodput in % of the clairvoyant optimum on the same trace, DeadlineAware told the execution time",
        ["optimum/offered", AWARE, "p50 ms", "p99 ms", *COMPARED[1:]],
    )
    for cell, (optimum, served) in zip(here, found, strict=True):
        own = served[AWARE]
        table.row(
            cell.name,
            f"{optimum:.1f}",
            f"{own.share:.2f}",
            f"{1000 * own.p50:.1f}",
            f"{1000 * own.p99:.1f}",
            *(f"{served[policy].share:.1f}" for policy in COMPARED[1:]),
            bound=f">= {cell.bound:g} %",
            checks=[
                Check(f"DeadlineAware, {cell.name}", own.share, cell.bound, "%", at_least=True),
                *(
                    Check(f"{policy}, {cell.name}, of the optimum", served[policy].share, 100.0, "%")
                    for policy in COMPARED
                ),
            ],
        )
        policies = {policy: vars(each) for policy, each in served.items()}
        table.records.append(vars(cell) | {"optimum_percent": optimum, "policies": policies})
    for policy in COMPARED:
        shares = [served[policy].share for _, served in found]
        table.notes.append(f"{policy}: worst {min(shares):.1f} %, mean {statistics.fmean(shares):.1f} %")
    table.notes.append(
        f"{count:,} arrivals a cell; targets in times of a full batch of {SIZE}; nobody may be above the optimum."
        " All but DeadlineAware are greedy."
    )
    return table


@dataclass(frozen=True)
class SlowSpell:
    """Batches that start from `begin` to before `end` take longer."""

    model: ExecutorModel
    begin: float
    end: float

    def __call__(self, batch: Batch) -> float:
        return self.model(batch) * (FACTOR if self.begin <= batch.started < self.end else 1)


def share_of_told(given: tuple[Cell, int]) -> float:
    """What the learned model gets of what the true one gets on the same traces, with the same 5 % of stragglers."""
    cell, traces = given
    goodput = dict.fromkeys((AWARE, LEARNED), 0)
    for seed in range(traces):
        here = replace(cell, seed=seed)
        workload, model = here.workload(), cell.model.with_stragglers(0.05, FACTOR, seed)
        for policy in goodput:
            goodput[policy] += here.simulate(policy, model, workload).goodput
    return 100 * goodput[LEARNED] / goodput[AWARE]


def share_after_a_spell(cell: Cell) -> float:
    """The same for those that arrive after a spell in which everything was slow, and the time to notice that it is
    over: in the spell nothing may seem feasible, and it takes ten predicted batch times until a probe looks."""
    full = cell.model.seconds(SIZE)
    begin, end, noticed, enough = (full * times for times in (50, 100, 150, 250))
    workload = replace(cell, count=round(enough * cell.load * cell.model.capacity(SIZE))).workload()
    model = SlowSpell(cell.model, begin, end)

    def after(policy: str) -> int:
        simulation = cell.simulate(policy, model, workload)
        late = tuple([request for request in simulation.requests if request.arrival >= noticed])
        return replace(simulation, requests=late).goodput

    return 100 * after(LEARNED) / after(AWARE)


def learned(workers: Workers) -> Judged:
    count = 6_000
    loads = (0.7, 1.25) if workers.quick else LOADS
    patterns = (POISSON,) if workers.quick else (POISSON, ON_OFF, BURSTS)
    table = Judged(
        "2. Goodput with the execution time learned, in % of the same policy told the true one, by load",
        [f"{load:g}" for load in loads],
    )
    here = list(cells(patterns, count, loads))
    traces = {pattern: 4 if workers.quick else number for pattern, number in TRACES.items()}
    for what, found, bound in (
        ("5 % stragglers", workers.each(share_of_told, [(cell, traces[cell.arrivals]) for cell in here]), 95.0),
        ("after a slow spell", workers.each(share_after_a_spell, here), 90.0),
    ):
        for first in range(0, len(here), len(loads)):
            row = list(zip(here, found, strict=True))[first : first + len(loads)]
            table.row(
                f"{what}: {row[0][0].regime}, {row[0][0].target:g}x, {row[0][0].arrivals}",
                *(f"{share:.1f}" for _, share in row),
                bound=f">= {bound:g} %",
                checks=[
                    Check(f"learned, {what}, {cell.name}", share, bound, "%", at_least=True) for cell, share in row
                ],
            )
            table.records += [vars(cell) | {"what": what, "share_of_told": share} for cell, share in row]
    table.notes += [
        f"Stragglers and the spell take {FACTOR:g} times as long. Stragglers are drawn by the number of the batch;",
        f"traces of {count:,} arrivals, {traces[POISSON]} a cell, on-off {traces[ON_OFF]}. The spell: from 50 to 100",
        "times a full batch's time on a trace of 250; what arrives from 150 on counts.",
    ]
    return table


# What requests carry, and how many % of the goodput without must be left. Tenants cost next to nothing. Priorities have
# a price: the batch that is best for the urgent is not the best for all, most of all where a batch of one takes nearly
# as long as a full one and the target leaves little over.
CARRIED = {"one tenant": 98.0, "20 tenants": 98.0, "half urgent": 85.0, "a tenth urgent": 85.0}
URGENT = 85.0  # % of the urgent requests that must be in time


def carrying(cell: Cell, carried: str) -> Workload:
    workload = cell.workload()
    match carried:
        case "one tenant":
            return workload.with_tenants("a")
        case "20 tenants":
            return workload.with_tenants({f"tenant {number}": 0.05 for number in range(20)}, cell.seed)
        case "half urgent":
            return workload.with_priorities({0: 0.5, -1: 0.5}, cell.seed)
        case _:
            return workload.with_priorities({0: 0.9, -1: 0.1}, cell.seed)


def share_of_plain(cell: Cell) -> dict[str, tuple[float, float]]:
    """What a target keeps of what it keeps on the same trace without tenants and priorities, and how many % of the
    urgent requests are in time."""
    options = {"max_batch_size": SIZE, "target_latency": cell.timeout}
    plain = simulate(options, cell.workload(), cell.model).goodput
    found = {}
    for carried in CARRIED:
        run = simulate(options, carrying(cell, carried), cell.model)
        urgent = [request.in_time for request in run.requests if request.priority < 0]
        found[carried] = 100 * run.goodput / plain, 100 * sum(urgent) / len(urgent) if urgent else 100.0
    return found


def carried(workers: Workers) -> Judged:
    count = 2_000 if workers.quick else 6_000
    here = list(cells((POISSON,), count, (1.25,) if workers.quick else LOADS[3:]))
    table = Judged(
        "9. Goodput of target_latency where requests carry tenants or priorities, in % of the same trace without",
        [*CARRIED, "urgent in time"],
    )
    for cell, found in zip(here, workers.each(share_of_plain, here), strict=True):
        least = min(urgent for _, urgent in found.values())
        table.row(
            cell.name,
            *(f"{share:.1f}" for share, _ in found.values()),
            f"{least:.1f}",
            bound=">= 98, 85 %",
            checks=[
                *(
                    Check(f"target_latency, {name}, {cell.name}", share, CARRIED[name], "%", at_least=True)
                    for name, (share, _) in found.items()
                ),
                Check(f"target_latency, urgent in time, {cell.name}", least, URGENT, "%", at_least=True),
            ],
        )
        table.records.append(vars(cell) | {"carried": found})
    table.notes.append(
        f"{count:,} arrivals a cell, the execution time learned. To cut each batch to its tightest deadline,"
    )
    table.notes.append("in the letter of the order, keeps 30 to 50 % past capacity.")
    return table
