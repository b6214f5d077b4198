"""From the options of the decorator to policies and settings, checked one by one.

Every error here names the parameter, the value and what is legal. The defaults are not here but in the signature of
`batched`.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, cast

from ._context import duration, hashable, number
from ._core._policies import Policies
from ._core._protocols import DispatchPolicy, Executor, Limit, OrderingPolicy
from ._intake import IntakeOptions
from .policies import (
    CostLimit,
    DeadlineAware,
    EarliestDeadline,
    FairShare,
    Fifo,
    Greedy,
    MaxWaiting,
    PaddedCost,
    Priority,
    SizeOrWait,
)
from .runtimes._driver import DriverOptions

LIMITS = (
    "max_batch_size",
    "max_wait",
    "max_batch_cost",
    "max_waiting",
    "timeout",
    "target_latency",
    "max_concurrent_batches",
    "max_execution_time",
)
"""What `configure` can change."""


@dataclass(frozen=True, slots=True)
class Resolved:
    """The options of one decorator, checked and sorted by who needs them."""

    policies: Policies
    intake: IntakeOptions
    driver: DriverOptions
    executor: Executor | None
    collate: Callable[[list[Any]], Any] | None
    join: Callable[[list[Any]], Any] | None
    bisect_errors: bool


@dataclass(frozen=True, slots=True)
class Given:
    """Options as the user gave them: `values` are those that differ from `defaults`."""

    values: Mapping[str, Any]
    defaults: Mapping[str, Any]

    @classmethod
    def of(cls, options: Mapping[str, Any], defaults: Mapping[str, Any]) -> Given:
        return cls({name: value for name, value in options.items() if not _same(value, defaults[name])}, defaults)

    def with_limits(self, limits: Mapping[str, Any]) -> Given:
        """With other limits. TypeError for what is not a limit."""
        unknown = sorted(set(limits) - set(LIMITS))
        if unknown:
            raise TypeError(f"configure changes limits only ({', '.join(LIMITS)}), not {', '.join(unknown)}")
        new = Given.of({**self.defaults, **self.values, **limits}, self.defaults)
        if ("target_latency" in new.values) != ("target_latency" in self.values):
            raise TypeError(
                "configure can change target_latency and not switch it on or off, since it chooses the policies: "
                "decorate the function anew"
            )
        return new

    def resolve(self, name: str) -> Resolved:
        """Checks all options; `name` is the function's own."""
        options = {**self.defaults, **self.values}
        target = _target(options["target_latency"], self.values)
        if options["executor"] is not None:
            for option in ("collate", "on_error"):
                if option in self.values:
                    raise TypeError(
                        f"{option} is for running the function, which executor= replaces: give one of the two"
                    )
        for option in ("cost", "group_by", "collate", "join"):
            _callable_or_none(option, options[option])
        for option, choices in _CHOICES.items():
            if options[option] not in choices:
                raise ValueError(f"{option} must be one of {', '.join(map(repr, choices))}, not {options[option]!r}")
        return Resolved(
            policies=_policies(options, set(self.values)),
            intake=IntakeOptions(
                cost=options["cost"],
                group_by=options["group_by"],
                timeout=duration("timeout", options["timeout"]) if target is None else target,
                tenant=hashable("tenant", options["tenant"]),
                priority=_priority(options["priority"]),
            ),
            driver=DriverOptions(
                name=_text("name", options["name"]) or name,
                version=_text("version", options["version"]),
                clock=_with_methods("clock", options["clock"], "now", "call_at"),
                hooks=_hooks(options["hooks"]),
                max_execution_time=duration("max_execution_time", options["max_execution_time"]),
            ),
            executor=_executor(options["executor"]),
            collate=options["collate"],
            join=options["join"],
            bisect_errors=options["on_error"] == "bisect",
        )


_CHOICES: dict[str, tuple[str, ...]] = {
    "oversize": ("reject", "alone", "split"),
    "on_error": ("fail", "bisect"),
    "overflow": ("wait", "reject"),
}


