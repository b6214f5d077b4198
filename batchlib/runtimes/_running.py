"""Where batches run: a plain one in a worker thread, an async one in a task on its callers' loop.

Whatever happens to a batch between its start and its end, it ends in `Driver.finish`: that is what frees its place and
answers its callers.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextvars import Context
from functools import partial
from typing import TYPE_CHECKING, Any

from .._context import inside
from .._core._batch import Batch
from .._core._refusals import of_lost
from .._core._request import Request
from ..errors import ExecutorLost
from ..executors._errors import failures

if TYPE_CHECKING:
    from ._channels import Channel
    from ._driver import Driver


def start(driver: Driver, batch: Batch) -> None:
    """Sends a batch to where it runs.

    One that cannot run makes room for the next, which may not run either: a loop, because thousands can wait.
    """
    following: Batch | None = batch
    while following is not None:
        requests = following.requests
        if not requests:
            return  # its last caller has left in the meantime
        try:
            if driver.per_loop:
                _home(driver, requests).start(driver, following)
            else:
                driver.workers.put(driver, following, driver.core.max_concurrent_batches)
            return
        except Exception as error:  # no thread or no loop to be had, or the loop has been closed
            outcomes = failures(error, following.size)
        following = driver.finish(following, outcomes, worker=True)


def stop(driver: Driver, batch: Batch) -> None:
    """Every caller has left: cancels an async batch. A plain one cannot be stopped, and finds out if it asks."""
    requests = batch.requests
    if not driver.per_loop or not requests or batch.batcher is None:  # whoever formed it looks before the start
        return
    if batch.handle is None:  # its loop has not come to it, and may never, if it is being closed
        driver.finish(batch, [None] * batch.size)
    else:
        _home(driver, requests).stop(batch)


def fail(driver: Driver, batch: Batch, error: BaseException) -> None:
    """The batch could not be run, or not to its end."""
    driver.finish(batch, failures(error, batch.size))


def lost(driver: Driver, batch: Batch, error: ExecutorLost) -> Sequence[Any]:
    """The executor is gone for good: what the callers of the batch get, and everybody else who waits or comes later."""
    done, error.outcomes = error.outcomes, {}
    error.__traceback__ = None  # the batcher keeps the error, and nothing of this batch with it
    with driver.lock:
        driver.lost = True
        actions = driver.core.close(driver.now(), drain=False, lost=error)
        driver.gate.notify()
    driver.perform(actions, None)
    return [done[place] if place in done else of_lost(error) for place in range(batch.size)]


def run(driver: Driver, batch: Batch) -> Batch | None:
    """Runs a plain batch in the present thread; gives the next one, if its end makes room for it."""
    try:
        outcomes = context(driver, batch).run(driver.executor.run, batch.requests)
    except ExecutorLost as error:
        outcomes = lost(driver, batch, error)
    except BaseException as error:
        outcomes = failures(error, batch.size)
    try:
        return driver.finish(batch, outcomes, worker=True)
    finally:
        del outcomes  # the traceback of an error among them knows this frame


async def run_async(driver: Driver, batch: Batch, interrupts: tuple[type[BaseException], ...]) -> None:
    """Runs an async batch in the present task, whose context is the batch's.

    interrupts: what the loop has to see as well, when the function lets it out.
    """
    requests = batch.requests
    if not requests:
        return  # given up in the meantime
    try:
        outcomes = await driver.executor.run_async(requests)
    except GeneratorExit as error:  # perhaps its task is being collected, after its loop was closed
        driver.put_off.call(partial(fail, driver, batch, error))
    except ExecutorLost as error:
        driver.finish(batch, lost(driver, batch, error))
    except BaseException as error:
        fail(driver, batch, error)
        if isinstance(error, interrupts):
            raise
    else:
        driver.finish(batch, outcomes)
        del outcomes  # as above


def task_ended(driver: Driver, batch: Batch) -> None:
    """A batch's asyncio task has ended; one that was cancelled before it began could not say so itself."""
    if not batch.done:
        fail(driver, batch, sys.modules["asyncio"].CancelledError("its task was cancelled before it began"))


def reap(driver: Driver) -> None:
    """Ends batches whose loop was closed under them: nobody else will, and they would keep their place for ever."""
    if not driver.per_loop:
        return
    with driver.lock:
        running = driver.core.running_batches
    for batch in running:
        requests = batch.requests
        if requests and requests[0].channel.closed and batch.batcher is not None:  # likewise
            fail(driver, batch, RuntimeError("the event loop was closed while the batch ran"))


def context(driver: Driver, batch: Batch) -> Context:
    """A neutral context for running a batch."""
    return inside(batch, driver.nested)


def _home(driver: Driver, requests: Sequence[Request]) -> Channel:
    """Where an async batch runs: its callers' loop, or the batcher's own for those in threads.

    A batch that has ended, in whatever thread, has no requests any more: so whoever asks has taken them first.
    """
    channel: Channel = requests[0].channel
    return channel if channel.runs_batches else driver.private.channel()
