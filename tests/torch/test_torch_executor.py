"""The torch executor: options, the thread of a device and its state, rows and fillers, modes and results."""

import asyncio
import gc
import pickle
import threading
import weakref
from collections import namedtuple
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from support import Held
from support.until import until

from batchlib import batch_context, batched
from batchlib.errors import BatchContractError
from batchlib.torch import LaunchOrder, SimulatedDevice, TorchExecutor, pack, pad, stack
from batchlib.torch.device._device import CaptureFailed


def together(f: Any, items: list[Any]) -> list[Any]:
    """What callers get whose calls make one batch."""

    async def main() -> list[Any]:
        return await asyncio.gather(*(f(item) for item in items), return_exceptions=True)

    return asyncio.run(main())


def on(executor: TorchExecutor, function: Any, size: int = 4, **options: Any) -> Any:
    """A batched function whose batches are full, or run when it is closed."""
    return batched(
        function, **{"max_batch_size": size, "max_wait": 60, "collate": stack(), "executor": executor, **options}
    )


DEVICES = {"cpu": lambda: "cpu", "simulated": lambda: SimulatedDevice(3)}
devices = pytest.mark.parametrize("device", DEVICES.values(), ids=DEVICES)


# ---- options

WRONG: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"device": "warp drive"}, ValueError, "device='warp drive'"),
    ({"device": 3}, TypeError, "device must be"),
    ({"device": ["cpu", 3]}, TypeError, "device must be"),
    ({"device": []}, ValueError, "at least one device"),
    ({"mode": "train"}, ValueError, "mode must be one of 'no_grad', 'inference', 'grad'"),
    ({"results": "gpu"}, ValueError, "results must be one of"),
    ({"copy": "always"}, ValueError, "copy must be one of"),
    ({"copy": 0}, ValueError, "copy must be one of"),
    ({"cuda_graphs": "no"}, ValueError, "cuda_graphs must be one of True, False"),
    ({"idempotent": None}, ValueError, "idempotent must be one of True, False"),
    ({"autocast": True}, TypeError, "autocast must be a torch.dtype"),
    *[
        ({"autocast": dtype}, ValueError, f"autocast must be torch.float16, torch.bfloat16 or None, not {dtype}")
        for dtype in (torch.int8, torch.float32, torch.float64, torch.float8_e4m3fn, torch.complex64)
    ],
    ({"threads": 0}, ValueError, "threads must be a whole number >= 1"),
    ({"in_flight": 0}, ValueError, "in_flight must be a whole number >= 1"),
    ({"in_flight": "2"}, TypeError, "in_flight"),
    ({"batch_sizes": []}, ValueError, "batch_sizes must be at least one whole number >= 1"),
    ({"cuda_graphs": True, "idempotent": False}, TypeError, "cuda_graphs=True calls .* more than once .* idempotent"),
    ({"batch_sizes": [4, 0]}, ValueError, "batch_sizes"),
    ({"batch_sizes": 4}, TypeError, "batch_sizes"),
    ({"oom": (int,)}, TypeError, "oom must be a tuple of exception classes"),
    ({"fatal": ValueError}, TypeError, "fatal must be a tuple of exception classes"),
    ({"launch_order": threading.Lock()}, TypeError, "launch_order must be a LaunchOrder"),
    ({"on_fatal": "restart"}, TypeError, "on_fatal must be a function"),
]


@pytest.mark.parametrize(("options", "error", "text"), WRONG, ids=lambda value: str(value)[:40])
def test_an_option_that_cannot_work_is_named(options: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text.replace("(", r"\(")):
        TorchExecutor(**options)


def test_descriptions_are_equal_by_their_options() -> None:
    order = LaunchOrder()
    one = TorchExecutor(["cpu", "cpu"], batch_sizes=np.array([4, 1, 4]), launch_order=order)
    assert one == TorchExecutor(("cpu", "cpu"), batch_sizes=(1, 4), launch_order=order)
    assert hash(one) == hash(TorchExecutor(("cpu", "cpu"), batch_sizes=(1, 4), launch_order=order))
    assert one != TorchExecutor("cpu")


