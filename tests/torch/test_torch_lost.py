"""A device that is lost: nothing more is asked of it, whoever waits hears of it at once, and the others go on."""

import asyncio
import signal
import subprocess
import sys
import textwrap
import threading
import traceback
import weakref
from concurrent.futures import Future
from typing import Any

import pytest
import torch
from support.until import until

from batchlib import batched
from batchlib.errors import ExecutorLost
from batchlib.torch import SimulatedDevice, TorchExecutor, stack


class Assert(RuntimeError):
    """Stands for what a device raises once it has failed for good."""


def together(f: Any, items: list[Any]) -> list[Any]:
    async def main() -> list[Any]:
        return await asyncio.gather(*(f(item) for item in items), return_exceptions=True)

    return asyncio.run(main())


class Fragile:
    """A model that breaks its device on a negative item."""

    def __init__(self) -> None:
        self.ran: list[list[float]] = []

    def __call__(self, batch: torch.Tensor) -> torch.Tensor:
        self.ran.append(batch.flatten().tolist())
        if (batch < 0).any():
            raise Assert("device-side assert triggered")
        return batch + 1


def item(value: float) -> torch.Tensor:
    return torch.full((1,), value)


DEVICES = {"cpu": lambda: "cpu", "simulated": lambda: SimulatedDevice(5)}
devices = pytest.mark.parametrize("device", DEVICES.values(), ids=DEVICES)


@devices
@pytest.mark.parametrize("options", [{}, {"fatal": (Assert,)}], ids=["by its text", "by its class"])
@pytest.mark.parametrize("on_error", ["fail", "bisect"])
def test_a_lost_device_fails_fast(device: Any, options: dict[str, Any], on_error: Any) -> None:
    model, told = Fragile(), []
    executor = TorchExecutor(device(), in_flight=1, on_fatal=told.append, **options)
    f = batched(model, max_batch_size=1, collate=stack(), executor=executor, on_error=on_error)
    outcomes = together(f, [item(-1), item(2), item(3)])
    assert [type(outcome) for outcome in outcomes] == [ExecutorLost] * 3
    with pytest.raises(ExecutorLost) as caught:
        f.call(item(4))
    assert model.ran == [[-1.0]]  # neither tried again, nor touched by those who came later
    assert [type(error) for error in told] == [Assert]
    assert all([outcome.__cause__ is told[0] for outcome in [*outcomes, caught.value]])
    assert len({id(outcome) for outcome in outcomes}) == 3
    assert not f.statistics().healthy


@pytest.mark.parametrize("on_error", ["fail", "bisect"])
def test_a_batch_that_loses_the_device_is_not_halved(on_error: Any) -> None:
    model = Fragile()
    f = batched(model, max_batch_size=4, max_wait=60, collate=stack(), executor=TorchExecutor("cpu"), on_error=on_error)
    outcomes = together(f, [item(value) for value in (0, -1, 2, 3)])
    assert [type(outcome) for outcome in outcomes] == [ExecutorLost] * 4
    assert len(model.ran) == 1


def test_out_of_memory_is_no_loss_whatever_its_class() -> None:
    class Odd(RuntimeError):
        pass

    sizes: list[int] = []

    def model(items: list[int]) -> list[int]:
        sizes.append(len(items))
        if len(items) > 1:
            raise Odd("device-side assert triggered")
        return items

    f = batched(model, max_batch_size=2, max_wait=60, executor=TorchExecutor("cpu", oom=(Odd,)))
    assert together(f, [1, 2]) == [1, 2]
    assert sizes == [2, 1, 1]
    assert f.statistics().healthy


def test_a_wide_class_for_out_of_memory_hides_no_lost_device() -> None:
    sizes: list[int] = []

    def model(items: list[int]) -> list[int]:
        sizes.append(len(items))
        raise torch.AcceleratorError("CUDA error: device-side assert triggered")

    f = batched(model, max_batch_size=2, max_wait=60, executor=TorchExecutor("cpu", oom=(RuntimeError,)))
    assert [type(outcome) for outcome in together(f, [1, 2])] == [ExecutorLost] * 2
    assert sizes == [2]
    assert not f.statistics().healthy


