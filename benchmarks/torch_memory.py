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
# Otherwise it raises by itself what it calls large, and keeps freed rows for the next ones: resident memory would then
# say how the allocator feels.
GIVING_BACK = {**os.environ, "MALLOC_MMAP_THRESHOLD_": str(1 << 17)}
MORE = 1.2  # times what the kept rows hold
MIB = 1 << 20


def memory(bench: Bench) -> Judged:
    table = Judged(
        f"4. Resident memory: of {BATCHES} batches of {ROWS} rows of {TOKENS} x {WIDTH} numbers, one row each is kept",
        ["grows by, MiB", "rows hold, MiB", "ratio"],
    )
    for name, copy in (("batchlib", "auto"), ("copy=False: views", "False")):
        command = [sys.executable, __file__, copy]
        ended = subprocess.run(
            command, check=True, capture_output=True, text=True, cwd=os.path.dirname(__file__), env=GIVING_BACK
        )
        found = json.loads(ended.stdout)
        ratio = found["grown"] / found["held"]
        judged = copy == "auto"
        table.row(
            name,
            f"{found['grown'] / MIB:.0f}",
            f"{found['held'] / MIB:.0f}",
            f"{ratio:.2f}x",
            bound=f"{MORE}x" if judged else "",
            checks=[Check(f"{name}, growth over what the rows hold", ratio, MORE, "x")] if judged else [],
        )
    table.notes.append("The C library gives large blocks back as soon as they are free (MALLOC_MMAP_THRESHOLD_).")
    return table


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
