"""Functions: one to five batched parameters, settings, plain and async, and what they may return."""

from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, assert_type

import numpy as np
from numpy.typing import NDArray
from signatures import types_of

from batchlib import Batched, batched


class HttpError(Exception):
    pass


@batched
def one(texts: list[str]) -> list[float]:
    raise NotImplementedError


@batched(max_batch_size=8, max_wait=0.01)
def two(left: Sequence[str], right: Iterable[int]) -> Sequence[bytes]:
    raise NotImplementedError


@batched()
async def three(a: list[str], b: Collection[int], c: list[bytes]) -> tuple[float, ...]:
    raise NotImplementedError


@batched(name="four")
async def four(a: list[str], b: list[int], c: list[bytes], d: list[float]) -> Sequence[bool]:
    raise NotImplementedError


@batched
def five(a: list[str], b: list[int], c: list[bytes], d: list[float], e: list[bool | None]) -> list[str]:
    raise NotImplementedError


def parameters_become_items() -> None:
    assert_type(types_of(one), tuple[str, float])
    assert_type(types_of(two), tuple[str, int, bytes])
    assert_type(types_of(three), tuple[str, int, bytes, float])
    assert_type(types_of(four), tuple[str, int, bytes, float, bool])
    assert_type(types_of(five), tuple[str, int, bytes, float, bool | None, str])


async def every_way_to_call() -> None:
    coroutine: Coroutine[Any, Any, float] = one("a")
    assert_type(await coroutine, float)
    assert_type(await one("a"), float)
    assert_type(one.call("a"), float)
    assert_type(one.submit("a"), Future[float])
    assert_type(await five("a", 1, b"", 0.5, None), str)
    assert_type(five.submit("a", 1, b"", 0.5, True).result(), str)


@batched(max_batch_size=4)
def generate(prompts: list[str], suffixes: list[str], *, temperature: float = 1.0, seed: int) -> list[str]:
    raise NotImplementedError


async def settings_stay_as_they_are() -> None:
    assert_type(await generate("a", "b", seed=1), str)
    assert_type(await generate("a", "b", temperature=0.5, seed=1), str)
    assert_type(generate.call("a", "b", seed=1), str)


# A function that is known already, with and without options.
def lengths(texts: list[str]) -> list[int]:
    raise NotImplementedError


async def lengths_async(texts: list[str]) -> list[int]:
    raise NotImplementedError


def options_come_before_or_with_the_function() -> None:
    assert_type(types_of(batched(lengths)), tuple[str, int])
    assert_type(types_of(batched(lengths, max_batch_size=4)), tuple[str, int])
    assert_type(types_of(batched(max_batch_size=4)(lengths_async)), tuple[str, int])
    assert_type(types_of(batched(max_batch_size=4)(name="lengths")(lengths)), tuple[str, int])


# An exception in a slot is that item's error: it is raised, so it is no part of the result.
@batched
def may_fail(texts: list[str]) -> list[float | ValueError]:
    raise NotImplementedError


@batched
async def may_fail_anyhow(texts: list[str]) -> Sequence[float | Exception | None]:
    raise NotImplementedError


@batched
def may_fail_in_three_ways(texts: list[str]) -> tuple[float | HttpError | KeyError | Exception, ...]:
    raise NotImplementedError


@batched
async def may_fail_at_the_base(texts: list[str], more: list[int]) -> Sequence[bytes | BaseException]:
    raise NotImplementedError


def errors_are_no_results() -> None:
    assert_type(types_of(may_fail), tuple[str, float])
    assert_type(types_of(may_fail_anyhow), tuple[str, float | None])
    assert_type(types_of(may_fail_in_three_ways), tuple[str, float])
    assert_type(types_of(may_fail_at_the_base), tuple[str, int, bytes])


# Arrays and tensors are rows on axis 0.
class Tensor:
    @property
    def shape(self) -> tuple[int, ...]:
        raise NotImplementedError

    def __getitem__(self, index: int | slice | None) -> "Tensor":
        raise NotImplementedError


@batched
def embed(texts: list[str]) -> Tensor:
    raise NotImplementedError


@batched
async def embed_async(texts: list[str], *, normalize: bool = True) -> Tensor:
    raise NotImplementedError


@batched
def embed_numpy(texts: list[str]) -> NDArray[np.float32]:
    raise NotImplementedError


def the_row_is_the_result() -> None:
    assert_type(types_of(embed), tuple[str, Tensor])


async def arrays_are_indexed() -> None:
    assert_type(await embed_async("a", normalize=False), Tensor)
    assert_type(embed_numpy.call("a"), Any)


# The rest is callable with anything: what the function takes once its items are collated, `*args`, what the checker
# does not know, and what only the run time refuses.
@batched(collate=np.stack)
def collated(images: NDArray[np.uint8], boxes: NDArray[np.int64]) -> NDArray[np.float32]:
    raise NotImplementedError


@batched
def columns(*columns: list[int], scale: float = 1.0) -> list[float]:
    raise NotImplementedError


@batched
def mapping(texts: list[str]) -> dict[str, str]:
    raise NotImplementedError


class Module:
    """Typed as `torch.nn.Module` is."""

    __call__: Callable[..., Any]


def the_rest_takes_anything() -> None:
    assert_type(collated, Batched[..., Any])
    assert_type(columns, Batched[..., float])
    assert_type(mapping, Batched[..., Any])


def modules(module: Module) -> None:
    assert_type(batched(module), Batched[..., Any])


def generator_functions(function: Callable[[list[str]], Iterator[str]]) -> None:
    assert_type(batched(function), Batched[..., Any])


# An `Any` inside an annotation costs mypy the precise type, and nobody a call.
@batched
def records(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    raise NotImplementedError


async def any_passes() -> None:
    row: dict[str, Any] = await records({"text": "a"})
    assert row
    scale: float = columns.call(1, 2, 3, scale=2.0)
    assert scale
    assert_type(await collated(np.zeros(3), np.zeros(4)), Any)


# Callables that are not functions.
class Scale:
    def __call__(self, values: list[int]) -> list[float]:
        raise NotImplementedError

    async def later(self, values: list[int], *, by: float) -> list[float]:
        raise NotImplementedError


async def callables() -> None:
    assert_type(types_of(batched(Scale())), tuple[int, float])
    assert_type(await batched(Scale().later)(1, by=2.0), float)
    result: float = await batched(partial(Scale().later, by=2.0))(1)
    assert result
