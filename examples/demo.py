"""Hundreds of callers, one embedding model: what `@batched` makes of it, measured. `make demo` runs it."""

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import chain


def stop(*_: object) -> None:
    os.write(2, b"\nStopped.\n")
    os._exit(130)


# From here on, since the imports take seconds too: Ctrl-C is one line and not the tracebacks of tasks and threads.
signal.signal(signal.SIGINT, stop)

try:
    import torch
    import trio
    from measuring import Meter, Run, table
    from minilm import MiniLM, TokenIds, sentences
    from torch import Tensor

    from batchlib import batched
    from batchlib.torch import TorchExecutor, pack, pad
except ModuleNotFoundError as error:
    sys.exit(f"{error}. `make demo` installs what is needed; so does: pip install -e '.[demo]' -c constraints.txt")

TEXTS = 400
THREADS = 256
ROUNDS = 2
LEAST_RATIO = 1.2
GREATEST_DIFFERENCE = 1e-5

print("Loading the model ...", file=sys.stderr, flush=True)
model = MiniLM()
meter = Meter()
on_cpu = TorchExecutor("cpu", threads=1)


# An item is padded to the longest one of its batch. So what limits a batch is not its texts but its tokens, padding
# included, and with such a limit texts of nearly the same length share a batch.
@batched(collate=pad(), max_batch_cost=768, max_batch_size=64, executor=on_cpu, hooks=(meter.hook,))
def embed(ids: Tensor, mask: Tensor, lengths: Tensor) -> Tensor:
    meter.count(len(ids), tokens=int(lengths.sum()), computed=ids.numel())
    return model.embed(ids, mask)


# Without any padding: the texts of a batch stand one behind the other, in the order in which they came.
@batched(collate=pack(), max_batch_cost=1024, max_batch_size=64, executor=on_cpu, hooks=(meter.hook,))
def embed_packed(ids: Tensor, positions: Tensor, lengths: Tensor) -> Tensor:
    meter.count(len(lengths), tokens=len(ids), computed=len(ids))
    return model.embed_packed(ids, positions, lengths)


# What not to do: whoever arrives next to each other shares a batch, short texts with long ones.
embed_in_arrival_order = batched(embed.direct, collate=pad(), max_batch_size=32, executor=on_cpu, hooks=(meter.hook,))


def one_by_one(texts: list[str]) -> list[Tensor]:
    """A plain loop without batchlib."""
    vectors: list[Tensor] = []
    with torch.inference_mode():
        for text in texts:
            ids = torch.tensor([model.tokenize(text)])
            vectors.append(model.embed(ids)[0])
            meter.count(1, tokens=ids.numel(), computed=ids.numel())
    return vectors


async def asyncio_tasks(function: Callable[[TokenIds], Awaitable[Tensor]], texts: list[str]) -> list[Tensor]:
    async def caller(text: str) -> Tensor:
        return await function(model.tokenize(text))

    return await asyncio.gather(*(caller(text) for text in texts))


async def trio_tasks(texts: list[str]) -> list[Tensor]:
    vectors: dict[str, Tensor] = {}

    async def caller(text: str) -> None:
        vectors[text] = await embed(model.tokenize(text))

    async with trio.open_nursery() as nursery:
        for text in texts:
            nursery.start_soon(caller, text)
    return [vectors[text] for text in texts]


def threads(texts: list[str]) -> list[Tensor]:
    def caller(text: str) -> Tensor:
        return embed.call(model.tokenize(text))

    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(caller, texts))


def main() -> None:
    texts = sentences(TEXTS)
    ways: dict[str, Callable[[list[str]], list[Tensor]]] = {
        "one by one": one_by_one,
        "batched, asyncio": lambda texts: asyncio.run(asyncio_tasks(embed, texts)),
        "batched, trio": lambda texts: trio.run(trio_tasks, texts),
        "batched, threads": threads,
        "packed, asyncio": lambda texts: asyncio.run(asyncio_tasks(embed_packed, texts)),
    }
    runs = 1 + ROUNDS * len(ways)
    print(f"all-MiniLM-L6-v2 embeds {TEXTS} sentences of Python's help, one caller for each.")
    print(f"{runs} runs, about a minute or two.", flush=True)
    meter.expect(runs)
    arrival = meter.measure(
        "arrival order", lambda texts: asyncio.run(asyncio_tasks(embed_in_arrival_order, texts)), texts
    )
    # Round after round, and the better one of each way: a busy moment of the machine hits all ways, or counts for none.
    rounds = [[meter.measure(name, way, texts) for name, way in ways.items()] for _ in range(ROUNDS)]
    alone, served, *others = (min(runs, key=lambda run: run.cpu_seconds) for runs in zip(*rounds, strict=True))
    print(table([alone, arrival, served, *others]))
    compare_vectors([arrival, *chain(*rounds)], alone)
    judge(alone, arrival, [served, others[-1]])


def compare_vectors(runs: list[Run], alone: Run) -> None:
    """Exits with status 1 and a message if any run gave other vectors than one by one did."""
    for run in runs:
        if not run.difference(alone) < GREATEST_DIFFERENCE:
            sys.exit(
                f"FAILED: the vectors of {run.name!r} differ from those of one by one by up to "
                f"{run.difference(alone):.1e}; {GREATEST_DIFFERENCE:.0e} is allowed."
            )


def judge(alone: Run, arrival: Run, served: list[Run]) -> None:
    """Says what the figures mean, or exits with status 1 and a message if batching was not worth it."""
    for run in served:
        if run.over(alone) < LEAST_RATIO:
            sys.exit(
                f"FAILED: {run.name!r} gave {run.over(alone):.2f} times the texts per CPU-second of one by one; "
                f"at least {LEAST_RATIO} is expected. Is the machine very busy? Then run it again."
            )
    padded, packed = served
    print(f"""
{padded.name}: {padded.over(alone):.2f} times the texts per CPU-second of one by one,
with the same vectors. {packed.name}: {packed.over(alone):.2f} times, without any padding.
{arrival.name}: each text is padded to the longest one of its batch, and {arrival.waste:.0%} of
the work is padding: on a CPU that loses to no batching at all. max_batch_cost=
mends it: texts of near lengths then share a batch.
CPU-seconds (one torch thread, the better of {ROUNDS} rounds) depend least on what else
the machine does. Queue delays are those of a crowd: all {alone.texts} tasks, or {THREADS}
threads, ask at the same moment.""")


if __name__ == "__main__":
    main()
