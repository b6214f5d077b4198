"""Callers of every kind behind one face, so that a case is written once and shown for all of them."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import ExitStack
from typing import Any

from anyio.from_thread import BlockingPortal, start_blocking_portal

Start = Callable[..., "Future[Any]"]
"""start(f, *args, **settings): one caller calls f. The future has what the caller got; `cancel()` makes it leave."""

LOOPS: dict[str, tuple[Any, dict[str, Any]]] = {
    "asyncio": ("asyncio", {}),
    "uvloop": ("asyncio", {"use_uvloop": True}),
    "trio": ("trio", {}),
}
KINDS = ["thread", "future", *LOOPS]
LEAVING = ["future", *LOOPS]  # a thread blocked in `.call` cannot be cancelled


def starter(kind: str, stack: ExitStack) -> Start:
    """The way to start callers of one kind; what it needs lives as long as `stack`."""
    if kind == "thread":
        return _thread_caller
    if kind == "future":
        return lambda f, *args, **settings: f.submit(*args, **settings)
    backend, options = LOOPS[kind]
    return _loop_caller(stack.enter_context(start_blocking_portal(backend, options)))


def _thread_caller(f: Any, *args: Any, **settings: Any) -> "Future[Any]":
    """A thread of its own, blocked in `.call`."""
    future: Future[Any] = Future()

    def run() -> None:
        try:
            future.set_result(f.call(*args, **settings))
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


def _loop_caller(portal: BlockingPortal) -> Start:
    """A task on a loop that runs in another thread."""

    def start(f: Any, *args: Any, **settings: Any) -> "Future[Any]":
        async def call() -> Any:
            return await f(*args, **settings)

        return portal.start_task_soon(call)

    return start


def outcomes(futures: list["Future[Any]"]) -> list[Any]:
    """What each caller got, errors as values. A hang is ended by the suite's own timeout."""
    return [future.exception() or future.result() for future in futures]
