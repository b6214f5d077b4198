"""Which device is meant, and what an accelerator need not have. What needs a real one is in a file of its own."""

import subprocess
import sys
import textwrap
from typing import Any

import pytest
import torch

from batchlib.torch.device._device import AcceleratorDevice, CaptureFailed, CpuDevice, Device, device_of
from batchlib.torch.device._ring import Buffers
from batchlib.torch.device._simulated import SimulatedDevice

KINDS = [CpuDevice(), SimulatedDevice(), AcceleratorDevice(torch.device("cuda"))]


@pytest.mark.parametrize("device", KINDS, ids=lambda device: type(device).__name__)
def test_every_kind_keeps_the_protocol(device: Device) -> None:
    assert isinstance(device, Device)


@pytest.mark.parametrize("name", ["cpu", "cpu:0", torch.device("cpu")])
def test_the_cpu_by_name(name: Any) -> None:
    device = device_of(name)
    assert (type(device), device.place, device.staged) == (CpuDevice, torch.device("cpu"), False)


def test_what_is_a_device_is_taken_as_it_is() -> None:
    device = SimulatedDevice()
    assert device_of(device) is device


@pytest.mark.parametrize("nothing", [3, "", b"cpu", object(), SimulatedDevice])
def test_what_is_no_device_is_refused(nothing: Any) -> None:
    with pytest.raises(ValueError if nothing == "" else TypeError, match="device"):
        device_of(nothing)


def test_a_name_that_torch_does_not_know_is_refused() -> None:
    with pytest.raises(ValueError, match=r"device='gpu': torch knows no such device; None takes what there is"):
        device_of("gpu")


@pytest.mark.parametrize("name", ["cuda:1000", "meta", "xpu:7"])
def test_a_device_that_is_not_there_is_refused(name: str) -> None:
    with pytest.raises(
        ValueError, match=rf"device='{name}' is not there: torch finds the CPU.*None takes what there is"
    ):
        device_of(name)


def test_a_device_without_a_number_is_the_first() -> None:
    assert AcceleratorDevice(torch.device("xpu")).place == torch.device("xpu:0")
    assert AcceleratorDevice(torch.device("xpu:3")).place == torch.device("xpu:3")


def test_the_cpu_does_everything_at_once() -> None:
    device = CpuDevice()
    target = device.device_buffer(4)
    device.copy(device.stream(), target, torch.ones(4, dtype=torch.uint8))
    assert target.tolist() == [1] * 4
    device.enter()
    device.synchronize_all()
    device.release_cache()
    assert Buffers(device).computed is None
    with pytest.raises(CaptureFailed):
        device.capture(lambda: None)


def test_an_accelerator_without_streams_has_the_one_that_computes() -> None:
    class Backend:
        @staticmethod
        def Stream(place: torch.device) -> Any:
            raise RuntimeError("Backend doesn't support create a new Stream.")

    device = AcceleratorDevice(torch.device("cuda"))
    device._backend = Backend
    assert device.stream() is None


def test_an_accelerator_without_pinned_memory_and_graphs_is_served() -> None:
    """In a process of its own, since registering one changes torch for good. Its memory is the host's: it has no
    kernels. What it is asked is what every accelerator is asked."""
    script = """
        import torch
        from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

        _setup_privateuseone_for_python_backend("toy")
        from batchlib._core._execution import Collated
        from batchlib.torch.device._device import AcceleratorDevice, device_of
        from batchlib.torch.device._graphs import Graphs
        from batchlib.torch.device._ring import Pipeline

        found = device_of()
        assert type(found) is type(device_of("toy")) is AcceleratorDevice
        assert found.place == torch.device("toy:0")
        assert found.host_buffer(8).numel() == found.host_buffer(8).numel() == 8  # pageable
        found.release_cache()

        class Toy:
            place = torch.device("cpu")
            staged = True

            def __getattr__(self, name):
                return getattr(found, name)

            def device_buffer(self, nbytes):
                return torch.empty(nbytes, dtype=torch.uint8)

            def synchronize_all(self): ...

            def synchronize(self, event): ...

        graphs = Graphs(Toy())
        pipeline = Pipeline(Toy(), graphs=graphs)
        pipeline.enter()
        ring = [pipeline.buffers() for _ in range(2)]
        for number in range(4):
            buffers = ring[number % 2]
            pipeline.stage(
                buffers, lambda allocate: Collated((allocate((2,), torch.float32).fill_(number),), {}, 2, 2)
            )
            pipeline.launch(buffers, lambda collated: collated.args[0] * 2)
            assert pipeline.finish(buffers).tolist() == [2 * number] * 2
            pipeline.clear(buffers)
        print(*graphs.reasons.values())
    """
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(script)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "graph" in done.stdout.lower()
