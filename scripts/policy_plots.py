"""Draws the plots of "Choosing a policy" from the simulator, which runs the production core: `make docs` runs it.

    python scripts/policy_plots.py            prints the figures
    python scripts/policy_plots.py FOLDER     draws them, and keeps them beside the plots

The figures behind the plots are kept beside them in policies.json, and each plot carries the digest of its own, so that
a test can say, without drawing anything, whether both are those of the code of today. Everything is drawn by seed.
"""

import hashlib
import json
import re
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from batchlib.policies import (
    AimdBatchSize,
    DeadlineAware,
    EarliestDeadline,
    FairShare,
    Fifo,
    Greedy,
    LengthAware,
    PaddedCost,
    SizeOrWait,
)
from batchlib.simulation import Affine, Arrival, Simulation, Workload, clairvoyant_goodput, log_normal, simulate

SIZE = 32
MODEL = Affine(base=0.005, per_item=0.001)  # seconds; a full batch of 32 takes 37 ms
FULL = MODEL.seconds(SIZE)
CAPACITY = MODEL.capacity(SIZE)  # requests a second
SEED = 1
SORTED = "all sorted, PaddedCost(4096)"
Figure = dict[str, Any]


def _rounded(values: Sequence[float]) -> list[float]:
    return [round(value, 4) for value in values]


def goodput() -> Figure:
    """Requests in time, in % of all that arrive, by load; with one timeout for all, and with two."""
    loads, count = (0.5, 0.7, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5), 2_000
    policies: Mapping[str, Mapping[str, Any]] = {
        "Fifo, Greedy": {},
        "EarliestDeadline, Greedy": {"ordering": EarliestDeadline()},
        "Fifo, Greedy, MaxWaiting": {"max_waiting": SIZE, "overflow": "reject"},
        "Fifo, Greedy, AimdBatchSize": {"dispatch": (Greedy(), AimdBatchSize(FULL))},
        "EarliestDeadline, DeadlineAware": {"ordering": EarliestDeadline(), "dispatch": DeadlineAware()},
    }
    panels = {}
    for name, timeouts in (("one", 2 * FULL), ("two", {1.5 * FULL: 0.5, 4 * FULL: 0.5})):
        lines: dict[str, list[float]] = {policy: [] for policy in policies}
        optimum = []
        for load in loads:
            workload = Workload.poisson(load * CAPACITY, count, SEED).with_timeouts(timeouts, SEED)
            for policy, options in policies.items():
                served = simulate({"max_batch_size": SIZE, **options}, workload, MODEL)
                lines[policy].append(100 * served.goodput / count)
            if max(line[-1] for line in lines.values()) == 100:
                optimum.append(100.0)  # nobody gets more than all
            elif name == "one":
                optimum.append(100 * clairvoyant_goodput(workload, 2 * FULL, MODEL.seconds, SIZE) / count)
            else:
                busy = workload[-1].at + 4 * FULL  # seconds, at most, in which somebody can be served in time
                optimum.append(100 * min(1.0, CAPACITY * busy / count))
        panels[name] = {"optimum": _rounded(optimum)} | {policy: _rounded(line) for policy, line in lines.items()}
    return {"loads": list(loads), **panels}


def timers() -> Figure:
    """Mean and p99 of the latency in ms, by load, of leaving at once and of holding back for company."""
    loads = (0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9)
    found: Figure = {"loads": list(loads), "mean": {}, "p99": {}}
    for milliseconds in (0, 2, 10, 50):
        name = f"SizeOrWait, {milliseconds} ms" if milliseconds else "Greedy"
        dispatch = SizeOrWait(milliseconds / 1000) if milliseconds else Greedy()
        served = [
            simulate(
                {"max_batch_size": SIZE, "dispatch": dispatch}, Workload.poisson(load * CAPACITY, 3_000, SEED), MODEL
            )
            for load in loads
        ]
        found["mean"][name] = _rounded([1000 * each.mean_latency for each in served])
        found["p99"][name] = _rounded([1000 * each.latency(0.99) for each in served])
    return found


