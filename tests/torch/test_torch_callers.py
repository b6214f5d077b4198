"""The torch executor among callers: batches that overlap on a device, orders of launches, hanging, forks, errors."""

import asyncio
import gc
import os
import signal
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from support import Held
from support.until import until

from batchlib import batched
from batchlib.errors import ExecutorLost, ReentrantCallError
from batchlib.torch import LaunchOrder, SimulatedDevice, TorchExecutor, pad, stack


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


# ---- forks


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
