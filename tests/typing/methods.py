"""Methods: the instance is bound as for any method, and `@batched` stands above and below other decorators."""

from collections.abc import Sequence
from typing import Any, Generic, TypeVar, assert_type

import numpy as np
from numpy.typing import NDArray
from signatures import types_of

from batchlib import Batched, batched

T = TypeVar("T")


class Scorer:
    @batched
    def one(self, texts: list[str]) -> list[float | ValueError]:
        raise NotImplementedError

    @batched(max_batch_size=8)
    async def two(self, queries: list[str], documents: Sequence[bytes], *, top: int = 3) -> Sequence[int]:
        raise NotImplementedError

    @batched
    def three(self, a: list[str], b: list[int], c: list[bytes]) -> list[int]:
        raise NotImplementedError

    @batched
    async def four(self, a: list[str], b: list[int], c: list[bytes], d: list[float]) -> list[int]:
        raise NotImplementedError

    @batched
    def five(self, a: list[str], b: list[int], c: list[bytes], d: list[float], e: list[bool]) -> list[int]:
        raise NotImplementedError

    @batched
    def __call__(self, texts: list[str]) -> list[bytes]:
        raise NotImplementedError

    @batched
    def array(self, images: NDArray[np.uint8]) -> NDArray[np.float32]:
        raise NotImplementedError

    @batched
    @classmethod
    def class_below(cls, texts: list[str]) -> list[float]:
        raise NotImplementedError

    @classmethod
    @batched
    def class_above(cls, texts: list[str]) -> list[float]:
        raise NotImplementedError

    @batched
    @staticmethod
    def static_below(texts: list[str]) -> list[float]:
        raise NotImplementedError

    @staticmethod
    @batched
    def static_above(texts: list[str]) -> list[float]:
        raise NotImplementedError


class FastScorer(Scorer):
    pass


class Store(Generic[T]):
    @batched
    def load(self, keys: list[str]) -> list[T]:
        raise NotImplementedError


async def bound(scorer: Scorer, fast: FastScorer, store: Store[bytes]) -> None:
    assert_type(types_of(scorer.one), tuple[str, float])
    assert_type(await scorer.one("a"), float)
    assert_type(scorer.one.call("a"), float)
    assert_type(await scorer.two("a", b"", top=1), int)
    assert_type(scorer.two.submit("a", b"").result(), int)
    assert_type(types_of(scorer.three), tuple[str, int, bytes, int])
    assert_type(types_of(scorer.four), tuple[str, int, bytes, float, int])
    assert_type(types_of(scorer.five), tuple[str, int, bytes, float, bool, int])
    assert_type(await scorer("a"), bytes)
    assert_type(scorer.array, Batched[..., Any])
    assert_type(types_of(fast.one), tuple[str, float])
    assert_type(types_of(store.load), tuple[str, bytes])


async def unbound(scorer: Scorer) -> None:
    assert_type(types_of(Scorer.one), tuple[Scorer, str, float])
    assert_type(await Scorer.one(scorer, "a"), float)


def decorators_above_and_below(scorer: Scorer) -> None:
    assert_type(types_of(Scorer.class_below), tuple[str, float])
    assert_type(types_of(scorer.class_below), tuple[str, float])
    assert_type(types_of(Scorer.class_above), tuple[str, float])
    assert_type(types_of(scorer.class_above), tuple[str, float])
    assert_type(types_of(Scorer.static_below), tuple[str, float])
    assert_type(types_of(scorer.static_below), tuple[str, float])
    assert_type(types_of(Scorer.static_above), tuple[str, float])
    assert_type(types_of(scorer.static_above), tuple[str, float])
