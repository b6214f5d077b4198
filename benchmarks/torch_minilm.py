"""What the sections of torch_embedding.py share: MiniLM, real texts, the ways to embed them, and what each one did."""

from __future__ import annotations

import asyncio
import gc
import random
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any, TypeVar

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))

import torch
from minilm import MiniLM, TokenIds, sentences_of
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from batchlib import batched
from batchlib.torch import TorchExecutor, pack, pad

CALLERS = 256
BUDGET = 768  # padded tokens in a batch: what "auto" stands for with `pad`
LARGEST = 64  # texts in a batch under such a budget
Item = TypeVar("Item")
Call = Callable[[TokenIds], Awaitable[Tensor]]
Way = Callable[[list[str]], Sequence[Tensor]]


@dataclass
class Work:
    """What the model was given: counted where it is called, and the CPU that it took there."""

    sizes: list[int] = field(default_factory=list[int])
    tokens: int = 0
    computed: int = 0
    inside: float = 0.0

    @property
    def waste(self) -> float:
        """Padding's share of the computed tokens, in %."""
        return 100 * (1 - self.tokens / self.computed)


@dataclass
class Run:
    """One way, once over all texts: its work, its vectors, and the CPU-seconds of the whole process."""

    work: Work
    vectors: Sequence[Tensor]
    seconds: float

    @property
    def per_token(self) -> float:
        return self.seconds / self.work.tokens

    def difference(self, reference: Run) -> float:
        """The greatest difference of any number in any vector, of as many texts as this run had."""
        others = reference.vectors[: len(self.vectors)]
        return float((torch.stack([*self.vectors]) - torch.stack([*others])).abs().max())


class Bench:
    """The model, the texts, and the functions over the model whose calls are counted."""

    def __init__(self, quick: bool) -> None:
        self.quick, self.model = quick, MiniLM()
        self.texts = passages(400 if quick else 1500)
        self.lengths = [len(self.model.tokenize(text)) for text in self.texts]
        self.work = Work()
        self.once(self.one_by_one, self.texts[:32])  # what torch and the tokenizer prepare at their first use
        gc.collect()
        gc.freeze()  # what the imports left on the heap costs no row anything

    def once(self, way: Way, texts: list[str]) -> Run:
        self.work = work = Work()
        start = time.process_time()
        vectors = way(texts)
        return Run(work, vectors, time.process_time() - start)

    def embed(self, ids: Tensor, mask: Tensor | None, tokens: int) -> Tensor:
        self.count(len(ids), tokens, ids.numel())
        with counted(self.work):
            return self.model.embed(ids, mask)

    def embed_packed(self, ids: Tensor, positions: Tensor, lengths: Tensor) -> Tensor:
        self.count(len(lengths), len(ids), len(ids))
        with counted(self.work):
            return self.model.embed_packed(ids, positions, lengths)

    def count(self, rows: int, tokens: int, computed: int) -> None:
        self.work.sizes.append(rows)
        self.work.tokens += tokens
        self.work.computed += computed

    def one_by_one(self, texts: list[str]) -> list[Tensor]:
        """A plain loop without batchlib, and without the mask that one text needs none of."""
        with torch.inference_mode():
            items = (torch.tensor([self.model.tokenize(text)]) for text in texts)
            return [self.embed(item, None, item.numel())[0] for item in items]

    def sorted_by_hand(self, texts: list[str]) -> list[Tensor]:
        """Who has all texts beforehand sorts them, and cuts batches that keep the budget."""
        items = sorted(((self.model.tokenize(text), place) for place, text in enumerate(texts)), key=by_length)
        vectors: list[Tensor] = [torch.empty(0)] * len(texts)
        with torch.inference_mode():
            for batch in cut(items):
                lengths = torch.tensor([len(item) for item, _ in batch])
                ids = pad_sequence([torch.tensor(item) for item, _ in batch], batch_first=True)
                mask = torch.arange(ids.shape[1]) < lengths[:, None]
                for vector, (_, place) in zip(self.embed(ids, mask, int(lengths.sum())), batch, strict=True):
                    vectors[place] = vector
        return vectors

    def padded(self, **options: Any) -> Call:
        """The function that batchlib batches, with padding."""

        @batched(collate=pad(), executor=TorchExecutor("cpu", threads=1), **options)
        def embed(ids: Tensor, mask: Tensor, lengths: Tensor) -> Tensor:
            return self.embed(ids, mask, int(lengths.sum()))

        return embed

    def packed(self, **options: Any) -> Call:
        """And without: texts one behind the other."""

        @batched(collate=pack(), executor=TorchExecutor("cpu", threads=1), **options)
        def embed(ids: Tensor, positions: Tensor, lengths: Tensor) -> Tensor:
            return self.embed_packed(ids, positions, lengths)

        return embed

    def online(self, function: Call) -> Way:
        """256 callers, each of which tokenizes a text, waits for its vector and takes the next text."""
        return lambda texts: serve(lambda text: function(self.model.tokenize(text)), texts)


@contextmanager
def counted(work: Work) -> Iterator[None]:
    """Adds the CPU-seconds that this thread takes for it; torch, with one thread, computes in it alone."""
    start = time.thread_time()
    yield
    work.inside += time.thread_time() - start


def serve(call: Callable[[Item], Awaitable[Tensor]], items: Sequence[Item], callers: int = CALLERS) -> list[Tensor]:
    """As many callers as said, each of which takes the next item once it has its vector."""
    vectors: list[Tensor] = [torch.empty(0)] * len(items)
    left = iter(enumerate(items))

    async def caller() -> None:
        for place, item in left:
            vectors[place] = await call(item)

    async def everybody() -> None:  # gives nothing back: `asyncio.run` asks for the repr of that, tensors and all
        await asyncio.gather(*(caller() for _ in range(callers)))

    asyncio.run(everybody())
    return vectors


def passages(count: int) -> list[str]:
    """`count` different texts of Python's help in random order, the same ones at every run: one to six sentences that
    follow each other, mostly one."""
    chance, found = random.Random(20), dict[str, None]()
    known = [sentences for topic in topics.values() if (sentences := sentences_of(topic))]
    starts = [(sentences, place) for sentences in known for place in range(len(sentences))]
    while len(found) < count:
        sentences, place = chance.choice(starts)
        found[" ".join(sentences[place : place + chance.choice((1, 1, 1, 1, 1, 1, 1, 2, 3, 6))])] = None
    return [*found]


def by_length(item: tuple[TokenIds, int]) -> int:
    return len(item[0])


def cut(items: Sequence[tuple[TokenIds, int]]) -> Iterator[Sequence[tuple[TokenIds, int]]]:
    """Batches of the sorted items, each as large as the limits allow."""
    first = 0
    for place in range(1, len(items) + 1):
        size = place - first
        if size == LARGEST or place == len(items) or (size + 1) * by_length(items[place]) > BUDGET:
            yield items[first:place]
            first = place
