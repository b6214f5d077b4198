"""What tenants and classes can rely on: measured from what the ordering policies were told, on random traces."""

from __future__ import annotations

import random
from dataclasses import dataclass

from judged import Judged, Workers
from sections import Check
from witness import Witness, furthest_overtaking, widest_gap

from batchlib.policies import EarliestDeadline, FairShare, Fifo, Priority
from batchlib.protocols import OrderingPolicy
from batchlib.simulation import Affine, Arrival, Workload, simulate

MODEL = Affine(base=0.005, per_item=0.001, per_cost=0.00001)
LONGEST = 10
WEIGHTS = (0.5, 1.0, 2.0, 4.0)
GROUPS = 3
ROUNDING = 1e-9


ONE, OWN, ALL = "one group", "one of three", "all three"


@dataclass(frozen=True)
class Trace:
    """A random trace, made from its fields alone."""

    seed: int
    groups: str = ONE
    aging: float = 0.05

    def weights(self, chance: random.Random) -> dict[str, float]:
        return {f"tenant {number}": chance.choice(WEIGHTS) for number in range(chance.randint(2, 6))}

    def tenants(self) -> tuple[Workload, dict[str, float]]:
        """Tenants that come and go, spells in which all are silent until nothing waits, and floods that are cancelled,
        wholly or in part, while they wait. Gives the weights too."""
        chance = random.Random(f"tenants {self.seed}")
        weights = self.weights(chance)
        arrivals: list[Arrival] = []
        begin = 0.0
        for _ in range(chance.randint(2, 5)):  # between two of these all are silent
            length = chance.uniform(0.2, 1.0)
            for tenant in weights:
                arrivals += self._of(tenant, begin, begin + length, chance)
            begin += length + chance.choice((0.05, 0.5, 5.0))
        return Workload(arrivals), weights

    def backlog(self) -> tuple[Workload, dict[str, float]]:
        """All that every tenant ever wants is there at once."""
        chance = random.Random(f"backlog {self.seed}")
        weights = self.weights(chance)
        return Workload([self._one(0.0, tenant, chance, None) for tenant in weights for _ in range(500)]), weights

    def _of(self, tenant: str, begin: float, end: float, chance: random.Random) -> list[Arrival]:
        arrivals: list[Arrival] = []
        now, rate = begin, chance.choice((50, 300, 2_000))
        while now < end:
            on = now + chance.expovariate(10)
            while (now := now + chance.expovariate(rate)) < min(on, end):
                arrivals.append(self._one(now, tenant, chance, None))
            now += chance.expovariate(10)
        for _ in range(chance.choice((0, 0, 1, 2))):
            at, patience, stay = chance.uniform(begin, end), chance.uniform(0.001, 0.2), chance.choice((0.0, 0.5))
            arrivals += [
                self._one(at, tenant, chance, None if chance.random() < stay else patience) for _ in range(300)
            ]
        return arrivals

    def _one(self, at: float, tenant: str, chance: random.Random, cancel_after: float | None) -> Arrival:
        cost, anywhere = chance.randint(1, LONGEST), chance.randrange(GROUPS)
        group = {ONE: 0, OWN: int(tenant.removeprefix("tenant ")) % GROUPS, ALL: anywhere}[self.groups]
        return Arrival(at, cost, tenant, group=group, cancel_after=cancel_after)

    def classes(self) -> Workload:
        """Classes at one and a half times what can be served, so that whoever can be overtaken is."""
        load = 1.5 * MODEL.capacity(8, LONGEST / 2)
        priorities = {-1.0: 0.3, 0.0: 0.4, 0.5: 0.2, 3.0: 0.1}
        chance = random.Random(f"classes {self.seed}")
        return (
            Workload.on_off(load, 1_500, self.seed, on=0.1, off=0.1)
            .with_priorities(priorities, self.seed)
            .with_tenants(lambda draw: draw.choice("abc"), self.seed)
            .with_costs(lambda draw: draw.randint(1, LONGEST), self.seed)
            .with_timeouts(lambda draw: draw.uniform(0.1, 2.0), self.seed)
            .with_cancellations(lambda draw: draw.choice((None, None, None, chance.uniform(0.01, 0.5))), self.seed)
        )


def options(ordering: OrderingPolicy | None = None) -> dict[str, object]:
    return {"max_batch_size": 8, "max_waiting": None, "ordering": ordering}


