"""One device at work for one batcher: its thread, the way to it, and the buffers that no batch has."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Hashable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from ..._core._execution import Allocate, BatchFunction, Collated
from ..._core._request import Request
from ..collation._structure import flatten, holds_rows
from ..device._device import Device, device_of
from ..device._graphs import Graphs
from ..device._ring import Buffers, Direct, Pipeline, pipeline_for
from ._memory import LOST, is_fatal, scrub
from ._owning import owned
from ._worker import LaunchOrder, Worker

if TYPE_CHECKING:
    from ._executor import TorchExecutor

# A fact about the process. As a launch order, for that is open again in a forked child.
_setting = LaunchOrder()

_MODES: dict[str, Callable[[], Any]] = {
    "no_grad": torch.no_grad,
    "inference": torch.inference_mode,
    "grad": torch.enable_grad,
}


class Lane:
    """One device of an executor.

    The device is looked for when the first batch comes: a process that forks before that has not touched any. The
    fields below belong to the executor, which reads and writes them under its lock.
    """

    def __init__(self, options: TorchExecutor, wanted: Any, name: str) -> None:
        self.busy = 0  # batches on it
        self.room = 1  # how many there may be
        self.reserved = 0  # batches that wait to be the only one, or are it
        self.told = False  # somebody has been told that the device is lost
        self.lost: BaseException | None = None  # the device's last words; set once, in any thread
        self._options = options
        self._wanted = wanted
        self._name = name
        self._order: Any = options.launch_order or nullcontext()
        self._unused: list[Buffers] = []
        self._device: Device | None = None
        self._graphs: Graphs | None = None
        self._pipeline: Direct | Pipeline | None = None
        self.worker = Worker(f"batchlib-{name}-device", self._enter)

    @property
    def free(self) -> bool:
        """Whether it takes one more batch."""
        return self.busy < self.room and not self.reserved

    @property
    def place(self) -> object:
        """Where it is, for messages."""
        return self._wanted if self._device is None else self._device.place

    @property
    def not_recorded(self) -> int:
        """Shapes of which there should be a graph, and is none."""
        return 0 if self._graphs is None else len(self._graphs.reasons)

    def open(self) -> None:
        """Finds the device and begins its thread. Raises what finding it raises."""
        if self._pipeline is None:
            self.worker.run(_nothing)

    def _enter(self) -> None:
        """In the new thread: sets what is the thread's own."""
        options = self._options
        if options.threads is not None:
            _set_threads(options.threads)
        pipeline = self._pipeline
        if pipeline is None:
            device = self._device = device_of(self._wanted)
            graphs = self._graphs = Graphs(device) if options.cuda_graphs else None
            self.room = options.in_flight or (2 if device.staged else 1)
            pipeline = pipeline_for(device, results=options.results, graphs=graphs, grad=options.mode == "grad")
        pipeline.enter()
        self._pipeline = pipeline

    def run(self, function: BatchFunction, requests: Sequence[Request], rows: int | None) -> Sequence[Any]:
        """One run of the function for these, with so many rows: the outcomes. In any thread."""
        pipeline = self._pipeline
        assert pipeline is not None
        try:
            buffers = self._unused.pop()  # not looked at first: another thread may take the last ones meanwhile
        except IndexError:
            buffers = pipeline.buffers()
        try:
            with torch.set_grad_enabled(self._options.mode == "grad"):
                collated = pipeline.stage(buffers, partial(self._collate, function, requests, rows))
            self.worker.run(self._launch, buffers, partial(self._call, function, requests), requests[0].group)
            return self._outcomes(function, buffers, collated)
        except Exception as error:
            self.lose_if_fatal(error)
            raise
        finally:
            if self.lost is None:
                pipeline.clear(buffers)
                self._unused.append(buffers)

    def _collate(
        self, function: BatchFunction, requests: Sequence[Request], rows: int | None, allocate: Allocate
    ) -> Collated:
        """On the CPU into new memory: it can be part of a graph for gradients, which reach the items that way."""
        assert self._device is not None
        return function.collate(requests, rows=rows, allocate=allocate if self._device.staged else None)

    def _launch(self, buffers: Buffers, call: Callable[[Collated], Any], key: Hashable) -> None:
        """In the worker thread."""
        assert self._pipeline is not None
        assert self._device is not None
        if self._graphs is not None and not self._device.staged:
            call = partial(self._graphs.run, call, key=key)  # there are none: counts the shapes
        before = self.not_recorded
        try:
            with self._order:
                if self.lost is not None:
                    raise RuntimeError("the device was lost before this batch came to it")
                self._pipeline.launch(buffers, call, key)
        except Exception as error:
            self.lose_if_fatal(error)  # here, so that the next batch touches the device no more
            raise
        finally:
            if self.not_recorded > before and self._device.staged:
                self._log_unrecorded(buffers)

    def _log_unrecorded(self, buffers: Buffers) -> None:
        """Why there is no graph of this shape, the last one that was looked at."""
        assert self._graphs is not None
        assert buffers.collated is not None
        leaves = flatten(tuple(buffers.collated.args))[0]
        logging.getLogger("batchlib").warning(
            "%s: batches of shape %s cannot be recorded for cuda_graphs=True, and run as usual: %s",
            self._name,
            ", ".join([str(tuple(leaf.shape)) for leaf in leaves if holds_rows(leaf)]),
            next(reversed(self._graphs.reasons.values())),
        )

    def _call(self, function: BatchFunction, requests: Sequence[Request], collated: Collated) -> Any:
        """Modes and autocast are entered anew for each batch: a function may leave others behind, and autocast keeps
        its copies of the weights, which may be replaced, until its end."""
        assert self._device is not None
        with _MODES[self._options.mode](), self._cast():
            return function.call(requests, collated)

    def _cast(self) -> Any:
        assert self._device is not None
        dtype = self._options.autocast
        return nullcontext() if dtype is None else torch.autocast(self._device.place.type, dtype)

    def lose_if_fatal(self, error: BaseException) -> bool:
        """Takes note if the error says that the device is lost; whether it is.

        What the user calls out of memory is not, unless torch itself says so by the class of its error.
        """
        options = self._options
        excused = isinstance(error, options.oom) and not isinstance(error, LOST)
        if self.lost is None and not excused and is_fatal(error, options.fatal):
            self.lost = error
        return self.lost is not None

    def _outcomes(self, function: BatchFunction, buffers: Buffers, collated: Collated) -> Sequence[Any]:
        """The result taken apart. Nothing is given away of memory that the next batch writes to."""
        assert self._pipeline is not None
        assert self._device is not None
        copy = True if self._device.staged and self._options.results != "device" else self._options.copy
        result = self._pipeline.finish(buffers)
        listed = isinstance(result, Sequence) and not (isinstance(result, tuple) and function.collator is not None)
        if copy is False or not listed:
            outcomes = function.uncollate(result, collated, copy)
        else:
            found = list(function.uncollate(result, collated, False))
            buffers.result = result = None  # for `owned`, which counts who knows what is in it
            outcomes = owned(found, copy)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                scrub(outcome)
        return outcomes

    def release(self) -> None:
        """Gives back memory that is kept for later: buffers as large as what did not fit, and the device's own."""
        assert self._device is not None
        self._unused.clear()
        self.worker.run(self._device.release_cache)


def _nothing() -> None: ...


def _set_threads(count: int) -> None:
    """For the present thread, a new one. Those that begin later would have as many, if none set it back."""
    with _setting:
        usual = torch.get_num_threads()
        torch.set_num_threads(count)
        other = threading.Thread(target=torch.set_num_threads, args=(usual,))
        other.start()
        other.join()
