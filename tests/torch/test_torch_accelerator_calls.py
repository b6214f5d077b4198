"""What an accelerator is asked, and in which order: torch's own Python over a driver that is not there."""

import ast
import inspect
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerator_driver import Driver, installed

from batchlib._core._execution import Collated
from batchlib.torch.device import _device
from batchlib.torch.device._arena import MAKESHIFT_BATCHES, Arena
from batchlib.torch.device._device import AcceleratorDevice, CaptureFailed, Device, device_of
from batchlib.torch.device._graphs import Graphs

FIRST_POOL = {"cuda": (0, 1), "xpu": (1, 0)}  # CUDA gives one by itself, others with their first recording


@pytest.fixture(params=["cuda", "xpu"])
def driver(request: pytest.FixtureRequest) -> Iterator[Driver]:
    yield from installed(request.param)


@pytest.fixture
def cuda() -> Iterator[Driver]:
    yield from installed("cuda")


@pytest.fixture
def device(driver: Driver) -> AcceleratorDevice:
    """The second one, as a worker's thread has it."""
    found = AcceleratorDevice(torch.device(driver.kind, 1))
    found.enter()
    return found


def arguments(function: ast.FunctionDef) -> list[str]:
    return [each.arg for each in (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)][1:]


@pytest.mark.parametrize(
    "name", ["Stream", "Event", "_CudaStreamBase", "_CudaEventBase", "_CUDAGraph", "_acceleratorGraph"]
)
def test_the_driver_takes_what_torch_takes(cuda: Driver, name: str) -> None:
    """By the stubs that torch comes with: a fake that takes more would let through what torch refuses."""
    stubs = ast.parse((Path(torch.__file__).parent / "_C" / "__init__.pyi").read_text())
    real = [each for each in stubs.body if isinstance(each, ast.ClassDef)]
    ancestors = {each.name: [getattr(base, "attr", getattr(base, "id", "")) for base in each.bases] for each in real}
    owners = {name, *ancestors[name]}
    methods = [item for each in real if each.name in owners for item in each.body if isinstance(item, ast.FunctionDef)]
    for method, function in vars(cuda.bases[name]).items():
        if not inspect.isfunction(function):
            continue
        mine = [each for each in inspect.signature(function).parameters if each not in ("self", "cls")]
        if (name, method) == ("_CudaStreamBase", "__new__"):
            mine.remove("device_type")  # which torch itself gives, and the stub leaves out
        taken = [arguments(each) for each in methods if each.name == method]
        assert mine in [each[: len(mine)] for each in taken], method


def test_every_thread_makes_the_device_its_current_one(driver: Driver, device: AcceleratorDevice) -> None:
    assert driver.device == 1
    seen: list[int] = []

    def enter() -> None:
        seen.append(driver.device)
        device.enter()
        seen.append(driver.device)

    other = threading.Thread(target=enter)
    other.start()
    other.join()
    assert seen == [0, 1]
    driver.exchange(0)
    assert device.compute_stream().device_index == 1  # wherever else the function has gone


def test_a_copy_is_made_in_its_stream_and_the_current_one_is_left_as_it_was(
    driver: Driver, device: AcceleratorDevice
) -> None:
    seen: list[Any] = []

    class Target:
        def copy_(self, source: Any, *, non_blocking: bool) -> None:
            seen.append((driver.device, driver.stream, source, non_blocking))

    target: Any = Target()
    first, second = device.stream(), device.stream()
    streams: list[Any] = [first, second, first, None]
    for stream in streams:
        device.copy(stream, target, stream)
        assert (driver.device, driver.stream) == (1, 0)
    assert seen == [(1, 1, first, True), (1, 2, second, True), (1, 1, first, True), (1, 0, None, True)]


