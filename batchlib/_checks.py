"""Checks of single option values. Every error names the option, the value and what is legal."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from typing import Any, cast

from ._context import number
from ._core._execution import Collation


def with_start(option: str, policy: Any, method: str | None = None) -> Any:
    if isinstance(policy, type) or not callable(getattr(policy, "start", None)):
        hint = f"; did you mean {policy.__name__}(...)?" if isinstance(policy, type) else ""
        raise TypeError(f"{option} takes policy objects, which have a start() method, not {policy!r}{hint}")
    if method is not None and not callable(getattr(policy.start(), method, None)):
        raise TypeError(f"{option} takes policies whose start() gives an object with {method}(), unlike {policy!r}")
    return policy


def with_methods(option: str, value: Any, *names: str) -> Any:
    missing = [name for name in names if not hasattr(value, name)]
    if value is not None and (missing or isinstance(value, type)):
        raise TypeError(f"{option} must be None or an object with {', '.join(names)}, not {value!r}")
    return value


def executor_or_factory(value: Any) -> Any:
    """An executor, or the description of one; None for the usual one."""
    if value is None or is_factory(value):
        return value
    if isinstance(value, type) or not hasattr(value, "is_async"):
        hint = f"; did you mean {value.__name__}(...)?" if isinstance(value, type) else ""
        hint = f"; did you mean TorchExecutor({value!r})?" if isinstance(value, str) else hint
        raise TypeError(
            "executor must be None, an executor (is_async, run or run_async), or a description that starts one "
            f"(start), not {value!r}{hint}"
        )
    return with_methods("executor", value, "run_async" if value.is_async else "run")


def is_factory(value: Any) -> bool:
    """Whether it starts executors rather than being one."""
    return not isinstance(value, type | None) and not hasattr(value, "is_async") and hasattr(value, "start")


def collation_of(value: Any) -> Collation | None:
    """The collation, if `collate` is one rather than a function of a list."""
    if hasattr(value, "start") and hasattr(value, "usual_batch_cost") and not isinstance(value, type):
        return cast("Collation", value)
    if value is not None and (not callable(value) or hasattr(value, "usual_batch_cost")):
        hint = f"; did you mean {value.__name__}(...)?" if isinstance(value, type) else ""
        raise TypeError(
            f"collate must be callable with a list, a collation such as pad(), or None, not {value!r}{hint}"
        )
    return None


def whole(option: str, value: Any) -> int:
    """A whole number of at least 1."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{option} must be a whole number >= 1, not {value!r}")
    count = value.__index__()
    if count < 1:
        raise ValueError(f"{option} must be a whole number >= 1, not {value!r}")
    return int(count)


def limit(option: str, value: object) -> int:
    return sys.maxsize if value is None else whole(option, value)


def positive(option: str, value: object) -> float:
    legal = "a finite number > 0, or None for no limit"
    cost = number(option, value, legal)
    if not 0 < cost < math.inf:
        raise ValueError(f"{option} must be {legal}, not {value!r}")
    return cost


def priority_of(value: Any) -> float | Callable[..., float]:
    if callable(value):
        return cast("Callable[..., float]", value)
    return number("priority", value)


def callable_or_none(option: str, value: object) -> None:
    if value is not None and not callable(value):
        raise TypeError(f"{option} must be callable or None, not {value!r}")


def text(option: str, value: object) -> str | None:
    if value is not None and not isinstance(value, str):
        raise TypeError(f"{option} must be a str or None, not {value!r}")
    return value


def hooks_of(value: Any) -> tuple[Any, ...]:
    hooks = tuple(value) if isinstance(value, Sequence) and not isinstance(value, str) else (value,)
    for hook in hooks:
        if not callable(hook):
            raise TypeError(f"hooks must be callables that take an event, not {hook!r}")
    return hooks
