"""On a real accelerator: the order of copies under delays, pinned memory, graphs, memory that runs out."""

import gc
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from batchlib import batched
from batchlib._core._execution import Collated
from batchlib.torch import TorchExecutor, stack
from batchlib.torch.device._device import AcceleratorDevice, CaptureFailed, device_of
from batchlib.torch.device._graphs import Graphs
from batchlib.torch.device._ring import Pipeline, Results

pytestmark = pytest.mark.gpu

DELAY = 2_000_000  # clock cycles: about a millisecond


@pytest.fixture
def device() -> Iterator[AcceleratorDevice]:
    found = device_of()
    assert isinstance(found, AcceleratorDevice)
    yield found
    gc.collect()
    found.release_cache()


@pytest.fixture
def cuda(device: AcceleratorDevice) -> AcceleratorDevice:
    if device.place.type != "cuda":
        pytest.xfail("CUDA only: delays and graphs are its own")
    return device


def opened(device: Any, results: Results = "host", graphs: Graphs | None = None) -> Pipeline:
    pipeline = Pipeline(device, results=results, graphs=graphs)
    pipeline.enter()
    return pipeline


class Delayed(AcceleratorDevice):
    """Whatever it is asked to copy or compute begins late, so that who does not wait reads what was there before."""

    def copy(self, stream: Any, target: Tensor, source: Tensor) -> None:
        with stream:
            torch.cuda._sleep(DELAY)
        super().copy(stream, target, source)

    def launch(self, function: Callable[[Collated], Any], inputs: Collated) -> Any:
        torch.cuda._sleep(DELAY)
        return super().launch(function, inputs)


@pytest.mark.parametrize("results", ["host", "device", "numpy"])
@pytest.mark.parametrize("numbers", [1 << 14, 1 << 21])  # 64 KiB and 8 MiB
def test_delays_change_no_result(cuda: AcceleratorDevice, results: Results, numbers: int) -> None:
    pipeline = opened(Delayed(cuda.place), results)
    ring = [pipeline.buffers() for _ in range(3)]
    under_way: list[tuple[int, Any]] = []
    found: dict[int, Any] = {}

    def finish() -> None:
        number, buffers = under_way.pop(0)
        result = pipeline.finish(buffers)
        found[number] = result if results == "device" else torch.as_tensor(result).clone()
        pipeline.clear(buffers)
        ring.append(buffers)

    for number in range(24):
        if not ring:
            finish()
        buffers = ring.pop(0)
        size = numbers if number % 5 else numbers // 2  # the memory grows while others are under way
        pipeline.stage(
            buffers,
            lambda allocate, size=size, number=number: Collated(
                (allocate((size,), torch.float32).fill_(number),), {}, 1, 1
            ),
        )
        pipeline.launch(buffers, lambda collated: collated.args[0])
        under_way.append((number, buffers))
    while under_way:
        finish()
    assert {number: result.unique().tolist() for number, result in found.items()} == {
        number: [float(number)] for number in range(24)
    }


def test_executors_serve_many_callers_through_two_buffers(device: AcceleratorDevice) -> None:
    function = batched(
        lambda t: t + 1, max_batch_size=4, collate=stack(), executor=TorchExecutor(device.place, in_flight=2)
    )
    items = [torch.full((64,), float(number)) for number in range(400)]
    assert [row.unique().tolist() for row in function.map(items)] == [[number + 1.0] for number in range(400)]


def test_memory_that_batches_share_is_pinned(device: AcceleratorDevice) -> None:
    assert device.host_buffer(1 << 16).is_pinned()


def test_inputs_on_the_device_are_collated_there(device: AcceleratorDevice) -> None:
    function = batched(
        lambda t: t * 2, max_batch_size=4, collate=stack(), executor=TorchExecutor(device.place, results="device")
    )
    rows = list(function.map([torch.full((8,), float(number), device=device.place) for number in range(16)]))
    assert all([row.device == device.place for row in rows])
    assert [row.unique().tolist() for row in rows] == [[2.0 * number] for number in range(16)]


def test_the_devices_tensors_come_as_they_are(device: AcceleratorDevice) -> None:
    pipeline = opened(device)
    buffers = pipeline.buffers()
    given = torch.arange(12.0).reshape(3, 4)
    pipeline.stage(buffers, lambda allocate: Collated((given.t(), {"ids": torch.arange(3)}, torch.empty(0)), {}, 3, 3))

    def views(collated: Collated) -> Any:
        turned, ids, nothing = collated.args
        assert turned.device == ids["ids"].device == device.place
        return turned.t()[:, 1:], torch.complex(turned, turned).conj(), ids["ids"][:1].expand(3), nothing, turned.cpu()

    pipeline.launch(buffers, views)
    first, second, third, nothing, fourth = pipeline.finish(buffers)
    assert torch.equal(first, given[:, 1:])
    assert torch.equal(second, torch.complex(given, given).t().conj().resolve_conj())
    assert (third.tolist(), nothing.shape) == ([0, 0, 0], (0,))
    assert torch.equal(fourth, given.t())