def test_as_many_batches_at_once_as_its_devices_want() -> None:
    assert TorchExecutor("cpu").usual_concurrent_batches == 1
    assert TorchExecutor(["cpu", "cpu"]).usual_concurrent_batches == 2
    assert TorchExecutor(SimulatedDevice()).usual_concurrent_batches == 2
    assert TorchExecutor([SimulatedDevice(), "cpu"]).usual_concurrent_batches == 3
    assert TorchExecutor("cpu", in_flight=3).usual_concurrent_batches == 3
    assert TorchExecutor().usual_concurrent_batches == (2 if torch.accelerator.is_available() else 1)


def test_functions_that_it_cannot_run_are_refused_at_decoration() -> None:
    async def function(batch: Any) -> Any: ...

    with pytest.raises(TypeError, match="async"):
        batched(function, executor=TorchExecutor("cpu"))


@pytest.mark.parametrize(
    ("collate", "batch_sizes"), [(None, (4,)), (pad(lengths=False, mask=False), (4,)), (stack(), None)], ids=str
)
def test_graphs_need_few_shapes(collate: Any, batch_sizes: Any) -> None:
    with pytest.raises(TypeError, match="cuda_graphs=True records the function for every shape"):
        batched(
            lambda batch: batch,
            collate=collate,
            executor=TorchExecutor("cpu", cuda_graphs=True, batch_sizes=batch_sizes),
        )


@pytest.mark.parametrize(
    "collate",
    [stack(), pad(mask=False, lengths=False, sizes=[4]), pad(mask=False, lengths=False, multiple_of=4)],
    ids=["stack", "sizes", "multiple_of"],
)
def test_graphs_on_a_device_that_has_none_change_nothing(collate: Any) -> None:
    executor = TorchExecutor("cpu", cuda_graphs=True, batch_sizes=(1, 4))
    f = batched(lambda batch: batch.sum(1), collate=collate, executor=executor)
    assert f.call(torch.ones(4)) == 4


@pytest.mark.parametrize("on_error", ["fail", "bisect"])
def test_shapes_that_cannot_be_recorded_are_counted_and_logged_once(
    on_error: Any, caplog: pytest.LogCaptureFixture
) -> None:
    class Unrecorded(SimulatedDevice):
        def capture(self, function: Any) -> Any:
            raise CaptureFailed("it looks at values on the host")

    executor = TorchExecutor([Unrecorded(1)], cuda_graphs=True, batch_sizes=(1, 4), in_flight=1)
    f = on(executor, lambda batch: batch + 1, on_error=on_error)
    assert f.statistics().executor["not_recorded"] == 0
    for _ in range(2):
        together(f, [torch.ones(3)] * 4)
    assert f.statistics().executor["not_recorded"] == 1
    together(f, [torch.ones(2)] * 4)
    assert f.statistics().executor["not_recorded"] == 2
    assert [(record.name, record.levelname) for record in caplog.records] == [("batchlib", "WARNING")] * 2
    for record, shape in zip(caplog.records, ["(4, 3)", "(4, 2)"], strict=True):
        assert f"shape {shape} cannot be recorded" in record.getMessage()
        assert record.getMessage().endswith("it looks at values on the host")


def test_what_is_recorded_is_not_counted(caplog: pytest.LogCaptureFixture) -> None:
    f = on(TorchExecutor(SimulatedDevice(1), cuda_graphs=True, batch_sizes=(4,)), lambda batch: batch + 1)
    together(f, [torch.ones(3)] * 4)
    assert f.statistics().executor == {"out_of_memory": 0, "cut": 0, "not_recorded": 0}
    assert not caplog.records


def test_a_shape_that_cannot_be_known_again_is_not_recorded(caplog: pytest.LogCaptureFixture) -> None:
    executor = TorchExecutor(SimulatedDevice(1), cuda_graphs=True, batch_sizes=(1,))
    f = on(executor, lambda batch: batch[1] + 1, size=1)
    for _ in range(2):
        assert f.call(("a text", torch.ones(2))).tolist() == [2.0, 2.0]
    assert f.statistics().executor["not_recorded"] == len(caplog.records) == 1


