"""The way of one batch after the other, on the CPU and on a device with a memory of its own."""

import threading
from collections import UserList, deque
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from batchlib import batched
from batchlib._core._execution import Allocate, Collated
from batchlib.torch import TorchExecutor, stack
from batchlib.torch.collation._structure import flatten
from batchlib.torch.device import _arena
from batchlib.torch.device._arena import ALIGNMENT, Arena
from batchlib.torch.device._device import CpuDevice
from batchlib.torch.device._ring import Buffers, Direct, Pipeline, Results, pipeline_for
from batchlib.torch.device._simulated import SimulatedDevice
from batchlib.torch.executor._executor import Mode

Way = Direct | Pipeline
WAYS: dict[str, Callable[[Results], Way]] = {
    "cpu": lambda results: pipeline_for(CpuDevice(), results=results),
    "simulated": lambda results: pipeline_for(SimulatedDevice(5), results=results),
    "lazy": lambda results: pipeline_for(SimulatedDevice(5, busy=0), results=results),
}


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> Way:
    return opened(WAYS[request.param]("host"))


@pytest.fixture(params=["cpu", "lazy"])
def numpy_way(request: pytest.FixtureRequest) -> Way:
    return opened(WAYS[request.param]("numpy"))


def opened(way: Way) -> Way:
    way.enter()
    return way


def run(
    way: Way, function: Callable[[Collated], Any], *args: Any, buffers: Buffers | None = None, **extras: Any
) -> Any:
    buffers = buffers or way.buffers()
    way.stage(buffers, lambda allocate: Collated(args, extras, 1, 1))
    way.launch(buffers, function)
    result = way.finish(buffers)
    return result


def values(collated: Collated) -> Any:
    return collated.args


def test_a_device_decides_which_way_it_is() -> None:
    assert isinstance(pipeline_for(CpuDevice()), Direct)
    assert isinstance(pipeline_for(SimulatedDevice()), Pipeline)


def test_batches_follow_each_other_through_the_same_buffers(way: Way) -> None:
    buffers = way.buffers()
    for number in range(5):

        def collate(allocate: Allocate, number: int = number) -> Collated:
            rows = allocate((2, 3), torch.float32).fill_(number)
            return Collated((rows,), {"lengths": torch.tensor([number, 3])}, 2, 2)

        collated = way.stage(buffers, collate)
        assert collated.args[0].tolist() == [[number] * 3] * 2
        way.launch(buffers, lambda c: {"sum": c.args[0].sum(1) + c.extras["lengths"], "none": None, "size": c.size})
        result = way.finish(buffers)
        assert result["sum"].tolist() == [4.0 * number, 3.0 * number + 3]
        assert (result["none"], result["size"]) == (None, 2)
        del result, collated
        way.clear(buffers)