def test_graphs_replay_what_they_recorded(cuda: AcceleratorDevice) -> None:
    graphs = Graphs(cuda)
    pipeline = opened(cuda, graphs=graphs)
    weight = torch.randn(16, 16, device=cuda.place)
    calls: list[int] = []

    def multiply(collated: Collated) -> Any:
        calls.append(collated.rows)
        return {"product": collated.args[0] @ weight, "same": collated.args[0]}

    ring = [pipeline.buffers() for _ in range(2)]
    for number in range(20):
        rows, buffers = (4, 8)[number % 2], ring[number // 2 % 2]
        given = torch.randn(rows, 16)
        pipeline.stage(buffers, lambda allocate, given=given, rows=rows: Collated((given,), {}, rows, rows))
        with torch.no_grad():
            pipeline.launch(buffers, multiply)
        found = pipeline.finish(buffers)
        torch.testing.assert_close(found["product"], given @ weight.cpu(), rtol=1e-3, atol=1e-3)
        assert torch.equal(found["same"], given)
        pipeline.clear(buffers)
    assert not graphs.reasons
    assert sorted(calls) == [4, 4, 8, 8]  # warmed up and recorded


def test_code_that_waits_for_the_device_is_not_recorded(cuda: AcceleratorDevice) -> None:
    graphs = Graphs(cuda)
    pipeline = opened(cuda, graphs=graphs)
    buffers = pipeline.buffers()
    for number in (1.0, 2.0, 3.0):
        pipeline.stage(buffers, lambda allocate, number=number: Collated((torch.full((4,), number),), {}, 4, 4))
        pipeline.launch(buffers, lambda collated: collated.args[0] * collated.args[0].sum().item())
        assert pipeline.finish(buffers).tolist() == [4 * number * number] * 4
        pipeline.clear(buffers)
    assert len(graphs.reasons) == 1
    # Torch's own recording would have stayed in its stream, and its memory pool would count as recorded to for good.
    assert cuda.compute_stream() == torch.cuda.default_stream(cuda.place)
    cuda.release_cache()
    weight = torch.ones(4, device=cuda.place)
    recording = cuda.capture(lambda: weight * 2)
    weight.fill_(3)
    recording.replay()
    assert recording.result.tolist() == [6] * 4


def test_errors_while_warming_up_are_the_functions_own(cuda: AcceleratorDevice) -> None:
    def fail() -> Any:
        raise ValueError("no")

    cuda.enter()
    with pytest.raises(ValueError, match="no") as caught:
        cuda.capture(fail)
    assert not isinstance(caught.value, CaptureFailed)


def test_memory_that_ran_out_is_there_again_for_smaller_batches(cuda: AcceleratorDevice) -> None:
    cuda.enter()
    free, _ = torch.cuda.mem_get_info(cuda.place)
    numbers = free // 4 // 4  # a row takes a quarter of what is free: two fit, eight do not
    sizes: list[int] = []

    def greedy(t: Tensor) -> Tensor:
        sizes.append(len(t))
        room = torch.empty(len(t), numbers, device=t.device)
        return t + room[:, :1].zero_()

    function = batched(greedy, max_batch_size=8, max_wait=60, collate=stack(), executor=TorchExecutor(cuda.place))
    rows = list(function.map([torch.full((4,), float(number)) for number in range(8)]))
    assert [row.unique().tolist() for row in rows] == [[float(number)] for number in range(8)]
    assert sizes[0] == 8
    assert max(sizes[1:]) < 8


ASSERTING = """
import torch
from batchlib import batched
from batchlib.errors import ExecutorLost
from batchlib.torch import TorchExecutor, stack

table = torch.nn.Embedding(8, 4, device="cuda").eval()
ran = []

def embed(ids):
    ran.append(len(ids))
    return table(ids)

f = batched(embed, max_batch_size=1, collate=stack(), executor=TorchExecutor("cuda", in_flight=1))
assert f.call(torch.tensor(7)).shape == (4,)
futures = [f.submit(torch.tensor(number)) for number in (1 << 20, 1, 2)]
errors = [future.exception(60) for future in futures]
assert [type(error) for error in errors] == [ExecutorLost] * 3, errors
assert not f.statistics().healthy
try:
    f.call(torch.tensor(1))
except ExecutorLost as error:
    assert error.__cause__ is errors[0].__cause__ is not None
else:
    raise AssertionError("a lost device served a call")
assert ran == [1, 1], ran  # the device is asked for nothing more
"""


def test_a_device_that_has_asserted_fails_everybody_at_once_and_the_process_can_end(cuda: AcceleratorDevice) -> None:
    """In a process of its own, since nothing runs on the device in that one any more."""
    run = subprocess.run([sys.executable, "-c", ASSERTING], capture_output=True, text=True, check=False, timeout=100)
    assert run.returncode == 0, run.stderr