@devices
def test_an_error_that_merely_fails_a_batch_loses_nothing(device: Any) -> None:
    def model(batch: torch.Tensor) -> torch.Tensor:
        if (batch < 0).any():
            raise ValueError("negative")
        return batch

    f = batched(model, max_batch_size=1, collate=stack(), executor=TorchExecutor(device()))
    outcomes = together(f, [item(-1), item(2)])
    assert (type(outcomes[0]), outcomes[1].item()) == (ValueError, 2)
    assert f.statistics().healthy


def test_the_errors_keep_nothing_of_the_model_alive() -> None:
    kept: list[weakref.ref[torch.Tensor]] = []

    def model(batch: torch.Tensor) -> torch.Tensor:
        activations = batch * 2
        kept.extend([weakref.ref(batch), weakref.ref(activations)])
        raise Assert("an illegal memory access was encountered")

    f = batched(model, max_batch_size=2, max_wait=60, collate=stack(), executor=TorchExecutor("cpu"))
    futures = [f.submit(item(1)), f.submit(item(2))]
    errors = [future.exception() for future in futures]
    f.close()
    assert [each() for each in kept] == [None, None]
    assert "in model" in "".join(traceback.format_exception(errors[0]))


def test_a_function_that_calls_one_whose_device_is_lost_keeps_its_own() -> None:
    inner: Any = batched(Fragile(), collate=stack(), executor=TorchExecutor("cpu"))

    def asking(items: list[float]) -> list[float]:
        return [inner.call(item(value)).item() for value in items]

    def wrapping(items: list[float]) -> list[float]:
        try:
            return asking(items)
        except ExecutorLost as error:
            raise ValueError("no answer") from error

    options = {"max_batch_size": 2, "max_wait": 60, "executor": TorchExecutor("cpu")}
    outer: Any = batched(asking, **options)
    other: Any = batched(wrapping, **options)
    assert [type(outcome) for outcome in together(outer, [-1.0, 2.0])] == [ExecutorLost] * 2
    assert [type(outcome) for outcome in together(other, [1.0, 2.0])] == [ValueError] * 2
    assert outer.statistics().healthy
    assert other.statistics().healthy
    assert not inner.statistics().healthy


# ---- several devices


class Two:
    """A model on two devices, whose batches are held until they are told what to do."""

    def __init__(self, on_fatal: Any = None) -> None:
        self.gates: dict[float, threading.Event] = {}
        self.started: dict[float, threading.Event] = {}
        self.threads: dict[float, str] = {}
        executor = TorchExecutor([SimulatedDevice(1), SimulatedDevice(2)], in_flight=1, on_fatal=on_fatal)
        self.f: Any = batched(self.model, max_batch_size=1, collate=stack(), executor=executor)

    def model(self, batch: torch.Tensor) -> torch.Tensor:
        value = batch.item()
        self.threads[value] = threading.current_thread()  # type: ignore[assignment]
        self.started[value].set()
        assert self.gates[value].wait(30)
        if value < 0:
            raise Assert("device-side assert triggered")
        return batch + 1

    def submit(self, value: float) -> "Future[Any]":
        self.gates[value], self.started[value] = threading.Event(), threading.Event()
        return self.f.submit(item(value))  # type: ignore[no-any-return]

    def call(self, value: float) -> Any:
        future = self.submit(value)
        self.gates[value].set()
        return future.result(30)


def test_of_two_devices_one_goes_on_when_the_other_is_lost() -> None:
    told: list[BaseException] = []
    two = Two(told.append)
    breaking, waiting = two.submit(-1), two.submit(5)
    assert two.started[-1].wait(30)
    assert two.started[5].wait(30)
    two.gates[-1].set()
    with pytest.raises(ExecutorLost, match="device-side assert"):
        breaking.result(30)
    assert not two.f.statistics().healthy
    two.gates[5].set()
    assert waiting.result(30).item() == 6
    for value in range(10, 20):
        assert two.call(value).item() == value + 1
    assert {two.threads[value] for value in range(10, 20)} == {two.threads[5]}
    assert len(told) == 1


