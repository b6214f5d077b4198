"""The simulated device takes the liberties of a real one, and no others; every safeguard that is left out shows."""

import copy
import pickle
import threading
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from batchlib._core._execution import Collated
from batchlib.torch import TorchExecutor
from batchlib.torch.device._arena import Arena
from batchlib.torch.device._device import Device
from batchlib.torch.device._graphs import Graphs
from batchlib.torch.device._ring import Buffers, Pipeline
from batchlib.torch.device._simulated import SimulatedDevice
from batchlib.torch.device._simulated_run import simulated_run

SEEDS = 300
IN, OUT = 2, 3  # streams in the order in which they are made; 0 computes, 1 loads weights


def batch(*args: Any) -> Collated:
    return Collated(args, {}, 1, 1)


class Order(SimulatedDevice):
    """Knows which stream it made when."""

    def __init__(self, seed: int = 0) -> None:
        self.made: list[Any] = []
        super().__init__(seed)

    def stream(self) -> Any:
        self.made.append(super().stream())
        return self.made[-1]


class ComputesTooEarly(Order):
    def wait(self, stream: Any, event: Any) -> None:
        if stream is not self.compute_stream():
            super().wait(stream, event)


class CopiesOutTooEarly(Order):
    def wait(self, stream: Any, event: Any) -> None:
        if stream is not self.made[OUT]:
            super().wait(stream, event)


class CopiesIntoNewMemoryAtOnce(Order):
    def wait(self, stream: Any, event: Any) -> None:
        if stream is not self.made[IN]:
            super().wait(stream, event)


class HostReadsTooEarly(Order):
    def synchronize(self, event: Any) -> None: ...


class ClearsAfterErrorsAtOnce(Order):
    entered = False

    def synchronize_all(self) -> None:
        if not self.entered:
            super().synchronize_all()
        self.entered = True


class BeginsBeforeWeightsAreThere(Order):
    entered = False

    def synchronize_all(self) -> None:
        if self.entered:
            super().synchronize_all()
        self.entered = True


class OneEventForEverything(Order):
    """So that it is recorded again before somebody has waited for it."""

    only: Any = None

    def event(self) -> Any:
        self.only = self.only or super().event()
        return self.only


class Shares(Pipeline):
    """Its buffers lie in the same memory: it is used again before the batch that has it is finished."""

    which: str

    def buffers(self) -> Buffers:
        made = super().buffers()
        setattr(made, self.which, Arena(partial(self.lend, Counter())))
        return made

    def lend(self, asked: Counter[int], nbytes: int) -> Tensor:
        asked[nbytes] += 1
        memory: dict[tuple[int, int], Tensor] = self.__dict__.setdefault("memory", {})
        return memory.setdefault((nbytes, asked[nbytes]), torch.zeros(nbytes, dtype=torch.uint8))


class SharesInputs(Shares):
    which = "inputs"


class SharesOutputs(Shares):
    which = "outputs"


class DropsOutputs(Pipeline):
    def launch(self, buffers: Buffers, *call: Any) -> None:
        super().launch(buffers, *call)
        buffers.held = None


class WritesWhatOthersHave(Pipeline):
    class Greedy(Arena):
        def let_go(self) -> None: ...

    def buffers(self) -> Buffers:
        made = super().buffers()
        made.inputs = self.Greedy(self._device.host_buffer)
        return made


def test_the_pipeline_is_right_in_every_schedule(seed: int) -> None:
    devices: list[SimulatedDevice] = []

    def device(number: int) -> SimulatedDevice:
        devices.append(SimulatedDevice(number))
        return devices[-1]

    seeds = range(seed, seed + SEEDS)
    assert not {number: wrong for number in seeds if (wrong := simulated_run(number, device=device))}
    assert not sum(device.reads_out_of_order for device in devices)


@pytest.mark.parametrize(
    "left_out",
    [
        {"device": ComputesTooEarly},
        {"device": CopiesOutTooEarly},
        {"device": CopiesIntoNewMemoryAtOnce},
        {"device": HostReadsTooEarly},
        {"device": ClearsAfterErrorsAtOnce},
        {"device": BeginsBeforeWeightsAreThere},
        {"device": OneEventForEverything},
        {"pipeline": SharesInputs},
        {"pipeline": SharesOutputs},
        {"pipeline": DropsOutputs},
        {"pipeline": WritesWhatOthersHave},
        {"copy": lambda tensor: tensor},
    ],
    ids=lambda left_out: next(getattr(each, "__name__", "?").strip("<>") for each in left_out.values()),
)
def test_every_safeguard_is_missed(left_out: dict[str, Any]) -> None:
    assert any(simulated_run(number, **left_out) for number in range(SEEDS))


