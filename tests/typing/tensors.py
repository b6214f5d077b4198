"""Functions of what a collation makes: what their callers get is known, what they give is not, unless it is said."""

from collections.abc import Collection, Sequence
from typing import Any, assert_type

from batchlib import Batched, batched
from batchlib.protocols import Accepted, Allocate, BatchFunction, Collated, Collator, Executor, Request


class Tensor:
    """As torch's."""

    shape: tuple[int, ...]

    def __getitem__(self, index: int) -> "Tensor":
        raise NotImplementedError


class Padder:
    def accept(self, args: tuple[Any, ...]) -> Accepted:
        raise NotImplementedError

    def collate(
        self, columns: Sequence[list[Any]], *, rows: int | None = None, allocate: Allocate | None = None
    ) -> Collated:
        raise NotImplementedError

    def uncollate(self, result: Any, collated: Collated, copy: bool | str) -> Sequence[Any]:
        raise NotImplementedError


class Pad:
    names = ("mask",)
    pads = True
    usual_batch_cost = 1024

    def start(self, taken: Collection[str], function: str) -> Collator:
        return Padder()


class OnDevice:
    is_async = False

    def run(self, requests: Sequence[Request]) -> Sequence[Any]:
        raise NotImplementedError

    async def run_async(self, requests: Sequence[Request]) -> Sequence[Any]:
        raise NotImplementedError


class Device:
    def start(self, function: BatchFunction) -> Executor:
        return OnDevice()


@batched(collate=Pad(), executor=Device(), max_batch_cost="auto")
def mean(values: Tensor, mask: Tensor, *, scale: float = 1.0) -> Tensor:
    raise NotImplementedError


def plain(values: Tensor, mask: Tensor) -> Tensor:
    raise NotImplementedError


exact: Batched[[list[int]], Tensor] = batched(plain, collate=Pad())


class Model:
    @batched(collate=Pad())
    def run(self, values: Tensor, *, mask: Tensor) -> Tensor:
        raise NotImplementedError


async def rows() -> Tensor:
    assert_type(await mean([1, 2], scale=2.0), Tensor)
    assert_type(exact.call([1, 2]), Tensor)
    assert_type(await Model().run([1]), Tensor)
    mean.configure(max_batch_cost="auto")
    return await mean([1])
