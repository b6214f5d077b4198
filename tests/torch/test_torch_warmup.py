"""Warming up: every shape that batches can have, the largest first, on every device, past the queue."""

import threading
from typing import Any

import pytest
import torch

from batchlib import batch_context, batched
from batchlib.errors import ExecutorLost
from batchlib.torch import SimulatedDevice, TorchExecutor, pack, pad, stack, warmup


class Model:
    """Records the shapes it sees."""

    def __init__(self) -> None:
        self.shapes: list[tuple[int, ...]] = []

    def __call__(self, batch: torch.Tensor, *, mask: torch.Tensor) -> torch.Tensor:
        assert len(batch_context()) <= len(batch)
        self.shapes.append(tuple(batch.shape))
        return (batch * mask).sum(1)

    def stacked(self, batch: torch.Tensor) -> torch.Tensor:
        return self(batch, mask=torch.ones(()))


def test_every_size_and_length_is_run_the_largest_first_and_twice() -> None:
    model = Model()
    executor = TorchExecutor("cpu", batch_sizes=[2, 8])
    f: Any = batched(model, max_batch_size=8, collate=pad(sizes=[4, 16]), executor=executor)
    warmed = warmup(f, [torch.ones(3)])
    shapes = [(8, 16), (8, 4), (2, 16), (2, 4)]
    assert sorted(model.shapes) == sorted(2 * shapes)
    assert model.shapes[::2] == model.shapes[1::2] == [(each.rows, each.length) for each in warmed]
    assert model.shapes[0] == (8, 16)
    amounts = [rows * length for rows, length in model.shapes]
    assert amounts == sorted(amounts, reverse=True)
    assert {each.device for each in warmed} == {"cpu"}
    assert all([each.seconds > 0 and each.first_seconds > 0 for each in warmed])


def test_examples_may_come_one_by_one() -> None:
    f = batched(lambda batch: batch, max_batch_size=2, collate=stack(), executor=TorchExecutor("cpu"))
    assert [warmed.rows for warmed in warmup(f, (torch.zeros(3) for _ in range(2)))] == [2, 1]
    with pytest.raises(ValueError, match="at least one example"):
        warmup(f, iter([]))


def test_nobody_else_hears_of_it() -> None:
    events: list[Any] = []
    f: Any = batched(
        Model().stacked, max_batch_size=4, collate=stack(), executor=TorchExecutor("cpu"), hooks=[events.append]
    )
    before = f.statistics()
    warmup(f, [torch.ones(3)])
    after = f.statistics()
    assert (after.submitted, after.batches) == (before.submitted, before.batches) == (0, 0)
    assert events == []
    assert f.call(torch.ones(3)).item() == 3


def test_without_sizes_of_its_own_it_takes_powers_of_two_and_the_largest_batch() -> None:
    model = Model()
    f: Any = batched(model.stacked, max_batch_size=6, collate=stack(), executor=TorchExecutor("cpu"))
    assert [each.rows for each in warmup(f, [torch.ones(3)])] == [6, 4, 2, 1]
    assert [each.rows for each in warmup(f, [torch.ones(3)], batch_sizes=[3, 1, 3])] == [3, 1]


def test_without_a_limit_of_the_batch_size_it_stops_somewhere() -> None:
    f: Any = batched(Model().stacked, max_batch_size=None, collate=stack(), executor=TorchExecutor("cpu"))
    assert warmup(f, [torch.ones(1)])[0].rows == 1024


def test_batches_that_cost_too_much_are_left_out_as_they_will_never_come() -> None:
    model = Model()
    f: Any = batched(
        model, max_batch_size=8, max_batch_cost=32, collate=pad(sizes=[4, 16]), executor=TorchExecutor("cpu")
    )
    warmup(f, [torch.ones(3)])
    assert set(model.shapes) == {(8, 4), (4, 4), (2, 4), (1, 4), (2, 16), (1, 16)}


