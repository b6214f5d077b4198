"""Runs the batches of one batcher on its devices: again in halves where memory ran out, not at all where one is lost.

The thread that a batcher has for a batch collates it, waits for it and takes it apart; the function itself runs in the
thread of its device.
"""

from __future__ import annotations

import gc
import sys
import threading
import warnings
from bisect import bisect_left
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from ..._core._execution import BatchFunction
from ..._core._request import Request
from ...errors import ExecutorLost
from ...executors._errors import deliverable, failures
from ._lane import Lane
from ._memory import Limits, attempt, is_out_of_memory
from ._modules import training_modules
from ._worker import Worker

if TYPE_CHECKING:
    from ._executor import TorchExecutor

Part = Sequence[Request]
"""Requests that run at once: a batch, or what a limit leaves of one."""


class DeviceExecutor:
    """What a TorchExecutor starts: an Executor for one batcher, with a lane for each of its devices.

    Called at once in as many threads as the batcher runs batches; one that finds no room waits for it.
    """

    is_async = False

    def __init__(self, options: TorchExecutor, function: BatchFunction) -> None:
        self._options = options
        self._function = function
        self.batch_sizes = options.batch_sizes
        self._most = sys.maxsize if options.batch_sizes is None else options.batch_sizes[-1]
        self._row_length = getattr(function.collator, "row_length", None)
        self._limits = Limits()
        self._ready = False  # every device has been found
        self._preparing = threading.Lock()
        self._changed = threading.Condition()  # guards the lanes' counts; notified when there may be room
        quiet = replace(options, on_fatal=None)  # the threads keep the lanes, and a hook may know the batcher
        self.lanes = [Lane(quiet, wanted, function.name) for wanted in options.devices]

    @property
    def healthy(self) -> bool:
        """Whether no device has been lost."""
        return all([lane.lost is None for lane in self.lanes])

    @property
    def stop(self) -> Callable[[], None]:
        """Ends the devices' threads once they are through. Takes no lock and does not wait.

        It is kept until the batcher is gone, so it knows nothing of the function, which may know the batcher.
        """
        return partial(_stop, [lane.worker for lane in self.lanes])

    async def run_async(self, requests: Part) -> Sequence[Any]:
        """Never called, since no async function is started."""
        raise TypeError(f"{self._function.name} runs in the threads of its devices: call run")

    def run(self, requests: Part, only: Lane | None = None) -> Sequence[Any]:
        """One outcome per request. Raises what the function raised, scrubbed, and ExecutorLost once no device is left.

        only: where to run; None for wherever there is room.
        """
        parts = [requests]
        del requests  # an error knows this frame, and callers keep it
        outcomes, failure = self._served(parts, only)
        if failure is None:
            return outcomes
        try:
            raise failure
        finally:
            del failure

    def _served(self, parts: list[Part], only: Lane | None) -> tuple[list[Any], BaseException | None]:
        """The outcomes in order, or what fails all of them. Errors are values here and know this frame: it ends empty.

        parts: what is to run, the next one last.
        """
        part = parts[-1]
        outcomes: list[Any] = []
        results: Sequence[Any] = ()
        try:
            error = None if self._ready else attempt(self._prepare, part)[1]
            if error is not None:
                return [], error
            while parts:
                part = parts.pop()
                bucket = self._bucket(part) if self._limits else None
                allowed = self._limits.allowed(bucket)
                if len(part) > min(self._most, allowed):
                    parts += _cut(part, min(self._most, allowed))
                    continue
                rows = self.rows_for(len(part), allowed)
                lane, results, error = self._attempted(part, rows, only)
                if lane is None:
                    return [], self._all_lost()
                if error is None:
                    self._limits.succeeded(bucket, rows)
                    outcomes += results
                elif lane.lost is not None:
                    self._tell(lane)
                    outcomes += [_lost(lane) for _ in part]
                    if not self._left(only):
                        return [], self._all_lost()
                elif isinstance(error, ExecutorLost):  # of a batched function that this one calls
                    outcomes += failures(error, len(part))
                elif not is_out_of_memory(error, self._options.oom):
                    return [], error
                else:
                    self._make_room(lane, part, rows)
                    if not self._options.idempotent:
                        return [], error
                    if rows > len(part):
                        parts.append(part)  # first of all without its fillers
                    elif rows > 1:
                        parts += _cut(part, rows // 2)
                    else:
                        outcomes.append(deliverable(error))
            return outcomes, None
        finally:
            parts.clear()
            error = None
            del part, outcomes, results

    def _attempted(
        self, part: Part, rows: int, only: Lane | None
    ) -> tuple[Lane | None, Sequence[Any], BaseException | None]:
        """Runs a part: where, and what came of it. No lane if there is none left. Its frame ends empty, as above.

        A lone item that finds no memory on a device that others use, too, is tried again without them.
        """
        at, alone = only, False
        results: Sequence[Any] = ()
        try:
            while True:
                lane = self._take(at, alone)
                if lane is None:
                    if not alone:
                        return None, (), None
                    at, alone = only, False  # lost while it was waited for
                    continue
                results, error = attempt(lane.run, self._function, part, rows)
                lost = error is not None and lane.lose_if_fatal(error)
                self._give_back(lane)
                if error is None or lost or alone or lane.room == 1 or len(part) > 1 or not self._options.idempotent:
                    return lane, results, error
                if not is_out_of_memory(error, self._options.oom):
                    return lane, (), error
                at, alone = lane, True
        finally:
            error = None
            del part, results

    def _prepare(self, requests: Part) -> None:
        """Before the first batch: finds the devices, and looks at the function's modules."""
        with self._preparing:  # of two that come first, one does it all: the other must not queue behind a batch
            if self._ready:
                return
            for lane in self.lanes:
                lane.open()
            self._ready = True
        modules = training_modules(self._function.function, requests)
        if modules:
            kinds = ", ".join(sorted({type(module).__name__ for module in modules}))
            warnings.warn(
                f"{self._function.name} runs a model in training mode ({kinds}), so results may depend on chance and "
                "on who shares a batch: call .eval() on it",
                UserWarning,
                stacklevel=2,
            )

    def _bucket(self, part: Part) -> Hashable:
        """What a limit holds for: requests of one group whose longest is about as long."""
        length = self._row_length
        longest = 0 if length is None else max([length(request.args) for request in part])
        return part[0].group, int(longest).bit_length()

    def rows_for(self, size: int, allowed: int = sys.maxsize) -> int:
        """How many rows are made of so many requests. allowed: how many fit into memory."""
        if self.batch_sizes is None:
            return size
        rows = self.batch_sizes[bisect_left(self.batch_sizes, size)]
        return rows if rows <= allowed else size

    def _make_room(self, lane: Lane, part: Part, rows: int) -> None:
        """After memory ran out. Of the failed run nothing is alive by now but what is in cycles."""
        self._limits.failed(self._bucket(part), rows)
        gc.collect()
        attempt(lane.release)

    def _left(self, only: Lane | None) -> list[Lane]:
        """Those that are not lost, or the one if that is not."""
        return [lane for lane in self.lanes if lane.lost is None and only in (None, lane)]

    def _take(self, only: Lane | None, alone: bool) -> Lane | None:
        """Room for a batch on the least loaded device, waited for. None if there will be none.

        only: on this one; alone: when nothing else is on it.
        """
        with self._changed:
            if only is not None and alone:
                only.reserved += 1
            try:
                while True:
                    left = self._left(only)
                    if not left:
                        return None
                    free = [lane for lane in left if (lane.busy == 0 if alone else lane.free)]
                    if free:
                        lane = min(free, key=lambda lane: lane.busy)
                        lane.busy += 1
                        return lane
                    self._changed.wait()
            finally:
                if only is not None and alone:
                    only.reserved -= 1

    def _give_back(self, lane: Lane) -> None:
        with self._changed:
            lane.busy -= 1
            self._changed.notify_all()

    def _tell(self, lane: Lane) -> None:
        """Tells `on_fatal` of a lost device, once, and whoever waits for it."""
        with self._changed:
            told, lane.told = lane.told, True
            self._changed.notify_all()
        if told or self._options.on_fatal is None:
            return
        assert lane.lost is not None
        try:
            self._options.on_fatal(lane.lost)
        except BaseException as error:  # nobody's call: its callers get what befell the device
            threading.excepthook(threading.ExceptHookArgs((type(error), error, error.__traceback__, None)))

    def _all_lost(self) -> ExecutorLost:
        """What fails a batch when there is no device left."""
        return _lost([lane for lane in self.lanes if lane.lost is not None][-1])


def _stop(workers: Sequence[Worker]) -> None:
    for worker in workers:
        worker.stop()


def _cut(part: Part, most: int) -> list[Part]:
    """Pieces of at most so many, the first one last."""
    return [part[begin : begin + most] for begin in range(0, len(part), most)][::-1]


def _lost(lane: Lane) -> ExecutorLost:
    error = ExecutorLost(
        f"{lane.place} is lost, and nothing more can run on it in this process ({type(lane.lost).__name__}: "
        f"{lane.lost}): start a new one, from on_fatal= for instance"
    )
    error.__cause__ = lane.lost
    return error
