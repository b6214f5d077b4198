"""Runs the batches of one batcher on its devices: again in halves where memory ran out, not at all where one is lost.

The thread that a batcher has for a batch collates it, waits for it and takes it apart; the function itself runs in the
thread of its device.
"""

from __future__ import annotations

import gc
import sys
import threading
from bisect import bisect_left
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from ..._core._execution import BatchFunction
from ..._core._request import Request
from ...errors import ExecutorLost
from ...executors._errors import failures
from ...executors._in_parts import InParts
from ._lane import Lane
from ._memory import RowLimits, attempt, is_out_of_memory
from ._modules import warn_of_training
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
        self._limits = RowLimits()
        self._ready = False  # every device has been found
        self._looked = False  # at the function's modules, those that its first run has loaded, too
        self._preparing = threading.Lock()
        self._changed = threading.Condition()  # guards the lanes' counts; notified when there may be room
        quiet = replace(options, on_fatal=None)  # the threads keep the lanes, and a hook may know the batcher
        self._counted = {"out_of_memory": 0, "cut": 0}
        self.lanes = [Lane(quiet, wanted, function.name) for wanted in options.devices]

    @property
    def healthy(self) -> bool:
        """Whether no device has been lost."""
        return all([lane.lost is None for lane in self.lanes])

    @property
    def counts(self) -> dict[str, int]:
        """Runs that did not fit into memory, batches that ran in pieces for it, shapes of which there is no graph."""
        return {**self._counted, "not_recorded": sum([lane.not_recorded for lane in self.lanes])}

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
        outcomes, lost = self._served(parts, only)
        failure = outcomes.failed.get((0, len(outcomes))) if lost is None else lost
        if failure is None:
            return outcomes
        if lost is not None:
            lost.outcomes = dict(enumerate(outcomes))
        try:
            raise failure
        finally:
            del failure, lost, outcomes

    def _served(self, parts: list[Part], only: Lane | None) -> tuple[InParts, ExecutorLost | None]:
        """The outcomes in order; those of the first ones, and an error for the others, once no device is left.

        parts: what is to run, the next one last. Errors are values here and know this frame: it ends empty.
        """
        part = parts[-1]
        outcomes = InParts()
        results: Sequence[Any] = ()
        short = 0  # times that memory ran out
        cut = False  # in pieces for it
        try:
            error = None if self._ready else attempt(self._prepare, part)[1]
            if error is not None:
                outcomes.fail(error, len(part))
                return outcomes, None
            while parts:
                part = parts.pop()
                key = self._limited_by(part) if self._limits else None
                allowed = self._limits.allowed(key)
                if len(part) > min(self._most, allowed):
                    parts += _cut(part, min(self._most, allowed))
                    cut = cut or allowed < self._most
                    continue
                rows = self.rows_for(len(part), allowed)
                lane, results, error = self._attempted(part, rows, only)
                if lane is None:
                    return outcomes, self._all_lost()
                if error is None:
                    if not self._looked:
                        self._look(part)
                    self._limits.succeeded(key, rows)
                    outcomes += results
                elif lane.lost is not None:
                    self._tell(lane)
                    if not self._left(only):
                        return outcomes, self._all_lost()
                    outcomes += [_lost(lane) for _ in part]
                elif isinstance(error, ExecutorLost):  # of a batched function that this one calls
                    outcomes += failures(error, len(part))
                elif not is_out_of_memory(error, self._options.oom):
                    outcomes.fail(error, len(part))
                else:
                    trial = self._limits.failed(self._limited_by(part), rows)
                    short += 1
                    _make_room(lane, everything=trial or short == 2 or not self._options.idempotent)
                    if rows == 1 or not self._options.idempotent:
                        outcomes.fail(error, len(part))
                    elif rows > len(part):
                        parts.append(part)  # first of all without its fillers
                    else:
                        parts += _cut(part, rows // 2)
                        cut = True
            return outcomes, None
        finally:
            if short or cut:
                self._count(out_of_memory=short, cut=cut)
            parts.clear()
            error = None
            del part, outcomes, results

    def _attempted(
        self, part: Part, rows: int, only: Lane | None
    ) -> tuple[Lane | None, Sequence[Any], BaseException | None]:
        """Runs a part: where, and what came of it. No lane if there is none left. Its frame ends empty, as above.

        A lone item that finds no memory is tried again when nothing else is on its device, and no garbage anywhere.
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
                try:
                    if alone:
                        _make_room(lane, everything=True)
                    results, error = attempt(lane.run, self._function, part, rows)
                    lost = error is not None and lane.lose_if_fatal(error)
                finally:
                    self._give_back(lane, alone)
                if error is None or lost or alone or rows > 1 or not self._options.idempotent:
                    return lane, results, error
                if not is_out_of_memory(error, self._options.oom):
                    return lane, (), error
                self._count(out_of_memory=1)
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
                _, error = attempt(lane.open)
                if error is not None and not lane.lose_if_fatal(error):
                    raise error
            self._ready = True
        for lane in self.lanes:
            if lane.lost is not None:
                self._tell(lane)
        self._looked = True  # also if the warning is made an error
        self._looked = warn_of_training(self._function.function, self._function.name, requests)

    def _look(self, requests: Part) -> None:
        """After the first batch: many a function loads its model when it is called first."""
        self._looked = True
        warn_of_training(self._function.function, self._function.name, requests)

    def _limited_by(self, part: Part) -> Hashable:
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
            lane = None
            try:
                while lane is None and (left := self._left(only)):
                    free = [each for each in left if (each.busy == 0 if alone else each.free)]
                    if free:
                        lane = min(free, key=lambda each: each.busy)
                        lane.busy += 1
                    else:
                        self._changed.wait()
                return lane
            finally:
                if lane is None and only is not None and alone:
                    only.reserved -= 1

    def _count(self, **more: int) -> None:
        with self._changed:
            for name, number in more.items():
                self._counted[name] += number

    def _give_back(self, lane: Lane, alone: bool) -> None:
        with self._changed:
            lane.busy -= 1
            lane.reserved -= alone
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
        except BaseException as fault:  # nobody's call: its callers get what befell the device
            error = fault
            if isinstance(fault, SystemExit):  # of which the hook below says nothing
                error = RuntimeError(
                    "on_fatal= raised SystemExit, which ends no process from a thread: call os._exit, or os.kill with "
                    "the process's own id"
                )
                error.__cause__ = fault
            threading.excepthook(threading.ExceptHookArgs((type(error), error, error.__traceback__, None)))

    def _all_lost(self) -> ExecutorLost:
        """What fails a batch when there is no device left."""
        return _lost([lane for lane in self.lanes if lane.lost is not None][-1])


def _make_room(lane: Lane, everything: bool) -> None:
    """After memory ran out. Of the failed run nothing is alive by now but what is in cycles, and that is young.

    everything: look for older garbage, too. That takes a third of a second where two million objects are alive, so it
    is done when there is reason to think that garbage fills the memory: something smaller found none either (once for
    each batch), what should have been there again is not, or there is nothing smaller to be tried.
    """
    gc.collect(2 if everything else 1)
    attempt(lane.release)


def _stop(workers: Sequence[Worker]) -> None:
    for worker in workers:
        worker.stop()


def _cut(part: Part, most: int) -> list[Part]:
    """Pieces of at most so many, the first one last."""
    return [part[begin : begin + most] for begin in range(0, len(part), most)][::-1]


def _lost(lane: Lane) -> ExecutorLost:
    error = ExecutorLost(
        f"{lane.place} is lost, and nothing more can run on it in this process ({type(lane.lost).__name__}: "
        f"{lane.lost}): end it, in on_fatal= for instance, and start a new one"
    )
    error.__cause__ = lane.lost
    return error
