"""Real time: the monotonic clock, and a thread that sleeps until something is due.

One thread serves all timed wake-ups of a batcher, because its callers come and go with their loops and any of them
may be blocked. It is started by the first wake-up and costs nothing while it waits.
"""

from __future__ import annotations

import heapq
import threading
import time
from collections.abc import Callable
from itertools import count

LONG = 3600.0  # a wait of more than threading.TIMEOUT_MAX would overflow; waking once an hour costs nothing


class SystemClock:
    """`time.monotonic`, with callbacks from a daemon thread that starts when first needed.

    Operations: call_at O(log n). A callback must not block for long; what it raises ends up in
    `threading.excepthook` and stops nothing.
    """

    def __init__(self) -> None:
        self.now = time.monotonic
        self._changed = threading.Condition()
        self._due: list[tuple[float, int, Callable[[], object]]] = []
        self._tickets = count()
        self._thread: threading.Thread | None = None
        self._stopped = False

    def call_at(self, instant: float, callback: Callable[[], object]) -> None:
        """RuntimeError if there is no thread to be had; then nothing is kept, and the next call tries anew."""
        with self._changed:
            if self._stopped:
                return
            if self._thread is None:
                thread = threading.Thread(target=self._serve, name="batchlib-clock", daemon=True)
                thread.start()  # an interrupt in here leaves no thread that cannot be joined
                self._thread = thread
            heapq.heappush(self._due, (instant, next(self._tickets), callback))
            if self._due[0][0] == instant:
                self._changed.notify()

    def stop(self) -> None:
        """Drops what is not due yet and ends the thread. Takes no lock that a callback could hold: safe anywhere."""
        self._stopped = True
        if self._thread is not None:
            with self._changed:
                self._due.clear()
                self._changed.notify_all()

    def join(self, timeout: float) -> None:
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout)

    def _serve(self) -> None:
        while True:
            with self._changed:
                while not self._stopped and (not self._due or self._due[0][0] > self.now()):
                    self._changed.wait(min(self._due[0][0] - self.now(), LONG) if self._due else None)
                if self._stopped:
                    return
                callback = heapq.heappop(self._due)[2]
            try:
                callback()
            except Exception as error:
                threading.excepthook(threading.ExceptHookArgs((type(error), error, error.__traceback__, None)))
            del callback  # it may be the last to know its batcher