def test_once_all_devices_are_lost_nobody_is_kept_waiting() -> None:
    told: list[BaseException] = []
    two = Two(told.append)
    breaking = [two.submit(-1), two.submit(-2)]
    for value in (-1, -2):
        assert two.started[value].wait(30)
    behind = [two.submit(value) for value in (7, 8)]
    two.gates[-1].set()
    two.gates[-2].set()
    assert [type(future.exception(30)) for future in [*breaking, *behind]] == [ExecutorLost] * 4
    assert set(two.threads) == {-1, -2}  # until both were lost there was room on neither
    with pytest.raises(ExecutorLost):
        two.f.call(item(9))
    assert len(told) == 2
    assert not two.f.statistics().healthy


def test_a_batch_that_is_on_its_way_to_a_device_that_gets_lost_never_reaches_it() -> None:
    started, gate = threading.Event(), threading.Event()
    ran: list[float] = []

    def model(batch: torch.Tensor) -> torch.Tensor:
        ran.append(batch.item())
        started.set()
        assert gate.wait(30)
        raise Assert("unspecified launch failure")

    told: list[BaseException] = []
    executor = TorchExecutor(SimulatedDevice(), in_flight=2, on_fatal=told.append)
    f: Any = batched(model, max_batch_size=1, collate=stack(), executor=executor)
    first = f.submit(item(1))
    assert started.wait(30)
    second = f.submit(item(2))
    (lane,) = f._live.driver.executor.lanes
    until(lambda: lane.worker.waiting)  # staged, and in the queue of the device's thread
    gate.set()
    errors = [first.exception(30), second.exception(30)]
    assert [type(error) for error in errors] == [ExecutorLost] * 2
    assert ran == [1.0]
    assert len(told) == 1  # once for the device, whoever lost it


class Dying(SimulatedDevice):
    """Its errors come when the host waits for it, as those of a real device do."""

    def __init__(self) -> None:
        super().__init__(3)
        self.dead = False
        self.asked = 0

    def synchronize(self, event: Any) -> None:
        self.asked += 1
        if self.dead:
            raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered")
        super().synchronize(event)

    def synchronize_all(self) -> None:
        self.asked += 1
        super().synchronize_all()


def test_a_loss_that_shows_when_the_host_waits() -> None:
    device, told = Dying(), []
    executor = TorchExecutor(device, on_fatal=told.append)
    f: Any = batched(lambda batch: batch, max_batch_size=1, collate=stack(), executor=executor)
    assert f.call(item(1)).item() == 1
    device.dead = True
    asked = device.asked
    with pytest.raises(ExecutorLost, match="illegal memory access"):
        f.call(item(2))
    with pytest.raises(ExecutorLost):
        f.call(item(3))
    assert device.asked == asked + 1  # the one that told
    assert len(told) == 1


@pytest.mark.parametrize("fault", [KeyError("the hook"), SystemExit(3)], ids=["fails", "wants the program to end"])
def test_a_hook_that_fails_is_reported_and_changes_nothing(
    fault: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    reported: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", reported.append)

    def on_fatal(error: BaseException) -> None:
        raise fault

    f: Any = batched(Fragile(), collate=stack(), executor=TorchExecutor("cpu", on_fatal=on_fatal))
    with pytest.raises(ExecutorLost):
        f.call(item(-1))
    (error,) = [args.exc_value for args in reported]
    if isinstance(fault, SystemExit):  # the usual hook prints none
        assert type(error) is RuntimeError
        assert "os._exit" in str(error)
        error = error.__cause__
    assert error is fault


@pytest.mark.parametrize(
    ("end", "code"), [("os._exit(3)", 3), ("os.kill(os.getpid(), signal.SIGTERM)", -signal.SIGTERM)]
)
def test_a_process_may_be_ended_when_a_device_is_lost(end: str, code: int) -> None:
    script = f"""
        import os
        import signal
        import torch
        from batchlib import batched
        from batchlib.torch import TorchExecutor, stack

        def broken(batch):
            raise RuntimeError("device-side assert triggered")

        executor = TorchExecutor("cpu", on_fatal=lambda error: {end})
        f = batched(broken, collate=stack(), executor=executor)
        try:
            f.call(torch.ones(1))
        finally:
            signal.pause()
    """
    ended = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=False, timeout=90)
    assert ended.returncode == code


