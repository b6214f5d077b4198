"""The thread that belongs to a device: everything that runs there is launched from it, one batch after the other.

Grad modes, the current device and its streams are the thread's own, so a batch must not depend on which of the
batcher's threads happens to run it.
"""

from __future__ import annotations

import os
import threading
import uuid
import weakref
from collections.abc import Callable
from contextvars import Context, copy_context
from queue import SimpleQueue
from typing import Any

from ..._context import AMBIENT
from ..._core._batch import Batch
from ...errors import ReentrantCallError
from ._memory import attempt


class LaunchOrder:
    """Lets one executor at a time launch a batch, of all that it is given to.

    For models that talk to each other across devices (collectives): two launches that overlap could reach their
    devices in different orders, and both would wait for ever. It is held while a function launches its work, on a GPU
    not while that work runs. A function may not call another one of its own order, which would wait for it:
    ReentrantCallError. Pickled, it stays one for all executors of the process that it gets to.

    >>> from batchlib.torch import LaunchOrder, TorchExecutor
    >>> order = LaunchOrder()
    >>> encoder, decoder = TorchExecutor(launch_order=order), TorchExecutor(launch_order=order)
    """

    def __init__(self) -> None:
        self._name = uuid.uuid4().hex
        self._lock = threading.Lock()
        self._holder: Batch | None = None  # the batch that is launched
        _orders[self._name] = self

    def __enter__(self) -> None:
        ambient = AMBIENT.get()
        chain = () if ambient is None else ambient.chain
        if self._holder in chain:  # which waits for this one, so that nothing changes in between
            raise ReentrantCallError(
                "a function was called from inside a launch of its own LaunchOrder, and would wait for itself: give "
                "the two executors different orders, or call the undecorated function (`.direct`)"
            )
        self._lock.acquire()
        self._holder = chain[-1] if chain else None

    def __exit__(self, *_: object) -> None:
        self._holder = None
        self._lock.release()

    def __reduce__(self) -> tuple[Any, ...]:
        return _of_this_process, (self._name,)

    @classmethod
    def _named(cls, name: str) -> LaunchOrder:
        new = cls()
        new._name = name
        return _orders.setdefault(name, new)

    def _reset(self) -> None:
        self._lock, self._holder = threading.Lock(), None


# The one piece of module state: it is what makes a pickled order the same for all who unpickle it in a process.
_orders: weakref.WeakValueDictionary[str, LaunchOrder] = weakref.WeakValueDictionary()
_of_this_process = LaunchOrder._named  # pyright: ignore[reportPrivateUsage]


def _reset_in_child() -> None:
    """A thread of the parent may have held it."""
    for order in list(_orders.values()):
        order._reset()  # pyright: ignore[reportPrivateUsage]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_in_child)


class Worker:
    """A daemon thread, started with the first job and idle in a queue otherwise. Between jobs it knows of none.

    enter: called once in the new thread, to set what is the thread's own. If it raises, the job that began the thread
        fails, and the next one tries again.
    """

    def __init__(self, name: str, enter: Callable[[], object]) -> None:
        self._name = name
        self._enter = enter
        self._entered = False
        self._queue: SimpleQueue[_Job | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._stopped = False

    def run(self, function: Callable[..., Any], *args: Any) -> Any:
        """Runs it in the thread, in a copy of the present context, and waits: gives what it gives, raises likewise.

        RuntimeError if there is no thread to be had. What is raised has been scrubbed.
        """
        job = _Job(copy_context(), function, args)
        with self._lock:
            if self._thread is None:
                thread = threading.Thread(target=self._work, name=self._name, daemon=True)
                thread.start()
                self._thread = thread
            self._queue.put(job)
            if self._stopped:  # the batcher was closed while a batch was on its way here
                self._queue.put(None)
        return job.wait()

    @property
    def waiting(self) -> int:
        """How many jobs have not begun."""
        return self._queue.qsize()

    def stop(self) -> None:
        """Ends the thread once it has run what is queued. Takes no lock: a collection of the batcher calls it."""
        self._stopped = True  # before the note: whoever puts a job after this leaves a note too
        self._queue.put(None)

    def _work(self) -> None:
        while True:
            job = self._queue.get()
            if job is not None:
                self._do(job)
                del job
                continue
            with self._lock:
                if self._queue.empty():  # otherwise somebody has come after the note, and left one too
                    self._thread = None
                    self._entered = False
                    return

    def _do(self, job: _Job) -> None:
        value: Any = None
        try:
            error = None if self._entered else attempt(self._enter)[1]
            if error is None:
                self._entered = True
                value, error = attempt(job.context.run, job.function, *job.args)
        except BaseException as fault:  # by an error that cannot even be looked at: the thread is for others, too
            error = fault
        job.end(value, error)
        del value, error  # whose traceback knows this frame


class _Job:
    """One call on its way through the thread. Knows nothing any more once it has ended."""

    __slots__ = ("_done", "_error", "_value", "args", "context", "function")

    def __init__(self, context: Context, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self.context = context
        self.function = function
        self.args = args
        self._done = threading.Lock()
        self._done.acquire()

    def end(self, value: Any, error: BaseException | None) -> None:
        del self.context, self.function, self.args  # before the caller goes on: it may try again with less
        self._value = value
        self._error = error
        self._done.release()

    def wait(self) -> Any:
        try:
            self._done.acquire()
        except BaseException:  # interrupted: whoever waits takes back what the job still works with
            self._done.acquire()
            raise
        value, error = self._value, self._error
        del self._value, self._error
        if error is None:
            return value
        try:
            raise error
        finally:
            del error  # its traceback knows this frame
