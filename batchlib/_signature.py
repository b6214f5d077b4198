"""What a batched function takes: which parameters are batched, which are settings, and how one call fits them.

Positional parameters are batched, keyword-only parameters are settings; `*args` are batched, `**kwargs` settings. All
of it is decided once, at decoration, so that a plain call costs a comparison of lengths.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from inspect import Parameter
from typing import Any

_POSITIONAL = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
_SEQUENCES = (list, tuple, Sequence, Iterable, typing.Iterable, typing.Sequence)


class BatchSignature:
    """The parameters of a function that works on lists, as its callers see them: one item where it has a list.

    function: any callable with a signature.
    bound: leave out the first parameter, which is `self` or `cls`.
    filled: names of parameters that a collation fills where the function has them; callers do not see those.

    Raises TypeError, naming the function, if nothing is batched, if it is a generator, or if a default is not a
    one-element list.
    """

    def __init__(self, function: Callable[..., Any], *, bound: bool = False, filled: Collection[str] = ()) -> None:
        self.name = getattr(function, "__qualname__", type(function).__qualname__)
        if _is_generator(function):
            raise TypeError(
                f"{self.name} is a generator: a batched function returns all its outcomes at once, as a list"
            )
        parameters, returned = _parameters(function)
        if bound:
            if not parameters or parameters[0].kind not in _POSITIONAL:
                raise TypeError(f"{self.name} takes no self: a batched method needs `self` and a batched parameter")
            parameters = parameters[1:]
        self.filled, self.by_name = self._filled(parameters, filled)
        parameters = [parameter for parameter in parameters if parameter.name not in self.filled]
        self._batched = [parameter for parameter in parameters if parameter.kind in _POSITIONAL]
        self._open = any(parameter.kind is Parameter.VAR_POSITIONAL for parameter in parameters)
        if not self._batched and not self._open:
            besides = " besides self" if bound else ""
            raise TypeError(
                f"{self.name} has no positional parameter{besides}: those are the batched ones, and a batched function "
                "needs at least one"
            )
        self._item_defaults = {p.name: self._item_default(p) for p in self._batched if p.default is not Parameter.empty}
        self._keywords = any(parameter.kind is Parameter.VAR_KEYWORD for parameter in parameters)
        settings = [parameter for parameter in parameters if parameter.kind is Parameter.KEYWORD_ONLY]
        self._settings = {parameter.name: parameter.default for parameter in settings}
        self.signature = inspect.Signature(
            [self._for_callers(parameter) for parameter in parameters], return_annotation=_element(returned)
        )
        self.batched = None if self._open else len(self._batched)
        """How many items a call has; None for any number."""
        needs_settings = Parameter.empty in self._settings.values()
        # A call of exactly so many positional arguments needs no binding; -1: every call does.
        self.arity = -1 if self._open or needs_settings else len(self._batched)
        self.default_settings: dict[str, Any] | None = None
        self.default_key: Hashable = None
        if self._settings and not needs_settings:
            self.default_settings = dict(self._settings)
            self.default_key = self._key(self.default_settings)

    def _filled(self, parameters: list[Parameter], names: Collection[str]) -> tuple[frozenset[str], tuple[str, ...]]:
        """Those of the names that it has, and the batched parameters behind the first of them: given by name."""
        found = [parameter for parameter in parameters if parameter.name in names]
        behind = parameters[parameters.index(found[0]) :] if found else []
        for parameter in behind:
            by_position = parameter.kind is Parameter.POSITIONAL_ONLY
            if (by_position and parameter in found) or parameter.kind is Parameter.VAR_POSITIONAL:
                raise TypeError(
                    f"{self.name}: {found[0].name!r} is filled by the collation, by name, so it can be neither "
                    "positional-only nor before *args: put it after a `*`"
                )
        return (
            frozenset([parameter.name for parameter in found]),
            tuple([p.name for p in behind if p.kind is Parameter.POSITIONAL_OR_KEYWORD and p not in found]),
        )

    def _item_default(self, parameter: Parameter) -> Any:
        default = parameter.default
        if not isinstance(default, list) or len(default) != 1:
            raise TypeError(
                f"{self.name}: the default of the batched parameter {parameter.name!r} must be a one-element list that "
                f"holds each item's default, such as [0], not {default!r}; a setting goes after a `*`"
            )
        return default[0]

    def _for_callers(self, parameter: Parameter) -> Parameter:
        if parameter.kind is Parameter.KEYWORD_ONLY or parameter.kind is Parameter.VAR_KEYWORD:
            return parameter
        default = self._item_defaults.get(parameter.name, parameter.default)
        return parameter.replace(annotation=_element(parameter.annotation), default=default)

    def bind(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any] | None, Hashable]:
        """(items, settings, group key) of one call. TypeError for one that does not fit, as from a plain function."""
        try:
            bound = self.signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{self.name}{self.signature}: {error}") from None
        arguments = bound.arguments
        items = [
            arguments[parameter.name] if parameter.name in arguments else self._item_defaults[parameter.name]
            for parameter in self._batched
        ]
        items += bound.args[len(self._batched) :] if self._open else ()
        settings = {name: bound.kwargs.get(name, default) for name, default in self._settings.items()}
        if self._keywords:
            settings.update(sorted((name, value) for name, value in bound.kwargs.items() if name not in settings))
        key = self._key(settings) if settings else None
        if self._open:
            key = (len(items), key)
        return tuple(items), settings or None, key

    def _key(self, settings: dict[str, Any]) -> Hashable:
        for name, value in settings.items():
            try:
                hash(value)
            except TypeError:
                raise TypeError(
                    f"{self.name}: the setting {name!r} must be hashable, since only calls with equal settings share a "
                    f"batch; got a {type(value).__name__}. Pass a tuple or a frozen object, or make it a batched "
                    "parameter"
                ) from None
        return tuple([(name, by_type_and_value(value)) for name, value in settings.items()])


def by_type_and_value(value: Hashable) -> Hashable:
    """A key under which 1, 1.0 and True differ, inside tuples and frozen sets too."""
    if isinstance(value, tuple):  # named ones too
        return (type(value), tuple([by_type_and_value(element) for element in value]))
    if type(value) is frozenset:
        return (frozenset, frozenset([by_type_and_value(element) for element in value]))
    return (type(value), value)


def _is_generator(function: Callable[..., Any]) -> bool:
    call = getattr(function, "__call__", None)  # noqa: B004 (an object's own `__call__`, to look into)
    return any(inspect.isgeneratorfunction(f) or inspect.isasyncgenfunction(f) for f in (function, call))


def is_async(function: Callable[..., Any]) -> bool:
    """Whether calling it gives an awaitable: an `async def`, or an object whose `__call__` is one."""
    call = getattr(function, "__call__", None)  # noqa: B004
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)


def _parameters(function: Callable[..., Any]) -> tuple[list[Parameter], Any]:
    try:
        try:
            signature = inspect.signature(function, eval_str=True)
        except (NameError, AttributeError, SyntaxError, TypeError):  # annotations that only a checker can evaluate
            signature = inspect.signature(function)
    except ValueError as error:
        raise TypeError(f"{function!r} has no signature: wrap it in a function that says what it takes") from error
    return list(signature.parameters.values()), signature.return_annotation


def _element(annotation: Any) -> Any:
    """The type of one item, given that of the list: `str` of `list[str]`; unknown stays unknown."""
    if annotation is Parameter.empty or annotation is None:
        return Parameter.empty
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in _SEQUENCES and arguments and (origin is not tuple or arguments[1:] == (...,)):
        return _result(arguments[0])
    return Any


def _result(annotation: Any) -> Any:
    """Without the exceptions that a function may put into a slot: callers see them raised."""
    arguments = typing.get_args(annotation)
    if not arguments or typing.get_origin(annotation) is None or not any(_is_error(a) for a in arguments):
        return annotation
    kept = [argument for argument in arguments if not _is_error(argument)]
    return typing.Union[tuple(kept)] if kept else Any  # noqa: UP007 (made at run time)


def _is_error(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseException)
