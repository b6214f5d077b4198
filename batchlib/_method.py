"""What a decorated method becomes: a descriptor with a batcher for every instance."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, overload

from ._batched import Batched, by_name, reduce, worn
from ._live import Live, batch_signature, start
from ._options import Given
from ._signature import BatchSignature
from .executors._apart import Apart

if TYPE_CHECKING:
    from typing import Self

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S")
T = TypeVar("T")


class BatchedMethod(Generic[S, P, R]):
    """A batched method: gives every instance a batcher of its own, made on first use and gone with the instance.

    The table knows instances by identity and weakly, so that they need neither hash nor equality, and nothing of it
    gets into their pickles and copies.
    """

    def __init__(self, function: Any, given: Given) -> None:
        self._kind: type | None = type(function) if isinstance(function, classmethod | staticmethod) else None
        self._function: Any = function.__func__ if self._kind is not None else function
        self._given = given
        self._home: type | None = None
        self._table: dict[int, tuple[weakref.ref[Any], Live]] = {}
        self._signature: BatchSignature | None = None
        self._looks: dict[str, Any] = {}
        self.__dict__.update(worn(self._function, None))

    def __set_name__(self, owner: type, name: str) -> None:
        self._home = owner
        if self._kind is staticmethod:
            self._as_function()
        else:
            self._bound_signature()

    def _bound_signature(self) -> BatchSignature:
        if self._signature is None:
            self._signature = batch_signature(self._function, self._given, bound=True)
            self._looks = worn(self._function, self._signature.signature)
        return self._signature

    def _as_function(self) -> Batched[Any, Any]:
        """For a static method, which has no instance."""
        known = self.__dict__
        plain: Batched[Any, Any] | None = known.get("_plain")
        return known.setdefault("_plain", Batched(self._function, self._given)) if plain is None else plain

    @overload
    def __get__(self: BatchedMethod[type[T], P, R], instance: object, owner: type[T], /) -> Batched[P, R]: ...
    @overload
    def __get__(self, instance: None, owner: type, /) -> Self: ...
    @overload
    def __get__(self, instance: S, owner: type | None = None, /) -> Batched[P, R]: ...
    def __get__(self, instance: Any, owner: Any = None, /) -> Any:
        if self._kind is staticmethod:
            return self._as_function()
        if self._kind is classmethod:
            instance = type(instance) if owner is None else owner
        if instance is None:
            return self
        entry = self._table.get(id(instance))
        if entry is None or entry[0]() is not instance:
            entry = self._open(instance)
        return Batched(self._function, self._given, live=entry[1], owner=instance, looks=self._looks)

    def _open(self, instance: Any) -> tuple[weakref.ref[Any], Live]:
        key, table = id(instance), self._table
        try:
            reference = weakref.ref(instance, functools.partial(_forget, table, key))
        except TypeError as error:
            raise TypeError(
                f"{type(instance).__name__} has batched methods, whose batchers live as long as the instance, but "
                'it cannot be weakly referenced: add "__weakref__" to its __slots__'
            ) from error
        # No lock, since a fork would leave it held for ever: of two threads that come here at once the second takes
        # what the first has made. An id comes back only after `_forget` has run for the instance that had it.
        return table.setdefault(
            key, (reference, start(self._function, self._given, self._bound_signature(), owned=True))
        )

    # For the checkers a method on its class; below a staticmethod it is called with whatever the function takes.
    if TYPE_CHECKING:

        def __call__(self, instance: S, /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]: ...

    else:

        def __call__(self, *args, **kwargs):
            """Called on the class: with the instance first, as any function of a class; or by a classmethod above."""
            if self._home is not None or (args and _is_classmethod_of(args[0], self)):
                if not args:
                    raise TypeError(f"{self.__qualname__}() needs an instance first")
                return self.__get__(args[0], None)(*args[1:], **kwargs)
            return self._as_function()(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        # Reached for what a Batched has and a method on its class has not.
        if name.startswith("_") or not hasattr(Batched, name):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        if self._home is None:
            if _is_classmethod_of(by_name(self.__module__, self.__qualname__.rpartition(".")[0]), self):
                raise AttributeError(
                    f"{self.__qualname__}.{name}: from Python 3.13 on a classmethod does not say on which class it is "
                    "used: put @batched above @classmethod"
                )
            return getattr(self._as_function(), name)  # below a staticmethod
        raise AttributeError(
            f"{self.__qualname__}.{name}: every instance has a batcher of its own, use it on an instance"
        )

    def _apart(self) -> Apart:
        """As a Batched has it, for one below a staticmethod."""
        if self._home is None:
            return self._as_function()._apart()  # pyright: ignore[reportPrivateUsage] (of its own face)
        raise TypeError(
            f"{self.__qualname__} has a batcher for every instance: give it bound to one, as in "
            f"instance.{self.__name__}, not on the class"
        )

    def __reduce__(self) -> str | tuple[Any, ...]:
        return reduce(self, self._function, self._given)

    def __repr__(self) -> str:
        return f"<batched method {self.__qualname__}>"

    if TYPE_CHECKING:
        __name__: str
        __qualname__: str


def _forget(table: dict[int, tuple[weakref.ref[Any], Live]], key: int, gone: weakref.ref[Any]) -> None:
    """Takes no lock: a collection can run this anywhere. The driver's threads end when the driver is collected."""
    entry = table.get(key)
    if entry is not None and entry[0] is gone:
        del table[key]


def _is_classmethod_of(owner: object, method: BatchedMethod[Any, Any, Any]) -> bool:
    """Whether `owner` is a class with `method` below a classmethod, which since Python 3.13 passes the class itself."""
    if not isinstance(owner, type):
        return False
    members = [member for base in owner.__mro__ for member in vars(base).values()]
    return any(isinstance(member, classmethod) and member.__func__ is method for member in members)