def test_streams_and_the_host_wait_for_events(driver: Driver, device: AcceleratorDevice) -> None:
    copying, event = device.stream(), device.event()
    device.wait(copying, event)  # for nothing
    assert driver.told == []
    device.record(event, copying)
    device.wait(device.compute_stream(), event)
    device.record(event, device.compute_stream())
    device.wait(copying, event)
    device.synchronize(event)
    device.synchronize_all()
    assert driver.told == [
        (0, "waits for", 1),
        (1, "waits for", 0),
        # CUDA's events let the host sleep; waiting for one of torch's general ones keeps a core busy.
        ("host sleeps for" if driver.kind == "cuda" else "host spins for", 0),
        ("host waits for device", 1),
    ]


def test_without_a_stream_of_its_own_what_is_copied_follows_the_computation(
    driver: Driver, device: AcceleratorDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: object) -> Any:
        raise RuntimeError("Backend doesn't support create a new Stream.")

    monkeypatch.setattr(torch.cuda if driver.kind == "cuda" else torch, "Stream", refuse)
    assert device.stream() is None
    monkeypatch.undo()
    event = device.event()
    device.record(event, None)
    device.wait(None, event)
    assert driver.told == [(0, "waits for", 0)]


def test_a_device_without_streams_records_nothing(
    driver: Driver, device: AcceleratorDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device, "stream", lambda: None)
    with pytest.raises(CaptureFailed, match=f"{driver.kind} has one stream, and graphs need another"):
        device.capture(lambda: pytest.fail("it was called"))


def told_by(driver: Driver, then: Callable[[], Any] = lambda: None) -> Callable[[], Any]:
    """A function to capture, that tells where it runs."""

    def function() -> Any:
        driver.tell("run", driver.stream)
        return then()

    return function


def test_a_recording_follows_its_warm_up_in_a_stream_beside_the_one_that_computes(
    driver: Driver, device: AcceleratorDevice
) -> None:
    recording = device.capture(told_by(driver, lambda: "result"))
    assert driver.told == [
        (1, "waits for", 0),
        ("run", 1),
        (0, "waits for", 1),
        ("host waits for device", 1),
        "empty cache",
        "empty host cache",
        ("record", 1, "thread_local", FIRST_POOL[driver.kind]),
        ("run", 1),
        "recorded",
    ]
    assert (recording.result, driver.device, driver.stream) == ("result", 1, 0)
    recording.replay()
    assert driver.told[-1] == ("replay", 0)


def test_recordings_share_a_stream_and_the_pool_of_the_first(driver: Driver, device: AcceleratorDevice) -> None:
    for _ in range(3):
        device.capture(told_by(driver))
    assert [each for each in driver.told if each[0] == "record"] == [
        ("record", 1, "thread_local", FIRST_POOL[driver.kind])
    ] * 3


def test_an_error_while_warming_up_is_the_functions_own(driver: Driver, device: AcceleratorDevice) -> None:
    def fail() -> Any:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        device.capture(told_by(driver, fail))
    assert driver.told == [(1, "waits for", 0), ("run", 1), (0, "waits for", 1)]  # what it has begun is waited for
    assert driver.stream == 0


def second_run(action: Callable[[], Any]) -> Callable[[], Any]:
    """Does nothing in the warm-up, and this while it is recorded."""
    runs = iter([lambda: None, action])
    return lambda: next(runs)()


@pytest.mark.parametrize("spoiled", [False, True])
def test_an_error_while_recording_says_that_it_cannot_be_recorded(
    driver: Driver, device: AcceleratorDevice, spoiled: bool
) -> None:
    def fail() -> Any:
        driver.spoiled = spoiled  # as when it waits for the device: the recording itself cannot be ended either
        raise ValueError("no")

    with pytest.raises(CaptureFailed, match="previous error" if spoiled else "ValueError: no"):
        device.capture(second_run(fail))
    # The thread is back in the stream that computes, or later batches would run beside their copies.
    assert (driver.device, driver.stream) == (1, 0)


def test_a_recording_that_failed_does_not_keep_others_from_being_made(
    driver: Driver, device: AcceleratorDevice
) -> None:
    """Torch takes the memory pool of a recording that could not be ended for one that is recorded to, for good: CUDA's
    then refuses to give memory back, which is the first thing that every recording does."""

    def spoil() -> None:
        driver.spoiled = True

    device.capture(told_by(driver))
    with pytest.raises(CaptureFailed):
        device.capture(second_run(spoil))
    for _ in range(2):
        device.capture(told_by(driver)).replay()
    pools = [each[3] for each in driver.told if each[0] == "record"]
    assert pools[0] == pools[1]
    assert pools[2] == pools[3] != pools[0]
    driver.empty_cache()


