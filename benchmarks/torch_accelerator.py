"""On an accelerator, where there is one: held against a double-buffered loop by hand, and the latency of each size."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import chain, pairwise
from typing import Any

import torch
from common import MILLI
from judged import Judged
from sections import Check
from torch import Tensor, nn
from torch.profiler import profile, supported_activities
from torch_minilm import Bench, Call, MiniLM, serve

from batchlib import batched
from batchlib.torch import TorchExecutor, pad, stack

SIZE = 32  # images in a batch
SHAPE = (3, 224, 224)
LOOP_SHARE = 0.9  # of the speed of the loop by hand
Span = tuple[float, float]


def accelerator(bench: Bench) -> Judged:
    table = Judged(
        "6. On an accelerator: batches of images, then MiniLM by batch size", ["a second", "x by hand", "ms"]
    )
    if not torch.accelerator.is_available():
        table.row("no accelerator here: not run", "", "", "")
        return table
    device = torch.accelerator.current_accelerator()
    table.title += f", {device}"
    with torch.no_grad():
        pipelined(bench, device, table)
        latencies(bench, device, table)
    return table


def pipelined(bench: Bench, device: torch.device, table: Judged) -> None:
    """Images that are as dear to copy as to compute, so that who copies and computes in turns is slow."""
    model, images = convolutions().to(device), [*torch.rand(4 * SIZE, *SHAPE)]
    served = images * (4 if bench.quick else 16)
    ways: dict[str, Callable[[], Sequence[Tensor]]] = {"by hand, two buffers": lambda: by_hand(device, model, served)}
    for in_flight in (2, 1):
        executor = TorchExecutor(device, in_flight=in_flight)
        function = batched(model.forward, max_batch_size=SIZE, collate=stack(), executor=executor)
        ways[f"batchlib, in_flight={in_flight}"] = lambda call=function: serve(call, served, 4 * SIZE)
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    vectors: dict[str, Sequence[Tensor]] = {}
    for _ in range(4):  # the first warms up
        for name, way in ways.items():
            start = time.perf_counter()
            vectors[name] = way()
            seconds[name].append(time.perf_counter() - start)
    loop, *others = ways
    for name in ways:
        ratio = statistics.median(hand / own for hand, own in zip(seconds[loop][1:], seconds[name][1:], strict=True))
        differ = float((torch.stack([*vectors[name]]) - torch.stack([*vectors[loop]])).abs().max())
        checks = [Check(f"{name}, results differ from the loop's by", differ, 1e-4, "")]
        if name == others[0]:
            checks.append(Check(f"{name}, speed over the loop's", ratio, LOOP_SHARE, "x", at_least=True))
        taken = statistics.median(seconds[name][1:])
        table.row(
            name,
            f"{len(served) / taken:,.0f}",
            f"{ratio:.2f}x",
            f"{MILLI * SIZE * taken / len(served):.2f}",
            bound=f"{LOOP_SHARE}x" if name == others[0] else "",
            checks=checks,
        )
        table.records.append({"way": name, "seconds": seconds[name]})
    share = beside(ways[others[0]])
    checks = [Check("copies beside computation", share, 1.0, " %", at_least=True)]
    table.row("copying while computing, profiled", f"{share:.0f} %", "", "", bound="some", checks=checks)


def latencies(bench: Bench, device: torch.device, table: Judged) -> None:
    """From call to vector, where as many callers as the batch is large come at once."""
    model = MiniLM(device)

    @batched(max_batch_size=64, collate=pad(), executor=TorchExecutor(device))
    def embed(ids: Tensor, mask: Tensor) -> Tensor:
        return model.embed(ids, mask)

    item = list(range(1000, 1032))  # 32 tokens
    for size in (1, 2, 4, 8, 16, 32, 64):
        taken = asyncio.run(at_once(embed, [item] * size, 20 if bench.quick else 100))
        p50 = statistics.median(taken[5:])
        table.row(f"MiniLM, {size} texts of 32 tokens at once", f"{size / p50:,.0f}", "", f"{MILLI * p50:.2f}")
        table.records.append({"size": size, "seconds": taken})


async def at_once(call: Call, items: Sequence[list[int]], repetitions: int) -> list[float]:
    """Seconds until the last of them has its vector."""
    taken: list[float] = []
    for _ in range(repetitions):
        start = time.perf_counter()
        await asyncio.gather(*(call(item) for item in items))
        taken.append(time.perf_counter() - start)
    return taken


def convolutions() -> nn.Module:
    """Stands for the first half of an image classifier."""
    widths = (3, 64, 128, 256)
    layers = ((nn.Conv2d(before, after, 7, stride=2, padding=3), nn.ReLU()) for before, after in pairwise(widths))
    return nn.Sequential(*chain.from_iterable(layers), nn.AdaptiveAvgPool2d(1), nn.Flatten()).eval()


class Slot:
    """The memory and the events of one of the loop's two buffers."""

    def __init__(self, device: torch.device, width: int) -> None:
        self.images = torch.empty(SIZE, *SHAPE, pin_memory=True)
        self.copied = torch.empty(SIZE, *SHAPE, device=device)
        self.vectors = torch.empty(SIZE, width, pin_memory=True)
        self.copied_in, self.computed, self.copied_out = (torch.Event(device) for _ in range(3))
        self.result: Any = None  # referred to until it is copied

    def rows(self) -> Iterable[Tensor]:
        self.copied_out.synchronize()
        return self.vectors.clone().unbind()


def by_hand(device: torch.device, model: nn.Module, images: Sequence[Tensor]) -> list[Tensor]:
    """What a careful engineer writes for full batches whose number is known: nobody waits, nothing fails."""
    slots = [Slot(device, width=256) for _ in range(2)]
    copy_in, copy_out = torch.Stream(device=device), torch.Stream(device=device)
    compute = torch.accelerator.current_stream()
    torch.accelerator.synchronize()
    rows: list[Tensor] = []
    running: deque[Slot] = deque()
    for first in range(0, len(images), SIZE):
        if len(running) == len(slots):
            rows += running.popleft().rows()
        slot = slots[first // SIZE % len(slots)]
        torch.stack([*images[first : first + SIZE]], out=slot.images)
        with copy_in:
            slot.copied.copy_(slot.images, non_blocking=True)
            slot.copied_in.record(copy_in)
        compute.wait_event(slot.copied_in)
        slot.result = model(slot.copied)
        slot.computed.record(compute)
        copy_out.wait_event(slot.computed)
        with copy_out:
            slot.vectors.copy_(slot.result, non_blocking=True)
            slot.copied_out.record(copy_out)
        running.append(slot)
    for slot in running:
        rows += slot.rows()
    return rows


def beside(way: Callable[[], object]) -> float:
    """The share of the time of copying, in %, in which the device computed as well."""
    with profile(activities=supported_activities()) as profiled:
        way()
    events = [event for event in profiled.events() if event.device_type != torch.autograd.DeviceType.CPU]
    copying, computing = (
        joined((event.time_range.start, event.time_range.end) for event in events if ("Memcpy" in event.name) is copies)
        for copies in (True, False)
    )
    both = sum(max(0.0, min(a[1], b[1]) - max(a[0], b[0])) for a in copying for b in computing)
    return 100 * both / max(sum(end - start for start, end in copying), 1e-9)


def joined(spans: Iterable[Span]) -> list[Span]:
    """The same time in spans that do not overlap."""
    found: list[Span] = []
    for start, end in sorted(spans):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((start, end))
    return found