def test_on_the_cpu_all_shapes_count_as_not_recorded(caplog: pytest.LogCaptureFixture) -> None:
    f = on(TorchExecutor("cpu", cuda_graphs=True, batch_sizes=(1, 4)), lambda batch: batch + 1, size=1)
    for length in (2, 3, 2, 3):
        f.call(torch.ones(length))
    assert f.statistics().executor["not_recorded"] == 2
    assert not caplog.records
    assert on(TorchExecutor("cpu"), lambda batch: batch, size=1).statistics().executor["not_recorded"] == 0


def test_packed_batches_have_no_fillers() -> None:
    with pytest.raises(TypeError, match="a packed batch has no rows to fill"):
        batched(lambda batch, *, lengths: batch, collate=pack(), executor=TorchExecutor("cpu", batch_sizes=[4]))


def test_a_device_that_is_not_there_fails_its_callers_and_says_so() -> None:
    f = batched(lambda items: items, executor=TorchExecutor("cuda:97"))
    for _ in range(2):
        with pytest.raises(ValueError, match="'cuda:97' is not there"):
            f.call(1)
    assert f.statistics().failed == 2


# ---- the thread of a device


@dataclass
class State:
    thread: int
    grad: bool
    inference: bool
    autocast: bool
    threads: int


def state() -> State:
    return State(
        threading.get_ident(),
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.is_autocast_enabled("cpu"),
        torch.get_num_threads(),
    )


def states(f_options: dict[str, Any], calls: int = 3) -> list[State]:
    seen: list[State] = []

    def function(items: list[int]) -> list[int]:
        seen.append(state())
        return items

    with batched(function, executor=TorchExecutor("cpu", **f_options)) as f:
        for item in range(calls):
            f.call(item)
    return seen


@pytest.mark.parametrize(
    ("mode", "grad", "inference"), [("no_grad", False, False), ("inference", False, True), ("grad", True, False)]
)
def test_the_function_runs_in_the_mode_that_was_chosen(mode: Any, grad: bool, inference: bool) -> None:
    for seen in states({"mode": mode}):
        assert (seen.grad, seen.inference, seen.autocast) == (grad, inference, False)
    assert (torch.is_grad_enabled(), torch.is_inference_mode_enabled()) == (True, False)


def test_rows_have_one_graph_in_common() -> None:
    layer = torch.nn.Linear(3, 1)
    f = on(TorchExecutor("cpu", mode="grad"), lambda batch: layer(batch).tanh(), size=2)
    items = [torch.ones(3, requires_grad=True), torch.zeros(3, requires_grad=True)]
    one, other = [future.result() for future in [f.submit(item) for item in items]]
    one.backward(retain_graph=True)
    other.backward(retain_graph=True)
    assert all(item.grad is not None for item in items)
    one.backward()
    with pytest.raises(RuntimeError, match="a second time"):
        other.backward()


def test_all_batches_of_a_device_run_in_one_thread_of_its_own() -> None:
    threads = {seen.thread for seen in states({}, calls=10)}
    assert len(threads) == 1
    assert threading.get_ident() not in threads


@pytest.mark.parametrize("in_flight", [1, 2])
def test_every_device_has_a_thread_and_the_least_loaded_is_next(in_flight: int) -> None:
    both = threading.Barrier(2)

    def function(items: list[int]) -> list[int]:
        both.wait(30)  # only two devices at once get past it
        return [threading.get_ident()]

    executor = TorchExecutor(["cpu", "cpu"], in_flight=in_flight)
    with batched(function, max_batch_size=1, executor=executor) as f:
        first, second = f.submit(0), f.submit(1)
        assert first.result() != second.result()


def test_intra_op_threads_are_those_of_the_device_alone() -> None:
    before = torch.get_num_threads()
    assert {seen.threads for seen in states({"threads": before + 1})} == {before + 1}
    assert torch.get_num_threads() == before
    with ThreadPoolExecutor(1) as later:
        assert later.submit(torch.get_num_threads).result(30) == before