def _same(value: object, default: object) -> bool:
    return value is default or (type(value) is type(default) and value == default)


def _policies(options: Mapping[str, Any], given: set[str]) -> Policies:
    dispatch, limits = _dispatch(options, given)
    ordering, carried_ordering = _ordering(options, dispatch)
    return Policies(
        admission=_admission(options, given),
        ordering=ordering,
        dispatch=dispatch,
        limits=limits,
        max_batch_size=_limit("max_batch_size", options["max_batch_size"]),
        max_concurrent_batches=_limit("max_concurrent_batches", options["max_concurrent_batches"]),
        oversize_alone=options["oversize"] == "alone",
        oversize_split=options["oversize"] == "split",
        carried_ordering=carried_ordering,
    )


def _ordering(options: Mapping[str, Any], dispatch: DispatchPolicy) -> tuple[OrderingPolicy, OrderingPolicy | None]:
    """The ordering, and what takes over from the usual one once a request carries a priority or a tenant."""
    if options["ordering"] is not None:
        ordering: OrderingPolicy = _with_start("ordering", options["ordering"], "queue")
        if getattr(ordering, "needs_runs", False) and options["cost"] is None:
            raise TypeError(f"{ordering!r} goes by the cost of an item as its length: give cost=, such as cost=len")
        return ordering, None
    usual = EarliestDeadline() if isinstance(dispatch, DeadlineAware) else Fifo()
    return usual, Priority(within=FairShare(within=usual))


def _dispatch(options: Mapping[str, Any], given: set[str]) -> tuple[DispatchPolicy, tuple[Limit, ...]]:
    max_wait = _max_wait(options["max_wait"])
    parts: Any = options["dispatch"]
    parts = () if parts is None else tuple(parts) if isinstance(parts, Sequence) else (parts,)
    policies: list[DispatchPolicy] = []
    limits: list[Limit] = []
    for part in parts:
        state = _with_start("dispatch", part).start()
        if hasattr(state, "decide"):
            policies.append(part)
        elif hasattr(state, "open"):
            limits.append(part)
        else:
            raise TypeError(
                f"dispatch takes dispatch policies and limits; {part!r} starts neither a Dispatcher nor a Limiter"
            )
    if len(policies) > 1:
        raise TypeError(
            f"dispatch takes one dispatch policy and any number of limits, not {len(policies)}: {policies!r}"
        )
    for option, instead in (("max_wait", "SizeOrWait(max_wait)"), ("target_latency", "DeadlineAware() with a timeout")):
        if policies and option in given:
            raise TypeError(f"{option} is what {policies[0]!r} replaces: give one of the two, or dispatch={instead}")
    if options["max_batch_cost"] is not None:
        if any(isinstance(limit, CostLimit) for limit in limits):
            raise TypeError("max_batch_cost is what CostLimit in dispatch replaces: give one of the two")
        limits.append(CostLimit(_positive("max_batch_cost", options["max_batch_cost"])))
    costly = [type(limit).__name__ for limit in limits if isinstance(limit, CostLimit | PaddedCost)]
    if options["cost"] is None and costly:
        limit = costly[0] if options["max_batch_cost"] is None else "max_batch_cost"
        raise TypeError(f"{limit} needs cost=, a function that gives an item's cost, such as cost=len")
    if options["oversize"] == "split" and not costly:
        raise TypeError('oversize="split" needs max_batch_cost= (or CostLimit or PaddedCost in dispatch) and cost=')
    if options["oversize"] != "split" and options["join"] is not None:
        raise TypeError('join is for the parts of an item, which only oversize="split" makes: give both or none')
    usual: DispatchPolicy = SizeOrWait(max_wait) if max_wait else Greedy()
    if "target_latency" in given:
        usual = DeadlineAware()
    return (policies[0] if policies else usual), tuple(limits)


