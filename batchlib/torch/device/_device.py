"""The seam between the executor and a device: everything that is asked of streams, events and memory, on one page.

Behind it the executor is the same for every accelerator, and a simulated device can stand in for one: the order of
copies and computation is then proved on a machine that has none.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, Protocol, runtime_checkable

import torch
from torch import Tensor

from ..._core._execution import Collated


class Graph(Protocol):
    """A recorded run of a function. Every replay reads the memory that the recording read, and writes what it wrote."""

    result: Any
    """What the function gave: the memory that each replay overwrites."""

    def replay(self) -> None: ...


class CaptureFailed(RuntimeError):
    """A function ran, but could not be recorded."""


@runtime_checkable
class Device(Protocol):
    """What the pipeline needs of a device. Streams and events are its own: nobody else looks inside."""

    place: torch.device
    """Where a function's inputs must be."""
    staged: bool
    """Whether they are copied there. False for the CPU."""

    def enter(self) -> None:
        """Makes it the calling thread's current device; once in each thread that launches."""
        ...

    def stream(self) -> Any:
        """A new one, for copies."""
        ...

    def compute_stream(self) -> Any:
        """The calling thread's current one, on which the user's code runs."""
        ...

    def event(self) -> Any:
        """A new one. Until it is recorded, waiting for it is waiting for nothing."""
        ...

    def record(self, event: Any, stream: Any) -> None:
        """The event stands for everything that the stream was given so far."""
        ...

    def wait(self, stream: Any, event: Any) -> None:
        """What the stream is given from now on runs after the event, as it is recorded now."""
        ...

    def synchronize(self, event: Any) -> None:
        """The calling thread waits for the event, as it is recorded now, and lets others run meanwhile."""
        ...

    def synchronize_all(self) -> None:
        """The calling thread waits for everything."""
        ...

    def host_buffer(self, nbytes: int) -> Tensor:
        """Bytes on the host that can be copied from and to while others compute, where the device has such memory.

        MemoryError if it has, but none is left now.
        """
        ...

    def device_buffer(self, nbytes: int) -> Tensor:
        """Bytes on the device, in the order of the compute stream: what it was given before may still write there."""
        ...

    def copy(self, stream: Any, target: Tensor, source: Tensor) -> None:
        """Gives the stream a copy between host and device. Neither may be touched before it has run."""
        ...

    def launch(self, function: Callable[[Collated], Any], inputs: Collated) -> Any:
        """Calls it, its work in the compute stream. The result may be there before its contents are."""
        ...

    def capture(self, function: Callable[[], Any]) -> Graph:
        """Runs the function once, to warm it up, and records it. CaptureFailed if that cannot be done.

        What the function itself raises when it is warmed up is raised as it is.
        """
        ...

    def release_cache(self) -> None:
        """Gives memory back that is kept for later."""
        ...


class CpuDevice:
    """The CPU: everything is done at once, so that there is nothing to wait for."""

    staged = False
    place = torch.device("cpu")

    def enter(self) -> None: ...

    def stream(self) -> None: ...

    def compute_stream(self) -> None: ...

    def event(self) -> None: ...

    def record(self, event: None, stream: None) -> None: ...

    def wait(self, stream: None, event: None) -> None: ...

    def synchronize(self, event: None) -> None: ...

    def synchronize_all(self) -> None: ...

    def host_buffer(self, nbytes: int) -> Tensor:
        return torch.empty(nbytes, dtype=torch.uint8, device="cpu")

    def device_buffer(self, nbytes: int) -> Tensor:
        return torch.empty(nbytes, dtype=torch.uint8, device="cpu")

    def copy(self, stream: None, target: Tensor, source: Tensor) -> None:
        target.copy_(source)

    def launch(self, function: Callable[[Collated], Any], inputs: Collated) -> Any:
        return function(inputs)

    def capture(self, function: Callable[[], Any]) -> Graph:
        raise CaptureFailed("the CPU has no graphs")

    def release_cache(self) -> None: ...


# A fact about the process, not about a device: torch allows one recording at a time in it.
_recording = threading.Lock()