def flood() -> Figure:
    """Latency in ms by percentile of a quiet tenant at 5 % of the capacity, and of one that sends 1,500 at once."""
    quiet = Workload.poisson(0.05 * CAPACITY, 200, SEED).with_tenants("quiet")
    workload = quiet.merged(Workload([Arrival(1.0, tenant="flood")] * 1_500))
    percentiles = (1, *range(5, 100, 5), 99)
    found: Figure = {"percentiles": list(percentiles)}
    for ordering in (Fifo(), FairShare()):
        served = simulate({"max_batch_size": SIZE, "max_waiting": None, "ordering": ordering}, workload, MODEL)
        found[type(ordering).__name__] = {
            tenant: _rounded([1000 * of_one(served, tenant).latency(each / 100) for each in percentiles])
            for tenant in ("quiet", "flood")
        }
    return found


def of_one(served: Simulation, tenant: str) -> Simulation:
    """A tenant's requests while the flood was there: those of the quiet one that came before or after say nothing."""
    end = max(request.ended or 0 for request in served.where(tenant="flood").requests)
    during = [each for each in served.where(tenant=tenant).requests if 1.0 <= each.arrival <= end]
    return replace(served, requests=tuple(during))


def padding() -> Figure:
    """The share of padding, in %, and the time it all takes, in seconds: a backlog of log-normal lengths."""
    model = Affine(base=0.005, per_item=0.0, per_cost=0.00001)
    ways: Mapping[str, Mapping[str, Any]] = {
        "Fifo": {},
        "Fifo, PaddedCost(4096)": {"dispatch": (Greedy(), PaddedCost(4_096))},
        "LengthAware": {"ordering": LengthAware()},
        "LengthAware, PaddedCost(8192)": {"ordering": LengthAware(), "dispatch": (Greedy(), PaddedCost(8_192))},
        "LengthAware, PaddedCost(4096)": {"ordering": LengthAware(), "dispatch": (Greedy(), PaddedCost(4_096))},
        SORTED: {"dispatch": (Greedy(), PaddedCost(4_096))},
    }
    found: Figure = {"ways": list(ways), "waste": [], "seconds": []}
    for name, options in ways.items():
        runs = []
        for seed in range(1, 5):
            backlog = Workload.trace([0.0] * 1_024).with_costs(log_normal(4.5, 0.8, high=512), seed)
            if name == SORTED:
                backlog = Workload(sorted(backlog, key=lambda arrival: arrival.cost))
            given = {"max_batch_size": SIZE, "max_waiting": None, "cost": len, **options}
            runs.append(simulate(given, backlog, model))
        found["waste"].append(100 * statistics.fmean(run.waste for run in runs))
        found["seconds"].append(statistics.fmean(run.execution_time for run in runs))
    return found | {name: _rounded(found[name]) for name in ("waste", "seconds")}


FIGURES: Mapping[str, Callable[[], Figure]] = {
    "goodput": goodput,
    "timers": timers,
    "flood": flood,
    "padding": padding,
}


def digest(figure: Figure) -> str:
    """What a plot carries to say which figures it shows."""
    return hashlib.sha256(json.dumps(figure, sort_keys=True).encode()).hexdigest()[:16]


# ---- drawing: only here is Matplotlib needed

COLOURS = ("#d55e00", "#e69f00", "#0072b2", "#009e73")  # told apart by the colour-blind too