def gap(trace: Trace) -> float:
    workload, weights = trace.tenants()
    witness = Witness(FairShare(weights))
    simulate(options(witness), workload, MODEL)
    return widest_gap(witness.said, weights, slack=0 if trace.groups == ONE else 2)


def gap_of_a_backlog(trace: Trace) -> float:
    workload, weights = trace.backlog()
    witness = Witness(FairShare(weights))
    simulate(options(witness), workload, MODEL)
    return widest_gap(witness.said, weights, slack=0 if trace.groups == ONE else 1, level=True)


def flood(count: int) -> int:
    """How many batches start between a single request's arrival and its own batch, beside a flood from another tenant
    that came first; all options at their defaults."""
    arrivals = [Arrival(0.0, tenant="flood") for _ in range(count)]
    later = Arrival(0.5 * count * MODEL.seconds(32) / 32, tenant="other")
    simulation = simulate({}, Workload([*arrivals, later]), MODEL)
    (single,) = simulation.where(tenant="other").requests
    assert single.started is not None
    return sum(single.arrival <= batch.started < single.started for batch in simulation.batches)


INNER: dict[str, OrderingPolicy] = {
    "Fifo": Fifo(),
    "FairShare": FairShare(),
    "EarliestDeadline": EarliestDeadline(),
}


def overtaking(given: tuple[Trace, str]) -> float:
    trace, inner = given
    witness = Witness(Priority(within=INNER[inner], aging=trace.aging))
    simulate(options(witness), trace.classes(), MODEL)
    return furthest_overtaking(witness.said, trace.aging, by_oldest=inner != "Fifo")


def fair_share(workers: Workers) -> Judged:
    traces = 12 if workers.quick else 120
    table = Judged(
        "4. FairShare: the widest gap in service between two tenants with requests waiting, as a share of its bound",
        ["traces", "widest", "median"],
    )
    for measure, groups, name, bound in (
        (gap, ONE, "coming and going, one group", "L/w1 + L/w2"),
        (gap_of_a_backlog, ONE, "a backlog, one group", "L/w1 + L/w2"),
        (gap_of_a_backlog, OWN, "a backlog, each in one of three groups", "L/w1 + L/w2 + one batch's cost"),
        (gap, OWN, "coming and going, each in one of three groups", "L/w1 + L/w2 + a batch's cost of each"),
        (gap, ALL, "coming and going, each in all three groups", ""),
    ):
        gaps = sorted(workers.each(measure, [Trace(seed, groups) for seed in range(traces)]))
        check = Check(f"FairShare, {name}, widest gap over its bound", gaps[-1], 1 + ROUNDING, "")
        row = f"{traces}", f"{gaps[-1]:.3f}", f"{gaps[traces // 2]:.3f}"
        table.row(name, *row, bound=bound, checks=[check] if bound else [])
        table.records.append({"traces": name, "gaps": gaps})
    (started,) = workers.each(flood, [10_000])
    name = "a single item beside a flood of 10,000"
    check = Check(f"FairShare, {name}, batches that start before its own", started, 0, "")
    table.row(name, "1", f"{started}", "", bound="no batch starts before its own", checks=[check])
    table.notes += [
        "L: the largest cost, w: weights. Tenants come and go, fall silent all at once, and cancel floods. Nobody can",
        "bound the gap of tenants who are in all groups: seats that are left over in one's batch are given to others.",
    ]
    return table


def priority(workers: Workers) -> Judged:
    traces = 20 if workers.quick else 200
    table = Judged(
        "5. Priority: how far service went beyond aging x difference of the classes, in ms (below 0: the bound held)",
        ["traces", "furthest"],
    )
    for inner in INNER:
        cells = [(Trace(seed, aging=aging), inner) for seed in range(traces) for aging in (0.01, 0.1)]
        beyond = max(workers.each(overtaking, cells))
        who = "a request by one" if inner == "Fifo" else "a class by another's oldest"
        name = f"{inner} inside"
        table.row(
            f"{name}: {who} that arrived later",
            f"{len(cells)}",
            f"{beyond * 1000:.4f}",
            bound="0",
            checks=[Check(f"Priority, {name}, beyond what aging allows", beyond, ROUNDING, " s")],
        )
        table.records.append({"inner": inner, "beyond_seconds": beyond})
    return table
