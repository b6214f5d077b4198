"""Which modules a function uses, and which of their layers act otherwise in training mode than in evaluation.

A model left in training mode gives results that depend on who shares the batch, or on chance. The function is looked
through without calling anything of it: closure, globals that its code names, bound instance, partials, attributes.
"""

from __future__ import annotations

import functools
import types
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
            if layer.training:
                effect = _effect(layer, asking)
                if effect is not None:
                    layers.append(Layer(path, layer, effect))
    return layers


def _effect(layer: torch.nn.Module, asking: dict[type, bool]) -> Effect | None:
    if isinstance(layer, _BatchNorm):
        return "statistics"
    if isinstance(layer, _DropoutNd):
        return "chance" if layer.p else None
    if isinstance(layer, torch.nn.RReLU):
        return "chance"
    if isinstance(layer, torch.nn.RNNBase | torch.nn.MultiheadAttention):
        return "chance" if layer.dropout else None
    if isinstance(layer, _InstanceNorm):
        return "other" if layer.track_running_stats else None
    kind = type(layer)
    if kind not in asking:
        asking[kind] = _asks_for_training(kind)
    return "other" if asking[kind] else None


def _asks_for_training(kind: type) -> bool:
    """Whether code of a class that is not torch's own names `training`, as functional dropout does."""
    return any(
        isinstance(member, types.FunctionType) and "training" in member.__code__.co_names
        for base in kind.__mro__
        if not base.__module__.startswith("torch.nn.modules")
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
        yield from [member for member in vars(value).values() if not isinstance(member, types.FunctionType)]
    elif not isinstance(value, types.ModuleType):
        call = getattr(kind, "__call__", None)  # noqa: B004 (its code, to be looked through)
        yield from (call, *_attributes(value))


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
        if isinstance(value, types.ModuleType):
            yield from [vars(value)[attribute] for attribute in names & vars(value).keys()]
        elif not isinstance(value, type):
            yield value


def _names(code: types.CodeType) -> Iterator[str]:
    """Globals and attributes, also of the functions inside."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)


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