def _target(value: Any, given: Mapping[str, Any]) -> float | None:
    target = duration("target_latency", value)
    if target is None:
        return None
    if not 0 < target < math.inf:
        raise ValueError(f"target_latency must be a finite number of seconds > 0, or None, not {value!r}")
    for option, hint in (("timeout", "it is a timeout itself"), ("max_wait", "it never holds back for company")):
        if option in given:
            raise TypeError(f"target_latency replaces {option} ({hint}): give one of the two")
    return target


def _max_wait(value: object) -> float:
    legal = "a finite number of seconds >= 0"
    if value is None:
        raise ValueError(f"max_wait must be {legal}, not None: without a limit a lone item could wait for ever")
    seconds = value.total_seconds() if isinstance(value, timedelta) else number("max_wait", value, legal)
    if not 0 <= seconds < math.inf:
        raise ValueError(f"max_wait must be {legal}, not {value!r}")
    return seconds


def _admission(options: Mapping[str, Any], given: set[str]) -> tuple[Any, ...]:
    admission: Any = options["admission"]
    if admission is not None:
        for option in ("max_waiting", "overflow"):
            if option in given:
                raise TypeError(f"{option} is what admission={admission!r} replaces: give one of the two")
        parts = tuple(admission) if isinstance(admission, Sequence) else (admission,)
        return tuple(_with_start("admission", part, "admit") for part in parts)
    if options["max_waiting"] is None:
        return ()
    return (MaxWaiting(whole("max_waiting", options["max_waiting"]), options["overflow"]),)


def _with_start(option: str, policy: Any, method: str | None = None) -> Any:
    if isinstance(policy, type) or not callable(getattr(policy, "start", None)):
        hint = f"; did you mean {policy.__name__}(...)?" if isinstance(policy, type) else ""
        raise TypeError(f"{option} takes policy objects, which have a start() method, not {policy!r}{hint}")
    if method is not None and not callable(getattr(policy.start(), method, None)):
        raise TypeError(f"{option} takes policies whose start() gives an object with {method}(), unlike {policy!r}")
    return policy


def _with_methods(option: str, value: Any, *names: str) -> Any:
    missing = [name for name in names if not hasattr(value, name)]
    if value is not None and (missing or isinstance(value, type)):
        raise TypeError(f"{option} must be None or an object with {', '.join(names)}, not {value!r}")
    return value


def _executor(value: Any) -> Any:
    checked = _with_methods("executor", value, "is_async")
    return checked and _with_methods("executor", value, "run_async" if value.is_async else "run")


def whole(option: str, value: Any) -> int:
    """A whole number of at least 1."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{option} must be a whole number >= 1, not {value!r}")
    count = value.__index__()
    if count < 1:
        raise ValueError(f"{option} must be a whole number >= 1, not {value!r}")
    return int(count)


def _limit(option: str, value: object) -> int:
    return sys.maxsize if value is None else whole(option, value)


def _positive(option: str, value: object) -> float:
    legal = "a finite number > 0, or None for no limit"
    cost = number(option, value, legal)
    if not 0 < cost < math.inf:
        raise ValueError(f"{option} must be {legal}, not {value!r}")
    return cost


def _priority(value: Any) -> float | Callable[..., float]:
    if callable(value):
        return cast("Callable[..., float]", value)
    return number("priority", value)


def _callable_or_none(option: str, value: object) -> None:
    if value is not None and not callable(value):
        raise TypeError(f"{option} must be callable or None, not {value!r}")


def _text(option: str, value: object) -> str | None:
    if value is not None and not isinstance(value, str):
        raise TypeError(f"{option} must be a str or None, not {value!r}")
    return value


def _hooks(value: Any) -> tuple[Any, ...]:
    hooks = tuple(value) if isinstance(value, Sequence) and not isinstance(value, str) else (value,)
    for hook in hooks:
        if not callable(hook):
            raise TypeError(f"hooks must be callables that take an event, not {hook!r}")
    return hooks