def test_memory_that_runs_out_while_recording_is_no_reason_not_to_record(
    driver: Driver, device: AcceleratorDevice
) -> None:
    def fail() -> Any:
        raise torch.OutOfMemoryError("out of memory")

    with pytest.raises(torch.OutOfMemoryError):
        device.capture(second_run(fail))
    assert driver.stream == 0


def test_an_interrupt_while_recording_leaves_the_stream(driver: Driver, device: AcceleratorDevice) -> None:
    def interrupt() -> Any:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        device.capture(second_run(interrupt))
    assert driver.stream == 0
    device.capture(told_by(driver))


def test_one_recording_at_a_time_in_the_process(
    driver: Driver, device: AcceleratorDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted, found = threading.Semaphore(0), []

    class Told:
        """The lock, telling who comes to it."""

        def __init__(self) -> None:
            self.lock = threading.Lock()

        def __enter__(self) -> None:
            wanted.release()
            self.lock.acquire()

        def __exit__(self, *_: object) -> None:
            self.lock.release()

    monkeypatch.setattr(_device, "_recording", Told())

    def capture_on_the_other() -> None:
        first = AcceleratorDevice(torch.device(driver.kind, 0))
        first.enter()
        try:
            found.append(first.capture(lambda: wanted.release()).result)
        except CaptureFailed as error:
            found.append(error)

    other = threading.Thread(target=capture_on_the_other)

    def meanwhile() -> str:
        assert wanted.acquire(timeout=30)  # this one's own
        other.start()
        assert wanted.acquire(timeout=30)  # the other's warm-up
        assert wanted.acquire(timeout=30)  # the other has come to the lock
        return "result"

    assert device.capture(second_run(meanwhile)).result == "result"
    other.join(30)
    assert found == [None]
    assert "two recordings at once" not in driver.told


def test_a_torch_without_graphs_for_this_kind_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch.accelerator, "Graph", raising=False)
    device = AcceleratorDevice(torch.device("xpu"))
    with pytest.raises(CaptureFailed, match="this torch has no graphs for xpu"):
        device.capture(lambda: pytest.fail("it was called"))


def test_graphs_record_and_replay(driver: Driver, device: AcceleratorDevice) -> None:
    graphs = Graphs(device)
    for _ in range(3):
        graphs.run(lambda collated: driver.tell("run", driver.stream), Collated((torch.ones(2),), {}, 2, 2))
    assert graphs.reasons == {}
    assert [each for each in driver.told if each[0] in ("run", "replay")] == [("run", 1)] * 2 + [("replay", 0)] * 3


def test_memory_that_is_kept_is_given_back(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.xpu.memory, "is_initialized", lambda: True)
    monkeypatch.setattr(torch._C, "_xpu_emptyCache", lambda: driver.tell("empty cache"), raising=False)
    AcceleratorDevice(torch.device(driver.kind)).release_cache()
    assert driver.told == ["empty cache"]


def test_a_backend_that_keeps_no_memory_is_asked_for_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch.xpu, "empty_cache")
    AcceleratorDevice(torch.device("xpu")).release_cache()


