"""Which modules a function uses is found without running anything, and which of them training mode would change."""

import functools
import types
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn

from batchlib import batched
from batchlib.protocols import Request
from batchlib.torch import TorchExecutor, check_batching, stack
from batchlib.torch.executor._modules import (
    modules_of,
    norms_over_batch,
    training_layers,
    training_modules,
    warn_of_training,
)

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


def through_a_class(x: Any) -> Any:
    return Service.shared(x)


def through_a_subclass(x: Any) -> Any:
    return Heir.shared(x)


def through_a_class_attribute(x: Any) -> Any:
    return HEIR.shared(x)


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


class Shared:
    shared = MODEL

    def embed(self, x: Any) -> Any:
        return self.shared(x)


class Heir(Shared):
    pass


HEIR = Heir()


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
    "attribute of a class": through_a_class,
    "attribute of a base class": through_a_subclass,
    "attribute of an object's class": through_a_class_attribute,
    "bound to an object whose class has it": Heir().embed,
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
    request.owner = Heir()
    assert modules_of(Heir.embed, [request]) == [MODEL]
    assert modules_of(Service.embed, [Request((1,), None, 0.0)]) == []


def test_what_it_does_not_name_is_not_its() -> None:
    def uses_nothing(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.relu(x)

    def makes_one(x: torch.Tensor) -> Any:
        return Service()

    assert modules_of(uses_nothing) == []
    assert modules_of(makes_one) == []
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
    (nn.BatchNorm2d(2, track_running_stats=False), None),
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


@pytest.mark.filterwarnings("ignore:`torch.jit")
@pytest.mark.parametrize(("layer", "effect"), LAYERS, ids=lambda value: type(value).__name__)
def test_what_training_mode_changes_in_a_scripted_model(layer: nn.Module, effect: str | None) -> None:
    model = torch.jit.script(layer.train())
    assert [found.effect for found in training_layers([model])] == ([] if effect is None else [effect])
    assert training_layers([model.eval()]) == []


@pytest.mark.filterwarnings("ignore:`torch.jit")
def test_dropout_that_was_recorded_in_training_mode_is_found() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5)).train()
    traced = torch.jit.trace(model, torch.ones(1, 2), check_trace=False)
    assert [found.effect for found in training_layers([traced])] == ["chance"]


@pytest.mark.filterwarnings("ignore:`torch.jit")
def test_a_model_that_is_frozen_has_no_mode() -> None:
    frozen = torch.jit.freeze(torch.jit.script(MODEL.eval()))
    MODEL.train()
    assert training_layers([frozen]) == norms_over_batch([frozen]) == []


WRAPPED: dict[str, Callable[[nn.Module], nn.Module]] = {
    "compiled": lambda module: torch.compile(module, backend="eager"),  # type: ignore[dict-item, return-value]
    "traced": torch.fx.symbolic_trace,
    "parallel": nn.DataParallel,
}


@pytest.mark.parametrize("way", list(WRAPPED))
def test_what_torch_wraps_around_a_model_changes_nothing_in_training_mode(way: str) -> None:
    wrapped = WRAPPED[way](nn.Sequential(nn.Linear(2, 2)).train())
    assert training_layers([wrapped.train()]) == []
    wrapped = WRAPPED[way](nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5)).train())
    assert [found.effect for found in training_layers([wrapped.train()])] == ["chance"]


def test_an_exported_model_says_nothing_of_training() -> None:
    """It has no `eval()` that could be called."""
    exported = torch.export.export(nn.Sequential(nn.Linear(2, 2)).eval(), (torch.ones(1, 2),)).module()
    assert training_layers([exported]) == []


@pytest.mark.filterwarnings("ignore:`torch.jit")
def test_a_scripted_norm_over_the_batch_is_found() -> None:
    norm = torch.jit.script(nn.BatchNorm1d(2, track_running_stats=False)).eval()
    assert [found.effect for found in norms_over_batch([norm])] == ["statistics"]


def test_one_layer_in_training_mode_is_enough() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Dropout(0.5), nn.BatchNorm1d(2))).eval()
    model[1][0].train()
    (found,) = training_layers([model])
    assert (str(found), found.module) == ("1.0 (Dropout)", model[1][0])
    assert str(training_layers([model[1][0]])[0]) == "Dropout"


def line_of(function: Any) -> tuple[str, int]:
    return function.__code__.co_filename, function.__code__.co_firstlineno


TRAINED = nn.Sequential(nn.Dropout(0.5))


def runs_the_trained(x: Any) -> Any:
    return TRAINED(x)


def around(function: Any) -> Any:
    @functools.wraps(function)
    def wrapper(*args: Any) -> Any:
        return function(*args)

    return wrapper


PLACES: dict[str, tuple[Any, tuple[str, int]]] = {
    "function": (runs_the_trained, line_of(runs_the_trained)),
    "wrapped": (around(runs_the_trained), line_of(runs_the_trained)),
    "partial": (functools.partial(runs_the_trained), line_of(runs_the_trained)),
    "model": (TRAINED, line_of(nn.Sequential.forward)),
    "method": (TRAINED.forward, line_of(nn.Sequential.forward)),
    "built in": (functools.partial(map, TRAINED), ("type", 1)),
}


@pytest.mark.parametrize("way", list(PLACES))
def test_the_warning_is_in_the_place_of_the_function(way: str) -> None:
    function, (file, line) = PLACES[way]
    with pytest.warns(UserWarning, match=r"f runs a model in training mode \(Sequential\)") as caught:
        warn_of_training(function, "f", [])
    assert (caught[0].filename, caught[0].lineno) == (file, line)


class Loads:
    """Loads its model when it is called first, as services do."""

    model: nn.Module | None = None

    def __call__(self, batch: torch.Tensor) -> torch.Tensor:
        if self.model is None:
            self.model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
        return self.model(batch)


def test_a_model_that_the_first_batch_loads_is_warned_of_once() -> None:
    f = batched(Loads(), max_batch_size=2, max_wait=60, collate=stack(), executor=TorchExecutor("cpu"))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            list(f.map([torch.zeros(4), torch.ones(4)]))
    assert ["runs a model in training mode (Sequential)" in str(each.message) for each in caught] == [True]


def test_a_model_that_a_check_loads_is_seen() -> None:
    samples = list(torch.arange(16.0).reshape(4, 4))
    check = check_batching(Loads(), samples, collate=stack())
    assert [cause.name for cause in check.causes] == ["training mode"]


def test_what_cannot_be_looked_through_fails_nothing() -> None:
    class Odd(nn.Module):
        def named_modules(self, *args: Any, **options: Any) -> Any:
            raise RuntimeError("cannot be listed")

    odd = Odd()
    warn_of_training(lambda x: odd(x), "f", [])