def test_equal_seeds_have_equal_schedules() -> None:
    def trace(number: int) -> list[list[int]]:
        device, seen = SimulatedDevice(number), []
        streams = [device.stream() for _ in range(3)]
        target, source = torch.zeros(12, dtype=torch.int64), torch.arange(1, 13)
        for each in range(12):
            device.copy(streams[each % 3], target[each : each + 1], source[each : each + 1])
            seen.append(target.tolist())
        return seen

    traces = [trace(number) for number in range(20)]
    assert traces == [trace(number) for number in range(20)]
    assert len({str(each) for each in traces}) > 10


def test_a_device_says_which_one_it_is() -> None:
    assert repr(SimulatedDevice(7, busy=0.5)) == "SimulatedDevice(7, busy=0.5)"


def test_a_pickled_device_begins_anew_with_the_same_seed() -> None:
    def trace(device: Device) -> list[list[int]]:
        streams = [device.stream() for _ in range(3)]
        target, seen = torch.zeros(12, dtype=torch.uint8), []
        for each in range(12):
            device.copy(streams[each % 3], target[each : each + 1], torch.ones(1, dtype=torch.uint8))
            seen.append(target.tolist())
        return seen

    for number in range(10):
        for busy in (None, 0.5):
            device = SimulatedDevice(number, busy=busy)
            before = trace(device)
            for again in (pickle.loads(pickle.dumps(device)), copy.deepcopy(TorchExecutor(device)).device):
                assert isinstance(again, SimulatedDevice)
                assert trace(again) == before


def test_nothing_runs_before_somebody_waits_for_it_if_the_device_is_lazy() -> None:
    device = SimulatedDevice(busy=0)
    stream, event = device.stream(), device.event()
    target = device.host_buffer(4)
    device.copy(stream, target, torch.zeros(4, dtype=torch.uint8))
    device.record(event, stream)
    assert target.tolist() == [255] * 4
    device.synchronize(event)
    assert target.tolist() == [0] * 4


def test_a_stream_waits_for_the_event_as_it_was_recorded() -> None:
    device = SimulatedDevice(busy=0)
    first, second = device.stream(), device.stream()
    event, end = device.event(), device.event()
    device.wait(second, event)  # never recorded: nothing to wait for
    device.record(end, second)
    device.synchronize(end)
    target = torch.zeros(1)
    device.copy(first, target, torch.ones(1))
    device.record(event, first)
    device.wait(second, event)
    device.record(event, second)  # again; the wait above is for the first time
    device.synchronize(event)
    assert target.item() == 1


def staged(device: Device, values: Tensor) -> tuple[Tensor, Any]:
    """Device memory into which a copy is under way, and its event."""
    stream, event = device.stream(), device.event()
    memory = device.device_buffer(values.nbytes)
    device.copy(stream, memory, values.reshape(-1).view(torch.uint8))
    device.record(event, stream)
    return memory.view(values.dtype).view(values.shape), event


def test_a_result_is_garbage_until_its_turn_comes() -> None:
    device = SimulatedDevice(busy=0)
    inputs, copied = staged(device, torch.tensor([1.0, 2.0]))
    device.wait(device.compute_stream(), copied)
    seen: list[list[float]] = []

    def double(collated: Collated) -> Tensor:
        seen.append(collated.args[0].tolist())
        return collated.args[0] * 2

    result = device.launch(double, batch(inputs))
    assert seen == [[1.0, 2.0]]  # what it will read
    assert result.isnan().all()
    device.synchronize_all()
    assert result.tolist() == [2.0, 4.0]
    assert seen == [[1.0, 2.0]]
    assert device.reads_out_of_order == 0


def test_what_is_read_too_early_gives_garbage_and_is_counted() -> None:
    outcomes: set[tuple[int, bool]] = set()
    for number in range(20):
        device = SimulatedDevice(number, busy=0)
        inputs, _ = staged(device, torch.tensor([1.0, 2.0]))
        result = device.launch(lambda collated: collated.args[0] * 2, batch(inputs))  # waits for nothing
        device.synchronize_all()
        outcomes.add((device.reads_out_of_order, bool(result.isnan().all())))
    assert outcomes == {(0, False), (1, True)}


def test_results_keep_how_they_were_related_to_inputs() -> None:
    device = SimulatedDevice(busy=0)
    inputs, copied = staged(device, torch.arange(6.0).reshape(2, 3))
    device.wait(device.compute_stream(), copied)

    def change(collated: Collated) -> Any:
        collated.args[0].add_(1)
        return collated.args[0].t(), collated.args[0][0, 0].clone(), None

    turned, first, nothing = device.launch(change, batch(inputs))
    device.synchronize_all()
    assert turned.untyped_storage().data_ptr() == inputs.untyped_storage().data_ptr()
    assert turned.tolist() == [[1, 4], [2, 5], [3, 6]]
    assert (first.item(), nothing) == (1.0, None)


