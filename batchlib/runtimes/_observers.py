"""Turns what happens into events for hooks. Asked only where there are hooks: the driver looks first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from .._core._batch import Batch
from .._core._events import BatchEnded, BatchStarted, RequestEnded
from .._core._protocols import Hook
from .._core._request import Request
from .._core._transitions import State
from ..errors import BatchlibError


class Observers:
    """The hooks of one batcher, called outside its lock on the thread where the event happened."""

    def __init__(self, name: str, version: str | None, hooks: Sequence[Hook]) -> None:
        self._name = name
        self._version = version
        self._hooks = tuple(hooks)

    def batch_started(self, batch: Batch) -> None:
        delays = tuple([batch.started - request.arrival for request in batch.requests])
        self._tell(
            BatchStarted(
                name=self._name,
                version=self._version,
                batch=batch.number,
                size=batch.size,
                fill=batch.fill,
                cost=batch.cost,
                longest=+batch.longest,  # a plain number, whatever a collation gives: hooks write it down
                reason=batch.reason,
                queue_delays=delays,
                now=batch.started,
            )
        )

    def batch_ended(self, batch: Batch, outcomes: Sequence[Any], now: float) -> None:
        self._tell(
            BatchEnded(
                name=self._name,
                version=self._version,
                batch=batch.number,
                size=batch.size,
                fill=batch.fill,
                cost=batch.cost,
                longest=+batch.longest,  # a plain number, whatever a collation gives: hooks write it down
                reason=batch.reason,
                execution_time=now - batch.started,
                failed=sum(isinstance(outcome, BaseException) for outcome in outcomes),
                now=now,
            )
        )

    def ended(self, requests: Sequence[Request], clock: Callable[[], float]) -> None:
        now = clock()
        for request in requests:
            error = None if request.state is State.COMPLETED else request.outcome
            batch = request.batch
            self._tell(
                RequestEnded(
                    name=self._name,
                    version=self._version,
                    state=request.state,
                    tenant=request.tenant,
                    priority=request.priority,
                    cost=+request.cost,  # likewise
                    batch=None if batch is None else batch.number,
                    queue_delay=None if batch is None else batch.started - request.arrival,
                    latency=now - request.arrival,
                    error=None if error is None else type(error).__name__,
                    detail=str(error) if isinstance(error, BatchlibError) else None,
                    now=now,
                )
            )

    def _tell(self, event: BatchStarted | BatchEnded | RequestEnded) -> None:
        for hook in self._hooks:
            try:
                hook(event)
            except BaseException as error:  # an observer must not change what it observes; a SystemExit neither
                self.report(f"a hook raised on {type(event).__name__}", error)

    def report(self, what: str, error: BaseException) -> None:
        """Logs what no caller can be told."""
        import logging

        logging.getLogger("batchlib").error("%s: %s", self._name, what, exc_info=error)
