"""Callers of every kind, as fixtures."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from support.callers import KINDS, LEAVING, Start, starter


@pytest.fixture(params=KINDS)
def start(request: pytest.FixtureRequest) -> Iterator[Start]:
    """All kinds of callers, one after the other."""
    with ExitStack() as stack:
        yield starter(request.param, stack)


@pytest.fixture(params=LEAVING)
def start_leaving(request: pytest.FixtureRequest) -> Iterator[Start]:
    """Those that can leave."""
    with ExitStack() as stack:
        yield starter(request.param, stack)


@pytest.fixture
def start_each() -> Iterator[list[Start]]:
    """One caller of every kind, at the same time."""
    with ExitStack() as stack:
        yield [starter(kind, stack) for kind in KINDS]