class Cramped(SimulatedDevice):
    """Has no memory for its first batch to be collated into."""

    def __init__(self) -> None:
        super().__init__(1)
        self.cramped = False

    def event(self) -> Any:
        if self.cramped:
            self.cramped = False
            raise torch.OutOfMemoryError("CUDA out of memory")
        return super().event()


def test_who_waits_to_be_alone_on_a_device_that_gets_lost_is_served_by_another() -> None:
    started, gate = threading.Event(), threading.Event()

    def model(batch: torch.Tensor) -> torch.Tensor:
        if batch.item() < 0:
            started.set()
            assert gate.wait(30)
            raise Assert("device-side assert triggered")
        return batch + 1

    cramped = Cramped()
    executor = TorchExecutor([cramped, SimulatedDevice(2)], in_flight=2)
    f: Any = batched(model, max_batch_size=1, max_concurrent_batches=2, collate=stack(), executor=executor)
    f.call(item(1))
    breaking = f.submit(item(-1))
    assert started.wait(30)
    first, other = f._live.driver.executor.lanes
    other.busy += 2  # full, so that the next one goes to the first
    cramped.cramped = True
    waiting = f.submit(item(2))
    until(lambda: first.reserved)
    other.busy -= 2
    gate.set()
    assert isinstance(breaking.exception(30), ExecutorLost)
    assert waiting.result(30).item() == 3
    assert f.call(item(3)).item() == 4


# ---- batches that run in parts


def in_parts(model: Any, on_error: Any = "fail", **options: Any) -> Any:
    executor = TorchExecutor("cpu", batch_sizes=[2], **options)
    return batched(model, max_batch_size=6, max_wait=60, collate=stack(), executor=executor, on_error=on_error)


@pytest.mark.parametrize("on_error", ["fail", "bisect"])
def test_who_has_a_result_before_the_last_device_is_lost_gets_it(on_error: Any) -> None:
    model = Fragile()
    f = in_parts(model, on_error)
    outcomes = together(f, [item(value) for value in (0, 1, -1, 3, 4, 5)])
    assert [outcome.item() for outcome in outcomes[:2]] == [1, 2]
    assert [type(outcome) for outcome in outcomes[2:]] == [ExecutorLost] * 4
    assert len({id(outcome) for outcome in outcomes[2:]}) == 4
    assert model.ran == [[0, 1], [-1, 3]]
    statistics = f.statistics()
    assert (statistics.completed, statistics.failed, statistics.healthy, statistics.closed) == (2, 4, False, True)
    with pytest.raises(ExecutorLost):
        f.call(item(6))


def test_who_waits_hears_at_once_although_others_got_results() -> None:
    started, gate = threading.Event(), threading.Event()

    def model(batch: torch.Tensor) -> torch.Tensor:
        started.set()
        assert gate.wait(30)
        return fragile(batch)

    fragile = Fragile()
    f = in_parts(model)
    running = [f.submit(item(value)) for value in (0, 1, -1, 3, 4, 5)]
    assert started.wait(30)
    waiting = f.submit(item(6))
    gate.set()
    assert [type(future.exception(30)) for future in running] == [type(None)] * 2 + [ExecutorLost] * 4
    assert isinstance(waiting.exception(30), ExecutorLost)