@pytest.mark.parametrize(
    "dtype",
    [torch.bool, torch.uint8, torch.int16, torch.int64, torch.float16, torch.bfloat16, torch.float64, torch.complex64],
)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 5), (2, 3, 5)])
def test_no_dtype_and_no_shape_is_changed(way: Way, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    given = torch.arange(torch.Size(shape).numel()).reshape(shape).to(dtype)
    (found,) = run(way, values, given)
    assert (found.dtype, found.shape, torch.equal(found, given)) == (dtype, given.shape, True)


@pytest.mark.parametrize(
    "view",
    [
        lambda t: t.t(),
        lambda t: t[:, 1:],
        lambda t: t[::2],
        lambda t: t[:1].expand(7, -1),
        lambda t: torch.complex(t, t).conj(),
        lambda t: torch.complex(t, t).conj().imag,
        lambda t: t.to_sparse(),
        lambda t: torch.nn.Parameter(t),
    ],
)
def test_views_come_out_as_they_are(way: Way, view: Callable[[Tensor], Tensor]) -> None:
    """Of what is given, of what is computed, and of both."""
    given = torch.arange(12.0).reshape(3, 4)
    expected = view(given).to_dense().detach()
    for found in (
        run(way, values, view(given))[0],
        run(way, lambda c: view(c.args[0]), given),
        run(way, lambda c: view(c.args[0].clone()), given),
    ):
        assert torch.equal(found.to_dense(), expected)


def test_views_into_the_memory_that_is_collated_into_go_to_the_device() -> None:
    way = opened(Pipeline(SimulatedDevice(1)))
    buffers = way.buffers()

    def collate(allocate: Allocate) -> Collated:
        whole = allocate((3, 4), torch.int32)
        whole.copy_(torch.arange(12).reshape(3, 4))
        return Collated((whole[:, 1:].t(), [whole]), {}, 3, 3)  # a list is the collation's own

    way.stage(buffers, collate)
    way.launch(buffers, lambda collated: collated.args[0] * 10)
    assert way.finish(buffers).tolist() == [[10, 50, 90], [20, 60, 100], [30, 70, 110]]


def test_arrays_become_tensors_unless_they_hold_no_numbers(way: Way) -> None:
    names = np.array(["a", "b"])
    numbers, strings, backward, scalar = run(way, values, np.arange(3), names, np.arange(3)[::-1], np.float32(2))
    assert torch.equal(numbers, torch.arange(3))
    assert strings is names
    assert backward.tolist() == [2, 1, 0]
    assert isinstance(scalar, np.float32)


def test_results_come_as_arrays(numpy_way: Way) -> None:
    weight = torch.ones(2, requires_grad=True)
    found = run(numpy_way, lambda c: {"a": c.args[0] * weight, "b": [None, c.args[0].conj()]}, torch.ones(2))
    assert isinstance(found["a"], np.ndarray)
    assert isinstance(found["b"][1], np.ndarray)
    assert found["a"].tolist() == [1.0, 1.0]


def test_a_result_without_an_array_is_named(numpy_way: Way) -> None:
    with pytest.raises(TypeError, match=r'bfloat16 has no NumPy array.*results="host"'):
        run(numpy_way, values, torch.ones(2, dtype=torch.bfloat16))


def test_a_tensor_on_another_device_is_refused_by_both_names(way: Way) -> None:
    buffers = way.buffers()
    with pytest.raises(TypeError, match=r"is on meta, the executor's device is cpu"):
        run(way, values, {"a": torch.ones(2, device="meta")}, buffers=buffers)
    way.clear(buffers)
    assert run(way, values, torch.ones(2), buffers=buffers)[0].tolist() == [1, 1]


@pytest.mark.parametrize("as_result", [lambda t: t, lambda t: (t, {"all": t.clone()}), list, lambda t: [[t[0], 3]]])
@pytest.mark.parametrize("mode", ["no_grad", "inference", "grad"])
def test_rows_have_a_graph_for_gradients_if_the_mode_says_so(mode: Mode, as_result: Callable[[Tensor], Any]) -> None:
    """Even if the function switches gradients on by itself: a row would keep what its whole batch has computed."""
    weight = torch.ones(2, requires_grad=True)

    def function(x: Tensor) -> Any:
        with torch.inference_mode(False), torch.enable_grad():
            return as_result(x.clone() * weight)

    with batched(function, collate=stack(), executor=TorchExecutor("cpu", mode=mode)) as f:
        found, _ = flatten(f.call(torch.ones(2)), lists=True)
    for row in found:
        assert not isinstance(row, Tensor) or (row.tolist(), row.requires_grad) == ([1, 1], mode == "grad")


def test_what_a_function_raises_is_raised_and_the_buffers_serve_on(way: Way) -> None:
    def fail(collated: Collated) -> Any:
        raise ValueError("no")

    buffers = way.buffers()
    for number in range(3):
        with pytest.raises(ValueError, match="no"):
            run(way, fail, torch.full((2,), number), buffers=buffers)
        way.clear(buffers)
        assert run(way, values, torch.full((2,), number), buffers=buffers)[0].tolist() == [number] * 2
        way.clear(buffers)


def test_a_collation_that_raises_leaves_nothing_behind(way: Way) -> None:
    def collate(allocate: Allocate) -> Collated:
        allocate((9,), torch.int64)
        raise ValueError("no")

    buffers = way.buffers()
    with pytest.raises(ValueError, match="no"):
        way.stage(buffers, collate)
    way.clear(buffers)
    assert run(way, values, torch.ones(2), buffers=buffers)[0].tolist() == [1, 1]


def test_a_batch_that_is_given_up_before_it_is_launched_leaves_nothing_behind(way: Way) -> None:
    buffers = way.buffers()
    way.stage(buffers, lambda allocate: Collated((torch.zeros(2),), {}, 1, 1))
    way.clear(buffers)
    assert run(way, values, torch.ones(2), buffers=buffers)[0].tolist() == [1, 1]


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_a_worker_may_be_in_any_mode(way: Way, mode: Callable[[], Any]) -> None:
    buffers = way.buffers()
    given = torch.ones(2, requires_grad=True)
    for _ in range(2):
        way.stage(buffers, lambda allocate: Collated((given,), {}, 1, 1))
        with mode():
            way.launch(buffers, lambda collated: collated.args[0] * 2)
        assert way.finish(buffers).detach().clone().add_(1).tolist() == [3, 3]
        way.clear(buffers)


def test_results_that_stay_on_the_device_share_nothing_with_the_next_batch() -> None:
    way = opened(Pipeline(SimulatedDevice(2), results="device"))
    buffers = way.buffers()
    results: list[Any] = []
    for number in range(6):
        results.append(
            run(way, lambda c: [c.args[0], c.args[0][1:], c.args[0] + 1], torch.full((3,), number), buffers=buffers)
        )
        way.clear(buffers)
    assert [[each.tolist() for each in result] for result in results] == [
        [[number] * 3, [number] * 2, [number + 1] * 3] for number in range(6)
    ]


class Staged(CpuDevice):
    """One that has a memory of its own, by another name, and is never late."""

    staged = True


class Asked(SimulatedDevice):
    """Counts what it is asked for."""

    def __init__(self, seed: int = 0) -> None:
        self.buffers = 0
        super().__init__(seed)

    def device_buffer(self, nbytes: int) -> Tensor:
        self.buffers += 1
        return super().device_buffer(nbytes)


class Box:
    """What no walker looks into."""

    def __init__(self, held: Any) -> None:
        self.held = held


def in_an_error(x: Tensor) -> Any:
    error = ValueError("no")
    error.x = x  # type: ignore[attr-defined]
    return error


KEEPERS: dict[str, Callable[[Tensor], Any]] = {
    "itself": lambda x: x,
    "a row": lambda x: x[1],
    "an object": Box,
    "a deque": deque,
    "a list of its own": UserList,
    "an error": in_an_error,
    "an array": lambda x: x.numpy(),
    "a storage": lambda x: x.untyped_storage(),
    "a graph for gradients": lambda x: (x * torch.ones(3, requires_grad=True)).sum(),
    "a closure": lambda x: lambda: x,
    "a generator": lambda x: iter([x]),
    "sparse": lambda x: torch.sparse_coo_tensor(torch.tensor([[0, 1]]), x, (2, 3), check_invariants=True),
    "a capsule": lambda x: x[0].__dlpack__(),
}
MAKERS: dict[str, Callable[[], Pipeline]] = {
    "staged": lambda: Pipeline(Staged()),
    "simulated": lambda: Pipeline(SimulatedDevice(5)),
    "lazy": lambda: Pipeline(SimulatedDevice(5, busy=0)),
    "device": lambda: Pipeline(SimulatedDevice(5), results="device"),
}


@pytest.mark.parametrize("torch_tells", [True, False])
@pytest.mark.parametrize("keeper", KEEPERS)
@pytest.mark.parametrize("make", MAKERS)
def test_what_a_function_has_kept_of_its_inputs_is_not_written_again(
    monkeypatch: pytest.MonkeyPatch, make: str, keeper: str, torch_tells: bool
) -> None:
    if not torch_tells:
        monkeypatch.setattr(_arena, "_references", None)
    way = opened(MAKERS[make]())
    kept: list[Any] = []
    places: set[int] = set()

    def function(collated: Collated) -> Any:
        kept.append(KEEPERS[keeper](collated.args[0]))
        places.add(collated.args[0].untyped_storage().data_ptr())
        return collated.args[0] + 1

    ring = [way.buffers() for _ in range(2)]
    for number in range(6):
        buffers = ring[number % 2]
        run(way, function, torch.full((2, 3), float(number)), buffers=buffers)
        way.clear(buffers)
    assert len(places) == 6


@pytest.mark.parametrize("results", ["host", "device"])
def test_memory_that_nobody_has_kept_serves_again(results: Results) -> None:
    weight = torch.ones(3, requires_grad=True)

    def function(collated: Collated) -> Any:
        x = collated.args[0]
        seen.append(x)
        seen.clear()
        return [row.sum() for row in x], (x * weight).detach(), x.add_(1).numpy().sum()

    seen: list[Tensor] = []
    device = Asked()
    way = opened(Pipeline(device, results=results))
    ring = [way.buffers() for _ in range(2)]
    for number in range(40):
        buffers = ring[number % 2]
        run(way, function, torch.full((2, 3), float(number)), buffers=buffers)
        way.clear(buffers)
    assert device.buffers == 2


@pytest.mark.parametrize("results", ["host", "device"])
def test_an_executor_keeps_nothing_of_a_batchs_inputs(results: Results) -> None:
    """Its threads and the errors that callers keep would otherwise cost new memory for each batch."""
    device = Asked()
    errors: list[Any] = []

    def double(x: Tensor) -> Tensor:
        doubled = x * 2
        if doubled[0, 0] > 20:
            raise ValueError("too large")
        return doubled

    with batched(double, collate=stack(), executor=TorchExecutor(device, results=results)) as f:
        for number in range(40):
            outcome = f.submit(torch.full((2,), float(number)))
            errors.append(outcome.exception(30))
    assert sum(isinstance(error, ValueError) for error in errors) == 29
    assert device.buffers <= 2


def test_memory_that_was_kept_for_a_while_goes_back_to_the_device() -> None:
    device = SimulatedDevice(3)
    way = opened(Pipeline(device))
    recent: deque[Tensor] = deque(maxlen=3)
    places: set[int] = set()

    def function(collated: Collated) -> Tensor:
        recent.append(collated.args[0])
        places.add(collated.args[0].data_ptr())
        return sum(recent, torch.zeros(()))

    buffers = way.buffers()
    for number in range(60):
        found = run(way, function, torch.full((), float(number)), buffers=buffers)
        assert found.item() == sum(range(max(0, number - 2), number + 1))
        way.clear(buffers)
    assert len(places) < 15


def test_what_a_failed_function_has_kept_is_not_written_again() -> None:
    way = opened(Pipeline(SimulatedDevice(4)))
    kept: list[Tensor] = []

    def fail(collated: Collated) -> Any:
        kept.append(collated.args[0])
        raise ValueError("no")

    buffers = way.buffers()
    for number in range(4):
        with pytest.raises(ValueError, match="no"):
            run(way, fail, torch.full((2,), number), buffers=buffers)
        way.clear(buffers)
    assert [each.tolist() for each in kept] == [[number] * 2 for number in range(4)]


def test_what_is_begun_on_a_handed_out_input_is_not_overtaken_by_the_next_batch() -> None:
    """Nobody waits for it, and the input may be let go of meanwhile."""
    for seed in range(20):
        device = SimulatedDevice(seed)
        way = opened(Pipeline(device))
        buffers = way.buffers()
        for number in range(3):
            box = run(way, lambda c: Box(c.args[0]), torch.full((2,), number), buffers=buffers)
            device.launch(lambda c: c.args[0] + 1, Collated((box.held,), {}, 1, 1))
            del box
            way.clear(buffers)
        device.synchronize_all()
        assert not device.reads_out_of_order


@pytest.mark.parametrize("results", ["host", "numpy"])
def test_rows_of_memory_that_is_written_again_are_copied_for_those_who_want_views_too(results: Results) -> None:
    executor = TorchExecutor(SimulatedDevice(1), copy=False, results=results)
    with batched(lambda x: x + 1, max_batch_size=2, collate=stack(), executor=executor) as f:
        rows = list(f.map([torch.full((3,), float(number)) for number in range(40)]))
    assert [row.tolist() for row in rows] == [[number + 1] * 3 for number in range(40)]


def test_weights_that_another_thread_is_still_copying_are_there_before_the_first_batch() -> None:
    device = SimulatedDevice(busy=0)
    weights = device.device_buffer(8).view(torch.float32)

    def load() -> None:
        device.copy(device.stream(), weights, torch.tensor([2.0, 3.0]))

    loader = threading.Thread(target=load)
    loader.start()
    loader.join()
    assert weights.isnan().all()
    with batched(lambda x: x * weights, collate=stack(), executor=TorchExecutor(device)) as f:
        assert f.call(torch.ones(2)).tolist() == [2, 3]


@pytest.mark.parametrize("device", [Staged(), SimulatedDevice(6), SimulatedDevice(6, busy=0)])
@pytest.mark.parametrize("results", ["host", "device", "numpy"])
@pytest.mark.parametrize("container", [Box, deque, UserList])
def test_callers_keep_what_a_function_hands_out_in_objects(device: Any, results: Results, container: Any) -> None:
    history: list[Tensor] = []

    def hand_out(x: Tensor) -> list[Any]:
        history.append(x[0])
        return [container(row) for row in x]

    with batched(hand_out, collate=stack(), executor=TorchExecutor(device, results=results)) as f:
        found = [f.call(torch.full((2,), float(number))) for number in range(8)]
    rows = [[float(each) for each in (one.held if container is Box else one)] for one in found]
    assert rows == [[number] * 2 for number in range(8)]
    assert [each.tolist() for each in history] == rows


def test_memory_in_use_is_told_by_any_reference_to_it() -> None:
    memory = torch.empty(64, dtype=torch.uint8)
    alone = _arena.holders(memory)
    for keeper in KEEPERS.values():
        x = memory.view(torch.float32)[:6].view(2, 3)
        kept = keeper(x)
        del x
        assert _arena.holders(memory) != alone
        del kept
        assert _arena.holders(memory) == alone


def test_memory_grows_with_the_batches_and_then_stays() -> None:
    asked: list[int] = []

    def make(nbytes: int) -> Tensor:
        asked.append(nbytes)
        return torch.empty(nbytes, dtype=torch.uint8)

    arena = Arena(make)
    for _ in range(5):
        for size in (10, 1000, 5000, 0, 300):
            tensor = arena.allocate((size,), torch.float64)
            assert arena.find(tensor) is arena.chunks[-1]
            assert tensor.storage_offset() * tensor.itemsize % ALIGNMENT == 0
        arena.clear()
    # One after the other at first; from the second time on, one that holds them all.
    assert asked == [4096, 8192, 65536, 65536]
    assert arena.chunks == []


@pytest.mark.parametrize(("wanted", "asked"), [(33, 64), (64, 64), (65, 128), (560, 576)])
def test_large_batches_take_little_more_memory_than_they_need(wanted: int, asked: int) -> None:
    sizes: list[int] = []

    def make(nbytes: int) -> Tensor:
        sizes.append(nbytes)
        return torch.empty(nbytes, dtype=torch.uint8)  # which the system gives once it is written to

    Arena(make).allocate((wanted << 20,), torch.uint8)
    assert sizes == [asked << 20]


def test_tensors_of_a_batch_lie_apart() -> None:
    arena = Arena(CpuDevice().host_buffer)
    tensors = [arena.allocate((number % 7, 3), dtype) for number in range(50) for dtype in (torch.bool, torch.float64)]
    for number, tensor in enumerate(tensors):
        tensor.fill_(number)
    assert all([torch.equal(t, torch.full_like(t, number)) for number, t in enumerate(tensors)])
    assert arena.find(torch.ones(1)) is None
    assert arena.find(torch.eye(2).to_sparse()) is None


def test_one_copy_takes_a_batch_to_the_device() -> None:
    class Counting(SimulatedDevice):
        copies = 0

        def copy(self, stream: Any, target: Tensor, source: Tensor) -> None:
            self.copies += 1
            super().copy(stream, target, source)

    device = Counting()
    way = opened(Pipeline(device))
    buffers = way.buffers()
    for _ in range(2):  # the memory grows with the first, to more than one piece
        device.copies = 0
        run(
            way,
            lambda c: None,
            *(torch.ones(1000) for _ in range(9)),
            mask=torch.ones(9, dtype=torch.bool),
            buffers=buffers,
        )
        way.clear(buffers)
    assert device.copies == 1


class Elsewhere(CpuDevice):
    """A device whose tensors are not the host's. They hold nothing, so nothing is copied."""

    staged = True
    place = torch.device("meta")

    def device_buffer(self, nbytes: int) -> Tensor:
        return torch.empty(nbytes, dtype=torch.uint8, device="meta")

    def copy(self, stream: None, target: Tensor, source: Tensor) -> None: ...


def test_what_is_on_the_device_stays_there_and_what_is_on_the_host_goes_there() -> None:
    way = opened(Pipeline(Elsewhere()))
    there, here = torch.ones(2, device="meta"), torch.ones(3)
    seen: list[Any] = []

    def look(collated: Collated) -> Any:
        seen.extend(collated.args)
        return collated.args[0] + 1, here

    computed, kept = run(way, look, there, torch.ones(2, 2))
    assert seen[0] is there
    assert (seen[1].device.type, seen[1].shape) == ("meta", (2, 2))
    assert (computed.device.type, computed.shape) == ("cpu", (2,))
    assert kept is here
    way = opened(Pipeline(Elsewhere(), results="device"))
    stayed, moved, kept = run(way, lambda c: (c.args[0] + 1, c.args[0], here), there)
    assert stayed.device.type == moved.device.type == "meta"
    assert moved is there  # what a function hands on, as on the CPU
    assert kept is here