def test_autocast() -> None:
    layer = torch.nn.Linear(4, 4)
    f = on(TorchExecutor("cpu", autocast=torch.bfloat16), lambda batch: layer(batch), size=1)
    assert f.call(torch.ones(4)).dtype is torch.bfloat16
    assert {seen.autocast for seen in states({"autocast": torch.bfloat16})} == {True}


def test_autocast_sees_weights_that_were_replaced() -> None:
    """It keeps copies of them while it is on, so it may not be on for longer than a batch."""
    layer = torch.nn.Linear(1, 1, bias=False)
    f = on(TorchExecutor("cpu", autocast=torch.bfloat16, mode="grad"), lambda batch: layer(batch).detach(), size=1)
    for value in (1.0, 2.0):
        with torch.no_grad():
            layer.weight.fill_(value)
        assert f.call(torch.ones(1)).item() == value


def test_what_a_function_leaves_behind_does_not_reach_the_next_batch() -> None:
    seen: list[bool] = []

    def function(items: list[int]) -> list[int]:
        seen.append(torch.is_grad_enabled())
        torch.set_grad_enabled(True)
        return items

    with batched(function, executor=TorchExecutor("cpu")) as f:
        f.call(1)
        f.call(2)
    assert seen == [False, False]


def test_the_batchs_context_reaches_the_function() -> None:
    def function(items: list[int]) -> list[Any]:
        return [(len(batch_context()), each.tenant) for each in batch_context()]

    f = batched(function, max_batch_size=2, max_wait=60, executor=TorchExecutor("cpu"))
    futures = [f.options(tenant=tenant).submit(0) for tenant in "ab"]
    assert [future.result() for future in futures] == [(2, "a"), (2, "b")]


def test_settings_and_several_parameters() -> None:
    def function(left: torch.Tensor, right: torch.Tensor, *, scale: float = 1.0) -> torch.Tensor:
        return (left + right) * scale

    f = batched(function, collate=stack(), executor=TorchExecutor("cpu"))
    assert f.call(torch.ones(2), torch.ones(2), scale=3.0).tolist() == [6.0, 6.0]


# ---- rows


@devices
def test_rows_come_back_to_their_callers(device: Any) -> None:
    f = on(TorchExecutor(device()), lambda batch: batch * 2)
    rows = together(f, [torch.full((3,), float(item)) for item in range(4)])
    assert [row.tolist() for row in rows] == [[2.0 * item] * 3 for item in range(4)]


Pair = namedtuple("Pair", ["left", "right"])


@devices
@pytest.mark.parametrize(
    "give",
    [
        lambda batch: {"a": batch, "b": batch + 1},
        lambda batch: Pair(batch, batch + 1),
        lambda batch: [{"a": row, "b": row + 1} for row in batch],
        lambda batch: [Pair(row, row + 1) for row in batch],
    ],
    ids=["dict", "named tuple", "list of dicts", "list of named tuples"],
)
def test_structures(device: Any, give: Any) -> None:
    f = on(TorchExecutor(device()), give)
    for item, got in enumerate(together(f, [torch.full((3,), float(item)) for item in range(4)])):
        first, second = got.values() if isinstance(got, dict) else got
        assert (first.tolist(), second.tolist()) == ([item] * 3, [item + 1] * 3)
        assert [part.untyped_storage().nbytes() for part in (first, second)] == [12, 12]


@devices
@pytest.mark.parametrize("results", ["host", "device", "numpy"])
def test_results_are_where_they_were_asked_for(device: Any, results: Any) -> None:
    f = on(TorchExecutor(device(), results=results), lambda batch: batch + 1)
    rows = together(f, [torch.full((3,), float(item)) for item in range(4)])
    assert {type(row) for row in rows} == {np.ndarray if results == "numpy" else torch.Tensor}
    assert [row.tolist() for row in rows] == [[item + 1.0] * 3 for item in range(4)]