def test_memory_that_nobody_has_is_given_to_the_next() -> None:
    device = SimulatedDevice(busy=0)
    first = device.device_buffer(100)
    second = device.device_buffer(100)
    assert first.data_ptr() != second.data_ptr()
    place = first.data_ptr()
    view = first[10:]
    del first
    assert device.device_buffer(100).data_ptr() != place  # a view has it still
    del view
    places = {device.device_buffer(100).data_ptr() for _ in range(20)}
    assert place in places


def test_what_a_function_began_before_an_error_still_reads() -> None:
    device = SimulatedDevice(busy=0)
    inputs, copied = staged(device, torch.ones(3))
    device.wait(device.compute_stream(), copied)

    def fail(collated: Collated) -> None:
        raise ValueError(collated.args[0].sum().item())

    with pytest.raises(ValueError, match=r"3\.0"):
        device.launch(fail, batch(inputs))
    device.synchronize(copied)
    other, overwritten = device.stream(), device.event()
    device.copy(other, inputs, torch.zeros(12, dtype=torch.uint8).view(inputs.dtype))
    device.record(overwritten, other)
    device.synchronize(overwritten)  # before it has computed
    device.synchronize_all()
    assert device.reads_out_of_order == 1
    assert inputs.isnan().all()


def test_what_a_function_is_given_is_the_devices_memory() -> None:
    device = SimulatedDevice(busy=0)
    inputs, copied = staged(device, torch.ones(3))
    device.wait(device.compute_stream(), copied)
    kept: list[Tensor] = []
    device.launch(lambda collated: kept.append(collated.args[0][1:]), batch(inputs))
    assert kept[0].tolist() == [1, 1]  # for the functions that come after this one in the stream
    device.synchronize_all()
    assert kept[0].tolist() == [1, 1]
    stream, event = device.stream(), device.event()
    device.copy(stream, inputs, torch.full((3,), 2.0))
    device.record(event, stream)
    device.synchronize(event)
    assert kept[0].tolist() == [2, 2]
    assert not device.reads_out_of_order


def test_functions_that_read_the_same_memory_see_it_one_after_the_other() -> None:
    device = SimulatedDevice(busy=0)
    inputs, copied = staged(device, torch.ones(3))
    device.wait(device.compute_stream(), copied)
    results = [device.launch(lambda collated: collated.args[0].add_(1).clone(), batch(inputs)) for _ in range(3)]
    device.synchronize_all()
    assert [result.tolist() for result in results] == [[2] * 3, [3] * 3, [4] * 3]
    assert inputs.tolist() == [4] * 3
    assert not device.reads_out_of_order


def test_sparse_results_pass() -> None:
    device = SimulatedDevice(busy=0)
    sparse = torch.eye(2).to_sparse()
    assert device.launch(lambda collated: sparse, batch(torch.ones(1))) is sparse


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_the_modes_of_threads_do_not_matter(mode: Callable[[], Any]) -> None:
    """Where a thread waits, what others gave runs as well."""
    device = SimulatedDevice(busy=0)
    weight = torch.ones(2, requires_grad=True)
    with mode():
        inputs, copied = staged(device, torch.ones(2))
        device.wait(device.compute_stream(), copied)
        result = device.launch(lambda collated: collated.args[0] + weight, batch(inputs))
    device.synchronize_all()
    assert result.tolist() == [2.0, 2.0]


def test_a_recording_reads_and_writes_the_same_memory_again() -> None:
    inputs = torch.ones(2)
    graph = SimulatedDevice().capture(lambda: (inputs * 2, None))
    result, _ = graph.result
    inputs.fill_(5)
    assert result.tolist() == [2.0, 2.0]
    graph.replay()
    assert result.tolist() == [10.0, 10.0]


def test_threads_share_a_device() -> None:
    """Each finishes its own batches while one launches: as the executor uses it."""
    device = SimulatedDevice(3)
    pipeline = Pipeline(device, graphs=Graphs(device))
    pipeline.enter()
    wrong: list[int] = []
    launching = threading.Lock()

    def serve(number: int) -> None:
        buffers = pipeline.buffers()
        for turn in range(20):
            value = number * 100 + turn
            pipeline.stage(buffers, lambda allocate, value=value: batch(allocate((2, 3), torch.float64).fill_(value)))
            with launching:
                pipeline.launch(buffers, lambda collated: collated.args[0] + 1)
            if pipeline.finish(buffers).tolist() != [[value + 1] * 3] * 2:
                wrong.append(value)
            pipeline.clear(buffers)

    threads = [threading.Thread(target=serve, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert not device.reads_out_of_order
