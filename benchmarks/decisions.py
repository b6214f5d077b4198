"""What it costs to form a batch: the CPU time from `wake` to its Dispatch beside many waiting requests."""

from __future__ import annotations

import gc
import itertools
import random
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from common import MICRO
from judged import Judged, Workers
from sections import Check

from batchlib._core._actions import Dispatch
from batchlib._core._batcher import Batcher
from batchlib._core._policies import Policies
from batchlib._core._request import Request
from batchlib.policies import (
    AimdBatchSize,
    CostLimit,
    DeadlineAware,
    EarliestDeadline,
    FairShare,
    Fifo,
    Greedy,
    LengthAware,
    PaddedCost,
    Priority,
    SizeOrWait,
)
from batchlib.protocols import DispatchPolicy, Limit, OrderingPolicy

SIZE = 32
LONGEST = 100
BOUND = 100.0  # µs
GROWTH = 2.5  # from 1,000 to 100,000 waiting; log2 grows 1.67 times, the rest is for caches that no longer hold them
HOPELESS = 200  # requests at the head of a deadline order that cannot be served in time any more; the window is 256


def equal(size: int, longest: float) -> float:
    return 0.005 + 0.001 * size


def padded(size: int, longest: float) -> float:
    return 0.005 + 0.00001 * size * longest


@dataclass(frozen=True)
class Case:
    """Policies, and what the requests carry."""

    name: str
    ordering: OrderingPolicy = field(default_factory=Fifo)
    dispatch: DispatchPolicy = field(default_factory=Greedy)
    limits: tuple[Limit, ...] = ()
    classes: int = 1
    tenants: int = 0
    costs: bool = False
    deadlines: bool = False
    hopeless: int = 0
    learns: bool = False

    def requests(self) -> Callable[[], Request]:
        """Makes one request after the other, a nanosecond apart."""
        chance, numbers = random.Random(1), itertools.count()

        def make() -> Request:
            number = next(numbers)
            request = Request((number,), "", number * 1e-9)
            if self.classes > 1:
                request.priority = chance.randrange(self.classes)
            if self.tenants:
                request.tenant = chance.randrange(self.tenants)
            if self.costs:
                request.cost = chance.randint(1, LONGEST)
            if self.deadlines:
                request.deadline = 0.004 if number < self.hopeless else chance.uniform(10, 20)
            return request

        return make

    def core(self) -> Batcher:
        core = Batcher(Policies((), self.ordering, self.dispatch, self.limits, SIZE, 1))
        for size in (1, 2, 4, 8, 16, SIZE) * 8 if self.learns else ():
            core.latency_model.observe(size, LONGEST, equal(size, LONGEST), 0.0)
        return core


def _cases() -> list[Case]:
    told, told_padded = DeadlineAware(execution_time=equal), DeadlineAware(execution_time=padded)
    earliest = EarliestDeadline()
    nested = Priority(within=FairShare(within=EarliestDeadline()))
    return [
        Case("Fifo, Greedy"),
        Case("SizeOrWait", dispatch=SizeOrWait(0.01)),
        Case("CostLimit", limits=(CostLimit(SIZE * LONGEST),), costs=True),
        Case("PaddedCost", limits=(PaddedCost(SIZE * LONGEST),), costs=True),
        Case("AimdBatchSize", limits=(AimdBatchSize(1.0),)),
        Case("Priority, 1 class", Priority()),
        *(Case(f"Priority, {count:,} classes", Priority(), classes=count) for count in (100, 10_000)),
        Case("EarliestDeadline", earliest, deadlines=True),
        Case("FairShare, 1 tenant", FairShare(), tenants=1),
        *(Case(f"FairShare, {count:,} tenants", FairShare(), tenants=count) for count in (100, 10_000)),
        Case("LengthAware", LengthAware(), costs=True),
        Case("LengthAware, PaddedCost", LengthAware(), limits=(PaddedCost(SIZE * LONGEST),), costs=True),
        Case("Priority(FairShare)", Priority(within=FairShare()), classes=3, tenants=100),
        Case("Priority(FairShare(EarliestDeadline))", nested, classes=3, tenants=100, deadlines=True),
        Case("DeadlineAware, equal costs", earliest, told, deadlines=True),
        Case("DeadlineAware, unequal costs", earliest, told_padded, costs=True, deadlines=True),
        Case("DeadlineAware, equal, hopeless heads", earliest, told, deadlines=True, hopeless=HOPELESS),
        Case(
            "DeadlineAware, unequal, hopeless heads",
            earliest,
            told_padded,
            costs=True,
            deadlines=True,
            hopeless=HOPELESS,
        ),
        Case("DeadlineAware, learned", earliest, DeadlineAware(), deadlines=True, learns=True),
        Case("DeadlineAware in Priority(FairShare(...))", nested, told, classes=3, tenants=100, deadlines=True),
    ]