@devices
@pytest.mark.parametrize("size", [1, 4])
def test_rows_made_in_inference_mode_can_be_used_like_any_others(device: Any, size: int) -> None:
    f = on(TorchExecutor(device(), mode="inference"), lambda batch: batch + 1, size=size)
    for row in together(f, [torch.zeros(3) for _ in range(size)]):
        assert not row.is_inference()
        row += 1
        weight = torch.ones(3, requires_grad=True)
        (weight * row).sum().backward()
        assert weight.grad is not None
        assert weight.grad.tolist() == [2.0] * 3


def test_gradients_flow_where_they_were_asked_for() -> None:
    weight = torch.ones(3, requires_grad=True)
    f = on(TorchExecutor("cpu", mode="grad"), lambda batch: batch * weight, size=2)
    rows = together(f, [torch.ones(3), torch.ones(3)])
    sum(rows).sum().backward()
    assert weight.grad is not None
    assert weight.grad.tolist() == [2.0] * 3


COLLATIONS = {"stack": stack(), "pad": pad(mask=False, lengths=False), "pack": pack(unpack=True), "lists": None}


@pytest.mark.parametrize("collate", COLLATIONS.values(), ids=COLLATIONS)
@pytest.mark.parametrize("size", [1, 2])
def test_gradients_reach_the_callers_items(collate: Any, size: int) -> None:
    def function(batch: Any) -> Any:
        return [3 * item for item in batch] if isinstance(batch, list) else 3 * batch

    def packed(batch: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        return 3 * batch

    executor = TorchExecutor("cpu", mode="grad")
    f = on(executor, packed if collate is COLLATIONS["pack"] else function, size=size, collate=collate)
    items = [torch.ones(2, requires_grad=True) for _ in range(size)]
    sum(together(f, items)).sum().backward()
    for item in items:
        assert item.grad is not None
        assert item.grad.tolist() == [3.0] * 2


@devices
def test_where_no_gradients_were_asked_for_no_row_knows_its_neighbours(device: Any) -> None:
    f = on(TorchExecutor(device()), lambda batch: batch, size=2)
    rows = together(f, [torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)])
    assert [row.requires_grad for row in rows] == [False, False]


@devices
def test_results_that_are_views_of_the_inputs(device: Any) -> None:
    f = on(TorchExecutor(device()), lambda batch: batch, size=2)
    items = [torch.zeros(3), torch.ones(3)]
    first, second = together(f, items)
    first += 5
    assert [each.tolist() for each in (*items, second)] == [[0.0] * 3, [1.0] * 3, [1.0] * 3]
    third, _ = together(f, [torch.full((3,), 9.0), torch.zeros(3)])
    assert second.tolist() == [1.0] * 3  # the next batch has not written over it
    assert third.tolist() == [9.0] * 3


@devices
@pytest.mark.parametrize("give", [lambda batch: batch + 1, lambda batch: [batch[0] + 1]], ids=["tensor", "list"])
def test_a_row_that_fills_its_memory_is_nobody_elses_either(device: Any, give: Any) -> None:
    """4096 bytes, alone in a batch: as much as the smallest piece of memory that a pipeline copies results into."""
    f = on(TorchExecutor(device(), in_flight=1), give, size=1)
    first = f.call(torch.zeros(1024))
    second = f.call(torch.ones(1024))
    assert (first.unique().tolist(), second.unique().tolist()) == ([1.0], [2.0])


@devices
def test_items_given_back_in_a_list(device: Any) -> None:
    f = on(TorchExecutor(device()), lambda batch: list(batch.unbind()), size=2)
    first, second = together(f, [torch.zeros(3), torch.ones(3)])
    together(f, [torch.full((3,), 9.0), torch.full((3,), 9.0)])
    assert (first.tolist(), second.tolist()) == ([0.0] * 3, [1.0] * 3)


