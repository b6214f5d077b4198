"""The torch executor among callers: batches that overlap on a device, orders of launches, hanging, forks, errors."""

import asyncio
import gc
import os
import signal
import sys
import threading
import weakref
from collections.abc import Callable
from contextvars import copy_context
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support import Held
from support.until import until

from batchlib import batched
from batchlib.errors import ExecutorLost, ReentrantCallError
from batchlib.torch import LaunchOrder, SimulatedDevice, TorchExecutor, pad, stack
from batchlib.torch.executor._worker import Worker, _Job


async def gathered(f: Any, items: list[Any]) -> list[Any]:
    return await asyncio.gather(*(f(item) for item in items), return_exceptions=True)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("results", ["host", "device"])
def test_staging_buffers_are_not_used_again_early(seed: int, results: Any) -> None:
    """80 calls at once: 20 batches of different content, of which two are on the device at any time."""
    device = SimulatedDevice(seed)
    executor = TorchExecutor(device, in_flight=2, results=results)
    f = batched(lambda batch: batch * 1, max_batch_size=4, collate=stack(), executor=executor)
    values = [float(10 * batch + item) for batch in range(20) for item in range(4)]
    rows = asyncio.run(gathered(f, [torch.full((64,), value) for value in values]))
    assert [row.unique().tolist() for row in rows] == [[value] for value in values]
    assert device.reads_out_of_order == 0


@pytest.mark.parametrize("seed", range(5))
def test_padded_batches_of_many_sizes_overlap(seed: int) -> None:
    device = SimulatedDevice(seed)

    def total(batch: torch.Tensor, *, mask: torch.Tensor) -> torch.Tensor:
        return (batch * mask).sum(1)

    f = batched(total, max_batch_size=8, collate=pad(value=9), executor=TorchExecutor(device, in_flight=3))
    lengths = [(7 * item) % 50 for item in range(120)]
    rows = asyncio.run(gathered(f, [torch.ones(length) for length in lengths]))
    assert [row.item() for row in rows] == lengths
    assert device.reads_out_of_order == 0