@pytest.mark.parametrize("on_error", ["fail", "bisect"])
def test_the_halves_of_a_batch_that_found_no_memory_keep_their_results_too(on_error: Any) -> None:
    def model(batch: torch.Tensor) -> torch.Tensor:
        if len(batch) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return fragile(batch)

    fragile = Fragile()
    executor = TorchExecutor("cpu")
    f = batched(model, max_batch_size=4, max_wait=60, collate=stack(), executor=executor, on_error=on_error)
    outcomes = together(f, [item(value) for value in (0, 1, 2, -1)])
    assert [outcome.item() for outcome in outcomes[:2]] == [1, 2]
    assert [type(outcome) for outcome in outcomes[2:]] == [ExecutorLost] * 2


def test_what_was_found_before_a_device_is_lost_amid_the_search_for_culprits_stands() -> None:
    def model(batch: torch.Tensor) -> torch.Tensor:
        values = batch.flatten().tolist()
        if 2 in values:
            raise ValueError("the culprit")
        return fragile(batch)

    fragile = Fragile()
    f = batched(model, max_batch_size=4, max_wait=60, collate=stack(), executor=TorchExecutor("cpu"), on_error="bisect")
    outcomes = together(f, [item(value) for value in (0, 1, 2, -1)])
    assert [outcome.item() for outcome in outcomes[:2]] == [1, 2]
    assert [type(outcome) for outcome in outcomes[2:]] == [ValueError, ExecutorLost]


def test_parts_go_on_where_one_of_two_devices_was_lost() -> None:
    model = Fragile()
    executor = TorchExecutor([SimulatedDevice(1), SimulatedDevice(2)], batch_sizes=[2])
    f = batched(model, max_batch_size=6, max_wait=60, collate=stack(), executor=executor)
    outcomes = together(f, [item(value) for value in (0, 1, -1, 3, 4, 5)])
    assert [outcome.item() for outcome in outcomes[:2] + outcomes[4:]] == [1, 2, 5, 6]
    assert [type(outcome) for outcome in outcomes[2:4]] == [ExecutorLost] * 2
    assert (f.statistics().healthy, f.statistics().closed) == (False, False)


@pytest.mark.parametrize("on_error", ["fail", "bisect"])
def test_a_batcher_that_has_lost_its_device_keeps_nothing_of_the_batch(on_error: Any) -> None:
    kept: list[weakref.ref[torch.Tensor]] = []

    def call() -> list[Any]:
        items = [item(value) for value in (0, 1, -1, 3)]
        kept.extend([weakref.ref(each) for each in items])
        futures = [f.submit(each) for each in items]
        outcomes = [future.exception(30) or future.result(30) for future in futures]
        kept.extend([weakref.ref(outcome) for outcome in outcomes[:2]])
        return [type(outcome) for outcome in outcomes]

    executor = TorchExecutor("cpu", batch_sizes=[2])
    f = batched(Fragile(), max_batch_size=4, max_wait=60, collate=stack(), executor=executor, on_error=on_error)
    assert call() == [torch.Tensor] * 2 + [ExecutorLost] * 2
    f.close()
    assert [each() for each in kept] == [None] * 6


# ---- a device that is lost already when it is looked for


class Broken(SimulatedDevice):
    def __init__(self) -> None:
        super().__init__(3)
        self.asked = 0

    def enter(self) -> None:
        self.asked += 1
        raise torch.AcceleratorError("CUDA error: uncorrectable ECC error encountered")


def test_a_device_that_is_lost_when_it_is_entered_is_entered_no_more() -> None:
    device, told = Broken(), []
    f: Any = batched(lambda batch: batch, collate=stack(), executor=TorchExecutor(device, on_fatal=told.append))
    for value in (1, 2):
        with pytest.raises(ExecutorLost, match="uncorrectable ECC"):
            f.call(item(value))
    assert (device.asked, len(told)) == (1, 1)
    assert not f.statistics().healthy


def test_beside_a_device_that_cannot_be_entered_another_serves_all() -> None:
    device, told = Broken(), []
    executor = TorchExecutor([device, "cpu"], on_fatal=told.append)
    f: Any = batched(lambda batch: batch + 1, collate=stack(), executor=executor)
    assert [f.call(item(value)).item() for value in (1, 2)] == [2, 3]
    assert (device.asked, len(told)) == (1, 1)
    assert not f.statistics().healthy