@devices
@pytest.mark.parametrize("results", ["host", "numpy"])
@pytest.mark.parametrize("collate", [stack(), None], ids=["stack", "none"])
@pytest.mark.parametrize(
    "give",
    [lambda row: ["name", row * 2], lambda row: [0.5, [1, row * 2]], lambda row: [[], ("name", row * 2)]],
    ids=["text first", "nested", "nothing first"],
)
def test_a_result_of_texts_and_tensors_is_not_written_to_again(
    device: Any, results: Any, collate: Any, give: Any
) -> None:
    f = on(
        TorchExecutor(device(), results=results), lambda batch: [give(row) for row in batch], size=1, collate=collate
    )
    kept = f.call(torch.ones(2))
    before = str(kept)
    assert "2." in before
    for value in range(6):
        f.call(torch.full((2,), value + 10.0))
    assert str(kept) == before


@devices
def test_an_exception_in_a_slot_is_that_items_alone(device: Any) -> None:
    def function(batch: torch.Tensor) -> list[Any]:
        return [row + 1 if item % 2 else KeyError(item) for item, row in enumerate(batch)]

    outcomes = together(on(TorchExecutor(device()), function), [torch.zeros(2)] * 4)
    assert [type(outcome) for outcome in outcomes] == [KeyError, torch.Tensor] * 2
    assert [outcome.tolist() for outcome in outcomes[1::2]] == [[1.0] * 2] * 2


@devices
def test_a_result_that_cannot_be_split_fails_the_batch(device: Any) -> None:
    f = on(TorchExecutor(device()), lambda batch: {"logits": batch[:2]})
    outcomes = together(f, [torch.zeros(2)] * 4)
    assert [type(outcome) for outcome in outcomes] == [BatchContractError] * 4
    assert "`logits` has shape (2, 2)" in str(outcomes[0])
    assert together(on(TorchExecutor(device()), lambda batch: batch), [torch.zeros(2)] * 4)[0].tolist() == [0.0] * 2


@devices
def test_numbers_and_texts_in_lists_are_not_touched(device: Any) -> None:
    f = on(TorchExecutor(device()), lambda batch: [row.tolist() for row in batch], size=2)
    assert together(f, [torch.zeros(2), torch.ones(2)]) == [[0.0, 0.0], [1.0, 1.0]]


@devices
def test_a_list_may_hold_anything(device: Any) -> None:
    def function(batch: torch.Tensor) -> list[Any]:
        return ["text", None, batch[0].to_sparse(), {"array": batch[1].numpy(), "number": 3}]

    text, nothing, sparse, nested = together(on(TorchExecutor(device()), function), [torch.ones(2)] * 4)
    assert (text, nothing, nested["number"]) == ("text", None, 3)
    assert sparse.to_dense().tolist() == [1.0, 1.0]
    assert nested["array"].base is None


def test_an_object_of_the_functions_own_is_given_as_it_is() -> None:
    class Answer:
        def __init__(self, row: torch.Tensor) -> None:
            self.row = row

    given: list[Answer] = []

    def function(batch: torch.Tensor) -> list[Answer]:
        given.extend([Answer(row.clone()) for row in batch])
        return given

    outcomes = together(on(TorchExecutor("cpu"), function, size=2), [torch.zeros(2), torch.ones(2)])
    assert [outcome is own for outcome, own in zip(outcomes, given, strict=True)] == [True, True]


@devices
def test_a_tensor_on_another_device_fails_its_batch_and_no_other(device: Any) -> None:
    f = on(TorchExecutor(device()), lambda batch: batch, size=1)
    with pytest.raises(TypeError, match="meta"):
        f.call(torch.zeros(2, device="meta"))
    assert f.call(torch.zeros(2)).tolist() == [0.0, 0.0]


@devices
def test_empty_tensors_and_items_of_no_length(device: Any) -> None:
    f = on(TorchExecutor(device()), lambda batch: batch + 1, size=2)
    assert [row.shape for row in together(f, [torch.zeros(0, 3)] * 2)] == [(0, 3)] * 2
    g = on(TorchExecutor(device()), lambda batch, *, mask: batch, collate=pad(unpad=True), size=2)
    assert [row.tolist() for row in together(g, [torch.zeros(0), torch.ones(2)])] == [[], [1.0, 1.0]]


