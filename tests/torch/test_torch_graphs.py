"""Which batches are recorded, replayed, or called as they are. The recordings are a fake's: they call it again."""

import re
import weakref
from collections import UserList, deque
from typing import Any

import pytest
import torch

from batchlib._core._execution import Collated
from batchlib.torch.device._device import CaptureFailed, CpuDevice, Graph
from batchlib.torch.device._graphs import Graphs
from batchlib.torch.device._ring import Pipeline
from batchlib.torch.device._simulated import SimulatedDevice
from batchlib.torch.executor._memory import is_fatal, is_out_of_memory


class Fake(SimulatedDevice):
    """Counts recordings and replays; fails to record if it is told so."""

    def __init__(self) -> None:
        super().__init__()
        self.error: Exception | None = None
        self.captured: list[Any] = []

    def capture(self, function: Any) -> Graph:
        if self.error is not None:
            raise self.error
        self.captured.append(super().capture(function))
        return self.captured[-1]


@pytest.fixture
def device() -> Fake:
    return Fake()


@pytest.fixture
def graphs(device: Fake) -> Graphs:
    return Graphs(device)


def batch(*args: Any, rows: int = 2, bucket: Any = None, **extras: Any) -> Collated:
    return Collated(args, extras, rows, rows, bucket)


def double(collated: Collated) -> Any:
    return {"twice": collated.args[0] * 2, "same": collated.args[0], "rows": collated.rows}


def test_a_shape_is_recorded_once_and_replayed_with_each_batch(device: Fake, graphs: Graphs) -> None:
    given = [torch.full((2, 3), float(number)) for number in range(4)]
    results = [graphs.run(double, batch(each)) for each in given]
    assert len(device.captured) == 1
    # All of them still hold: no replay has written to what an earlier one gave.
    assert [result["twice"].unique().tolist() for result in results] == [[0], [2], [4], [6]]
    assert [result["same"].unique().tolist() for result in results] == [[0], [1], [2], [3]]
    assert [result["rows"] for result in results] == [2] * 4
    assert [each.unique().tolist() for each in given] == [[0], [1], [2], [3]]


@pytest.mark.parametrize(
    "other",
    [
        batch(torch.ones(2, 4)),
        batch(torch.ones(2, 3, dtype=torch.float64)),
        batch(torch.ones(2, 3), rows=3),
        batch(torch.ones(2, 3), bucket=8),
        batch({"a": torch.ones(2, 3)}),
        batch(torch.ones(2, 3), torch.ones(2, 3)),
        batch(torch.ones(2, 3), mask=torch.ones(2, 3)),
        batch(torch.ones(2, 3), max_length=3),
    ],
)
def test_what_differs_is_recorded_anew(device: Fake, graphs: Graphs, other: Collated) -> None:
    for _ in range(2):
        graphs.run(lambda collated: None, batch(torch.ones(2, 3)))
        graphs.run(lambda collated: None, other)
    assert len(device.captured) == 2


def test_settings_and_the_values_of_what_is_no_tensor_are_part_of_a_recording(device: Fake, graphs: Graphs) -> None:
    tensor = torch.ones(2)
    found = [
        graphs.run(
            lambda collated, scale=scale: collated.args[0] * collated.extras["n"] * scale, batch(tensor, n=n), scale
        )
        for n in (1, True, 2)
        for scale in (3, 5)
        for _ in range(2)
    ]
    assert len(device.captured) == 6
    assert [each.tolist() for each in found] == [[v] * 2 for v in (3, 3, 5, 5, 3, 3, 5, 5, 6, 6, 10, 10)]


def test_what_cannot_be_recorded_is_called_for_good_and_says_why(device: Fake, graphs: Graphs) -> None:
    device.error = CaptureFailed("item() waits for the device")
    assert graphs.run(double, batch(torch.ones(2)))["twice"].tolist() == [2, 2]
    device.error = None
    assert graphs.run(double, batch(torch.zeros(2)))["twice"].tolist() == [0, 0]
    assert not device.captured
    assert list(graphs.reasons.values()) == ["item() waits for the device"]
    graphs.run(double, batch(torch.ones(3)))  # another shape may do
    assert len(device.captured) == 1


@pytest.mark.parametrize("recorded", [True, False])
def test_a_recording_keeps_no_batch_and_so_no_caller(device: Fake, graphs: Graphs, recorded: bool) -> None:
    class Call:
        """Stands for a batch's: it knows its requests."""

        def __call__(self, collated: Collated) -> Any:
            return double(collated)

    device.error = None if recorded else CaptureFailed("item() waits for the device")
    calls = [Call() for _ in range(3)]
    watched = [weakref.ref(call) for call in calls]
    while calls:
        graphs.run(calls.pop(), batch(torch.zeros(2)))
    device.error = None  # its traceback knows the call
    assert [call() for call in watched] == [None] * 3