def test_the_largest_batch_that_a_cost_allows_is_run_first() -> None:
    model = Model()
    f: Any = batched(
        model, max_batch_size=64, max_batch_cost=768, collate=pad(sizes=[16]), executor=TorchExecutor("cpu")
    )
    assert [(each.rows, each.length) for each in warmup(f, [torch.ones(3)])] == [
        (rows, 16) for rows in (48, 32, 16, 8, 4, 2, 1)
    ]
    f = batched(model, max_batch_size=None, max_batch_cost=3000, collate=pad(sizes=[1]), executor=TorchExecutor("cpu"))
    assert [each.rows for each in warmup(f, [torch.ones(1)])][:2] == [3000, 2048]
    f = batched(model.stacked, max_batch_size=1500, collate=stack(), executor=TorchExecutor("cpu"))
    assert [each.rows for each in warmup(f, [torch.ones(1)])][:2] == [1500, 1024]


@pytest.mark.parametrize("sizes", [None, [2, 8]])
def test_what_is_over_a_limit_and_runs_alone_is_run_alone(sizes: Any) -> None:
    model = Model()
    executor = TorchExecutor("cpu", batch_sizes=sizes)
    options: dict[str, Any] = {"max_batch_size": 8, "max_batch_cost": 10, "oversize": "alone", "executor": executor}
    f: Any = batched(model, collate=pad(), **options)
    rows = 1 if sizes is None else 2
    assert [(each.rows, each.length) for each in warmup(f, [torch.ones(30)])] == [(rows, 30)]
    g: Any = batched(model, collate=pad(sizes=[5, 30]), **options)
    warmed = [(each.rows, each.length) for each in warmup(g, [torch.ones(5)])]
    assert warmed == ([(1, 30), (2, 5), (1, 5)] if sizes is None else [(2, 30), (2, 5)])


def test_what_is_warmed_is_what_batches_have() -> None:
    """Of all numbers of calls together, each has a shape that was run before, or none is as large."""
    model = Model()
    executor = TorchExecutor("cpu", batch_sizes=[1, 3, 8])
    f: Any = batched(
        model, max_batch_size=6, max_batch_cost=40, max_wait=60, collate=pad(sizes=[4, 16]), executor=executor
    )
    warmup(f, [torch.ones(2)])
    warmed = set(model.shapes)
    model.shapes.clear()
    for length, most in ((4, 6), (16, 2)):
        for size in range(1, most + 1):
            f.configure(max_batch_size=size)
            for future in [f.submit(torch.ones(length)) for _ in range(size)]:
                future.result(30)
    assert set(model.shapes) == warmed


def test_each_parameter_has_a_length_of_its_own() -> None:
    shapes: list[Any] = []

    def function(left: torch.Tensor, right: torch.Tensor, *, lengths: Any) -> torch.Tensor:
        shapes.append((tuple(left.shape), tuple(right.shape)))
        return left.sum(1) + right.sum(1)

    f: Any = batched(function, max_batch_size=1, collate=pad(sizes=[2, 4]), executor=TorchExecutor("cpu"))
    warmup(f, [(torch.ones(1), torch.ones(1))])
    assert set(shapes) == {((1, left), (1, right)) for left in (2, 4) for right in (2, 4)}


def test_a_cost_of_ones_own_hides_no_length() -> None:
    model = Model()
    f: Any = batched(
        model,
        max_batch_size=2,
        max_batch_cost=2,
        cost=lambda item: 1,
        collate=pad(sizes=[4, 16]),
        executor=TorchExecutor("cpu"),
    )
    warmup(f, [torch.ones(3)])
    assert set(model.shapes) == {(rows, length) for rows in (1, 2) for length in (4, 16)}


def test_of_items_without_a_length_the_largest_come_first() -> None:
    model = Model()
    f: Any = batched(model.stacked, max_batch_size=2, collate=stack(), executor=TorchExecutor("cpu"))
    warmup(f, [torch.ones(5), torch.ones(100), torch.ones(7)])
    assert model.shapes[::2] == [(2, 100), (1, 100), (2, 7), (2, 5), (1, 7), (1, 5)]