@dataclass(frozen=True)
class Cost:
    """Medians over the batches of one round, in µs."""

    formed: float
    submitted: float
    smallest: int


def measure(case: Case, waiting: int, batches: int) -> Cost:
    """Forms batches beside a constant number of waiting requests; what has left is replaced outside the clock.

    A core without a free executor forms nothing, so taking the slot away separates the end of one batch from the
    forming of the next.
    """
    core, make, cpu = case.core(), case.requests(), time.process_time
    for _ in range(waiting):
        request = make()
        core.submit(request, request.arrival)
    formed: list[float] = []
    submitted: list[float] = []
    smallest = SIZE
    now = request.arrival
    warm_up = SIZE + 8  # until AimdBatchSize allows full batches
    for number in range(warm_up + batches):
        core.max_concurrent_batches = 1
        before = cpu()
        actions = core.wake(now)
        took = cpu() - before
        (batch,) = (action.batch for action in actions if isinstance(action, Dispatch))
        core.max_concurrent_batches = 0
        batch.started -= equal(batch.size, LONGEST)  # it seems to have taken that long, and `now` need not move
        core.finish(batch, batch.requests, now, clean=True)
        arriving = [make() for _ in range(batch.size)]
        before = cpu()
        for request in arriving:
            core.submit(request, request.arrival)
        if number >= warm_up:
            submitted.append((cpu() - before) / batch.size)
            formed.append(took)
            smallest = min(smallest, batch.size)
        now = arriving[-1].arrival
    return Cost(statistics.median(formed) * MICRO, statistics.median(submitted) * MICRO, smallest)


def cost_of_a_decision(workers: Workers) -> Judged:
    quick = workers.quick
    counts = (1_000, 10_000) if quick else (1_000, 10_000, 100_000)
    rounds, batches = (1, 60) if quick else (5, 100)
    cases = _cases()
    found: dict[tuple[str, int], list[Cost]] = {}
    gc.collect()
    gc.freeze()
    for _ in range(rounds):
        for case in cases:
            for waiting in counts:
                found.setdefault((case.name, waiting), []).append(measure(case, waiting, batches))
    gc.unfreeze()

    def best(name: str, waiting: int) -> float:
        return min(cost.formed for cost in found[name, waiting])

    table = Judged(
        "7. Forming a batch of 32: CPU µs from wake to Dispatch beside so many waiting requests",
        [*(f"{count:,}" for count in counts), "growth", "x Fifo", "submit µs"],
    )
    for case in cases:
        name = case.name
        took = [best(name, waiting) for waiting in counts]
        growth, at_10_000 = took[-1] / took[0], took[1]
        cheapest = min(cost.submitted for cost in found[name, 10_000])
        smallest = min(cost.smallest for waiting in counts for cost in found[name, waiting])
        table.row(
            name,
            *(f"{each:.1f}" for each in took),
            f"{growth:.2f}x",
            f"{at_10_000 / best(cases[0].name, 10_000):.1f}x",
            f"{cheapest:.1f}",
            bound=f"{BOUND:.0f} µs, {GROWTH}x",
            checks=[
                Check(f"{name}, a batch beside 10,000 waiting", at_10_000, BOUND, " µs"),
                Check(f"{name}, growth from 1,000 to {counts[-1]:,} waiting", growth, GROWTH, "x"),
                Check(f"{name}, smallest batch", smallest, SIZE, "", at_least=True),
            ],
        )
        table.records.append({"case": name, "waiting": counts, "formed_us": took, "submit_us": cheapest})
    table.notes.append(
        f"The least of {rounds} medians over {batches} batches. The 10,000 column has the bound, x Fifo and submit µs."
    )
    return table
