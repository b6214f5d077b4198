"""The sections of the table: what each one measures, against which floor or peer, and the bound it has to keep."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable
from dataclasses import dataclass, field

from adapters import ASYNC_PEERS
from runner import Cell, Runner, Samples, cell

ASYNC, PLAIN = "batchlib, async function", "batchlib, plain function"
ASYNC_ANYIO, PLAIN_ANYIO = "batchlib, async, anyio imported", "batchlib, plain, anyio imported"
FLOOR, HELD, QUEUE = "floor: bare futures", "floor: futures, held", "floor: bare queue"


@dataclass(frozen=True)
class Check:
    """A figure beside its bound. No figure is a miss, unless what it takes to measure it is not installed."""

    what: str
    value: float | None
    bound: float
    unit: str
    at_least: bool = False
    excuse: str | None = None

    @property
    def kept(self) -> bool:
        if self.value is None:
            return self.excuse is not None
        return self.value >= self.bound if self.at_least else self.value <= self.bound

    def __str__(self) -> str:
        side = "at least" if self.at_least else "at most"
        figure = self.excuse or "not measured"
        if self.value is not None:
            figure = f"{self.value:,.0f}{self.unit}" if self.value >= 100 else f"{self.value:.3g}{self.unit}"
        return f"{self.what}: {figure}, bound {side} {self.bound:,g}{self.unit}"


@dataclass
class Table:
    title: str
    columns: list[str]
    rows: list[list[str]] = field(default_factory=list[list[str]])
    notes: list[str] = field(default_factory=list[str])
    checks: list[Check] = field(default_factory=list[Check])
    samples: Samples = field(default_factory=Samples)

    def as_json(self) -> dict[str, object]:
        samples = [
            {"workload": each.workload, "adapter": each.adapter, **dict(each.arguments), "rounds": rounds}
            for each, rounds in self.samples.values.items()
        ]
        checks = [{**dataclasses.asdict(check), "kept": check.kept} for check in self.checks]
        return {"title": self.title, "columns": self.columns, "rows": self.rows, "checks": checks, "samples": samples}


def times(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}x"


def ratio(samples: Samples, of: Cell, to: Cell, name: str) -> float | None:
    value, base = samples.median(of, name), samples.median(to, name)
    return None if value is None or base is None else value / base


def difference(samples: Samples, of: Cell, name: str, base: str) -> float | None:
    """The median over rounds of one figure less another of the same process."""
    pairs = zip(samples.all(of, name), samples.all(of, base), strict=True)
    found = [value - other for value, other in pairs]
    return statistics.median(found) if found else None


def cpu_per_item(runner: Runner) -> Table:
    sizes = {1: "wall", 64: "cpu", 1024: "cpu", 10_000: "cpu"}
    rounds = 2 if runner.quick else 7
    wanted: dict[Cell, int] = {}

    def at(adapter: str, concurrency: int) -> Cell:
        if concurrency == 1:
            return cell("lone", adapter, calls=1000 if adapter in ASYNC_PEERS else 10_000)
        items, seconds = (50_000, 1.0) if runner.quick else (100_000, 3.0)
        return cell("callers", adapter, concurrency=concurrency, items=items, seconds=seconds)

    for concurrency in sizes:
        full = not runner.quick or concurrency == 1024
        wanted |= {at(adapter, concurrency): rounds for adapter in (FLOOR, ASYNC, PLAIN)}
        wanted |= {at(adapter, concurrency): rounds if full else 0 for adapter in (ASYNC_ANYIO, PLAIN_ANYIO)}
        wanted |= {at(adapter, concurrency): (1 if runner.quick else 2) if full else 0 for adapter in ASYNC_PEERS}
    samples = runner.measure(wanted)
    table = Table(
        "1. No-op function, batches of at most 64, asyncio callers: µs an item (x = times the floor)",
        ["one caller: round trip", "64: CPU", "1,024: CPU", "10,000: CPU", "bound"],
        samples=samples,
    )
    bounds = {ASYNC: 3.0, PLAIN: 4.0}
    for adapter in (FLOOR, ASYNC, PLAIN, ASYNC_ANYIO, PLAIN_ANYIO, *ASYNC_PEERS):
        row = [adapter]
        for concurrency, name in sizes.items():
            one = at(adapter, concurrency)
            against = ratio(samples, one, at(FLOOR, concurrency), name)
            text = samples.show(one, name, lambda value: f"{value:.2f}")
            row.append(text if against is None or adapter == FLOOR else f"{text} {times(against)}")
            if adapter in bounds and (concurrency > 1 or adapter == ASYNC):
                kind = f"{concurrency:,} callers" if concurrency > 1 else "one caller's round trip"
                table.checks.append(Check(f"{adapter}, {kind}", against, bounds[adapter], "x the floor"))
        table.rows.append([*row, f"{bounds[adapter]:.1f}x" if adapter in bounds else ""])
    table.notes.append("CPU of the whole process, callers and worker threads included. Peers wait 1 ms, batchlib not.")
    return table


def blocking_threads(runner: Runner) -> Table:
    rounds = 3 if runner.quick else 7

    def at(adapter: str, size: int) -> Cell:
        return cell("threads", adapter, max_batch_size=size, seconds=0.5 if runner.quick else 1.0)

    shown = {QUEUE: rounds, PLAIN: rounds} | ({} if runner.quick else {ASYNC: 2, "batched (thread)": 2})
    samples = runner.measure({at(adapter, size): often for size in (64, 8) for adapter, often in shown.items()})
    table = Table(
        "2. Eight plain threads calling .call: items a second (x = times the bare queue)",
        ["batch 64", "batch 8", "bound"],
        samples=samples,
    )
    for adapter in shown:
        row = [adapter]
        for size in (64, 8):
            against = ratio(samples, at(adapter, size), at(QUEUE, size), "rate")
            text = samples.show(at(adapter, size), "rate", lambda value: f"{value:,.0f}")
            row.append(text if against is None or adapter == QUEUE else f"{text} {times(against)}")
            if adapter == PLAIN:
                what = f"{adapter}, eight threads, batch {size}"
                table.checks.append(Check(what, against, 0.7, "x the bare queue", at_least=True))
        table.rows.append([*row, ">= 0.7x" if adapter == PLAIN else ""])
    return table


def light_load(runner: Runner) -> Table:
    pairs, rounds = (16, 1) if runner.quick else (40, 5)
    peers = () if runner.quick else ASYNC_PEERS
    shown = {PLAIN: rounds, ASYNC: rounds} | dict.fromkeys(peers, 1)

    def at(adapter: str) -> Cell:
        return cell("light", adapter, pairs=pairs, idle=1.5)

    samples = runner.measure({at(adapter): often for adapter, often in shown.items()})
    table = Table(
        "3. One request every 50 ms, in turns with asyncio.to_thread of the same 2 ms function; then idle for 1.5 s",
        ["added p50 ms", "added p95 ms", "idle CPU %", "bound"],
        notes=[
            "Added over the same quantile of asyncio.to_thread in the same process. Peers wait 10 ms, batchlib not."
        ],
        samples=samples,
    )
    for adapter in shown:
        added = {q: difference(samples, at(adapter), f"p{q}", f"bare_p{q}") for q in (50, 95)}
        idle = samples.median(at(adapter), "idle")
        values = [samples.problems.get(at(adapter), "") if v is None else f"{v:.3f}" for v in (*added.values(), idle)]
        table.rows.append([adapter, *values, "0.3 ms, 0.1%" if adapter in (PLAIN, ASYNC) else ""])
        if adapter in (PLAIN, ASYNC):
            table.checks.append(Check(f"{adapter}, added at p95", added[95], 0.3, " ms"))
            table.checks.append(Check(f"{adapter}, idle CPU", idle, 0.1, "%"))
    return table


def memory(runner: Runner) -> Table:
    rounds = 1 if runner.quick else 3
    others = () if runner.quick else (PLAIN, *ASYNC_PEERS)

    def at(adapter: str, trace: bool) -> Cell:
        return cell("waiting", adapter, requests=100_000, trace=trace)

    shown = {HELD: rounds, ASYNC: rounds} | dict.fromkeys(others, 1)
    kinds = {False: "resident"} if runner.quick else {False: "resident", True: "allocated"}
    samples = runner.measure({at(adapter, trace): often for trace in kinds for adapter, often in shown.items()})
    table = Table(
        "4. 100,000 waiting requests: bytes each, the caller's own task on a bare future taken off",
        [*kinds.values(), "bound"],
        samples=samples,
    )
    for adapter in shown:
        row = [adapter if adapter != HELD else "the caller's own task, its future"]
        for trace, kind in kinds.items():
            value, own = samples.median(at(adapter, trace), "bytes"), samples.median(at(HELD, trace), "bytes")
            over = None if value is None or own is None else value - (0.0 if adapter == HELD else own)
            row.append(samples.problems.get(at(adapter, trace), "-") if over is None else f"{over:,.0f}")
            if adapter in (ASYNC, PLAIN):
                table.checks.append(Check(f"{adapter}, one of 100,000 waiting, {kind}", over, 1024, " bytes"))
        table.rows.append([*row, "1,024" if adapter in (ASYNC, PLAIN) else ""])
    table.notes.append("resident: growth of the process; allocated: what tracemalloc counts.")
    return table


def operations(runner: Runner) -> Table:
    rounds = 1 if runner.quick else 5
    adapter = "batchlib, no limit on waiting"
    few, many = (cell("operations", adapter, requests=count, repeats=50) for count in (1000, 100_000))
    samples = runner.measure({few: rounds, many: rounds})
    table = Table(
        "5. CPU of one operation beside 1,000 and beside 100,000 waiting requests: µs",
        ["1,000", "100,000", "ratio", "bound"],
        notes=["Cancelled are requests at random places. A task's figures hold the making and the ending of the task."],
        samples=samples,
    )
    for name in ("thread submit", "thread cancel", "task submit", "task cancel"):
        grown = ratio(samples, many, few, name)
        figures = [samples.show(each, name, lambda value: f"{value:.2f}") for each in (few, many)]
        table.rows.append([f"batchlib, {name}", *figures, times(grown), "3x"])
        table.checks.append(Check(f"batchlib, {name} beside 100,000", grown, 3.0, "x of 1,000"))
    return table


def collector(runner: Runner) -> Table:
    rounds = 1 if runner.quick else 7
    peers = () if runner.quick else ("batched.aio", "async-batcher", "ray @serve.batch")
    table = Table(
        "6. p99 at 90% load with torch imported, in ms: garbage collector frozen after the imports, and left alone",
        ["frozen", "left alone", "ratio", "bound"],
    )
    if "torch" not in runner.installed:
        table.notes.append("Not run: torch is not installed.")
        table.checks.append(Check(f"{PLAIN}, collector left alone", None, 1.5, "x", excuse="not run without torch"))
        return table

    def at(adapter: str, state: str) -> Cell:
        seconds = 1.5 if runner.quick else 4.0
        return cell("tail", adapter, load=0.9, seconds=seconds, seed=0, collector=state)

    shown = {PLAIN: rounds} | dict.fromkeys(peers, 2)
    states = ("frozen", "left alone")
    samples = runner.measure({at(adapter, state): often for state in states for adapter, often in shown.items()})
    table.samples = samples
    for adapter in shown:
        frozen, alone = (samples.all(at(adapter, state), "p99") for state in states)
        pairs = [b / a for a, b in zip(frozen, alone, strict=False) if a < float("inf")]
        grown = statistics.median(pairs) if pairs else None
        figures = [samples.show(at(adapter, state), "p99", lambda value: f"{value:.1f}") for state in states]
        table.rows.append([adapter, *figures, times(grown), "1.5x" if adapter == PLAIN else ""])
        if adapter == PLAIN:
            table.checks.append(Check(f"{adapter}, p99 with the collector left alone", grown, 1.5, "x of it frozen"))
    table.notes.append("The ratio is the median over rounds of pairs with the same arrivals. inf: over 1% unanswered.")
    return table


def import_time(runner: Runner) -> Table:
    statements = {"bare": "pass", "asyncio": "import asyncio"}
    if "batchlib" in runner.installed:
        statements["batchlib"] = "import batchlib"
    took = runner.import_seconds(statements, 5 if runner.quick else 21)
    over = {name: (took[name] - took["bare"]) * 1000 for name in took}
    return Table(
        "7. Import in a fresh interpreter: ms over the bare one",
        ["ms", "bound"],
        [
            ["import asyncio alone", f"{over['asyncio']:.1f}", ""],
            ["import batchlib", f"{over['batchlib']:.1f}" if "batchlib" in over else "not installed", "40"],
        ],
        checks=[Check("import batchlib", over.get("batchlib"), 40.0, " ms")],
    )


def full_batches(runner: Runner) -> Table:
    mine = ("batchlib, plain, max_wait", "batchlib, async, max_wait")
    peers = ("ray @serve.batch",) if runner.quick else ASYNC_PEERS
    shown = dict.fromkeys((*mine, *peers), 1 if runner.quick else 3)

    def at(adapter: str) -> Cell:
        return cell("backlog", adapter, rate=200.0, arrivals=100 if runner.quick else 300)

    samples = runner.measure({at(adapter): often for adapter, often in shown.items()})
    table = Table(
        "8. Backlog: 200 arrivals/s, 200 ms a batch of at most 32, wait 10 ms; the first and the last batch left out",
        ["mean batch size", "of the limit", "bound"],
        notes=["aiodataloader has no limit on batches in flight: it starts one each turn of the loop."],
        samples=samples,
    )
    for adapter in shown:
        size = samples.median(at(adapter), "batch")
        share = None if size is None else size / 32 * 100
        text = samples.show(at(adapter), "batch", lambda value: f"{value:.1f}")
        of_limit = "-" if share is None else f"{share:.0f}%"
        table.rows.append([adapter, text, of_limit, ">= 95%" if adapter in mine else ""])
        if adapter in mine:
            table.checks.append(Check(f"{adapter}, mean batch size", share, 95.0, "% of the limit", at_least=True))
    return table


SECTIONS: tuple[Callable[[Runner], Table], ...] = (
    cpu_per_item,
    blocking_threads,
    light_load,
    memory,
    operations,
    collector,
    import_time,
    full_batches,
)
