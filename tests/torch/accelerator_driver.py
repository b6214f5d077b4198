"""A driver for accelerators that are not there: what is written in C below torch's Python, and no more than that.

Above it runs torch's own code: streams, events, recordings and the functions of `torch.cuda` and `torch.accelerator`
are the real ones, their classes loaded once more on top of these. So who asks torch for what it does not have is
refused by torch, and what it does on the way (a recording that stays in its stream when it cannot be ended) is done
here, too.
"""

from __future__ import annotations

import importlib.util
import itertools
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch

_C: Any = torch._C
TYPE = 1  # of the device, as a number


class Driver:
    """Two devices, of which each thread has a current one, and on each a current stream: 0 until it enters another."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.told: list[Any] = []  # what it was asked to do, and what a test adds to it
        self.spoiled = False  # whether what is recorded cannot be: the function waited for the device
        self.bases = _bases(self)
        self.streams = itertools.count(1)
        self._thread = threading.local()
        self._recording: tuple[int, int] | None = None  # the device and the stream
        self.pools = itertools.count(1)
        self._underway: set[Any] = set()  # pools of memory that are recorded to

    @property
    def device(self) -> int:
        return getattr(self._thread, "device", 0)

    @device.setter
    def device(self, index: int) -> None:
        assert index in (0, 1)
        self._thread.device = index

    def exchange(self, index: int) -> int:
        before, self.device = self.device, index if index >= 0 else self.device
        return before

    @property
    def stream(self) -> int:
        """The current one of the current device."""
        return self.current(self.device)

    def current(self, index: int) -> int:
        streams: dict[int, int] = getattr(self._thread, "streams", {})
        return streams.get(index, 0)

    def enter(self, stream_id: int, device_index: int, device_type: int) -> None:
        assert device_type == TYPE
        self.device = device_index
        self._thread.streams = {**getattr(self._thread, "streams", {}), device_index: stream_id}

    def tell(self, *what: Any) -> None:
        self.told.append(what if len(what) > 1 else what[0])

    def begin(self, pool: Any, mode: str) -> Any:
        if not self.stream:
            raise RuntimeError("graphs must be captured on a non-default stream")
        if self._recording is not None:
            self.tell("two recordings at once")
            raise RuntimeError("another recording is under way")
        pool = pool or (next(self.pools), 0)
        if pool in self._underway:
            raise RuntimeError("beginAllocateToPool: already recording to mempool_id")
        self._underway.add(pool)
        self._recording = self.device, self.stream
        self.tell("record", self.stream, mode, pool)
        return pool

    def give_up(self, device: int, pool: Any) -> None:
        if pool not in self._underway:
            raise RuntimeError("endAllocatePool: not currently recording to mempool_id")
        self._underway.remove(pool)

    def empty_cache(self) -> None:
        if self.kind == "cuda" and self._underway:
            raise RuntimeError("captures_underway.empty() INTERNAL ASSERT FAILED")
        self.tell("empty cache")

    def end(self, pool: Any) -> None:
        if self._recording != (self.device, self.stream):
            raise RuntimeError("Capture must end on the same stream it began on.")
        self._recording = None
        if self.spoiled:  # the pool stays under way
            self.spoiled = False
            raise RuntimeError("operation failed due to a previous error during capture")
        self._underway.remove(pool)
        self.tell("recorded")


def _made(driver: Driver, cls: Any, index: int, number: int) -> Any:
    made = object.__new__(cls)
    made.stream_id, made.device_index, made.device_type, made.before = number, index, TYPE, None
    made.device = torch.device(driver.kind, index)
    return made


def _bases(driver: Driver) -> dict[str, Any]:
    """The classes that torch has in C, by name."""

    class Stream:
        stream_id: int
        device_index: int
        before: tuple[int, int] | None

        def __new__(cls, device: Any = None, *, priority: int = 0) -> Any:
            assert torch.device(device).type == driver.kind
            return _made(driver, cls, torch.device(device).index, next(driver.streams))

        def wait_event(self, event: Any) -> None:
            event.wait(self)

        def wait_stream(self, other: Any) -> None:
            driver.tell(self.stream_id, "waits for", other.stream_id)

        def __enter__(self) -> Any:
            if self.before is not None:  # so until torch 2.12
                raise RuntimeError("Stream's context should not be initialized.")
            self.before = driver.device, driver.current(self.device_index)
            driver.enter(self.stream_id, self.device_index, TYPE)
            return self

        def __exit__(self, exc_type: Any, exc_val: Any, exc_tb: Any) -> None:
            assert self.before is not None
            (device, stream), self.before = self.before, None
            driver.enter(stream, self.device_index, TYPE)
            driver.device = device

    class CudaStream(Stream):
        def __new__(
            cls,
            priority: int = 0,
            stream_id: int | None = None,
            device_index: int | None = None,
            stream_ptr: int = 0,
            device_type: int = TYPE,
        ) -> Any:
            assert device_type == TYPE
            index = driver.device if device_index is None else device_index
            return _made(driver, cls, index, next(driver.streams) if stream_id is None else stream_id)

    class Event:
        at: int | None = None
        blocking = False

        def __new__(
            cls, device: Any = None, *, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False
        ) -> Any:
            assert torch.device(device).type == driver.kind
            return object.__new__(cls)  # torch takes no notice of `blocking`

        def record(self, stream: Any) -> None:
            assert isinstance(stream, Stream)
            self.at = stream.stream_id

        def wait(self, stream: Any) -> None:
            assert isinstance(stream, Stream)
            if self.at is not None:
                driver.tell(stream.stream_id, "waits for", self.at)

        def synchronize(self) -> None:
            driver.tell("host sleeps for" if self.blocking else "host spins for", self.at)

    class CudaEvent(Event):
        def __new__(
            cls,
            enable_timing: bool = False,
            blocking: bool = False,
            interprocess: bool = False,
            external: bool = False,
        ) -> Any:
            made = object.__new__(cls)
            made.blocking = blocking
            return made

    class CudaGraph:
        ended = False
        place: Any

        def __new__(cls, keep_graph: bool = False) -> Any:
            return object.__new__(cls)

        def capture_begin(self, pool: Any = None, capture_error_mode: str = "global") -> None:
            assert capture_error_mode in ("global", "thread_local", "relaxed")
            self.place = driver.begin(pool, capture_error_mode)

        def capture_end(self) -> None:
            driver.end(self.place)
            self.ended = True

        def replay(self) -> None:
            assert self.ended
            driver.tell("replay", driver.stream)

        def pool(self) -> Any:
            assert self.ended
            return self.place

    class Graph(CudaGraph):
        def __new__(cls, _bool: bool) -> Any:
            return object.__new__(cls)

        def __init__(self, _bool: bool) -> None: ...

        def capture_begin(self, pool: Any = None, capture_error_mode: str = "default") -> None:
            super().capture_begin(pool, capture_error_mode)

    return {
        "Stream": Stream,
        "Event": Event,
        "_CudaStreamBase": CudaStream,
        "_CudaEventBase": CudaEvent,
        "_CUDAGraph": CudaGraph,
        "_acceleratorGraph": Graph,
    }


def installed(kind: str) -> Iterator[Driver]:
    """Torch has this driver, as "cuda" or as an accelerator of another kind, until the generator goes on."""
    driver = Driver(kind)
    functions: dict[str, Any] = {
        "_accelerator_getAccelerator": lambda: torch.device(kind),
        "_accelerator_setDeviceIndex": lambda device_index: driver.exchange(device_index),
        "_accelerator_getDeviceIndex": lambda: driver.device,
        "_accelerator_getStream": lambda device_index: _made(
            driver, driver.bases["Stream"], device_index, driver.current(device_index)
        ),
        "_accelerator_synchronizeDevice": lambda device_index: driver.tell("host waits for device", device_index),
        "_accelerator_isAllocatorInitialized": lambda: True,
        "_accelerator_emptyCache": driver.empty_cache,
        "_accelerator_emptyHostCache": lambda: driver.tell("empty host cache"),
    }
    cuda: dict[str, Any] = {
        "_host_emptyCache": lambda: driver.tell("empty host cache"),
        "_graph_pool_handle": lambda: (0, next(driver.pools)),
        "_cuda_isCurrentStreamCapturing": lambda: False,
        "_cuda_getCurrentStream": lambda device: (driver.current(device), device, TYPE),
        "_cuda_setStream": driver.enter,
        "_cuda_synchronize": lambda: driver.tell("host waits for device", driver.device),
        "_cuda_emptyCache": driver.empty_cache,
        "_cuda_endAllocateToPool": driver.give_up,
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**driver.bases, **functions, **(cuda if kind == "cuda" else {})}.items():
            patch.setattr(_C, name, value, raising=False)
        if kind == "cuda":
            _install_cuda(patch, driver)
        else:
            for name in ("Stream", "Event"):
                patch.setattr(torch, name, driver.bases[name])
            patch.setattr(torch.accelerator, "Graph", _loaded_again("torch.accelerator.graphs").Graph)
        yield driver


def _install_cuda(patch: pytest.MonkeyPatch, driver: Driver) -> None:
    for module in (_loaded_again("torch.cuda.streams"), _loaded_again("torch.cuda.graphs")):
        for name in ("Stream", "Event", "CUDAGraph", "graph", "graph_pool_handle"):
            if hasattr(module, name):
                patch.setattr(torch.cuda, name, getattr(module, name))
    patch.setattr(torch.backends.cuda, "is_built", lambda: True)
    ready: dict[str, Any] = {
        "_initialized": True,
        "_lazy_init": lambda: None,
        "_exchange_device": driver.exchange,
        "_maybe_exchange_device": driver.exchange,
        "is_available": lambda: True,
        "current_device": lambda: driver.device,
        "device_count": lambda: 2,
    }
    for name, value in ready.items():
        patch.setattr(torch.cuda, name, value)


def _loaded_again(name: str) -> Any:
    """A second copy of torch's module: its classes take their bases when it is loaded."""
    spec = importlib.util.find_spec(name)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