def test_rows_that_no_batch_can_have_are_refused_and_both_limits_named() -> None:
    def refused(executor: TorchExecutor, sizes: list[int]) -> str:
        f = batched(lambda batch: batch, collate=stack(), max_batch_size=32, executor=executor)
        with pytest.raises(ValueError, match="batch_sizes must be numbers of rows that a batch can have") as caught:
            warmup(f, [torch.ones(3)], batch_sizes=sizes)
        return str(caught.value)

    for executor, sizes in ((TorchExecutor("cpu", batch_sizes=[1, 2]), [3]), (TorchExecutor("cpu"), [64])):
        text = refused(executor, sizes)
        assert f"not {sizes}: max_batch_size is 32" in text
        assert f"TorchExecutor(batch_sizes=) is {executor.batch_sizes}" in text
    assert "not []" in refused(TorchExecutor("cpu"), [])
    unlimited: Any = batched(
        lambda batch: batch, collate=stack(), max_batch_size=None, executor=TorchExecutor("cpu", batch_sizes=[2])
    )
    with pytest.raises(ValueError, match="max_batch_size is None"):
        warmup(unlimited, [torch.ones(3)], batch_sizes=[3])


def test_rows_that_were_asked_for_and_cost_too_much_are_left_out() -> None:
    f: Any = batched(
        Model(), max_batch_size=8, max_batch_cost=16, collate=pad(sizes=[4]), executor=TorchExecutor("cpu")
    )
    assert [each.rows for each in warmup(f, [torch.ones(3)], batch_sizes=[8, 4, 1])] == [4, 1]
    with pytest.raises(ValueError, match=r"no batch can hold 8 of the examples: raise max_batch_cost"):
        warmup(f, [torch.ones(3)], batch_sizes=[8])


def test_a_batch_that_is_filled_up_counts_by_its_items() -> None:
    """Five items of length 4 are all that a cost of 20 allows, and come as eight rows."""
    model = Model()
    executor = TorchExecutor("cpu", batch_sizes=[2, 8, 16])
    f: Any = batched(model, max_batch_size=16, max_batch_cost=20, collate=pad(sizes=[4]), executor=executor)
    warmup(f, [torch.ones(3)])
    assert set(model.shapes) == {(8, 4), (2, 4)}


def test_sizes_beyond_what_a_batch_can_hold_are_left_out_unless_asked_for() -> None:
    model = Model()
    executor = TorchExecutor("cpu", batch_sizes=[2, 8, 16, 32])
    f: Any = batched(model.stacked, max_batch_size=5, collate=stack(), executor=executor)
    assert [each.rows for each in warmup(f, [torch.ones(3)])] == [8, 2]
    f.configure(max_batch_size=9)
    assert [each.rows for each in warmup(f, [torch.ones(3)])] == [16, 8, 2]
    assert [each.rows for each in warmup(f, [torch.ones(3)], batch_sizes=[32])] == [32]


def test_every_kind_of_example_is_run_once() -> None:
    model = Model()
    f: Any = batched(model.stacked, max_batch_size=2, collate=stack(), executor=TorchExecutor("cpu"))
    warmup(f, [torch.ones(3), torch.zeros(3), torch.ones(5)])
    assert sorted(set(model.shapes)) == [(1, 3), (1, 5), (2, 3), (2, 5)]
    assert len(model.shapes) == 8


def test_packed_batches_keep_the_lengths_of_their_examples() -> None:
    totals: list[int] = []

    def function(batch: torch.Tensor, *, lengths: torch.Tensor) -> torch.Tensor:
        totals.append(len(batch))
        return torch.stack([part.sum() for part in batch.split(lengths.tolist())])

    f: Any = batched(function, max_batch_size=4, collate=pack(), executor=TorchExecutor("cpu"))
    assert [each.length for each in warmup(f, [torch.ones(5)])] == [None] * 3
    assert totals[::2] == [20, 10, 5]


def test_a_function_of_lists_several_parameters_and_settings() -> None:
    seen: list[Any] = []

    def function(left: list[int], right: list[int], *, factor: int = 1) -> list[int]:
        seen.append((len(left), factor))
        return [(one + other) * factor for one, other in zip(left, right, strict=True)]

    f: Any = batched(function, max_batch_size=2, executor=TorchExecutor("cpu"))
    warmup(f, [(1, 2)], settings={"factor": 3})
    assert seen == [(2, 3), (2, 3), (1, 3), (1, 3)]


