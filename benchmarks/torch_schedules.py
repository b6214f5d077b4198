"""The way to a device and back on a simulated one: right under every schedule, and no safeguard that could be left out.

The device runs copies and computations in any order that its streams and events allow, one by each seed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from judged import Judged, Workers
from sections import Check
from torch import Tensor

from batchlib.torch.device._arena import Arena
from batchlib.torch.device._ring import Buffers, Call, Pipeline, Results
from batchlib.torch.device._simulated import SimulatedDevice
from batchlib.torch.device._simulated_run import simulated_run

if TYPE_CHECKING:
    from torch_minilm import Bench

CHUNK = 100  # seeds that a process runs at a time
CAUGHT = 1.0  # % of the seeds that must show a missing safeguard


class Forgetful(SimulatedDevice):
    """Nobody waits for the events that it is told to forget."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.forgotten: list[Any] = []

    def wait(self, stream: Any, event: Any) -> None:
        if not self._forgot(event):
            super().wait(stream, event)

    def synchronize(self, event: Any) -> None:
        if not self._forgot(event):
            super().synchronize(event)

    def _forgot(self, event: Any) -> bool:
        return any([event is each for each in self.forgotten])  # events of the same recordings are equal


class WithoutEvent(Pipeline):
    """Each of its buffers has an event that nobody waits for."""

    event = ""

    def __init__(self, device: Forgetful, *, results: Results = "host") -> None:
        super().__init__(device, results=results)
        self._forgotten = device.forgotten

    def buffers(self) -> Buffers:
        made = super().buffers()
        self._forgotten.append(getattr(made, self.event))
        return made


class WithoutCopiedIn(WithoutEvent):
    event = "copied_in"


class WithoutComputed(WithoutEvent):
    event = "computed"


class WithoutCopiedOut(WithoutEvent):
    event = "copied_out"


class WithoutGrown(WithoutEvent):
    event = "grown"


class Unawaited(SimulatedDevice):
    """Nobody waits for what it was given before the first batch."""

    entered = False

    def synchronize_all(self) -> None:
        if self.entered:
            super().synchronize_all()
        self.entered = True


class WithoutHeld(Pipeline):
    """Lets go of what the function gave before it is copied out."""

    def launch(self, buffers: Buffers, call: Call, key: Any = None) -> None:
        super().launch(buffers, call, key)
        buffers.held = None


class Greedy(Arena):
    """Its memory is its own, whoever has it."""

    def let_go(self) -> None: ...


class WithoutLettingGo(Pipeline):
    """Writes to the device's memory though a function has kept it, or given it away."""

    def buffers(self) -> Buffers:
        made = super().buffers()
        made.inputs = Greedy(self._device.host_buffer)
        return made


class WithoutClear(Pipeline):
    """Does not wait for the device where a launch has failed."""

    def clear(self, buffers: Buffers) -> None:
        buffers.open = False
        super().clear(buffers)


def same(tensor: Tensor) -> Tensor:
    return tensor


Make = Callable[[int], SimulatedDevice]
SAFEGUARDS: dict[str, tuple[Make, Callable[..., Pipeline], Callable[[Tensor], Tensor]]] = {
    "computing waits for the copy in": (Forgetful, WithoutCopiedIn, torch.clone),
    "the copy out waits for computing": (Forgetful, WithoutComputed, torch.clone),
    "the host waits for the copy out": (Forgetful, WithoutCopiedOut, torch.clone),
    "the copy into new memory waits for computing": (Forgetful, WithoutGrown, torch.clone),
    "results are held until copied out": (SimulatedDevice, WithoutHeld, torch.clone),
    "weights are there before the first batch": (Unawaited, Pipeline, torch.clone),
    "a failed launch is waited for": (SimulatedDevice, WithoutClear, torch.clone),
    "inputs that somebody has are not overwritten": (SimulatedDevice, WithoutLettingGo, torch.clone),
    "callers get copies": (SimulatedDevice, Pipeline, same),
}


@dataclass(frozen=True)
class Seeds:
    """Some seeds, without a safeguard or, if it is "", with all of them."""

    first: int
    many: int
    missing: str = ""


def wrong(seeds: Seeds) -> int:
    """In how many of them a result was not what it should be."""
    device, pipeline, copy = SAFEGUARDS.get(seeds.missing, (SimulatedDevice, Pipeline, torch.clone))
    torch.set_num_threads(1)
    return sum(
        bool(simulated_run(seed, device=device, pipeline=pipeline, copy=copy))
        for seed in range(seeds.first, seeds.first + seeds.many)
    )


def schedules(bench: Bench) -> Judged:
    many, each = (1000, CHUNK) if bench.quick else (10_000, 10 * CHUNK)
    with Workers(bench.quick) as workers:
        right = workers.each(wrong, [Seeds(first, CHUNK) for first in range(0, many, CHUNK)])
        cells = [Seeds(first, CHUNK, missing) for missing in SAFEGUARDS for first in range(0, each, CHUNK)]
        missed = workers.each(wrong, cells)
    table = Judged("5. Simulated schedules of a device with three streams", ["seeds", "wrong results", "share"])
    table.row(
        "as it is",
        f"{many:,}",
        f"{sum(right):,}",
        f"{100 * sum(right) / many:.0f} %",
        bound="0",
        checks=[Check("schedules with wrong results", sum(right), 0, "")],
    )
    for missing in SAFEGUARDS:
        found = sum(count for count, cell in zip(missed, cells, strict=True) if cell.missing == missing)
        share = 100 * found / each
        table.row(
            f"without: {missing}",
            f"{each:,}",
            f"{found:,}",
            f"{share:.0f} %",
            bound=f"{CAUGHT:g} %, seen",
            checks=[Check(f"seeds that show what happens without: {missing}", share, CAUGHT, " %", at_least=True)],
        )
    return table
