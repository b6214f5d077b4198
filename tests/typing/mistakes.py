"""Calls that are wrong. Each ignore comment is itself an error where the checker finds nothing to ignore."""

from collections.abc import AsyncIterator

from batchlib import batched


@batched
def embed(texts: list[str]) -> list[float]:
    raise NotImplementedError


@batched
def generate(prompts: list[str], seeds: list[int], *, temperature: float) -> list[str]:
    raise NotImplementedError


class Scorer:
    @batched
    def score(self, texts: list[str]) -> list[float]:
        raise NotImplementedError


async def the_item_has_its_type(scorer: Scorer) -> None:
    await embed(1)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await embed(["a"])  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    embed.call(1)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    embed.submit(1)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await embed.options(timeout=1)(1)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await scorer.score(1)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await Scorer.score("a")  # type: ignore[call-arg, arg-type]  # pyright: ignore[reportCallIssue]


async def every_item_is_given_once(scorer: Scorer) -> None:
    await embed()  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    await embed("a", "b")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    await embed(texts="a")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    await scorer.score()  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


async def settings_are_checked() -> None:
    await generate("a", 1)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    await generate("a", 1, temperature="hot")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await generate("a", 1, 0.5, temperature=0.5)  # type: ignore[misc]  # pyright: ignore[reportCallIssue]
    await generate("a", 1, temperature=0.5, top=3)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


async def the_result_has_its_type() -> None:
    text: str = await embed("a")  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
    assert text


def map_knows_what_its_source_holds(stream: AsyncIterator[int]) -> None:
    embed.map([1])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]
    embed.map(stream)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    embed.map()  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]


def options_are_checked() -> None:
    batched(max_batchsize=8)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    batched(max_batch_size="8")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
    batched(overflow="drop")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
    batched([1])  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
    embed.configure(name="other")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    embed.options(deadline=1)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
