"""Which modules a function uses, and which of their layers act otherwise in training mode than in evaluation.

A model left in training mode gives results that depend on who shares the batch, or on chance. The function is looked
through without calling anything of it: closure, globals that its code names, bound instance, partials, attributes.
"""

from __future__ import annotations

import functools
import inspect
import types
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch.nn.modules.batchnorm import _BatchNorm  # pyright: ignore[reportPrivateUsage]
from torch.nn.modules.dropout import _DropoutNd  # pyright: ignore[reportPrivateUsage]
from torch.nn.modules.instancenorm import _InstanceNorm  # pyright: ignore[reportPrivateUsage]

from ..._core._request import Request

Effect = Literal["statistics", "chance", "other"]

_DEPTH = 5  # a function, its partial, its instance, a pipeline in it, the model: more is a search through the program
_OBJECTS = 10_000


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer in training mode that evaluation mode would change.

    path: where in its module, as `named_modules` has it; "" for the module itself.
    effect: it takes "statistics" over the batch, draws by "chance", or does something "other" that only its code knows.
    """

    path: str
    module: torch.nn.Module
    effect: Effect

    def __str__(self) -> str:
        kind = type(self.module).__name__
        return f"{self.path} ({kind})" if self.path else kind


def warn_of_training(function: Any, name: str, requests: Sequence[Request]) -> bool:
    """A UserWarning, in the place of the function, if it uses modules in which something is in training mode.

    Gives whether it does.
    """
    try:
        kinds = ", ".join(sorted({type(module).__name__ for module in training_modules(function, requests)}))
        file, line, module = _place(function)
    except Exception:  # of something foreign that was looked at: no reason to fail anybody's batch
        return False
    if kinds:
        warnings.warn_explicit(
            f"{name} runs a model in training mode ({kinds}), so results may depend on chance and on who shares a "
            "batch: call .eval() on it",
            UserWarning,
            file,
            line,
            module,
        )
    return bool(kinds)


def _place(function: Any) -> tuple[str, int, str | None]:
    """Where its code begins, and the Python module of that; what has no code of its own is where its class has it."""
    while isinstance(function, functools.partial):
        function = function.func
    function = inspect.unwrap(function)
    kind = type(function)
    for each in (function, getattr(kind, "forward", None), getattr(kind, "__call__", None)):  # noqa: B004
        code = getattr(each, "__code__", None)
        if isinstance(code, types.CodeType):
            return code.co_filename, code.co_firstlineno, each.__module__
    return kind.__qualname__, 1, kind.__module__


def training_modules(function: Any, requests: Sequence[Request] = ()) -> list[torch.nn.Module]:
    """The modules it uses in which something is in training mode that evaluation mode would change.

    requests: whose `owner` it may use as well.
    """
    return [module for module in modules_of(function, requests) if training_layers([module])]


def modules_of(function: Any, requests: Sequence[Request] = ()) -> list[torch.nn.Module]:
    """The modules that it uses, those inside of others left out, in the order in which they are found."""
    owners = {id(request.owner): request.owner for request in requests if request.owner is not None}
    found: dict[int, torch.nn.Module] = {}
    seen: set[int] = set()
    level: list[Any] = [function, *owners.values()]
    for _ in range(_DEPTH):
        further: list[Any] = []
        for value in level:
            if id(value) in seen or len(seen) > _OBJECTS:
                continue
            seen.add(id(value))
            if issubclass(type(value), torch.nn.Module):
                found[id(value)] = value
            else:
                further += _used_by(value)
        level = further
    inner = {id(part) for module in found.values() for part in module.modules() if part is not module}
    return [module for key, module in found.items() if key not in inner]


def training_layers(modules: Iterable[torch.nn.Module]) -> list[Layer]:
    """The layers in training mode that evaluation mode would change; a Linear acts the same in both."""
    layers: list[Layer] = []
    asking: dict[type, bool] = {}  # a model has thousands of layers, and few classes
    for module in modules:
        for path, layer in module.named_modules():
            if getattr(layer, "training", False):  # a frozen one has no mode any more
                effect = _effect(layer, asking)
                if effect is not None:
                    layers.append(Layer(path, layer, effect))
    return layers


def norms_over_batch(modules: Iterable[torch.nn.Module]) -> list[Layer]:
    """The layers that take statistics over the batch in evaluation as in training, since they keep none."""
    return [
        Layer(path, layer, "statistics")
        for module in modules
        for path, layer in module.named_modules()
        if issubclass(_kind(layer), _BatchNorm) and _constant(layer, "running_mean") is None
    ]


def _effect(layer: torch.nn.Module, asking: dict[type, bool]) -> Effect | None:
    kind = _kind(layer)
    if issubclass(kind, _BatchNorm):
        return None if _constant(layer, "running_mean") is None else "statistics"
    if issubclass(kind, _DropoutNd):
        return "chance" if _constant(layer, "p") else None
    if issubclass(kind, torch.nn.RReLU):
        return "chance"
    if issubclass(kind, torch.nn.RNNBase | torch.nn.MultiheadAttention):
        return "chance" if _constant(layer, "dropout") else None
    if issubclass(kind, _InstanceNorm):
        return "other" if _constant(layer, "track_running_stats") else None
    if issubclass(kind, torch.jit.ScriptModule):
        return "other" if "self.training" in getattr(layer, "code", "") else None
    if kind not in asking:
        asking[kind] = _asks_for_training(kind)
    return "other" if asking[kind] else None


def _kind(layer: torch.nn.Module) -> type:
    """Its class; of a scripted layer of torch's the one that was scripted."""
    kind: Any = None
    if isinstance(layer, torch.jit.ScriptModule):
        kind = getattr(torch.nn, str(getattr(layer, "original_name", "")), None)
    return kind if isinstance(kind, type) else type(layer)