# ---- fillers


@devices
@pytest.mark.parametrize(("count", "rows"), [(1, 2), (2, 2), (3, 4), (4, 4)])
def test_batches_are_filled_up_to_an_allowed_size(device: Any, count: int, rows: int) -> None:
    seen: list[int] = []

    def function(batch: torch.Tensor) -> torch.Tensor:
        seen.append(len(batch))
        return batch + 1

    f = on(TorchExecutor(device(), batch_sizes=[2, 4]), function, size=count)
    outcomes = together(f, [torch.full((2,), float(item)) for item in range(count)])
    assert [outcome.tolist() for outcome in outcomes] == [[item + 1.0] * 2 for item in range(count)]
    assert set(seen) == {rows}


def test_batches_over_the_largest_size_are_cut() -> None:
    seen: list[int] = []

    def function(items: list[int]) -> list[int]:
        seen.append(len(items))
        return items

    f = batched(function, max_batch_size=10, max_wait=60, executor=TorchExecutor("cpu", batch_sizes=[1, 4]))
    assert together(f, list(range(10))) == list(range(10))
    assert seen == [4, 4, 4]


def test_fillers_repeat_the_first_item_and_nobody_sees_what_becomes_of_them() -> None:
    def function(items: list[int]) -> list[Any]:
        assert items == [7, 8, 7, 7]
        return [*items[:2], KeyError("of a filler"), ValueError("of another")]

    f = batched(function, max_batch_size=2, max_wait=60, executor=TorchExecutor("cpu", batch_sizes=[4]))
    assert together(f, [7, 8]) == [7, 8]


# ---- a model in training mode


def test_a_model_in_training_mode_is_warned_of_once() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Dropout())
    f = on(TorchExecutor("cpu"), lambda batch: model(batch), size=1)
    with pytest.warns(UserWarning, match=r"Sequential.*call \.eval\(\) on it"):
        assert f.call(torch.zeros(2)).shape == (2,)
    f.call(torch.zeros(2))  # a second warning would be an error
    model.eval()
    on(TorchExecutor("cpu"), lambda batch: model(batch), size=1).call(torch.zeros(2))


@pytest.mark.filterwarnings("ignore:`torch.jit")
def test_a_frozen_model_runs_from_its_first_batch_on() -> None:
    layer = torch.nn.Linear(2, 2).eval()
    frozen = torch.jit.freeze(torch.jit.script(layer))
    f = on(TorchExecutor("cpu"), lambda batch: frozen(batch), size=1)
    assert torch.allclose(f.call(torch.ones(2)), layer(torch.ones(2)))


def test_a_model_that_cannot_be_looked_through_runs_all_the_same() -> None:
    class Odd(torch.nn.Module):
        def named_modules(self, *args: Any, **options: Any) -> Any:
            raise RuntimeError("cannot be listed")

        def forward(self, batch: torch.Tensor) -> torch.Tensor:
            return batch + 1

    odd = Odd()
    assert on(TorchExecutor("cpu"), lambda batch: odd(batch), size=1).call(torch.ones(2)).tolist() == [2.0, 2.0]


def test_a_warning_that_is_an_error_fails_one_batch() -> None:
    model = torch.nn.Dropout()
    f = on(TorchExecutor("cpu"), lambda batch: model(batch), size=1)
    with pytest.raises(UserWarning, match="training mode"):
        f.call(torch.zeros(2))
    assert f.call(torch.zeros(2)).shape == (2,)


# ---- beginning and end


def device_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.endswith("-device")]


def test_no_thread_before_the_first_batch_and_none_after_the_end() -> None:
    before = device_threads()
    f = batched(lambda items: items, name="mine", executor=TorchExecutor(["cpu", "cpu"]))
    assert device_threads() == before
    f.call(1)
    mine = [thread for thread in device_threads() if thread not in before]
    assert {thread.name for thread in mine} <= {f"batchlib-{f.__qualname__}-device"}
    assert 1 <= len(mine) <= 2
    f.close()
    for thread in mine:
        thread.join(30)
        assert not thread.is_alive()


