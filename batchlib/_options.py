"""From the options of the decorator to policies and settings, checked one by one.

Every error here names the parameter, the value and what is legal. The defaults are not here but in the signature of
`batched`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from ._checks import (
    callable_or_none,
    collation_of,
    executor_or_factory,
    hooks_of,
    is_factory,
    limit,
    positive,
    priority_of,
    text,
    whole,
    with_methods,
    with_start,
)
from ._context import duration, hashable, number
from ._core._execution import Collation, Executor, ExecutorFactory
from ._core._policies import Policies
from ._core._protocols import DispatchPolicy, Limit, OrderingPolicy
from ._intake import IntakeOptions, OfCollation
from .policies import (
    CostLimit,
    DeadlineAware,
    EarliestDeadline,
    FairShare,
    Fifo,
    Greedy,
    LengthAware,
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


class Usual(int):
    """A default that an executor's description may replace, unlike the same number when it is given."""


@dataclass(frozen=True, slots=True)
class Resolved:
    """The options of one decorator, checked and sorted by who needs them."""

    policies: Policies
    intake: IntakeOptions
    driver: DriverOptions
    executor: Executor | None
    factory: ExecutorFactory | None
    collate: Callable[[list[Any]], Any] | None
    collation: Collation | None
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
        if new._orderings() != self._orderings():
            raise TypeError(
                "configure can change max_batch_cost and not switch it on or off with a collation that pads, since it "
                "chooses the ordering: decorate the function with max_batch_cost=, or with an ordering="
            )
        return new

    def _orderings(self) -> tuple[OrderingPolicy, OrderingPolicy | None]:
        policies = self.resolve("").policies
        return policies.ordering, policies.carried_ordering

    def resolve(self, name: str) -> Resolved:
        """Checks all options; `name` is the function's own."""
        options = {**self.defaults, **self.values}
        target = _target(options["target_latency"], self.values)
        executor, collation = executor_or_factory(options["executor"]), collation_of(options["collate"])
        if executor is not None and not is_factory(executor):
            for option in ("collate", "on_error"):
                if option in self.values:
                    raise TypeError(
                        f"{option} is for running the function, which executor= replaces: give one of the two"
                    )
        if options["on_error"] == "bisect" and not getattr(executor, "idempotent", True):
            raise TypeError(
                'on_error="bisect" runs items of a failed batch again, and executor= forbids that by idempotent=False: '
                "give one of the two"
            )
        for option in ("cost", "group_by", "join"):
            callable_or_none(option, options[option])
        for option, choices in _CHOICES.items():
            if options[option] not in choices:
                raise ValueError(f"{option} must be one of {', '.join(map(repr, choices))}, not {options[option]!r}")
        return Resolved(
            policies=_policies(options, set(self.values), collation, executor),
            intake=IntakeOptions(
                cost=options["cost"],
                group_by=options["group_by"],
                timeout=duration("timeout", options["timeout"]) if target is None else target,
                tenant=hashable("tenant", options["tenant"]),
                priority=priority_of(options["priority"]),
            ),
            driver=DriverOptions(
                name=text("name", options["name"]) or name,
                version=text("version", options["version"]),
                clock=with_methods("clock", options["clock"], "now", "call_at"),
                hooks=hooks_of(options["hooks"]),
                max_execution_time=duration("max_execution_time", options["max_execution_time"]),
            ),
            executor=None if is_factory(executor) else executor,
            factory=executor if is_factory(executor) else None,
            collate=options["collate"] if collation is None else None,
            collation=collation,
            join=options["join"],
            bisect_errors=options["on_error"] == "bisect",
        )

    @property
    def collation(self) -> Collation | None:
        """What `collate` is, unless it is a function of a list."""
        return collation_of({**self.defaults, **self.values}["collate"])


_CHOICES: dict[str, tuple[str, ...]] = {
    "oversize": ("reject", "alone", "split"),
    "on_error": ("fail", "bisect"),
    "overflow": ("wait", "reject"),
}


def _same(value: object, default: object) -> bool:
    return value is default or (type(value) is type(default) and value == default)