def _constant(layer: torch.nn.Module, name: str) -> Any:
    """True where a recording of the layer has not kept it: it is then taken for the usual one."""
    return getattr(layer, name, True)


def _asks_for_training(kind: type) -> bool:
    """Whether code of a class that is not torch's own names `training`, as functional dropout does.

    What torch wraps around modules, or compiles and exports them to, changes nothing; what is inside is a layer, too.
    """
    return any(
        isinstance(member, types.FunctionType) and "training" in member.__code__.co_names
        for base in kind.__mro__
        if base.__module__.partition(".")[0] != "torch"
        for member in vars(base).values()
    )


def _used_by(value: Any) -> Iterator[Any]:
    """What an object leads to. Asks no property and no `__getattr__`, which could run anything."""
    kind = type(value)
    if kind in (list, tuple, set, frozenset):
        yield from value
    elif issubclass(kind, Mapping):
        yield from value.values() if kind is dict else ()
    elif isinstance(value, functools.partial):
        yield from (value.func, *value.args, *value.keywords.values())
    elif kind is types.MethodType:
        yield from (value.__self__, value.__func__)
    elif kind is types.FunctionType:
        yield from _used_by_function(value)
    elif isinstance(value, type):  # the owner of a class method
        yield from _held_by_class(value)
    elif not isinstance(value, types.ModuleType):
        call = getattr(kind, "__call__", None)  # noqa: B004 (its code, to be looked through)
        yield from (call, *_attributes(value), *_held_by_class(kind))


def _used_by_function(function: types.FunctionType) -> Iterator[Any]:
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # not filled yet
            continue
    yield from function.__defaults__ or ()
    yield from (function.__kwdefaults__ or {}).values()
    yield from vars(function).values()  # `__wrapped__`, and what torch.compile leaves there
    names = set(_names(function.__code__))
    for name in names & function.__globals__.keys():
        value = function.__globals__[name]
        if isinstance(value, types.ModuleType | type):
            for held in [vars(base) for base in getattr(value, "__mro__", [value])]:
                yield from [held[attribute] for attribute in names & held.keys()]
        else:
            yield value


def _names(code: types.CodeType) -> Iterator[str]:
    """Globals and attributes, also of the functions inside."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)


def _held_by_class(kind: type) -> Iterator[Any]:
    """Values, and none of its functions, properties and the like."""
    for base in kind.__mro__:
        yield from [member for member in vars(base).values() if not hasattr(type(member), "__get__")]


def _attributes(value: Any) -> Iterator[Any]:
    try:
        yield from object.__getattribute__(value, "__dict__").values()
    except AttributeError:
        pass
    for base in type(value).__mro__:
        for member in base.__dict__.values() if "__slots__" in base.__dict__ else ():
            if type(member) is types.MemberDescriptorType:
                try:
                    yield member.__get__(value)
                except AttributeError:  # nothing there yet
                    continue
