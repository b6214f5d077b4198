"""What every test here is parametrised over: the runtime, and whether the function is plain or async."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support import VirtualClock

from batchlib import batched

from .held import Held, Kind
from .runtimes import EVERYWHERE, LEAVING, LEAVING_A_BATCH, LOOPS, RUNTIMES, Runtime


def entered(request: pytest.FixtureRequest) -> Iterator[Runtime]:
    with RUNTIMES[request.param]() as runtime:
        yield runtime


runtime = pytest.fixture(entered, params=EVERYWHERE, name="runtime")
loop = pytest.fixture(entered, params=LOOPS, name="loop")
leaving = pytest.fixture(entered, params=LEAVING, name="leaving")
leaving_a_batch = pytest.fixture(entered, params=LEAVING_A_BATCH, name="leaving_a_batch")


@pytest.fixture(params=["plain", "async"])
def kind(request: pytest.FixtureRequest) -> Kind:
    return request.param


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def make() -> Iterator[Callable[..., Any]]:
    """`batched`, for a function or a Held; opens the gates and closes the batchers at the end."""
    made: list[Any] = []
    held: list[Held] = []

    def make(function: Any, **options: Any) -> Any:
        if isinstance(function, Held):
            held.append(function)
            function = function.function
        made.append(batched(function, **options))
        return made[-1]

    yield make
    for one in held:
        one.gate.open()
    for batcher in made:
        batcher.close(drain=False)