def _policies(
    options: Mapping[str, Any],
    given: set[str],
    collation: Collation | None,
    executor: Executor | ExecutorFactory | None,
) -> Policies:
    dispatch, limits = _dispatch(options, given, collation)
    ordering, carried_ordering = _ordering(options, dispatch, collation)
    concurrent = options["max_concurrent_batches"]
    if "max_concurrent_batches" not in given:
        concurrent = getattr(executor, "usual_concurrent_batches", concurrent)
    return Policies(
        admission=_admission(options, given) if collation is None else (OfCollation(), *_admission(options, given)),
        ordering=ordering,
        dispatch=dispatch,
        limits=limits,
        max_batch_size=limit("max_batch_size", options["max_batch_size"]),
        max_concurrent_batches=limit("max_concurrent_batches", concurrent),
        oversize_alone=options["oversize"] == "alone",
        oversize_split=options["oversize"] == "split",
        carried_ordering=carried_ordering,
    )


def _ordering(
    options: Mapping[str, Any], dispatch: DispatchPolicy, collation: Collation | None
) -> tuple[OrderingPolicy, OrderingPolicy | None]:
    """The ordering, and what takes over from the usual one once a request carries a priority or a tenant."""
    if options["ordering"] is not None:
        ordering: OrderingPolicy = with_start("ordering", options["ordering"], "queue")
        if getattr(ordering, "needs_runs", False) and not _measured(options, collation):
            raise TypeError(f"{ordering!r} goes by the cost of an item as its length: give cost=, such as cost=len")
        return ordering, None
    if isinstance(dispatch, DeadlineAware):
        return EarliestDeadline(), Priority(within=FairShare(within=EarliestDeadline()))
    if options["max_batch_cost"] is not None and collation is not None and collation.pads:
        return LengthAware(), LengthAware(within=Priority(within=FairShare()))
    return Fifo(), Priority(within=FairShare())


def _dispatch(
    options: Mapping[str, Any], given: set[str], collation: Collation | None
) -> tuple[DispatchPolicy, tuple[Limit, ...]]:
    max_wait = _max_wait(options["max_wait"])
    parts: Any = options["dispatch"]
    parts = () if parts is None else tuple(parts) if isinstance(parts, Sequence) else (parts,)
    policies: list[DispatchPolicy] = []
    limits: list[Limit] = []
    for part in parts:
        state = with_start("dispatch", part).start()
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
    limits += _cost_limit(options["max_batch_cost"], limits, collation)
    costly = [type(limit).__name__ for limit in limits if isinstance(limit, CostLimit | PaddedCost)]
    if costly and not _measured(options, collation):
        limit = costly[0] if options["max_batch_cost"] is None else "max_batch_cost"
        raise TypeError(f"{limit} needs cost=, a function that gives an item's cost, such as cost=len")
    if options["oversize"] == "split" and not costly:
        raise TypeError('oversize="split" needs max_batch_cost= (or CostLimit or PaddedCost in dispatch) and cost=')
    if options["oversize"] == "split" and collation is not None:
        raise TypeError('oversize="split" cuts lists and arrays, before any collation: cut large items in their caller')
    if options["oversize"] != "split" and options["join"] is not None:
        raise TypeError('join is for the parts of an item, which only oversize="split" makes: give both or none')
    usual: DispatchPolicy = SizeOrWait(max_wait) if max_wait else Greedy()
    if "target_latency" in given:
        usual = DeadlineAware()
    return (policies[0] if policies else usual), tuple(limits)


def _cost_limit(most: Any, limits: Sequence[Limit], collation: Collation | None) -> list[Limit]:
    """What `max_batch_cost` stands for: a collation that pads computes the size of a batch times its longest item."""
    if most is None:
        return []
    kind = PaddedCost if collation is not None and collation.pads else CostLimit
    if any(isinstance(limit, kind) for limit in limits):
        raise TypeError(f"max_batch_cost is what {kind.__name__} in dispatch replaces: give one of the two")
    if isinstance(most, str) and most != "auto":
        raise TypeError(
            f"max_batch_cost must be a finite number > 0, or None for no limit, not {most!r}; "
            'with a collation it may be "auto"'
        )
    if most == "auto":
        most = None if collation is None else collation.usual_batch_cost
        if most is None:
            raise TypeError(
                'max_batch_cost="auto" is for collations whose items have a length, such as pad() and pack(): give '
                "collate=, or a number and cost="
            )
    return [kind(positive("max_batch_cost", most))]


def _measured(options: Mapping[str, Any], collation: Collation | None) -> bool:
    """Whether items have a cost of their own: from `cost=`, or a length from their collation."""
    return options["cost"] is not None or (collation is not None and collation.usual_batch_cost is not None)


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
        return tuple(with_start("admission", part, "admit") for part in parts)
    if options["max_waiting"] is None:
        return ()
    return (MaxWaiting(whole("max_waiting", options["max_waiting"]), options["overflow"]),)