def test_the_device_is_found(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    module = torch.cuda if driver.kind == "cuda" else torch.xpu
    monkeypatch.setattr(module, "is_available", lambda: True)
    monkeypatch.setattr(module, "device_count", lambda: 2)
    for name, place in ((None, f"{driver.kind}:0"), (f"{driver.kind}:1", f"{driver.kind}:1")):
        found = device_of(name)
        assert (type(found), found.place) == (AcceleratorDevice, torch.device(place))
    with pytest.raises(ValueError, match=f"torch finds the CPU and 2 of {driver.kind}"):
        device_of(f"{driver.kind}:2")


def test_memory_of_the_device_is_asked_for_there() -> None:
    elsewhere = AcceleratorDevice(torch.device("meta"))
    assert elsewhere.device_buffer(8).device == torch.device("meta")
    assert elsewhere.launch(lambda collated: collated.rows, Collated((), {}, 2, 3)) == 3


class Pinned:
    """`torch.empty` of a torch that has pinned memory while there is some. Counts who asks for it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.error: Exception | None = None
        self.asked = 0
        self.given: list[int] = []
        self._empty = torch.empty
        monkeypatch.setattr(torch, "empty", self)

    def __call__(self, *shape: Any, pin_memory: bool = False, **options: Any) -> Any:
        made = self._empty(*shape, **options)
        if pin_memory:
            self.asked += 1
            if self.error is not None:
                raise self.error
            self.given.append(made.data_ptr())
        return made


@pytest.fixture
def pinned(monkeypatch: pytest.MonkeyPatch) -> Pinned:
    return Pinned(monkeypatch)


NO_MEMORY = [
    torch.OutOfMemoryError("XPU out of memory."),
    RuntimeError("CUDA error: out of memory"),
    torch.AcceleratorError("CUDA error: out of memory"),
]
NO_SUCH_MEMORY = [
    NotImplementedError("You should register `PrivateUse1HooksInterface`"),
    RuntimeError("Backend doesn't support getPinnedMemoryAllocator()"),
]


@pytest.mark.parametrize("error", NO_SUCH_MEMORY, ids=lambda error: type(error).__name__)
def test_pinned_memory_that_a_backend_never_has_is_asked_for_once(pinned: Pinned, error: Exception) -> None:
    device, pinned.error = AcceleratorDevice(torch.device("xpu")), error
    assert [device.host_buffer(nbytes).numel() for nbytes in (8, 16)] == [8, 16]
    assert pinned.asked == 1


@pytest.mark.parametrize("error", NO_MEMORY, ids=lambda error: type(error).__name__)
def test_pinned_memory_that_is_out_at_first_is_asked_for_again(pinned: Pinned, error: Exception) -> None:
    device, pinned.error = AcceleratorDevice(torch.device("cuda")), error
    for _ in range(2):
        with pytest.raises(MemoryError, match="no pinned memory is left for 8 bytes"):
            device.host_buffer(8)
    pinned.error = None
    assert device.host_buffer(8).data_ptr() in pinned.given


@pytest.mark.parametrize("error", [*NO_MEMORY, *NO_SUCH_MEMORY], ids=lambda error: type(error).__name__)
def test_pinned_memory_that_there_was_is_asked_for_again_whatever_the_error(pinned: Pinned, error: Exception) -> None:
    device = AcceleratorDevice(torch.device("cuda"))
    device.host_buffer(8)
    pinned.error = error
    with pytest.raises(MemoryError):
        device.host_buffer(8)
    pinned.error = None
    assert device.host_buffer(8).data_ptr() in pinned.given


def test_a_moment_without_pinned_memory_does_not_slow_the_batches_for_good(pinned: Pinned) -> None:
    device: Device = AcceleratorDevice(torch.device("cuda"))
    arena, pinned.error = Arena(device.host_buffer), torch.AcceleratorError("CUDA error: out of memory")

    def batch() -> torch.Tensor:
        arena.clear()
        return arena.allocate((3000,), torch.float32).fill_(1)

    made = [batch() for _ in range(MAKESHIFT_BATCHES)]
    assert {each.data_ptr() for each in made} == {made[0].data_ptr()}  # kept that long, and not asked for meanwhile
    assert pinned.asked == 1
    again = batch()
    assert pinned.asked == 2
    assert again.data_ptr() not in pinned.given  # still none
    pinned.error = None
    for _ in range(MAKESHIFT_BATCHES - 1):
        assert batch().data_ptr() == again.data_ptr()
    good = batch()
    for _ in range(3 * MAKESHIFT_BATCHES):
        assert batch().data_ptr() == good.data_ptr() in pinned.given
    assert pinned.asked == 3
