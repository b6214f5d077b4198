"""On an accelerator that is one to torch: a backend written in Python, whose memory is the host's by another name.

Torch knows its device, streams, events and tensors as it knows CUDA's, and nothing of `AcceleratorDevice` is replaced.
It has one stream, in which everything is done at once, and no pinned memory.

Not collected with the others: registering a backend changes torch for good. `test_torch_accelerator_toy` runs this file
in a process of its own.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only
from torch.utils.backend_registration import _DummyBackendModule, _setup_privateuseone_for_python_backend

from batchlib import batched
from batchlib._core._execution import Collated
from batchlib.torch import TorchExecutor, pad, stack
from batchlib.torch.device._device import AcceleratorDevice, device_of
from batchlib.torch.device._graphs import Graphs
from batchlib.torch.device._ring import Pipeline

C: Any = torch._C
ON_CPU = C.DispatchKeySet(C.DispatchKey.CPU)


class Module(_DummyBackendModule):
    """`torch.toy`."""

    emptied = 0

    def empty_cache(self) -> None:
        self.emptied += 1


class Event(torch.Event):
    """A backend in Python cannot say how the host waits, and torch raises: here nothing is ever left to wait for."""

    def synchronize(self) -> None:
        assert self.query()


def synchronize(device: torch.device, /) -> None:
    """As above."""
    assert device == PLACE


module = Module()
_setup_privateuseone_for_python_backend("toy", backend_module=module)
PLACE = torch.device("toy:0")
torch.Event = Event  # type: ignore[misc]
torch.accelerator.synchronize = synchronize  # type: ignore[assignment]

memory: dict[int, tuple[Any, Any]] = {}  # the host's and the toy's view of it, by address; kept for good
copies: list[tuple[str, str, bool, str]] = []  # from where, to where, whether the host went on, in which thread


def toy(host: Tensor, made: Tensor | None = None) -> Tensor:
    """The toy's tensor in this memory. made: change that one."""
    storage = host.untyped_storage()
    if not storage.nbytes():
        storage.resize_(1)  # so that it has an address
    place = storage.data_ptr()
    if place not in memory or memory[place][0]._cdata != storage._cdata:  # one that grew has left its address to others
        memory[place] = storage, C._construct_storage_from_data_pointer(place, PLACE, storage.nbytes())
    made = C._acc.create_empty_tensor((0,), host.dtype) if made is None else made
    return set_storage(made, memory[place][1], host.storage_offset(), host.shape, host.stride())


def on_host(tensor: Tensor) -> Tensor:
    storage, _ = memory[tensor.untyped_storage().data_ptr()]
    return torch.empty(0, dtype=tensor.dtype).set_(storage, tensor.storage_offset(), tensor.shape, tensor.stride())


def set_storage(tensor: Tensor, *args: Any) -> Tensor:
    """The CPU's: it moves no data."""
    made: Tensor = torch.ops.aten.set_.source_Storage_storage_offset.redispatch(ON_CPU, tensor, *args)
    return made


@torch.inference_mode(False)  # torch wraps what a kernel has made
def kernel(operator: Any, *args: Any, **options: Any) -> Any:
    """Every operator there is: done by the CPU, in the same memory."""
    given: list[tuple[Tensor, Tensor]] = []

    def enter(value: Any) -> Any:
        if isinstance(value, torch.device):
            return torch.device("cpu") if value.type == "toy" else value
        if value.device.type == "cpu":
            return value
        given.append((on_host(value), value))
        return given[-1][0]

    def leave(value: Tensor) -> Tensor:
        own = [tensor for host, tensor in given if host is value]
        return own[0] if own else toy(value)

    if operator is torch.ops.aten._copy_from.default:
        source, target, *late = args
        copies.append((source.device.type, target.device.type, bool(late and late[0]), threading.current_thread().name))
        enter(target).copy_(enter(source))
        return target
    args, options = tree_map_only((Tensor, torch.device), enter, (args, options))
    result = operator(*args, **options)
    for host, tensor in given:
        if host.shape != tensor.shape:  # an operator may give its `out` another one
            toy(host, tensor)
    return tree_map_only(Tensor, leave, result)


aten = torch.library.Library("aten", "IMPL")
aten.impl("set_.source_Storage_storage_offset", set_storage, "PrivateUse1")
everything = torch.library.Library("_", "IMPL")
everything.fallback(kernel, "PrivateUse1")


