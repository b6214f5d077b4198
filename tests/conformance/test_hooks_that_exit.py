"""A hook that raises what ends threads, tasks or programs ends nothing: it is logged like any other error of a hook."""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest
from support.until import until

from batchlib import BatchEnded, BatchStarted, RequestEnded

from .held import Kind, of_kind
from .runtimes import Runtime

pytestmark = pytest.mark.timeout(60)

EXITS = [SystemExit, KeyboardInterrupt, GeneratorExit, asyncio.CancelledError]


@pytest.mark.parametrize("error", EXITS)
@pytest.mark.parametrize("at", [BatchStarted, BatchEnded, RequestEnded])
def test_a_hook_that_exits_harms_nothing(
    runtime: Runtime,
    kind: Kind,
    error: type[BaseException],
    at: type,
    make: Callable[..., Any],
    caplog: pytest.LogCaptureFixture,
) -> None:
    events: list[Any] = []

    def leave(event: Any) -> None:
        if isinstance(event, at):
            raise error

    function = make(of_kind(kind, lambda items: items), hooks=[leave, events.append])
    with caplog.at_level(logging.ERROR, "batchlib"):
        for _ in range(2):  # the threads and loops that it was called on are still there for the second
            assert [call.result() for call in runtime.start_each(function, range(3))] == [0, 1, 2]
        until(lambda: sum(isinstance(event, RequestEnded) for event in events) == 6)
        until(lambda: function.statistics().running_batches == 0)
    logged = [record.exc_info[0] for record in caplog.records if record.exc_info]
    assert logged == [error] * sum(isinstance(event, at) for event in events)
