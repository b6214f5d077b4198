"""Who arrives when, and with what: immutable sequences of arrivals, made up by seed or recorded.

Everything is drawn from Python's own generator, so a workload depends on its arguments alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain
from random import Random
from typing import Any, TypeAlias, TypeVar, overload

from .._context import hashable, number
from .._core._events import RequestEnded

T = TypeVar("T")

Choice: TypeAlias = T | Mapping[T, float] | Callable[[Random], T]
"""What requests get: one value for all, {value: share}, or a function that draws a value from a `random.Random`."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request to come.

    at: seconds from the start, finite. cost: finite, at least 0. tenant, priority: as a call's own; None and 0 leave it
    to the options. timeout: seconds granted; None leaves it to the options. group: only equal ones share a batch.
    cancel_after: seconds after which its caller leaves, if it has not ended; None for never.

    Raises TypeError or ValueError, naming the field.

    >>> from batchlib.simulation import Arrival
    >>> Arrival(at=0.5, tenant="acme").cost
    1
    """

    at: float
    cost: float = 1
    tenant: Hashable = None
    priority: float = 0
    timeout: float | None = None
    group: Hashable = None
    cancel_after: float | None = None

    def __post_init__(self) -> None:
        if not math.isfinite(number("at", self.at)):
            raise ValueError(f"at must be a finite number of seconds, not {self.at!r}")
        if not 0 <= number("cost", self.cost) < math.inf:
            raise ValueError(f"cost must be a finite number >= 0, not {self.cost!r}")
        number("priority", self.priority)
        for name, seconds in (("timeout", self.timeout), ("cancel_after", self.cancel_after)):
            if seconds is not None and not number(name, seconds) >= 0:
                raise ValueError(f"{name} must be a number of seconds >= 0, or None, not {seconds!r}")
        hashable("tenant", self.tenant)
        hashable("group", self.group)


class Workload(Sequence[Arrival]):
    """Arrivals in the order of their instants; immutable.

    The constructors make plain arrivals; each `with_...` gives a new workload in which every arrival has drawn what its
    argument says: one value for all, {value: share}, or a function of a `random.Random`. Draws of different fields are
    independent of each other even where the seeds are equal.

    arrivals: in any order; those of the same instant keep theirs.

    >>> from batchlib.simulation import Workload
    >>> workload = Workload.poisson(rate=100, n=1000, seed=1).with_tenants({"acme": 0.9, "zeta": 0.1}, seed=1)
    >>> len(workload), workload[0].tenant
    (1000, 'zeta')
    """

    __slots__ = ("_arrivals",)

    def __init__(self, arrivals: Iterable[Arrival] = ()) -> None:
        try:
            self._arrivals = tuple(sorted(arrivals, key=lambda arrival: arrival.at))
        except AttributeError as error:
            raise TypeError(
                "a Workload is made of Arrivals; Workload.trace takes instants, mappings and events"
            ) from error

    # ---- constructors

    @classmethod
    def poisson(cls, rate: float, n: int, seed: int = 0) -> Workload:
        """`n` arrivals at random, `rate` a second in the mean, independent of each other."""
        random, rate = Random(f"poisson {seed}"), _positive("rate", rate)
        gaps = [random.expovariate(rate) for _ in range(_whole("n", n))]
        return cls.trace(accumulate(gaps))

    @classmethod
    def uniform(cls, rate: float, n: int) -> Workload:
        """`n` arrivals with equal gaps, `rate` a second, the first at 0."""
        gap = 1 / _positive("rate", rate)
        return cls.trace(gap * place for place in range(_whole("n", n)))

    @classmethod
    def bursts(cls, size: int, rate: float, n: int, seed: int = 0) -> Workload:
        """`n` arrivals, `size` at a time at the very same instant; the bursts come at random.

        rate: arrivals a second in the mean, so there are rate / size bursts a second.
        """
        size = _whole("size", size)
        starts = cls.poisson(rate / size, math.ceil(_whole("n", n) / size), seed)
        return cls(chain.from_iterable([start] * size for start in starts))[:n]

    @classmethod
    def on_off(cls, rate: float, n: int, seed: int = 0, *, on: float, off: float) -> Workload:
        """`n` arrivals in busy spells between which nothing comes (a Markov-modulated Poisson process).

        rate: arrivals a second in the mean over all time, so there are rate * (on + off) / on a second in a busy spell.
        on, off: mean seconds of busy and quiet spells; each spell's length is exponential, and the first is busy.
        """
        random = Random(f"on_off {seed}")
        on, off = _positive("on", on), _positive("off", off)
        busy_rate = _positive("rate", rate) * (on + off) / on
        instants: list[float] = []
        now, end = 0.0, random.expovariate(1 / on)
        for _ in range(_whole("n", n)):
            now += random.expovariate(busy_rate)
            while now > end:  # the rest of the gap is spent in the next busy spell: exponential gaps have no memory
                quiet = random.expovariate(1 / off)
                now += quiet
                end += quiet + random.expovariate(1 / on)
            instants.append(now)
        return cls.trace(instants)

    @classmethod
    def trace(cls, records: Iterable[float | Arrival | Mapping[str, Any] | RequestEnded]) -> Workload:
        """What was recorded: instants, arrivals, mappings with the fields of an Arrival, or the events of a hook.

        An event (`RequestEnded`) stands for the arrival of its request, with its cost, tenant and priority.
        """
        return cls([_arrival(record) for record in records])

    # ---- modifiers

    def with_costs(self, costs: Choice[float], seed: int = 0) -> Workload:
        """Every arrival's cost drawn anew; see also `log_normal`."""
        return self._with("cost", costs, seed)

    def with_tenants(self, tenants: Choice[Any], seed: int = 0) -> Workload:
        """Every arrival's tenant drawn anew."""
        return self._with("tenant", tenants, seed)

    def with_priorities(self, priorities: Choice[float], seed: int = 0) -> Workload:
        """Every arrival's priority drawn anew; lower is more urgent."""
        return self._with("priority", priorities, seed)

    def with_timeouts(self, timeouts: Choice[Any], seed: int = 0) -> Workload:
        """Every arrival's timeout drawn anew, in seconds; None leaves it to the options."""
        return self._with("timeout", timeouts, seed)

    def with_groups(self, groups: Choice[Any], seed: int = 0) -> Workload:
        """Every arrival's group drawn anew."""
        return self._with("group", groups, seed)

    def with_cancellations(self, cancel_after: Choice[Any], seed: int = 0) -> Workload:
        """After how many seconds every arrival's caller leaves, drawn anew; None for never."""
        return self._with("cancel_after", cancel_after, seed)

    def merged(self, other: Workload) -> Workload:
        """Both together; of arrivals at the same instant these come first."""
        return Workload((*self, *other))

    def shifted(self, seconds: float) -> Workload:
        """Everything so much later; a negative number makes it earlier."""
        return Workload([replace(arrival, at=arrival.at + seconds) for arrival in self])

    def scaled(self, factor: float) -> Workload:
        """All times, granted ones included, multiplied by a factor above 0: 0.5 has everything happen twice as fast."""
        factor = _positive("factor", factor)

        def times(seconds: float | None) -> float | None:
            return None if seconds is None else seconds * factor

        return Workload(
            [
                replace(
                    arrival,
                    at=arrival.at * factor,
                    timeout=times(arrival.timeout),
                    cancel_after=times(arrival.cancel_after),
                )
                for arrival in self
            ]
        )

    def _with(self, field: str, choice: Choice[Any], seed: int) -> Workload:
        drawn = _drawn(choice, len(self), Random(f"{field} {seed}"))
        return Workload([replace(arrival, **{field: value}) for arrival, value in zip(self, drawn, strict=True)])

    # ---- a sequence

    def __len__(self) -> int:
        return len(self._arrivals)

    @overload
    def __getitem__(self, index: int) -> Arrival: ...
    @overload
    def __getitem__(self, index: slice) -> Workload: ...
    def __getitem__(self, index: int | slice) -> Arrival | Workload:
        return Workload(self._arrivals[index]) if isinstance(index, slice) else self._arrivals[index]

    def __iter__(self) -> Iterator[Arrival]:
        return iter(self._arrivals)

    def __eq__(self, other: object) -> bool:
        return self._arrivals == other._arrivals if isinstance(other, Workload) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._arrivals)

    def __repr__(self) -> str:
        span = f" from {self[0].at:g} s to {self[-1].at:g} s" if self else ""
        return f"<Workload of {len(self)} arrivals{span}>"