@pytest.fixture
def device() -> AcceleratorDevice:
    found = device_of()
    assert type(found) is AcceleratorDevice
    return found


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    yield
    copies.clear()


def numbers(count: int, size: int = 64) -> list[Tensor]:
    return [torch.full((size,), float(number)) for number in range(count)]


def test_the_backend_computes_as_the_cpu_does() -> None:
    given = torch.arange(6.0).reshape(2, 3)
    there = given.to(PLACE)
    assert there.device == PLACE
    assert torch.equal((there @ there.t() + there[:, 1:].sum()).cpu(), given @ given.t() + given[:, 1:].sum())
    assert torch.equal(torch.arange(3, device=PLACE).cpu(), torch.arange(3))
    there[:, :1].fill_(7)
    assert there.cpu()[:, 0].tolist() == [7, 7]


def test_it_is_the_accelerator_by_every_name(device: AcceleratorDevice) -> None:
    for name in (None, "toy", "toy:0", torch.device("toy")):
        assert device_of(name).place == device.place == PLACE
    with pytest.raises(ValueError, match=r"'toy:1' is not there: torch finds the CPU and 1 of toy"):
        device_of("toy:1")


@pytest.mark.parametrize("name", [None, "toy", PLACE])
def test_a_batched_function_runs_there(name: Any) -> None:
    places: set[torch.device] = set()

    def double(batch: Tensor) -> Tensor:
        places.add(batch.device)
        return batch * 2

    function = batched(double, max_batch_size=4, collate=stack(), executor=TorchExecutor(name))
    rows = list(function.map(numbers(100)))
    assert [row.unique().tolist() for row in rows] == [[2.0 * number] for number in range(100)]
    assert {row.device.type for row in rows} == {"cpu"}
    assert places == {PLACE}
    # All of them in the device's thread, which waits for none.
    assert {copy[:3] for copy in copies} == {("cpu", "toy", True), ("toy", "cpu", True)}
    assert len({copy[3] for copy in copies}) == 1


def test_a_model_there_serves_ragged_items_with_masks() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(5, 8), torch.nn.GELU(), torch.nn.Linear(8, 3)).eval()
    items = [torch.randn(1 + number % 7, 5) for number in range(30)]
    expected = [model(item).mean(0).detach() for item in items]
    model.to(PLACE)

    def embed(batch: Tensor, mask: Tensor, lengths: Tensor) -> Tensor:
        return (model(batch) * mask.unsqueeze(-1)).sum(1) / lengths.unsqueeze(-1)

    function = batched(embed, max_batch_size=8, collate=pad(), executor=TorchExecutor("toy", mode="inference"))
    for row, right in zip(function.map(items), expected, strict=True):
        torch.testing.assert_close(row, right)


def test_results_come_where_they_are_wanted() -> None:
    for results, kind in (("numpy", np.ndarray), ("device", Tensor), ("host", Tensor)):
        function: Any = batched(
            lambda batch: {"row": batch + 1, "same": batch},
            max_batch_size=4,
            collate=stack(),
            executor=TorchExecutor("toy", results=results),  # type: ignore[arg-type]
        )
        rows = list(function.map(numbers(20)))
        assert {type(row["same"]) for row in rows} == {kind}
        assert all([row["row"].device == PLACE for row in rows if results == "device"])
        found = [(float(row["row"][0]), float(row["same"][-1])) for row in rows]
        assert found == [(number + 1, number) for number in range(20)]


def test_items_that_are_there_are_not_copied_there() -> None:
    function = batched(
        lambda batch: batch * 2, max_batch_size=4, collate=stack(), executor=TorchExecutor("toy", results="device")
    )
    items = [item.to(PLACE) for item in numbers(12)]
    copies.clear()
    rows = list(function.map(items))
    assert {copy[:2] for copy in copies} <= {("toy", "toy")}
    assert [row.cpu().unique().tolist() for row in rows] == [[2.0 * number] for number in range(12)]