def _draw_goodput(figure: Figure, plt: Any) -> Any:
    drawing, axes = plt.subplots(1, 2, figsize=(9, 3.6), sharey=True)
    titles = {"one": "every timeout 74 ms", "two": "half the timeouts 55 ms, half 148 ms"}
    for axis, (panel, title) in zip(axes, titles.items(), strict=True):
        lines = dict(figure[panel])
        label = "optimum (right: an upper bound)"
        axis.plot(figure["loads"], lines.pop("optimum"), color="black", linestyle=":", label=label)
        for (policy, line), colour, style in zip(
            lines.items(), (*COLOURS[:3], "#cc79a7", COLOURS[3]), ("-", "--", "-", "-", "-"), strict=True
        ):
            width = 4 if policy == "Fifo, Greedy" else 1.5  # on the left another line lies on top of it
            axis.plot(figure["loads"], line, style, color=colour, label=policy, marker=".", linewidth=width)
        axis.set(title=title, xlabel="load (arrivals / capacity)")
    axes[0].set(ylabel="in time, % of all", ylim=(0, 104))
    axes[0].legend(fontsize="small", loc="lower left")
    return drawing


def _draw_timers(figure: Figure, plt: Any) -> Any:
    drawing, axes = plt.subplots(1, 2, figsize=(9, 3.4), sharey=True)
    for axis, what in zip(axes, ("mean", "p99"), strict=True):
        for (policy, line), colour in zip(figure[what].items(), COLOURS[::-1], strict=True):
            axis.plot(figure["loads"], line, color=colour, label=policy, marker=".")
        axis.set(title=what, xlabel="load (arrivals / capacity)")
    axes[0].set(ylabel="latency, ms", ylim=(0, None))
    axes[0].legend(fontsize="small")
    return drawing


def _draw_flood(figure: Figure, plt: Any) -> Any:
    drawing, axis = plt.subplots(figsize=(6, 3.6))
    for ordering, colour in (("Fifo", COLOURS[0]), ("FairShare", COLOURS[3])):
        for tenant, style in (("quiet", "-"), ("flood", "--")):
            label = f"{tenant} tenant, {ordering}"
            axis.plot(figure["percentiles"], figure[ordering][tenant], style, color=colour, label=label)
    axis.set(xlabel="percentile of the tenant's requests", ylabel="latency, ms", yscale="log")
    axis.legend(fontsize="small")
    return drawing


def _draw_padding(figure: Figure, plt: Any) -> Any:
    drawing, axes = plt.subplots(1, 2, figsize=(9, 3), sharey=True)
    for axis, (what, title) in zip(
        axes, (("waste", "padding, % of what is computed"), ("seconds", "time for 1,024 requests, s")), strict=True
    ):
        bars = axis.barh(figure["ways"], figure[what], color=COLOURS[2])
        axis.bar_label(bars, fmt="%.0f" if what == "waste" else "%.2f", padding=3, fontsize="small")
        axis.set(title=title)
        axis.margins(x=0.2)
    axes[0].invert_yaxis()
    return drawing


DRAWINGS = {"goodput": _draw_goodput, "timers": _draw_timers, "flood": _draw_flood, "padding": _draw_padding}


def draw(figures: Mapping[str, Figure], folder: Path) -> None:
    """Writes the figures and their plots into the folder."""
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    # Text stays text, ids do not depend on the run and no date is written: the same figures give the same file.
    plt.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "batchlib", "axes.grid": True, "grid.alpha": 0.3})
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "policies.json").write_text(as_text(figures) + "\n")
    for name, figure in figures.items():
        drawing = DRAWINGS[name](figure, plt)
        drawing.tight_layout()
        described = {"Date": None, "Description": f"figures {digest(figure)} of policies.json"}
        drawing.savefig(folder / f"{name}.svg", metadata=described)
        plt.close(drawing)
    print(f"{', '.join(figures)} in {folder} show the figures of today")


def as_text(figures: Mapping[str, Figure]) -> str:
    """JSON with one line for each list of figures."""
    text = json.dumps(figures, indent=1)
    return re.sub(r"\[[^\[\]{}]*\]", lambda numbers: " ".join(numbers[0].split()), text)


if __name__ == "__main__":
    figures = {name: compute() for name, compute in FIGURES.items()}
    if len(sys.argv) > 1:
        draw(figures, Path(sys.argv[1]))
    else:
        print(as_text(figures))
