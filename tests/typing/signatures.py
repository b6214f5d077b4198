"""Takes a callable apart, because pyright holds no two spellings of one parameter list for the same type."""

from collections.abc import Awaitable, Callable
from typing import TypeVar, overload

A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
D = TypeVar("D")
E = TypeVar("E")
R = TypeVar("R")


@overload
def types_of(function: Callable[[A], Awaitable[R]]) -> tuple[A, R]: ...
@overload
def types_of(function: Callable[[A, B], Awaitable[R]]) -> tuple[A, B, R]: ...
@overload
def types_of(function: Callable[[A, B, C], Awaitable[R]]) -> tuple[A, B, C, R]: ...
@overload
def types_of(function: Callable[[A, B, C, D], Awaitable[R]]) -> tuple[A, B, C, D, R]: ...
@overload
def types_of(function: Callable[[A, B, C, D, E], Awaitable[R]]) -> tuple[A, B, C, D, E, R]: ...
def types_of(function: Callable[..., object]) -> object:
    """The types of the items that `function` is called with, and of the result: for the checkers only."""
    raise NotImplementedError
