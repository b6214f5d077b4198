"""The orderings from their definitions, sorted from scratch at every look, and nothing ever forgotten.

Written to be read beside the public docstrings, not to be fast. Arrivals, costs and weights in the tests are whole
numbers or halves of halves, so that sums of floats are exact and ties are ties.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from hypothesis import strategies as st

from batchlib._core._request import Request
from batchlib.policies import EarliestDeadline, FairShare, Fifo, LengthAware, Priority

Group = str


@dataclass
class Reference:
    """Base: who waits, by group. `order` is the order of service of a group, `rank` decides between groups."""

    waiting: dict[Group, list[Request]] = field(default_factory=dict)

    def push(self, group: Group, request: Request) -> None:
        self.waiting.setdefault(group, []).append(request)

    def dispatched(self, group: Group, requests: list[Request]) -> None:
        for request in requests:
            self.removed(group, request)

    def removed(self, group: Group, request: Request) -> None:
        self.waiting[group].remove(request)

    def everyone(self) -> list[Request]:
        return [request for requests in self.waiting.values() for request in requests]


class FifoReference(Reference):
    def order(self, group: Group) -> list[Request]:
        return sorted(self.waiting.get(group, ()), key=lambda request: request.sequence)

    def rank(self, group: Group) -> Any:
        return self.order(group)[0].sequence


class DeadlineReference(Reference):
    @staticmethod
    def key(request: Request) -> Any:
        return min(math.inf if each is None else each for each in (request.deadline, request.hint)), request.sequence

    def order(self, group: Group) -> list[Request]:
        return sorted(self.waiting.get(group, ()), key=self.key)

    def rank(self, group: Group) -> Any:
        return self.key(self.order(group)[0])


class Nesting(Reference):
    """One reference inside for each name; the first in order is that of the smallest key, which then changes."""

    def __init__(self, inside: Callable[[], Any], name: str) -> None:
        super().__init__()
        self.make = inside
        self.name = name
        self.inside: dict[Any, Any] = {}

    def push(self, group: Group, request: Request) -> None:
        super().push(group, request)
        name = getattr(request, self.name)
        if name not in self.inside:
            self.inside[name] = self.make()
        self.inside[name].push(group, request)

    def dispatched(self, group: Group, requests: list[Request]) -> None:
        for request in requests:
            super().removed(group, request)
        for name, inside in self.inside.items():
            inside.dispatched(group, [each for each in requests if getattr(each, self.name) == name])
        self.drop_idle()

    def removed(self, group: Group, request: Request) -> None:
        super().removed(group, request)
        self.inside[getattr(request, self.name)].removed(group, request)
        self.drop_idle()

    def drop_idle(self) -> None:
        """What is inside begins anew when a party comes back."""
        self.inside = {name: inside for name, inside in self.inside.items() if inside.everyone()}


class PriorityReference(Nesting):
    def __init__(self, inside: Callable[[], Any], aging: float | None) -> None:
        super().__init__(inside, "priority")
        self.aging = aging

    def key(self, group: Group, priority: float, gone: list[Request]) -> Any:
        by_arrival = isinstance(self.inside[priority], FifoReference)
        alike = self.waiting[group] if by_arrival else self.everyone()
        arrivals = [each.arrival for each in alike if each.priority == priority and each not in gone]
        if not arrivals:
            return math.inf, priority
        return (priority if self.aging is None else min(arrivals) + self.aging * priority), priority

    def order(self, group: Group) -> list[Request]:
        left = {priority: inside.order(group) for priority, inside in self.inside.items()}
        gone: list[Request] = []
        while any(left.values()):
            turn = min((priority for priority in left if left[priority]), key=lambda each: self.key(group, each, gone))
            gone.append(left[turn].pop(0))
        return gone

    def rank(self, group: Group) -> Any:
        classes = [priority for priority, inside in self.inside.items() if inside.order(group)]
        first = min(classes, key=lambda each: self.key(group, each, []))
        return (*self.key(group, first, []), self.inside[first].rank(group))


class FairShareReference(Nesting):
    """Keeps every finish tag for ever and never starts the virtual time over."""

    def __init__(self, inside: Callable[[], Any], weights: dict[Any, float], default: float) -> None:
        super().__init__(inside, "tenant")
        self.weights = weights
        self.default = default
        self.time = Fraction(0)
        self.tags: dict[Any, tuple[Fraction, int]] = {}
        self.tickets = 0
        self.stands = False
        self.lately: list[Request] = []

    def push(self, group: Group, request: Request) -> None:
        self.lately.append(request)
        if not any(each.tenant == request.tenant for each in self.everyone()):
            self.tickets += 1
            tag, _ = self.tags.get(request.tenant, (Fraction(0), 0))
            heaviest = max(self.weight(each) for each in self.lately)
            entry = self.time + (self.least() / heaviest / 2 if self.stands else 0)
            self.tags[request.tenant] = max(entry, tag), self.tickets
        super().push(group, request)

    def weight(self, request: Request) -> Fraction:
        return Fraction(self.weights.get(request.tenant, self.default))

    def least(self) -> Fraction:
        return Fraction(min([each.cost for each in self.lately if each.cost > 0], default=1))

    def price(self, request: Request) -> Fraction:
        return (Fraction(request.cost) or self.least()) / self.weight(request)

    def dispatched(self, group: Group, requests: list[Request]) -> None:
        for request in requests:
            tag, _ = self.tags[request.tenant]
            self.stands = tag <= self.time
            self.time = max(self.time, tag)
            self.tickets += 1
            self.tags[request.tenant] = tag + self.price(request), self.tickets
        super().dispatched(group, requests)
        self.when_all_are_idle()

    def removed(self, group: Group, request: Request) -> None:
        super().removed(group, request)
        self.when_all_are_idle()

    def when_all_are_idle(self) -> None:
        if not self.everyone():
            self.time = max([self.time, *(tag for tag, _ in self.tags.values())])
            self.stands = False
            self.lately = []

    def order(self, group: Group) -> list[Request]:
        left = {tenant: inside.order(group) for tenant, inside in self.inside.items()}
        tags, tickets = dict(self.tags), self.tickets
        served = []
        while any(left.values()):
            turn = min((tenant for tenant in left if left[tenant]), key=lambda tenant: tags[tenant])
            request = left[turn].pop(0)
            served.append(request)
            tickets += 1
            tags[turn] = tags[turn][0] + self.price(request), tickets
        return served

    def rank(self, group: Group) -> Any:
        first = min((each.tenant for each in self.waiting[group]), key=lambda tenant: self.tags[tenant])
        return (*self.tags[first], self.inside[first].rank(group))


class LengthReference:
    def __init__(self, inside: Any, window: int) -> None:
        self.inside = inside
        self.window = window
        self.push, self.dispatched, self.removed = inside.push, inside.dispatched, inside.removed
        self.rank, self.everyone = inside.rank, inside.everyone

    def order(self, group: Group) -> list[Request]:
        order: list[Request] = self.inside.order(group)
        window = order[: self.window]
        return sorted(window, key=lambda each: self.apart(window[0].cost, each.cost)) + order[self.window :]

    @staticmethod
    def apart(first: float, other: float) -> Any:
        """The ratio; of equal ones the shorter first. A length of 0 is near to no other, least far from a short one."""
        if first == other:
            return 1, True, other
        low, high = min(first, other), max(first, other)
        return (math.inf if low == 0 else Fraction(high) / Fraction(low)), other > first, other


fifo = st.just((Fifo(), FifoReference))
deadline = st.just((EarliestDeadline(), DeadlineReference))
weights = st.dictionaries(st.sampled_from("xy"), st.sampled_from([0.5, 1, 2.0, 4]), max_size=2)


def priority(inside: Any, aging: float | None) -> Any:
    return Priority(inside[0], aging=aging), lambda: PriorityReference(inside[1], aging)


def fair_share(inside: Any, weights: dict[Any, float], default: float) -> Any:
    policy = FairShare(weights, inside[0], default_weight=default)
    return policy, lambda: FairShareReference(inside[1], weights, default)


def length_aware(inside: Any, window: int) -> Any:
    return LengthAware(inside[0], window), lambda: LengthReference(inside[1](), window)


def with_nesting(inside: Any) -> Any:
    return st.builds(priority, inside, st.sampled_from([None, 0.25, 1.0, 8.0])) | st.builds(
        fair_share, inside, weights, st.sampled_from([1.0, 2.0])
    )


# A policy, and what makes its reference.
pairs = st.recursive(fifo | deadline, with_nesting, max_leaves=3)
pairs_with_runs = (
    pairs
    | st.builds(length_aware, pairs, st.integers(1, 6))
    | st.builds(priority, st.builds(length_aware, pairs, st.integers(1, 6)), st.sampled_from([None, 1.0]))
)