class AcceleratorDevice:
    """An accelerator, by what torch has for all of them; by CUDA's own where that can do more.

    place: with its number; 0 if it has none.

    A backend without memory that can be copied from while it computes, or without streams, is served all the same: the
    copies then take their turn with the computation.
    """

    staged = True

    def __init__(self, place: torch.device) -> None:
        self.place = torch.device(place.type, place.index or 0)
        self._is_cuda = place.type == "cuda"
        self._backend: Any = torch.cuda if self._is_cuda else torch
        self._pins: bool | None = None  # whether it has pinned memory; None until it was asked for some
        self._side: Any = None
        self._pool: Any = None  # memory that all graphs share, since only one of them runs at a time

    def enter(self) -> None:
        torch.accelerator.set_device_index(self.place)

    def stream(self) -> Any:
        """None, which stands for the compute stream, if the backend has no other."""
        try:
            return self._backend.Stream(self.place)
        except RuntimeError:
            return None

    def compute_stream(self) -> Any:
        return (torch.cuda if self._is_cuda else torch.accelerator).current_stream(self.place)

    def event(self) -> Any:
        # Waiting for one of torch's general events keeps a core of the host busy.
        return self._backend.Event(blocking=True) if self._is_cuda else self._backend.Event(self.place)

    def record(self, event: Any, stream: Any) -> None:
        event.record(self.compute_stream() if stream is None else stream)

    def wait(self, stream: Any, event: Any) -> None:
        (self.compute_stream() if stream is None else stream).wait_event(event)

    def synchronize(self, event: Any) -> None:
        event.synchronize()

    def synchronize_all(self) -> None:
        torch.accelerator.synchronize(self.place)

    def host_buffer(self, nbytes: int) -> Tensor:
        if self._pins is not False:
            try:
                pinned = torch.empty(nbytes, dtype=torch.uint8, device="cpu", pin_memory=True)
            except RuntimeError as error:
                # Torch has no class of its own for it. Where there is none at all, backends say something else.
                self._pins = self._pins or "out of memory" in str(error)
                if self._pins:
                    raise MemoryError(f"no pinned memory is left for {nbytes} bytes") from error
            else:
                self._pins = True
                return pinned
        return torch.empty(nbytes, dtype=torch.uint8, device="cpu")

    def device_buffer(self, nbytes: int) -> Tensor:
        return torch.empty(nbytes, dtype=torch.uint8, device=self.place)

    def copy(self, stream: Any, target: Tensor, source: Tensor) -> None:
        if stream is None:
            target.copy_(source, non_blocking=True)
            return
        with stream:
            target.copy_(source, non_blocking=True)

    def launch(self, function: Callable[[Collated], Any], inputs: Collated) -> Any:
        return function(inputs)

    def capture(self, function: Callable[[], Any]) -> Graph:
        if not self._is_cuda and not hasattr(torch.accelerator, "Graph"):  # since torch 2.13
            raise CaptureFailed(f"this torch has no graphs for {self.place.type}")
        current, side = self.compute_stream(), self._side or self.stream()
        if side is None:
            raise CaptureFailed(f"{self.place.type} has one stream, and graphs need another")
        self._side = side
        # What runs for the first time allocates and tunes, which cannot be recorded, and must not be in the stream
        # that is: a stream's own workspace would become part of the graph's memory.
        side.wait_stream(current)
        try:
            with side:
                function()
        finally:
            current.wait_stream(side)
        try:
            with _recording:
                return self._record(function)
        except torch.OutOfMemoryError:  # a smaller batch may fit
            raise
        except Exception as error:
            raise CaptureFailed(f"{type(error).__name__}: {error}") from error

    def _record(self, function: Callable[[], Any]) -> Graph:
        # "thread_local": what other threads do meanwhile with the device is neither recorded nor an error.
        mode: Final = "thread_local"
        if self._is_cuda:
            self._pool = self._pool or torch.cuda.graph_pool_handle()
            graph: Any = torch.cuda.CUDAGraph()
            recording: Any = torch.cuda.graph(graph, pool=self._pool, stream=self._side, capture_error_mode=mode)
        else:
            graph = recording = torch.accelerator.Graph(pool=self._pool, capture_error_mode=mode)
        # CUDA's recording enters the stream, too, but stays in it when the recording cannot be ended.
        try:
            with self._side, recording:
                result = function()
        except BaseException:
            self._give_up_pool()
            raise
        self._pool = self._pool or graph.pool()
        return _Recording(graph, result)

    def _give_up_pool(self) -> None:
        """After a recording that could perhaps not be ended: torch would take its pool for one that is recorded to, and
        make no further recording, nor give memory back."""
        if self._is_cuda and self._pool is not None:
            with suppress(RuntimeError, AttributeError):  # it was ended; it is torch's own function
                torch._C._cuda_endAllocateToPool(self.place.index, self._pool)  # pyright: ignore[reportPrivateUsage]
        self._pool = None

    def release_cache(self) -> None:
        release = getattr(torch.get_device_module(self.place), "empty_cache", None)  # a backend may keep none
        if release is not None:
            release()


@dataclass
class _Recording:
    graph: Any
    result: Any

    def replay(self) -> None:
        self.graph.replay()


def device_of(value: object = None) -> Device:
    """The device that is meant.

    value: a name, a torch.device or a Device; None for the accelerator if there is one, else the CPU. A name without a
        number means number 0.

    Raises ValueError for one that is not there, TypeError for what is no device.
    """
    if isinstance(value, Device) and not isinstance(value, type):
        return value
    if value is not None and not isinstance(value, str | torch.device):
        raise TypeError(f"device must be a name, a torch.device, a Device or None, not {value!r}")
    found = torch.accelerator.current_accelerator(check_available=True)
    try:
        place = (found or torch.device("cpu")) if value is None else torch.device(value)
    except RuntimeError as error:
        raise ValueError(f"device={value!r}: torch knows no such device; None takes what there is") from error
    if place.type == "cpu":
        return CpuDevice()
    count = torch.accelerator.device_count() if found is not None and found.type == place.type else 0
    if not 0 <= (place.index or 0) < count:
        there = "the CPU" if found is None else f"the CPU and {torch.accelerator.device_count()} of {found.type}"
        raise ValueError(f"device={str(value)!r} is not there: torch finds {there}; None takes what there is")
    return AcceleratorDevice(place)