def test_tensors_come_back_as_they_are(device: AcceleratorDevice) -> None:
    pipeline = Pipeline(device)
    pipeline.enter()
    given = torch.arange(12.0).reshape(3, 4)

    def views(collated: Collated) -> Any:
        turned, ids, nothing = collated.args
        assert turned.device == ids["ids"].device == device.place
        return turned.t()[:, 1:], torch.complex(turned, -turned), ids["ids"][:1].expand(3), nothing, turned.cpu()

    buffers = pipeline.buffers()
    for _ in range(3):
        pipeline.stage(buffers, lambda _: Collated((given.t(), {"ids": torch.arange(3)}, torch.empty(0)), {}, 3, 3))
        pipeline.launch(buffers, views)
        first, second, third, nothing, fourth = pipeline.finish(buffers)
        assert torch.equal(first, given[:, 1:])
        assert torch.equal(second, torch.complex(given, -given).t())
        assert (third.tolist(), nothing.shape) == ([0, 0, 0], (0,))
        assert torch.equal(fourth, given.t())
        pipeline.clear(buffers)


def test_a_backend_without_pinned_memory_is_asked_for_some_once(
    device: AcceleratorDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    empty = torch.empty

    def counted(*args: Any, pin_memory: bool = False, **options: Any) -> Tensor:
        if pin_memory:
            asked.append(args[0])
            return empty(*args, pin_memory=True, **options)
        return empty(*args, **options)

    monkeypatch.setattr(torch, "empty", counted)
    assert [device.host_buffer(nbytes).numel() for nbytes in (8, 16, 32)] == [8, 16, 32]
    assert asked == [8]


def test_a_backend_without_graphs_calls_the_function(device: AcceleratorDevice) -> None:
    graphs = Graphs(device)
    calls: list[int] = []

    def double(collated: Collated) -> Any:
        calls.append(collated.rows)
        return collated.args[0] * 2

    pipeline = Pipeline(device, graphs=graphs)
    pipeline.enter()
    buffers = pipeline.buffers()
    for number in range(3):
        pipeline.stage(buffers, lambda _, number=number: Collated((torch.full((4,), float(number)),), {}, 4, 4))
        pipeline.launch(buffers, double)
        assert pipeline.finish(buffers).tolist() == [2.0 * number] * 4
        pipeline.clear(buffers)
    assert [reason.lower() for reason in graphs.reasons.values() if "graph" in reason.lower()]
    assert len(graphs.reasons) == 1
    assert len(calls) in (3, 4)  # of which one may be a warm-up
    function = batched(
        lambda batch: batch * 2,
        max_batch_size=4,
        collate=stack(),
        executor=TorchExecutor("toy", cuda_graphs=True, batch_sizes=[1, 2, 4]),
    )
    assert [row[0].item() for row in function.map(numbers(30))] == [2.0 * number for number in range(30)]


def test_a_backend_without_streams_takes_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object) -> Any:
        raise RuntimeError("Backend doesn't support create a new Stream.")

    monkeypatch.setattr(torch, "Stream", refuse)
    assert device_of("toy").stream() is None
    function = batched(lambda batch: batch * 2, max_batch_size=4, collate=stack(), executor=TorchExecutor("toy"))
    assert [row[0].item() for row in function.map(numbers(30))] == [2.0 * number for number in range(30)]


def test_memory_that_runs_out_is_given_back_and_smaller_batches_run() -> None:
    sizes: list[int] = []

    def greedy(batch: Tensor) -> Tensor:
        sizes.append(len(batch))
        if len(batch) > 2:
            raise torch.OutOfMemoryError("toy out of memory")
        return batch + 1

    emptied = module.emptied
    function = batched(greedy, max_batch_size=8, max_wait=60, collate=stack(), executor=TorchExecutor("toy"))
    assert [row[0].item() for row in function.map(numbers(8))] == [number + 1.0 for number in range(8)]
    assert sizes == [8, 4, 2, 2, 2, 2]
    assert module.emptied == emptied + 2


def test_what_a_function_raises_there_fails_its_batch_alone() -> None:
    def refuse(batch: Tensor) -> Sequence[Tensor]:
        if (batch < 0).any():
            raise ValueError("negative")
        return [row + 1 for row in batch]

    function: Any = batched(refuse, max_batch_size=1, collate=stack(), executor=TorchExecutor("toy"))
    for number in range(5):
        with pytest.raises(ValueError, match="negative"):
            function.call(torch.full((3,), -1.0))
        assert function.call(torch.full((3,), float(number))).tolist() == [number + 1.0] * 3