def test_threads_and_tasks_share_several_devices() -> None:
    executor = TorchExecutor([SimulatedDevice(1), SimulatedDevice(2), "cpu"])
    f: Any = batched(lambda batch: batch + 1, max_batch_size=3, collate=stack(), executor=executor)
    given: dict[int, float] = {}

    def call(offset: int) -> None:
        for item in range(offset, offset + 40):
            given[item] = f.call(torch.full((2,), float(item)))[1].item()

    threads = [threading.Thread(target=call, args=(100 * number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    rows = asyncio.run(gathered(f, [torch.full((2,), float(item)) for item in range(40)]))
    for thread in threads:
        thread.join()
    assert [row.tolist() for row in rows] == [[item + 1.0] * 2 for item in range(40)]
    assert given == {item: item + 1 for number in range(4) for item in range(100 * number, 100 * number + 40)}


def test_while_one_batch_computes_the_next_is_collated() -> None:
    held = Held(lambda batch: batch)
    collated = [threading.Event() for _ in range(2)]

    def collate(items: list[torch.Tensor]) -> torch.Tensor:
        collated[int(items[0])].set()
        return torch.stack(items)

    f: Any = batched(
        held_tensor(held), max_batch_size=1, collate=collate, executor=TorchExecutor(SimulatedDevice(), in_flight=2)
    )
    first = f.submit(torch.tensor(0))
    assert held.started.wait(30)
    second = f.submit(torch.tensor(1))
    assert collated[1].wait(30)  # although the first is not through
    assert not first.done()
    held.gate.set()
    assert (first.result(30).item(), second.result(30).item()) == (0, 1)


def held_tensor(held: Held) -> Callable[[torch.Tensor], torch.Tensor]:
    """A batch function that is given tensors, held by hand."""

    def function(batch: torch.Tensor) -> torch.Tensor:
        held(batch.tolist())
        return batch

    return function


def test_a_function_that_hangs_keeps_its_place_and_no_other() -> None:
    held = Held()
    other: Any = batched(lambda items: items, executor=TorchExecutor("cpu"))
    f: Any = batched(held, max_batch_size=1, executor=TorchExecutor("cpu"))
    hanging = f.submit(1)
    assert held.started.wait(30)
    waiting = f.submit(2)
    assert other.call(3) == 3
    assert not waiting.done()
    assert (f.statistics().running, f.statistics().waiting) == (1, 1)
    held.gate.set()
    assert (hanging.result(30), waiting.result(30)) == (1, 2)


def test_one_more_batch_than_there_is_room_for_waits() -> None:
    """`max_concurrent_batches` may allow more than the devices take."""
    held = Held()
    f: Any = batched(held, max_batch_size=1, max_concurrent_batches=4, executor=TorchExecutor("cpu", in_flight=1))
    futures = [f.submit(item) for item in range(4)]
    assert held.started.wait(30)
    until(lambda: f.statistics().running == 4)
    assert len(held.seen) == 1
    held.gate.set()
    assert [future.result(30) for future in futures] == [0, 1, 2, 3]


def test_launches_that_share_an_order_never_overlap() -> None:
    order = LaunchOrder()
    inside: list[int] = []
    overlaps: list[int] = []

    def model(items: list[int]) -> list[int]:
        inside.append(1)
        for _ in range(20):
            torch.ones(64, 64) @ torch.ones(64, 64)
        overlaps.append(len(inside))
        inside.pop()
        return items

    executors = [TorchExecutor(["cpu", "cpu"], launch_order=order) for _ in range(2)]
    functions: list[Any] = [batched(model, max_batch_size=1, executor=executor) for executor in executors]
    futures = [f.submit(item) for item in range(20) for f in functions]
    assert [future.result(30) for future in futures] == [item for item in range(20) for _ in functions]
    assert set(overlaps) == {1}


def test_a_launch_waits_for_the_one_before_it_in_the_order() -> None:
    order = LaunchOrder()
    held = Held()
    first: Any = batched(held, executor=TorchExecutor("cpu", launch_order=order))
    other: Any = batched(lambda items: items, executor=TorchExecutor("cpu", launch_order=order))
    without: Any = batched(lambda items: items, executor=TorchExecutor("cpu"))
    one = first.submit(1)
    assert held.started.wait(30)
    two = other.submit(2)
    assert without.call(3) == 3
    until(lambda: other.statistics().running == 1)
    assert not two.done()
    held.gate.set()
    assert (one.result(30), two.result(30)) == (1, 2)


def test_a_function_that_calls_another_one_of_its_own_order_is_refused() -> None:
    order = LaunchOrder()

    def executor() -> TorchExecutor:
        return TorchExecutor("cpu", launch_order=order)

    inner: Any = batched(lambda items: items, executor=executor())
    between: Any = batched(lambda items: [inner.call(item) for item in items])
    outer: Any = batched(lambda items: [between.call(item) for item in items], executor=executor())
    with pytest.raises(ReentrantCallError, match="LaunchOrder"):
        outer.call(1)
    assert between.call(2) == inner.call(2) == 2


def test_a_lone_item_that_finds_no_memory_beside_another_batch_is_tried_without_it() -> None:
    """Two batches are on the device; what one of them takes, the other lacks."""
    taken: list[float] = []
    ran: list[float] = []
    both = threading.Barrier(2)

    def collate(items: list[torch.Tensor]) -> torch.Tensor:
        value = items[0].item()
        if value not in taken:
            taken.append(value)
            both.wait(30)  # neither launches before both have their place
        return torch.stack(items)

    def model(batch: torch.Tensor) -> torch.Tensor:
        ran.append(batch[0].item())
        if len(ran) == 1:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return batch + 1

    f: Any = batched(model, max_batch_size=1, collate=collate, executor=TorchExecutor(SimulatedDevice(), in_flight=2))
    futures = [f.submit(torch.full((1,), value)) for value in (1.0, 2.0)]
    assert [future.result(30).item() for future in futures] == [2.0, 3.0]
    assert len(ran) == 3


def test_a_lone_item_that_never_fits_fails_alone_on_a_device_that_others_use() -> None:
    ran: list[float] = []

    def model(batch: torch.Tensor) -> torch.Tensor:
        ran.append(batch[0].item())
        if batch[0] < 0:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return batch + 1

    f: Any = batched(model, max_batch_size=1, collate=stack(), executor=TorchExecutor(SimulatedDevice(), in_flight=2))
    futures = [f.submit(torch.full((1,), float(value))) for value in (1, -2, 3, 4)]
    assert [type(future.exception(30)) for future in futures] == [type(None), torch.OutOfMemoryError, *[type(None)] * 2]
    assert sorted(ran) == [-2, -2, 1, 3, 4]


def test_a_batch_that_failed_leaves_its_buffers_to_the_next() -> None:
    device = SimulatedDevice(4)
    made: list[int] = []
    host_buffer = device.host_buffer

    def counted(nbytes: int) -> torch.Tensor:
        made.append(nbytes)
        return host_buffer(nbytes)

    device.host_buffer = counted  # type: ignore[method-assign]

    def model(batch: torch.Tensor) -> torch.Tensor:
        if (batch < 0).any():
            raise ValueError("negative")
        return batch + 1

    f: Any = batched(model, max_batch_size=1, collate=stack(), executor=TorchExecutor(device, in_flight=1))
    for value in range(50):
        if value % 2:
            with pytest.raises(ValueError, match="negative"):
                f.call(torch.full((3,), -1.0))
        assert f.call(torch.full((3,), float(value))).tolist() == [value + 1.0] * 3
    assert len(made) == 2  # one to copy from, one to copy to
    assert device.reads_out_of_order == 0


@pytest.mark.parametrize("device", [lambda: "cpu", lambda: SimulatedDevice(6)], ids=["cpu", "simulated"])
def test_no_call_leaves_garbage_that_only_a_collection_finds(device: Any) -> None:
    """As for a plain function: an error that a frame can see would keep tensors until the collector comes by."""
    alive: weakref.WeakSet[torch.Tensor] = weakref.WeakSet()

    def model(batch: torch.Tensor) -> Any:
        work = batch * 2
        alive.update([batch, work])
        kind = int(batch[0, 0]) % 3
        if kind == 2:
            raise ValueError(kind)
        return [KeyError(kind)] * len(batch) if kind else work

    f: Any = batched(model, max_batch_size=1, collate=stack(), executor=TorchExecutor(device(), in_flight=1))
    f.call(torch.zeros(2))
    gc.collect()
    gc.disable()
    try:
        for value in range(60):
            try:
                f.call(torch.full((2,), float(value)))
            except (ValueError, KeyError):
                pass
        f.close()
        assert len(alive) == 0
    finally:
        gc.enable()


# ---- what must not end a device's thread, or share its buffers


class Unreadable(ValueError):
    """An error that cannot be looked at: every look raises another one."""

    @property
    def __cause__(self) -> Any:  # type: ignore[override]
        raise KeyError("no cause")


@pytest.mark.parametrize("device", [lambda: "cpu", lambda: SimulatedDevice(6)], ids=["cpu", "simulated"])
@pytest.mark.parametrize("error", [Unreadable(), SystemExit(3), KeyboardInterrupt()], ids=lambda error: type(error))
def test_whatever_a_function_raises_the_device_serves_the_next(device: Any, error: BaseException) -> None:
    def model(batch: torch.Tensor) -> torch.Tensor:
        if batch[0] < 0:
            raise error
        return batch + 1

    f: Any = batched(model, max_batch_size=1, collate=stack(), executor=TorchExecutor(device(), in_flight=1))
    futures = [f.submit(torch.tensor(value)) for value in (-1.0, 2.0, -3.0, 4.0)]
    failed = [future.exception(30) is not None for future in futures]
    assert failed == [True, False, True, False]
    assert f.statistics().healthy


@pytest.mark.parametrize("error", [Unreadable(), MemoryError("no stream")], ids=lambda error: type(error))
def test_a_device_that_cannot_be_entered_at_first_is_tried_again(error: Exception) -> None:
    class Reluctant(SimulatedDevice):
        def enter(self) -> None:
            if errors:
                raise errors.pop()
            super().enter()

    errors = [error, error]
    f: Any = batched(lambda batch: batch + 1, collate=stack(), executor=TorchExecutor(Reluctant()))
    for _ in range(2):
        assert f.submit(torch.tensor(1.0)).exception(30) is not None
    assert f.call(torch.tensor(1.0)).item() == 2
    assert f.statistics().healthy


def test_of_two_batches_that_look_for_buffers_one_finds_them_and_the_other_gets_new_ones() -> None:
    class Contended(list[Any]):
        """Whoever looks before taking finds that another thread was faster."""

        def __len__(self) -> int:
            self.clear()
            return 1

    f: Any = batched(lambda batch: batch + 1, collate=stack(), executor=TorchExecutor(SimulatedDevice()))
    assert f.call(torch.tensor(1.0)).item() == 2
    (lane,) = f._live.driver.executor.lanes
    lane._unused = Contended(lane._unused)
    assert [f.call(torch.tensor(value)).item() for value in (2.0, 3.0)] == [3, 4]
    lane._unused.clear()
    assert f.call(torch.tensor(4.0)).item() == 5


def test_who_is_interrupted_while_a_job_runs_leaves_once_it_has_ended() -> None:
    """What it gives back then, buffers among it, the job works with."""

    class Interrupted:
        """The lock that it waits for; a signal comes in at first."""

        def __init__(self, lock: Any) -> None:
            self.lock = lock
            self.waits = 0

        def acquire(self) -> None:
            self.waits += 1
            if self.waits == 1:
                raise KeyboardInterrupt
            job.end(None, None)  # as the device's thread does meanwhile
            self.lock.acquire()

        def release(self) -> None:
            self.lock.release()

    job = _Job(copy_context(), print, ())
    done: Any = Interrupted(job._done)
    job._done = done
    with pytest.raises(KeyboardInterrupt):
        job.wait()
    assert done.waits == 2


@settings(deadline=None, database=None, max_examples=60)
@given(st.lists(st.sampled_from(["run", "fail", "stop"]), max_size=12), st.integers(0, 12))
def test_a_worker_does_all_that_it_is_given_and_ends_whenever_it_is_stopped(steps: list[str], held: int) -> None:
    """held: at which step the thread is busy, so that those behind it queue."""
    gate = threading.Event()
    ended: list[int] = []
    workers: set[threading.Thread] = set()

    def job(number: int, step: str) -> int:
        workers.add(threading.current_thread())
        if number == held:
            assert gate.wait(30)
        ended.append(number)
        if step == "fail":
            raise SystemExit(number)
        return number

    def call(number: int, step: str) -> None:
        try:
            given[number] = worker.run(job, number, step)
        except SystemExit as error:
            given[number] = error.code

    given: dict[int, Any] = {}
    worker = Worker("test", lambda: None)
    callers: list[threading.Thread] = []
    for number, step in enumerate(steps):
        if step == "stop":
            worker.stop()
            continue
        callers.append(threading.Thread(target=call, args=(number, step)))
        callers[-1].start()
        until(lambda number=number: number in ended or worker.waiting or number >= held)  # type: ignore[misc]
    gate.set()
    for caller in callers:
        caller.join(30)
    worker.stop()
    assert given == {number: number for number, step in enumerate(steps) if step != "stop"}
    assert sorted(ended) == sorted(given)
    for thread in workers:
        thread.join(30)
        assert not thread.is_alive()


# ---- forks


class Forked:
    """A batched function whose parent's batches are held in some state; a child's are not held."""

    def __init__(self) -> None:
        self.parent = os.getpid()
        self.gate, self.started = threading.Event(), threading.Event()
        self.cramped = False
        options = {"max_batch_size": 1, "max_concurrent_batches": 3, "collate": self.collate}
        executor = TorchExecutor("cpu", in_flight=2)
        self.f: Any = batched(lambda batch: self.model(batch), executor=executor, **options)

    def hold(self) -> None:
        if os.getpid() == self.parent:
            self.started.set()
            assert self.gate.wait(30)

    def collate(self, items: list[torch.Tensor]) -> torch.Tensor:
        if self.cramped and os.getpid() == self.parent:
            self.cramped = False
            raise torch.OutOfMemoryError("CUDA out of memory")
        return torch.stack(items)

    def model(self, batch: torch.Tensor) -> torch.Tensor:
        if batch[0] < 0:
            raise RuntimeError("device-side assert triggered")
        self.hold()
        return batch + 1

    def submit(self, count: int) -> list[Any]:
        return [self.f.submit(torch.tensor(float(value))) for value in range(count)]

    @property
    def lane(self) -> Any:
        return self.f._live.driver.executor.lanes[0]


def idle(forked: Forked) -> list[Any]:
    forked.gate.set()
    assert forked.f.call(torch.tensor(0.0)).item() == 1
    return []


def running(forked: Forked) -> list[Any]:
    futures = forked.submit(1)
    assert forked.started.wait(30)
    return futures


def queued_for_the_device(forked: Forked) -> list[Any]:
    futures = forked.submit(2)
    until(lambda: forked.started.is_set() and forked.lane.worker.waiting)
    return futures


def waiting_for_room(forked: Forked) -> list[Any]:
    futures = forked.submit(3)
    until(lambda: forked.lane.busy == 2 and forked.f.statistics().running == 3)
    return futures


def waiting_to_be_alone(forked: Forked) -> list[Any]:
    futures = running(forked)
    forked.cramped = True
    futures += forked.submit(1)
    until(lambda: forked.lane.reserved)
    return futures


STATES: list[Callable[[Forked], list[Any]]] = [
    lambda forked: [],
    idle,
    running,
    queued_for_the_device,
    waiting_for_room,
    waiting_to_be_alone,
]


@pytest.mark.skipif(sys.platform == "win32", reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("state", STATES, ids=lambda state: state.__name__)
def test_a_process_may_fork_in_whatever_state_the_executor_is(state: Callable[[Forked], list[Any]]) -> None:
    forked = Forked()
    futures = state(forked)
    assert in_child(lambda: [forked.f.call(torch.tensor(float(value))).item() for value in range(3)] == [1, 2, 3])
    forked.gate.set()
    assert all([future.result(30).item() > 0 for future in futures])


@pytest.mark.skipif(sys.platform == "win32", reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_process_may_fork_while_a_device_is_entered() -> None:
    class Slow(SimulatedDevice):
        def enter(self) -> None:
            forked.hold()
            super().enter()

    forked = Forked()
    f: Any = batched(lambda batch: batch + 1, collate=stack(), executor=TorchExecutor(Slow()))
    future = f.submit(torch.tensor(1.0))
    assert forked.started.wait(30)
    assert in_child(lambda: f.call(torch.tensor(2.0)).item() == 3)
    forked.gate.set()
    assert future.result(30).item() == 2


@pytest.mark.skipif(sys.platform == "win32", reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_has_threads_of_its_own() -> None:
    order = LaunchOrder()
    f: Any = batched(
        lambda batch: [(os.getpid(), row.sum().item()) for row in batch],
        collate=stack(),
        executor=TorchExecutor("cpu", launch_order=order),
    )
    assert f.call(torch.ones(3)) == (os.getpid(), 3)
    with order:  # as a thread of the parent may hold it
        assert in_child(lambda: f.call(torch.ones(3)) == (os.getpid(), 3.0))
    assert f.call(torch.ones(4)) == (os.getpid(), 4)


@pytest.mark.skipif(sys.platform == "win32", reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_has_devices_of_its_own() -> None:
    def model(batch: torch.Tensor) -> torch.Tensor:
        if batch[0] < 0:
            raise RuntimeError("device-side assert triggered")
        return batch

    f: Any = batched(model, collate=stack(), executor=TorchExecutor("cpu"))
    with pytest.raises(ExecutorLost):
        f.call(torch.tensor(-1.0))
    assert in_child(lambda: f.statistics().healthy and f.call(torch.tensor(1.0)).item() == 1)
    assert not f.statistics().healthy


def in_child(work: Callable[[], bool]) -> bool:
    """Whether the work succeeds in a forked process, before an alarm ends that."""
    child = os.fork()
    if child == 0:
        succeeded = False
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(60)
        try:
            succeeded = work()
        finally:
            os._exit(0 if succeeded else 1)
    _, status = os.waitpid(child, 0)
    return status == 0
