"""What lengths cost where batches are padded to their longest: by order of arrival, by LengthAware, fully sorted."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from judged import Judged, Workers
from sections import Check
from witness import Witness, passed_over

from batchlib.policies import Fifo, Greedy, LengthAware, PaddedCost
from batchlib.simulation import Affine, Workload, log_normal, optimal_partition, simulate

SIZE = 32
PER_TOKEN = 0.00001  # seconds
LONGEST = 512  # tokens; longer texts are cut, as models do
BUDGETS = (SIZE * 128, SIZE * LONGEST)  # padded tokens in a batch: 32 texts of about the mean length, 32 of any length


@dataclass(frozen=True)
class Mix:
    """A backlog of requests with log-normal lengths, for a function that takes `base` seconds a batch besides."""

    budget: int
    sigma: float
    base: float
    requests: int
    seed: int

    @property
    def workload(self) -> Workload:
        return Workload.trace([0.0] * self.requests).with_costs(log_normal(4.5, self.sigma, high=LONGEST), self.seed)

    @property
    def model(self) -> Affine:
        return Affine(self.base, 0.0, PER_TOKEN)


@dataclass(frozen=True)
class Outcome:
    waste: float
    execution_time: float
    passed_over: int


ORDERS = ("arrival", "LengthAware", "sorted", "partition")


def measure(mix: Mix) -> dict[str, Outcome]:
    """By order of arrival without a limit on padded cost; LengthAware under one; all sorted and cut under the same;
    and the partition of the sorted order that takes the least time."""
    found: dict[str, Outcome] = {}
    for name, ordering, limited in (("arrival", Fifo(), False), ("LengthAware", LengthAware(), True)):
        witness = Witness(ordering)
        options = {
            "max_batch_size": SIZE,
            "max_waiting": None,
            "cost": len,
            "ordering": witness,
            "dispatch": (Greedy(), PaddedCost(mix.budget)) if limited else Greedy(),
        }
        simulation = simulate(options, mix.workload, mix.model)
        found[name] = Outcome(simulation.waste, simulation.execution_time, passed_over(witness.said))
    lengths = sorted(arrival.cost for arrival in mix.workload)
    best = optimal_partition(lengths, mix.model.seconds, SIZE)
    for name, chunks in (
        ("sorted", list(cut(lengths, mix.budget))),
        ("partition", [[lengths[place] for place in batch] for batch in best.batches]),
    ):
        padded = sum(len(chunk) * max(chunk) for chunk in chunks)
        took = sum(mix.model.seconds(len(chunk), max(chunk)) for chunk in chunks)
        found[name] = Outcome(1 - sum(lengths) / padded, took, 0)
    return found


def cut(lengths: Sequence[float], budget: int) -> Iterator[Sequence[float]]:
    """Batches of the sorted lengths, each as large as the limits allow."""
    first = 0
    for place in range(1, len(lengths) + 1):
        full = place - first == SIZE or place == len(lengths)
        if full or (place - first + 1) * lengths[place] > budget:
            yield lengths[first:place]
            first = place


def length_aware(workers: Workers) -> Judged:
    seeds = 2 if workers.quick else 8
    rows = list(product(BUDGETS, (0.8, 1.0), (0.0, 0.005), (512, 4096)))
    found = iter(workers.each(measure, [Mix(*row, seed) for row in rows for seed in range(seeds)]))
    table = Judged(
        "6. LengthAware with PaddedCost: padding's share of what is computed, and execution time over the sorted order",
        ["arrival order", "LengthAware", "sorted", "best", "time", "arrival's", "best's", "passed over"],
    )
    for row in rows:
        here = [next(found) for _ in range(seeds)]
        waste = {order: 100 * statistics.fmean(each[order].waste for each in here) for order in ORDERS}
        time = {
            order: statistics.fmean(each[order].execution_time / each["sorted"].execution_time for each in here)
            for order in ORDERS
        }
        passed = max(each["LengthAware"].passed_over for each in here)
        budget, sigma, base, requests = row
        name = f"budget {budget:,}, sigma {sigma}, a = {1000 * base:g} ms, {requests:,} requests"
        binding = budget == BUDGETS[0]
        checks = [
            Check(f"LengthAware, {name}, waste", waste["LengthAware"], 15.0, "%"),
            Check(f"LengthAware, {name}, time over the sorted order", time["LengthAware"], 1.25, "x"),
            Check(f"LengthAware, {name}, waste by order of arrival", waste["arrival"], 70.0, "%", at_least=True),
            Check(f"LengthAware, {name}, batches without the oldest", passed, 0, ""),
        ]
        table.row(
            name,
            *(f"{waste[order]:.1f} %" for order in ORDERS),
            *(f"{time[order]:.2f}x" for order in ("LengthAware", "arrival", "partition")),
            f"{passed}",
            bound="15 %, 1.25x, 0" if binding else "1.25x, 0",
            checks=checks if binding else [checks[1], checks[3]],
        )
        table.records.append(
            {"budget": budget, "sigma": sigma, "base": base, "requests": requests, "waste": waste, "time": time}
        )
    table.notes += [
        f"Means of {seeds} backlogs; lengths log-normal (4.5, sigma), at most {LONGEST}; 10 µs a token.",
        f"sorted: cut by the same limits. A budget of {BUDGETS[1]:,} never binds: that is LengthAware alone.",
    ]
    return table
