"""Batched things as a user's module has them, for tests that send them elsewhere."""

from typing import Any

from batchlib import batched


@batched(max_batch_size=4)
def twice(items: list[int]) -> list[int]:
    return [2 * item for item in items]


def thrice(items: list[int]) -> list[int]:
    return [3 * item for item in items]


renamed = batched(thrice, max_batch_size=1, name="renamed")


class Model:
    def __init__(self, weight: int) -> None:
        self.weight = weight

    @batched
    def run(self, items: list[int]) -> list[int]:
        return [item * self.weight for item in items]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Model) and other.weight == self.weight

    __hash__ = None  # type: ignore[assignment]


def call(function: Any, item: int) -> Any:
    """What a worker process is given to do."""
    return function.call(item)
