"""What a function gives in a list is its caller's: no two callers have one memory, nor does the function keep it."""

import collections
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from batchlib import batched
from batchlib.torch import TorchExecutor, pad, stack
from batchlib.torch.executor._owning import owned


class Model:
    """Keeps what it has given."""

    def __init__(self) -> None:
        self.kept = torch.zeros(3)
        self.rows = torch.zeros(2, 3)
        self.array = np.zeros(3, np.float32)
        self.buffer = torch.jit.script(torch.nn.BatchNorm1d(3).eval())
        self.held = {"x": torch.zeros(3)}
        self.last: list[Any] = []
        self.storages: list[torch.UntypedStorage] = []

    def keeping(self, tensor: torch.Tensor) -> torch.Tensor:
        self.storages.append(tensor.untyped_storage())
        return tensor

    def fresh(self, count: int) -> list[Any]:
        self.last = [torch.zeros(3) for _ in range(count)]
        return self.last


GIVEN: dict[str, Callable[[Model, int], Any]] = {
    "the same tensor": lambda model, count: [torch.zeros(3)] * count,
    "one that is kept": lambda model, count: [model.kept] * count,
    "another name for it": lambda model, count: [model.kept.detach() for _ in range(count)],
    "all of it, as a view": lambda model, count: [model.kept.view(3, 1) for _ in range(count)],
    "one whose memory is kept": lambda model, count: [model.keeping(torch.zeros(3)) for _ in range(count)],
    "its data": lambda model, count: [model.kept.data for _ in range(count)],
    "rows": lambda model, count: list(model.rows[:count]),
    "a tensor of an array": lambda model, count: [torch.from_numpy(model.array) for _ in range(count)],
    "an array": lambda model, count: [model.array] * count,
    "a scripted module's": lambda model, count: [model.buffer.running_mean for _ in range(count)],
    "in a dict that is kept": lambda model, count: [model.held] * count,
    "in a list that is kept": lambda model, count: model.fresh(count),
    "in a tuple": lambda model, count: [(1, model.kept)] * count,
    "in a list behind a text": lambda model, count: [["name", model.kept]] * count,
    "in a deque": lambda model, count: collections.deque([model.kept] * count),
    "sparse": lambda model, count: [model.kept.to_sparse()] * count,
    "a parameter": lambda model, count: [torch.nn.Parameter(model.kept, requires_grad=False)] * count,
}


def leaf(outcome: Any) -> Any:
    while not isinstance(outcome, torch.Tensor | np.ndarray):
        outcome = outcome["x"] if isinstance(outcome, dict) else outcome[1]
    return outcome


def spoil(outcome: Any) -> None:
    (leaf(outcome)._values() if getattr(leaf(outcome), "is_sparse", False) else leaf(outcome))[...] = 7


@pytest.mark.filterwarnings("ignore:`torch.jit")
@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("results", ["host", "numpy"])
@pytest.mark.parametrize("given", GIVEN)
def test_a_caller_may_write_to_what_it_gets(given: str, results: Any, size: int) -> None:
    if results == "numpy" and given == "sparse":
        given = "an array"
    model, seen = Model(), []

    def function(items: list[Any]) -> Any:
        seen.append(len(items))
        return GIVEN[given](model, len(items))

    f = batched(function, executor=TorchExecutor("cpu", results=results), max_batch_size=size, max_wait=1)
    first, *others = f.map(range(size))
    spoil(first)
    (again, *_) = f.map(range(size))
    assert seen == [size, size]
    for other in (*others, again):
        assert not (np.asarray(leaf(other).to_dense() if torch.is_tensor(leaf(other)) else leaf(other)) == 7).any()
    assert all(not (kept == 7).any() for kept in (model.kept, model.rows, model.array, model.held["x"]))
    assert not any([any(storage.tolist()) for storage in model.storages])


@pytest.mark.parametrize("copy", ["auto", True])
@pytest.mark.parametrize("nest", [lambda each: each, lambda each: {"x": each}, lambda each: (1, each)])
def test_what_nobody_else_has_is_copied_only_if_that_is_asked_for(copy: Any, nest: Any) -> None:
    made: list[int] = []

    def function(items: list[Any]) -> list[Any]:
        given = [torch.zeros(1000) for _ in items]
        made.extend([each.data_ptr() for each in given])
        return [nest(each) for each in given]

    f = batched(function, executor=TorchExecutor("cpu", copy=copy), max_batch_size=3, max_wait=1)
    got = [leaf(outcome).data_ptr() for outcome in f.map(range(3))]
    assert (got == made) == (copy == "auto")
    assert not set(got) & set(made) or copy == "auto"


def test_what_does_not_fill_its_memory_does_not_keep_it() -> None:
    f = batched(lambda items: [torch.zeros(1000)[:2].detach() for _ in items], executor=TorchExecutor("cpu"))
    assert f.call(1).untyped_storage().nbytes() == 8


def test_what_is_no_tensor_is_given_as_it_is() -> None:
    class Box:
        def __init__(self, tensor: torch.Tensor) -> None:
            self.tensor = tensor

    given = [Box(torch.zeros(2)), "text", {"a": 1}, None, [0.5, "x"], KeyError("mine")]
    assert all(one is other for one, other in zip(owned(list(given), "auto"), given, strict=True))


def test_where_torch_does_not_count_all_is_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("batchlib.torch.device._arena._references", None)
    tensors = [torch.zeros(2)]
    place = tensors[0].data_ptr()
    assert owned(tensors, "auto")[0].data_ptr() != place


def test_what_is_cut_in_a_list_does_not_keep_its_padding() -> None:
    f = batched(
        lambda values, mask: list(values),
        collate=pad(unpad=True),
        executor=TorchExecutor("cpu"),
        max_batch_size=2,
        max_wait=1,
    )
    short, long = f.map([[1], [1, 2, 3]])
    assert (short.tolist(), long.tolist()) == ([1], [1, 2, 3])
    assert short.untyped_storage().nbytes() == 8


def test_gradients_flow_through_what_is_given_in_a_list() -> None:
    weight = torch.ones(2, requires_grad=True)
    executor = TorchExecutor("cpu", mode="grad")
    f = batched(lambda batch: [row * weight for row in batch], collate=stack(), executor=executor)
    f.call(torch.full((2,), 3.0)).sum().backward()
    assert weight.grad is not None
    assert weight.grad.tolist() == [3.0, 3.0]
