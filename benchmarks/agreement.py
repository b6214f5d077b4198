"""Whether real time agrees with virtual time: one workload through threads and the clock, and through the simulator."""

from __future__ import annotations

import math
import statistics
import time
from concurrent.futures import Future
from dataclasses import dataclass

from common import model
from judged import Judged, Workers
from sections import Check

from batchlib import batched
from batchlib.simulation import Affine, Workload, simulate

SIZE = 16
MODEL = Affine(base=0.03, per_item=0.002)  # long beside what a thread needs to wake up
APART = 0.0005  # seconds between the requests of a burst: a thread submits them one by one, and so does the simulator


@dataclass(frozen=True)
class Figures:
    mean_batch_size: float
    median_latency: float


def spread(workload: Workload) -> Workload:
    """Requests of the same instant, one after the other."""
    instants: list[float] = []
    for arrival in workload:
        instants.append(max(arrival.at, instants[-1] + APART) if instants else arrival.at)
    return Workload.trace(instants)


def real(workload: Workload) -> Figures:
    """One thread submits each request at its instant and looks at nothing; latency counts from that instant."""
    run, sizes, latencies = model(MODEL.base, MODEL.per_item), list[int](), list[float]()

    @batched(max_batch_size=SIZE, max_waiting=None)
    def served(items: list[int]) -> list[int]:
        sizes.append(len(items))
        return run(items)

    with served:
        start = time.perf_counter() + 0.05
        futures: list[Future[int]] = []
        for number, arrival in enumerate(workload):
            due = start + arrival.at
            time.sleep(max(0.0, due - time.perf_counter()))
            future = served.submit(number)
            future.add_done_callback(lambda _, due=due: latencies.append(time.perf_counter() - due))
            futures.append(future)
        for future in futures:
            future.result()
    return Figures(statistics.fmean(sizes), statistics.median(latencies))


def virtual(workload: Workload) -> Figures:
    simulation = simulate({"max_batch_size": SIZE, "max_waiting": None}, workload, MODEL)
    return Figures(simulation.mean_batch_size, simulation.latency(0.5))


def real_time(workers: Workers) -> Judged:
    seconds, rounds = (3.0, 1) if workers.quick else (10.0, 5)
    table = Judged(
        "8. Threads with a function that sleeps, beside the simulator on the same arrivals",
        ["batch size", "simulated", "off by", "p50 ms", "simulated", "off by"],
    )
    loads = (0.7,) if workers.quick else (0.4, 0.8)
    for load in loads:
        rate = load * MODEL.capacity(SIZE)
        count = math.ceil(rate * seconds)
        for kind, make in (("Poisson", Workload.poisson), ("bursts of 8", None)):
            found: list[tuple[Figures, Figures]] = []
            for seed in range(rounds):
                workload = make(rate, count, seed) if make else spread(Workload.bursts(8, rate, count, seed))
                found.append((real(workload), virtual(workload)))
            name = f"{kind}, load {load:g}"
            row, checks = list[str](), list[Check]()
            for figure, factor, form in (("mean_batch_size", 1.0, ".2f"), ("median_latency", 1000.0, ".1f")):
                pairs = [(getattr(clock, figure), getattr(simulated, figure)) for clock, simulated in found]
                off = statistics.median(abs(clock / simulated - 1) for clock, simulated in pairs)
                row += [format(factor * statistics.median(side), form) for side in zip(*pairs, strict=True)]
                row.append(f"{100 * off:.1f} %")
                checks.append(Check(f"{name}, {figure.replace('_', ' ')} off by", 100 * off, 10.0, "%"))
                table.records.append({"workload": kind, "load": load, "figure": figure, "real_and_simulated": pairs})
            table.row(name, *row, bound="10 %", checks=checks)
    table.notes.append(
        f"Medians of {rounds} rounds of {seconds:g} s. Batches of at most {SIZE} in {1000 * MODEL.base:g} ms + "
        f"{1000 * MODEL.per_item:g} ms a request; those of a burst come {1000 * APART:g} ms apart."
    )
    return table
