"""`options`, `map`, and what a batcher is told and asked."""

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any, assert_type

from batchlib import Results, batched


def length_class(text: str) -> int:
    return len(text) // 8


@batched(
    max_batch_size=8,
    max_wait=timedelta(milliseconds=5),
    cost=len,
    max_batch_cost=512,
    group_by=length_class,
    max_waiting=None,
    overflow="reject",
    timeout=2.0,
    max_concurrent_batches=2,
    oversize="alone",
    on_error="bisect",
    hooks=(),
    max_execution_time=30.0,
    name="embed",
    version="3",
)
def embed(texts: list[str], *, normalize: bool = True) -> list[float]:
    raise NotImplementedError


@batched
async def score(queries: list[str], documents: list[bytes]) -> list[int]:
    raise NotImplementedError


async def options_keep_the_call() -> None:
    urgent = embed.options(timeout=0.05, priority=-1, tenant="acme")
    assert_type(await urgent("a", normalize=False), float)
    assert_type(urgent.call("a"), float)
    assert_type(urgent.submit("a").result(), float)
    assert_type(urgent.map(["a"]), Results[float])
    assert_type(await embed.options(timeout=timedelta(seconds=1))("a"), float)


async def map_knows_its_source(texts: list[str], stream: AsyncIterator[str]) -> None:
    assert_type(embed.map(texts), Results[float])
    assert_type(embed.map(stream, look_ahead=8), Results[float])
    assert_type(embed.map(texts, return_exceptions=True), Results[float | Exception])
    assert_type(embed.map(texts, ordered=False), Results[tuple[int, float]])
    assert_type(embed.map(texts, ordered=False, return_exceptions=True), Results[tuple[int, float | Exception]])
    assert_type(score.map(texts, [b"a", b"b"]), Results[int])
    for value in embed.map(texts):
        assert_type(value, float)
    async for index, outcome in score.map(stream, [b"a"], ordered=False, return_exceptions=True):
        assert_type(index, int)
        assert_type(outcome, int | Exception)


async def a_batcher_is_a_context(texts: list[str]) -> None:
    embed.configure(max_batch_size=64, max_wait=0.002)
    with embed as same:
        assert_type(same.call(texts[0]), float)
    async with embed as same:
        assert_type(await same(texts[0]), float)
    embed.close(drain=True, timeout=5)
    await embed.aclose(drain=False)
    assert_type(embed.direct(texts), Any)
