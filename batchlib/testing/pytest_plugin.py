"""Fixtures: `virtual_time` and `immediate`, for the length of a test.

Asked for by name, in the `conftest.py` at the root of a test suite:

    pytest_plugins = ["batchlib.testing.pytest_plugin"]

There is no entry point on purpose: it would import batchlib into every pytest run of every environment that has it,
before coverage measurement begins.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Protocol

import pytest

from ._overriding import AnyBatched
from ._overriding import immediate as immediate_block
from ._overriding import virtual_time as virtual_time_block
from ._virtual_time import VirtualTime

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .._typing import Options


class PutOnVirtualTime(Protocol):
    """The type of the fixture `virtual_time`."""

    def __call__(self, *functions: AnyBatched, start: float = 0.0, **options: Unpack[Options]) -> VirtualTime:
        """Gives the clock."""
        ...


class MakeImmediate(Protocol):
    """The type of the fixture `immediate`."""

    def __call__(self, *functions: AnyBatched) -> None:
        """Until the test ends."""
        ...


@pytest.fixture
def virtual_time() -> Generator[PutOnVirtualTime]:
    """`time = virtual_time(embed, score)`: puts batched functions on one virtual clock until the test ends."""
    with ExitStack() as stack:

        def put(*functions: AnyBatched, start: float = 0.0, **options: Unpack[Options]) -> VirtualTime:
            return stack.enter_context(virtual_time_block(*functions, start=start, **options))

        yield put


@pytest.fixture
def immediate() -> Generator[MakeImmediate]:
    """`immediate(embed, score)`: runs each of their calls at once and alone until the test ends."""
    with ExitStack() as stack:

        def make(*functions: AnyBatched) -> None:
            stack.enter_context(immediate_block(*functions))

        yield make