@pytest.mark.parametrize("error", [ValueError("bad item"), torch.OutOfMemoryError("out of memory")])
def test_other_errors_are_the_batches_own(device: Fake, graphs: Graphs, error: Exception) -> None:
    device.error = error
    with pytest.raises(type(error), match=str(error)):
        graphs.run(double, batch(torch.ones(2)))
    device.error = None
    assert not graphs.reasons
    for number in range(2):
        assert graphs.run(double, batch(torch.full((2,), number)))["twice"].tolist() == [2 * number] * 2
    assert len(device.captured) == 1


@pytest.mark.parametrize("hide", [deque, lambda x: [UserList(x)], lambda x: {"row": x, "all": (1, [iter(x)])}])
def test_a_result_that_hides_tensors_is_not_recorded(device: Fake, graphs: Graphs, hide: Any) -> None:
    for number in range(3):
        graphs.run(lambda collated: hide(collated.args[0]), batch(torch.full((2,), number)))
    (reason,) = graphs.reasons.values()
    assert re.fullmatch(
        r"the result has a (deque|UserList|.*iterator), whose tensors each replay would overwrite", reason
    )
    assert len(device.captured) == 1


def test_a_result_of_which_all_is_known_is_recorded(device: Fake, graphs: Graphs) -> None:
    result = {"row": torch.ones(2), "none": None, "names": ["a", ("b", 3.5)], "kind": torch.float16, "empty": []}
    graphs.run(lambda collated: result, batch(torch.ones(2)))
    assert not graphs.reasons


def test_what_cannot_be_known_again_is_called(device: Fake, graphs: Graphs) -> None:
    for _ in range(2):
        found = graphs.run(lambda collated: collated.args[1], batch(torch.ones(2), ["a", "b"]))
        assert found == ["a", "b"]
    assert not device.captured
    assert list(graphs.reasons.values()) == ["its lists cannot be known again"]


@pytest.mark.parametrize("args", [(torch.ones(2),), (torch.ones(2), ["a", "b"])], ids=["known", "not known again"])
def test_what_is_called_as_it_is_fails_as_it_does(device: Fake, graphs: Graphs, args: Any) -> None:
    """An error of the function is none of what was looked for before it ran: it runs once."""
    device.error = CaptureFailed("item() waits for the device")
    graphs.run(lambda collated: None, batch(*args))
    reasons, calls = dict(graphs.reasons), []

    def refuse(collated: Collated) -> Any:
        calls.append(collated)
        raise TypeError("not such an item")

    with pytest.raises(TypeError, match="not such an item") as caught:
        graphs.run(refuse, batch(*args))
    assert caught.value.__context__ is None
    assert len(calls) == 1
    assert graphs.reasons == reasons


def test_memory_that_runs_out_after_a_recording_failed_is_no_lost_device(device: Fake, graphs: Graphs) -> None:
    """What an error came from is asked, too, and a recording may fail with one that would mean a lost device."""
    device.error = CaptureFailed("not permitted when stream is capturing")
    device.error.__cause__ = torch.AcceleratorError("operation not permitted when stream is capturing")

    def hungry(collated: Collated) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory")

    with pytest.raises(torch.OutOfMemoryError) as caught:
        graphs.run(hungry, batch(torch.ones(2)))
    assert is_out_of_memory(caught.value)
    assert not is_fatal(caught.value)


def test_the_cpu_has_none() -> None:
    graphs = Graphs(CpuDevice())
    assert graphs.run(double, batch(torch.ones(2)))["twice"].tolist() == [2, 2]
    assert list(graphs.reasons.values()) == ["the CPU has no graphs"]


def test_a_pipeline_replays(device: Fake) -> None:
    way = Pipeline(device, graphs=Graphs(device))
    way.enter()
    ring = [way.buffers() for _ in range(2)]
    found: list[Any] = []
    for number in range(8):
        buffers = ring[number % 2]
        way.stage(buffers, lambda allocate, number=number: batch(allocate((2, 3), torch.int64).fill_(number)))
        way.launch(buffers, double, "settings")
        found.append(way.finish(buffers)["twice"].clone())
        way.clear(buffers)
    assert [each.unique().tolist() for each in found] == [[2 * number] for number in range(8)]
    assert len(device.captured) == 1
    assert not device.reads_out_of_order
