"""The three ways of calling: awaited, from a thread, as a future. Each submits a request and waits in its own way."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from .._core._actions import SOON
from .._core._request import Request
from .._core._transitions import State
from ..errors import BlockingCallError, Overloaded, ReentrantCallError
from ._places import on_loop, scope_deadline
from ._running import reap
from ._threads import THREADS, RequestFuture, outcome_of

if TYPE_CHECKING:
    from ._driver import Driver

_modules = sys.modules


async def batched_call(driver: Driver, request: Request) -> Any:
    """Submits and waits, on asyncio or trio.

    Cancel safety: a request that waits is taken out before it runs; one that runs is left to its batch.
    """
    channels = driver.channels
    channel = channels.latest
    if "trio" in _modules or "anyio" in _modules:
        request.hint = scope_deadline(driver.now)
        channel = driver.here()
    elif channel is None or channel.loop is not channels.running_loop():
        channel = driver.here()
    if channel.has_futures is False:
        channel.attach(request)
        driver.submit(request, channel)
        return await channel.wait(driver, request)
    # The fast path, for futures of one asyncio loop: `attach` and `Driver.submit` written out. Every line is paid for
    # by every request; what they add up to is the first row of benchmarks/overhead.py.
    request.channel = channel
    waiter = request.waiter = channel.future()
    if request.chain:
        driver.refuse_reentry(request.chain)
    if driver.per_loop:
        request.group = channel if request.group is None else (channel, request.group)
    with driver.lock:
        request.arrival = now = driver.now()
        actions = driver.core.submit(request, now)
    if actions is SOON:
        if not channel.ticking:
            channel.soon(driver)
    elif actions:
        driver.perform(actions, channel)
    elif channels.several:
        reap(driver)
    try:
        return await waiter
    except GeneratorExit:  # perhaps by the garbage collector
        driver.put_off.call(partial(driver.cancel, request))
        raise
    except BaseException:  # the caller leaves, or gets its error, whose traceback must not know the error again
        driver.cancel(request)
        del request, waiter
        raise


def call_blocking(driver: Driver, request: Request) -> Any:
    """Submits and waits in a plain thread. BlockingCallError on an event loop's thread."""
    refuse_to_block(driver, "call(...)", "await the function itself")
    request.waiter = lock = threading.Lock()
    lock.acquire()
    request.channel = THREADS
    driver.submit_from_thread(request)
    try:
        lock.acquire()
    except BaseException:  # an interrupt: this caller leaves
        driver.cancel(request)
        raise
    try:
        return outcome_of(request)
    finally:
        del request


def submit(driver: Driver, request: Request, kind: type[RequestFuture] = RequestFuture) -> RequestFuture:
    """Submits and gives a future. In a thread it blocks while there is no room; on a loop it raises Overloaded."""
    future = kind(driver, request)
    request.waiter = future
    request.channel = THREADS
    if not on_loop():
        if request.chain:  # before it waits for room that its own batch keeps taken
            driver.refuse_reentry(request.chain)
        if driver.held_back:
            refuse_to_block(driver, "submit(...) without room", "await the function itself")
            driver.gate.wait_for_room(request)
        driver.submit_from_thread(request)
        return future
    driver.submit(request, driver.here(), ahead=True)
    if request.state is State.REJECTED and isinstance(error := future.exception(), Overloaded):
        raise error
    return future


class Ways(NamedTuple):
    """The ways of calling, chosen once for each batcher, and how `map` gets a result."""

    awaited: Callable[[Driver, Request], Coroutine[Any, Any, Any]]
    called: Callable[[Driver, Request], Any]
    submitted: Callable[[Driver, Request], RequestFuture]
    result_of: Callable[[Request], Any]


ORDINARY = Ways(batched_call, call_blocking, submit, outcome_of)


def refuse_to_block(driver: Driver, what: str, instead: str) -> None:
    """Raises where blocking would stop what is waited for: on an event loop's thread, and on the batcher's own.

    Code of a batch gets to the batcher's own threads, and so do the callbacks of the futures that it resolves.
    """
    if on_loop():
        raise BlockingCallError(f"{what} would block this event loop: {instead}")
    if driver.workers.here():
        raise ReentrantCallError(
            f"{what} would block a thread of the batcher itself, which has to do the work that it waits for: call the "
            "undecorated function (`.direct`); in a future's callback, hand the work to a thread that nobody waits for"
        )