def log_normal(mu: float, sigma: float, *, low: int = 1, high: int | None = None) -> Callable[[Random], float]:
    """Lengths as texts have them: whole numbers whose logarithms are normal, for `Workload.with_costs`.

    mu, sigma: mean and standard deviation of the logarithm; sigma at least 0. low, high: shorter and longer ones get
    these; None for no limit.

    >>> from batchlib.simulation import Workload, log_normal
    >>> texts = Workload.uniform(rate=10, n=1000).with_costs(log_normal(4.5, 0.8, high=512))
    >>> sorted(arrival.cost for arrival in texts)[500]
    88
    """
    number("mu", mu)
    if not number("sigma", sigma) >= 0:
        raise ValueError(f"sigma must be a number >= 0, not {sigma!r}")
    most = math.inf if high is None else high
    if not low <= most:
        raise ValueError(f"low must be at most high, not {low!r} with high={high!r}")
    return lambda random: max(low, min(most, round(random.lognormvariate(mu, sigma))))


def _arrival(record: object) -> Arrival:
    match record:
        case Arrival():
            return record
        case RequestEnded():
            return Arrival(record.now - record.latency, record.cost, record.tenant, record.priority)
        case Mapping():
            return Arrival(**record)
        case _:
            return Arrival(number("at", record, "an instant, an Arrival, a mapping of its fields or a RequestEnded"))


def _drawn(choice: Any, count: int, random: Random) -> Sequence[Any]:
    if callable(choice):
        return [choice(random) for _ in range(count)]
    if not isinstance(choice, Mapping):
        return [choice] * count
    shares = [number("a share", share) for share in choice.values()]
    if not all(0 <= share < math.inf for share in shares) or not sum(shares):
        raise ValueError(f"shares must be finite numbers >= 0, one of them above 0, not {choice!r}")
    return random.choices(list(choice), weights=shares, k=count)


def _positive(name: str, value: float) -> float:
    if not 0 < number(name, value) < math.inf:
        raise ValueError(f"{name} must be a finite number > 0, not {value!r}")
    return value


def _whole(name: str, value: int) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__") or value < 1:
        raise ValueError(f"{name} must be a whole number >= 1, not {value!r}")
    return value