def test_a_batcher_that_is_collected_ends_its_threads() -> None:
    before = device_threads()
    model = torch.nn.Linear(2, 2).eval()
    weights = weakref.ref(model)

    def make(model: torch.nn.Module) -> Any:
        return on(TorchExecutor("cpu"), lambda batch: model(batch), size=1)

    f = make(model)
    f.call(torch.zeros(2))
    (thread,) = [thread for thread in device_threads() if thread not in before]
    del f, model
    gc.collect()
    thread.join(30)
    assert not thread.is_alive()
    gc.collect()
    assert weights() is None


def test_a_function_and_a_hook_that_know_their_batcher_are_collected_with_it() -> None:
    def make() -> Any:
        def function(items: list[int]) -> list[int]:
            return items if f else []

        f: Any = batched(function, executor=TorchExecutor("cpu", on_fatal=lambda error: f.close(drain=False)))
        return f

    before = device_threads()
    f = make()
    f.call(1)
    (thread,) = [thread for thread in device_threads() if thread not in before]
    del f

    def ended() -> bool:  # the batcher's own thread may still be at the end of its work
        gc.collect()
        return not thread.is_alive()

    until(ended)


def test_instances_have_executors_of_their_own_and_die_with_them() -> None:
    class Model:
        def __init__(self, scale: float) -> None:
            self.scale = scale
            self.threads: set[int] = set()

        @batched(max_batch_size=2, max_wait=60, collate=stack(), executor=TorchExecutor("cpu"))
        def run(self, batch: torch.Tensor) -> torch.Tensor:
            self.threads.add(threading.get_ident())
            return batch * self.scale

    before = device_threads()
    one, other = Model(10), Model(100)

    async def interleaved(*models: Model) -> list[Any]:
        return await asyncio.gather(*(model.run(torch.ones(1)) for model in models))

    assert [row.item() for row in asyncio.run(interleaved(one, other, one, other))] == [10, 100, 10, 100]
    assert len(one.threads | other.threads) == 2
    mine = [thread for thread in device_threads() if thread not in before]
    gone = weakref.ref(one)
    del one
    gc.collect()
    assert gone() is None
    del other
    gc.collect()
    for thread in mine:
        thread.join(30)
        assert not thread.is_alive()


def test_a_batch_that_is_on_its_way_when_the_batcher_is_closed_still_runs() -> None:
    held = Held()
    f = batched(held, max_batch_size=1, executor=TorchExecutor("cpu"))
    future: Future[Any] = f.submit(1)
    assert held.started.wait(30)
    f.close(drain=False)
    held.gate.set()
    assert future.result(30) == 1


def test_an_executor_that_was_stopped_still_does_what_it_is_given() -> None:
    """A close can come between the moment a batch is taken and the one in which it reaches its device."""
    f = batched(lambda items: [threading.current_thread() for _ in items], executor=TorchExecutor("cpu"))
    executor = f._live.driver.executor
    executor.stop()
    executor.stop()
    first, second = f.call(1), f.call(2)
    for thread in (first, second):
        thread.join(30)
        assert not thread.is_alive()


def test_a_description_is_pickled_and_starts_anew() -> None:
    executor = TorchExecutor(["cpu"], mode="inference", autocast=torch.bfloat16, batch_sizes=[2], oom=(KeyError,))
    again = pickle.loads(pickle.dumps(executor))
    assert again == executor
    assert batched(len_of, executor=again).call("item") == 2


def len_of(items: list[str]) -> list[int]:
    return [len(items) for _ in items]


def test_a_pickled_launch_order_is_one_for_all_of_a_process() -> None:
    order = LaunchOrder()
    first = TorchExecutor("cpu", launch_order=order)
    assert pickle.loads(pickle.dumps(first)).launch_order is order
    pickled = [pickle.dumps(TorchExecutor(launch_order=order)) for _ in range(2)]
    del order, first  # as in a process that has never had it
    gc.collect()
    one, two = [pickle.loads(each).launch_order for each in pickled]
    assert one is two
    with one:
        pass