def test_a_method_and_bisecting() -> None:
    class Owner:
        def __init__(self) -> None:
            self.sizes: list[int] = []

        @batched(max_batch_size=2, collate=stack(), executor=TorchExecutor("cpu"), on_error="bisect")
        def run(self, batch: torch.Tensor) -> torch.Tensor:
            self.sizes.append(len(batch))
            return batch

    owner = Owner()
    warmup(owner.run, [torch.ones(3)])
    assert owner.sizes == [2, 2, 1, 1]


def test_every_device_is_warmed_up() -> None:
    threads: list[int] = []

    def function(batch: torch.Tensor) -> torch.Tensor:
        threads.append(threading.get_ident())
        return batch

    executor = TorchExecutor([SimulatedDevice(1), SimulatedDevice(2)])
    f: Any = batched(function, max_batch_size=2, collate=stack(), executor=executor)
    assert len(warmup(f, [torch.ones(3)])) == 4
    assert [threads.count(each) for each in dict.fromkeys(threads)] == [4, 4]


def test_what_does_not_fit_is_learned_before_anybody_calls() -> None:
    sizes: list[int] = []

    def function(batch: torch.Tensor) -> torch.Tensor:
        sizes.append(len(batch))
        if len(batch) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return batch

    f: Any = batched(function, max_batch_size=8, max_wait=60, collate=stack(), executor=TorchExecutor("cpu"))
    warmup(f, [torch.ones(3)])
    assert sizes[:3] == [8, 4, 2]
    sizes.clear()
    futures = [f.submit(torch.ones(3)) for _ in range(8)]
    assert [future.result().sum().item() for future in futures] == [3.0] * 8
    assert sizes == [2, 2, 2, 2]


def test_what_fails_is_raised() -> None:
    def function(batch: torch.Tensor) -> Any:
        raise ValueError("not ready")

    with pytest.raises(ValueError, match="not ready"):
        warmup(batched(function, collate=stack(), executor=TorchExecutor("cpu")), [torch.ones(3)])

    def private(batch: torch.Tensor) -> Any:
        return [KeyError("bad example")] * len(batch)

    with pytest.raises(KeyError, match="bad example"):
        warmup(batched(private, collate=stack(), executor=TorchExecutor("cpu")), [torch.ones(3)])

    def fatal(batch: torch.Tensor) -> Any:
        raise RuntimeError("CUDA error: device-side assert triggered")

    lost: Any = batched(fatal, collate=stack(), executor=TorchExecutor("cpu"))
    for _ in range(2):
        with pytest.raises(ExecutorLost):
            warmup(lost, [torch.ones(3)])
    assert not lost.statistics().healthy


def test_examples_may_be_the_rows_of_a_tensor() -> None:
    f: Any = batched(lambda batch: batch, max_batch_size=2, collate=stack(), executor=TorchExecutor("cpu"))
    assert [warmed.rows for warmed in warmup(f, torch.ones(3, 4))] == [2, 1]


def test_wrong_arguments() -> None:
    with pytest.raises(TypeError, match=r"executor=TorchExecutor\(\.\.\.\)"):
        warmup(batched(lambda batch: batch, collate=stack()), [torch.ones(3)])
    with pytest.raises(TypeError, match="warmup needs a batched function"):
        warmup(lambda batch: batch, [torch.ones(3)])
    f: Any = batched(lambda batch: batch, collate=stack(), executor=TorchExecutor("cpu"))
    with pytest.raises(ValueError, match="at least one example"):
        warmup(f, [])
    with pytest.raises(ValueError, match="at least one example"):
        warmup(f, torch.ones(0, 3))
    limited: Any = batched(lambda batch, mask: batch, collate=pad(), max_batch_cost=2, executor=TorchExecutor("cpu"))
    with pytest.raises(ValueError, match=r"no batch can hold one of the examples: raise max_batch_cost"):
        warmup(limited, [torch.ones(3)])
    with pytest.raises(ValueError, match="batch_sizes"):
        warmup(f, [torch.ones(3)], batch_sizes=[0])
