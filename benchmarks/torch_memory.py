"""What is left in memory when each of 40 batches has one caller who keeps his row: in a process of its own.

Run with the `copy=` of the executor it prints one JSON object.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Literal

import torch
from held import resident_bytes
from judged import Judged
from sections import Check
from torch import Tensor

from batchlib import batched
from batchlib.torch import TorchExecutor, pad

if TYPE_CHECKING:
    from torch_minilm import Bench

BATCHES, ROWS, TOKENS, WIDTH = 40, 32, 512, 384
# Otherwise glibc raises by itself what it calls large, and rows come from its heap. Torch asks for aligned memory, for
# which glibc looks for a little more and gives the rest back: the hole that a freed row leaves is just too small for
# another one. So beside each kept row one stays free, whoever makes the copies, in whatever order and thread.
GIVING_BACK = {"MALLOC_MMAP_THRESHOLD_": str(1 << 17)}
MORE = 1.2  # times what the kept rows hold
MIB = 1 << 20


def memory(bench: Bench) -> Judged:
    table = Judged(
        f"4. Resident memory: of {BATCHES} batches of {ROWS} rows of {TOKENS} x {WIDTH} numbers, one row each is kept",
        ["rows hold, MiB", "grows by, MiB", "ratio", "as the C library is: grows by, MiB", "ratio"],
    )
    for name, copy in (("batchlib", "auto"), ("copy=False: views", "False")):
        usual, found = _measured(copy, {}), _measured(copy, GIVING_BACK)
        ratio = found["grown"] / found["held"]
        judged = copy == "auto"
        table.row(
            name,
            f"{found['held'] / MIB:.0f}",
            f"{found['grown'] / MIB:.0f}",
            f"{ratio:.2f}x",
            f"{usual['grown'] / MIB:.0f}",
            f"{usual['grown'] / usual['held']:.2f}x",
            bound=f"{MORE}x" if judged else "",
            checks=[Check(f"{name}, growth over what the rows hold", ratio, MORE, "x")] if judged else [],
        )
    table.notes.append("The bound is for MALLOC_MMAP_THRESHOLD_: large blocks are given back as soon as they are free.")
    table.notes.append(
        "As it is, glibc puts no aligned row where one of its size was freed, and each thread has a heap of its own."
    )
    return table


def _measured(copy: str, environment: dict[str, str]) -> dict[str, int]:
    command, here = [sys.executable, __file__, copy], os.path.dirname(__file__)
    env = {**os.environ, **environment}
    ended = subprocess.run(command, check=True, capture_output=True, text=True, cwd=here, env=env)
    found: dict[str, int] = json.loads(ended.stdout)
    return found


async def keep(copy: Literal["auto"] | bool) -> dict[str, int]:
    """What the process has grown by, and what the tensors in the callers' hands say that they hold."""
    embedding = torch.nn.Embedding(1000, WIDTH)

    @batched(max_batch_size=ROWS, collate=pad(mask=False), executor=TorchExecutor("cpu", threads=1, copy=copy))
    def embed(ids: Tensor, lengths: Tensor) -> Tensor:
        return embedding(ids)

    items = torch.randint(1000, (ROWS, TOKENS))

    async def batch() -> Tensor:
        rows: list[Tensor] = await asyncio.gather(*(embed(item) for item in items))
        return rows[ROWS // 2]

    for _ in range(3):  # what the allocator keeps for itself from the first batches on
        await batch()
    gc.collect()
    before = resident_bytes()
    kept = [await batch() for _ in range(BATCHES)]
    gc.collect()
    return {"grown": resident_bytes() - before, "held": sum(row.nbytes for row in kept)}


if __name__ == "__main__":
    print(json.dumps(asyncio.run(keep("auto" if sys.argv[1] == "auto" else False))))
