"""Plain threads: those that call, those that run plain functions, and the one that runs async ones for the callers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future
from contextvars import Context
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from .._core._request import Request
from .._core._transitions import State
from ._places import on_loop
from ._running import run

if TYPE_CHECKING:
    import asyncio

    from .._core._batch import Batch
    from ._asyncio import LoopChannel
    from ._driver import Driver


def outcome_of(request: Request) -> Any:
    """The result of a request that has ended, or raises its error; the request forgets it (no reference cycle)."""
    outcome, request.outcome = request.outcome, None
    if request.state is State.COMPLETED:
        return outcome
    try:
        raise outcome
    finally:
        del outcome, request


class ThreadChannel:
    """Delivers to threads. A waiter is a held lock, a RequestFuture or a slip: `release` wakes any of them."""

    runs_batches = False
    closed = False

    def attach_callback(self, request: Request, callback: Callable[[Request], object]) -> None:
        """Instead of a caller that waits: `callback` gets the request, in whatever thread, when it has ended."""
        request.channel = self
        request.waiter = _Slip(callback, request)

    def deliver(self, requests: Sequence[Request]) -> None:
        for request in requests:
            try:
                request.waiter.release()
            except BaseException as error:  # from a future's callback, or its owner has set it: no neighbour's business
                threading.excepthook(threading.ExceptHookArgs((type(error), error, error.__traceback__, None)))


THREADS = ThreadChannel()


class Inbox(SimpleQueue[Request]):
    """Where `map` in a thread finds its requests as they end."""

    def attach(self, request: Request) -> None:
        THREADS.attach_callback(request, self.put)


class _Slip:
    __slots__ = ("_callback", "_request")

    def __init__(self, callback: Callable[[Request], object], request: Request) -> None:
        self._callback = callback
        self._request = request

    def release(self) -> None:
        self._request.waiter = None  # the two know each other
        self._callback(self._request)


class RequestFuture(Future[Any]):
    """The future of a submitted request. Cancelling it takes a waiting request out; a running one says False."""

    def __init__(self, driver: Driver, request: Request) -> None:
        super().__init__()
        self._driver = driver
        self._request: Request | None = request

    def cancel(self) -> bool:
        request = self._request
        if request is not None and self._driver.cancel(request, only_waiting=True) and super().cancel():
            self.set_running_or_notify_cancel()  # tells `wait` and `as_completed`, which look for this second step
            self._request = None
        return self.cancelled()

    def __await__(self) -> Generator[Any]:
        raise TypeError("submit gives a future for threads: await the function itself, or asyncio.wrap_future(future)")

    def result(self, timeout: float | None = None) -> Any:
        """As the standard library's. On a loop's own thread, which it blocks, the request waits for no tick."""
        if not self.done() and on_loop():
            self._driver.wake()
        try:
            return super().result(timeout)
        finally:
            del self  # an error's traceback knows this frame: a cycle would keep the items until a collection

    def running(self) -> bool:
        request = self._request
        return request is not None and request.state is State.RUNNING

    def release(self) -> None:
        """The request has ended."""
        request, self._request = self._request, None
        assert request is not None
        if request.state is State.COMPLETED:
            self.set_result(request.outcome)
        else:
            self.set_exception(request.outcome)
        request.outcome = request.waiter = None  # an error's traceback knows the request: no cycle


class Workers:
    """Daemon threads that run plain batches, started as they are needed and idle in a queue otherwise.

    A thread knows a batcher only while it works for it, so an idle batcher can be collected. Told to end, each leaves
    as soon as the others suffice for what is queued and in hand: what comes after that is run as well.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._queue: SimpleQueue[tuple[Driver, Batch | None] | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._alive = 0  # of them, those that have not left
        self._busy = 0  # pieces of work queued or in hand
        self._stopped = False

    def put(self, driver: Driver, batch: Batch | None, most: int) -> None:
        """Gives a batch to a thread; None tells it to ask for one. RuntimeError if there is no thread to be had.

        most: how many threads there may be.
        """
        with self._lock:
            self._busy += 1
            if self._alive < min(self._busy, most):
                thread = threading.Thread(target=self._work, name=f"batchlib-{self._name}", daemon=True)
                try:
                    thread.start()
                    self._threads.append(thread)
                    self._alive += 1
                except RuntimeError:
                    if not self._alive:
                        self._busy -= 1
                        raise
        self._queue.put((driver, batch))
        if self._stopped:  # by a close that came in between: the thread just made was not told
            self._queue.put(None)

    def _work(self) -> None:
        stays = True
        while stays:
            work = self._queue.get()
            if work is not None:
                _run_all(*work)
            with self._lock:
                self._busy -= work is not None
                if self._stopped and self._alive > self._busy:
                    self._alive -= 1
                    stays = False
            del work

    def here(self) -> bool:
        """Whether the present code runs in one of these threads."""
        return threading.current_thread() in self._threads

    def stop(self) -> None:
        """Ends the threads once they have run what is queued. Takes no lock: a collection of the batcher calls it."""
        self._stopped = True  # before the look: whoever adds a thread after it tells that thread
        for _ in self._threads:
            self._queue.put(None)

    def join(self, timeout: Callable[[], float | None]) -> None:
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(timeout())


def _run_all(driver: Driver, batch: Batch | None) -> None:
    """A batch, or the one that is next, and those that it makes room for."""
    if batch is None:
        batch = driver.take()
    while batch is not None:
        batch = run(driver, batch)


class PrivateLoop:
    """An asyncio loop in a daemon thread, for async functions called from threads. Starts when first needed."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._channel: LoopChannel | None = None
        self._stopped = False

    def channel(self) -> LoopChannel:
        with self._lock:
            if self._channel is None:
                import asyncio

                from ._asyncio import LoopChannel

                loop = Context().run(asyncio.new_event_loop)  # which keeps the context that it is made in
                name = f"batchlib-{self._name}-loop"
                thread = threading.Thread(target=_run_loop, args=(loop,), name=name, daemon=True)
                try:
                    thread.start()
                except BaseException:
                    loop.close()
                    raise
                self._thread = thread
                self._channel = LoopChannel(loop)
                self._channel.interrupts = (asyncio.CancelledError,)  # nobody's program ends with this thread
                if self._stopped:  # between the arrival and this, the batcher was closed
                    self.stop()
            return self._channel

    def stop(self) -> None:
        self._stopped = True  # first: a channel that is being made looks at it last
        channel = self._channel
        if channel is not None:
            channel.deliver_call(channel.loop.stop)

    def join(self, timeout: float | None) -> None:
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout)


def _run_loop(loop: asyncio.AbstractEventLoop) -> None:
    import asyncio

    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
        tasks = asyncio.all_tasks(loop)
        for task in tasks:
            task.cancel()
        if tasks:
            loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        loop.close()
