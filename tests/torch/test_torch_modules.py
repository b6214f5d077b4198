"""Which modules a function uses is found without running anything, and which of them training mode would change."""

import functools
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn

from batchlib.protocols import Request
from batchlib.torch.executor._modules import modules_of, training_layers, training_modules

MODEL = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5))
NAMESPACE = types.ModuleType("namespace")
NAMESPACE.model = MODEL  # type: ignore[attr-defined]
SHELF = {"models": [MODEL]}
UNUSED = nn.Dropout(0.5)


def through_a_global(x: Any) -> Any:
    return MODEL(x)


def through_an_inner_function(x: Any) -> Any:
    return [MODEL(each) for each in x] + (lambda: MODEL(x))()


def through_a_helper(x: Any) -> Any:
    return through_a_global(x)


def through_a_python_module(x: Any) -> Any:
    return NAMESPACE.model(x)


def through_containers(x: Any) -> Any:
    return SHELF["models"][0](x)


def through_a_default(x: Any, model: Any = MODEL, *, other: Any = MODEL) -> Any:
    return model(x)


def through_a_cell() -> Callable[[Any], Any]:
    model = MODEL
    return lambda x: model(x)


class Service:
    shared = MODEL

    def __init__(self) -> None:
        self.model = MODEL

    def embed(self, x: Any) -> Any:
        return self.model(x)

    def __call__(self, x: Any) -> Any:
        return self.model(x)

    @classmethod
    def kind(cls, x: Any) -> Any:
        return cls.shared(x)


class Slotted:
    __slots__ = ("empty", "model")

    def __init__(self) -> None:
        self.model = MODEL

    def embed(self, x: Any) -> Any:
        return self.model(x)


@dataclass
class Pipeline:
    service: Service


class CallsAGlobal:
    def __call__(self, x: Any) -> Any:
        return MODEL(x)


def wrapped() -> Callable[[Any], Any]:
    @functools.wraps(through_a_global)
    def wrapper(*args: Any) -> Any:
        return args

    return wrapper


USES: dict[str, Any] = {
    "itself": MODEL,
    "global": through_a_global,
    "inner": through_an_inner_function,
    "helper": through_a_helper,
    "python module": through_a_python_module,
    "containers": through_containers,
    "default": through_a_default,
    "cell": through_a_cell(),
    "bound": Service().embed,
    "forward": MODEL.forward,
    "class": Service.kind,
    "object": Service(),
    "slots": Slotted().embed,
    "object calls a global": CallsAGlobal(),
    "partial": functools.partial(through_a_helper),
    "argument of a partial": functools.partial(lambda model, x: model(x), MODEL),
    "pipeline": functools.partial(lambda pipeline, x: pipeline.service.embed(x), Pipeline(Service())),
    "wrapped": wrapped(),
    "compiled": torch.compile(through_a_global, backend="eager"),
}


@pytest.mark.parametrize("way", list(USES))
def test_a_module_is_found_on_every_way_to_it(way: str) -> None:
    assert [found is MODEL for found in modules_of(USES[way])] == [True]


def test_the_owner_of_a_method_is_looked_at() -> None:
    request = Request((1,), None, 0.0)
    request.owner = Service()
    assert modules_of(Service.embed, [request, request]) == [MODEL]
    assert modules_of(Service.embed, [Request((1,), None, 0.0)]) == []


def test_what_it_does_not_name_is_not_its() -> None:
    def uses_nothing(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.relu(x)

    assert modules_of(uses_nothing) == []
    assert modules_of(len) == []


def test_nothing_of_it_is_called() -> None:
    class Trap:
        @property
        def model(self) -> Any:
            raise AssertionError("a property was asked")

        def __getattr__(self, name: str) -> Any:
            raise AssertionError(f"asked for {name}")

        def __call__(self, x: Any) -> Any:
            raise AssertionError("called")

        def __iter__(self) -> Any:
            raise AssertionError("iterated")

    trap = Trap()
    assert modules_of(trap) == modules_of(lambda x: trap(x)) == []


def test_a_cell_that_is_not_filled_yet_is_passed_by() -> None:
    def make() -> Any:
        def function(x: Any) -> Any:
            return model(x)

        found = modules_of(function)
        model = MODEL
        return found, modules_of(function)

    assert make() == ([], [MODEL])


def test_a_module_inside_another_is_not_named_twice() -> None:
    inner = nn.Dropout(0.5)
    outer = nn.Sequential(inner)
    assert modules_of(lambda x: outer(inner(x))) == [outer]


def test_a_program_is_not_searched_without_end() -> None:
    chain: list[Any] = [MODEL]
    for _ in range(100):
        chain = [chain]
    assert modules_of(functools.partial(len, chain)) == []
    wide = [object() for _ in range(20_000)]
    assert modules_of(functools.partial(len, [*wide, MODEL])) == []


class Functional(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.dropout(x, 0.5, self.training)


class Plain(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1


LAYERS: list[tuple[nn.Module, str | None]] = [
    (nn.BatchNorm1d(2), "statistics"),
    (nn.BatchNorm2d(2, track_running_stats=False), "statistics"),
    (nn.Dropout(0.1), "chance"),
    (nn.Dropout(0.0), None),
    (nn.RReLU(), "chance"),
    (nn.GRU(2, 2, num_layers=2, dropout=0.5), "chance"),
    (nn.LSTM(2, 2), None),
    (nn.MultiheadAttention(2, 1), None),
    (nn.InstanceNorm1d(2), None),
    (nn.InstanceNorm1d(2, track_running_stats=True), "other"),
    (Functional(), "other"),
    (Plain(), None),
    (nn.Linear(2, 2), None),
    (nn.LayerNorm(2), None),
]


@pytest.mark.parametrize(("layer", "effect"), LAYERS, ids=lambda value: type(value).__name__)
def test_what_training_mode_changes(layer: nn.Module, effect: str | None) -> None:
    model = nn.Sequential(nn.Linear(2, 2), layer).train()
    assert [found.effect for found in training_layers([model])] == ([] if effect is None else [effect])
    assert training_modules(model.forward) == ([] if effect is None else [model])
    assert training_modules(model.eval().forward) == []


def test_one_layer_in_training_mode_is_enough() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Dropout(0.5), nn.BatchNorm1d(2))).eval()
    model[1][0].train()
    (found,) = training_layers([model])
    assert (str(found), found.module) == ("1.0 (Dropout)", model[1][0])
    assert str(training_layers([model[1][0]])[0]) == "Dropout"
