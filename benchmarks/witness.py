"""An ordering policy that writes down what the one inside it is told, in the order in which the core says it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from batchlib.protocols import Ordering, OrderingPolicy, Queue, Request

Said = tuple[str, Sequence[Request]]  # a batch of those served, in the order of service; of the others one
JOINED, SERVED, LEFT = "joined", "served", "left"


@dataclass(frozen=True)
class Witness:
    """Behaves as `policy` does. `said` holds who joined, who was served and who left without service."""

    policy: OrderingPolicy
    said: list[Said] = field(default_factory=list[Said])

    @property
    def needs_runs(self) -> bool:
        return getattr(self.policy, "needs_runs", False)

    def start(self) -> WitnessOrdering:
        return WitnessOrdering(self.policy.start(), self)


class WitnessOrdering:
    def __init__(self, ordering: Ordering, witness: Witness) -> None:
        self._ordering = ordering
        self._witness = witness

    def queue(self) -> WitnessQueue:
        return WitnessQueue(self._ordering.queue(), self._witness)


class WitnessQueue:
    def __init__(self, queue: Queue, witness: Witness) -> None:
        self._queue = queue
        self._witness = witness
        self.arrival_order = queue.arrival_order
        if hasattr(queue, "due_from"):
            self.due_from = queue.due_from

    def push(self, request: Request, /) -> None:
        self._queue.push(request)
        self._witness.said.append((JOINED, (request,)))

    def in_order(self) -> Iterator[Request]:
        return self._queue.in_order()

    def rank(self) -> Any:
        return self._queue.rank()

    def dispatched(self, requests: Sequence[Request], now: float) -> None:
        self._witness.said.append((SERVED, tuple(requests)))
        self._queue.dispatched(requests, now)

    def removed(self, request: Request) -> None:
        self._witness.said.append((LEFT, (request,)))
        self._queue.removed(request)


def one_by_one(said: Iterable[Said]) -> Iterator[tuple[str, Request]]:
    return ((event, request) for event, requests in said for request in requests)


def batches(said: Iterable[Said]) -> Iterator[Sequence[Request]]:
    return (requests for event, requests in said if event == SERVED)


def widest_gap(
    said: Sequence[Said], weights: Mapping[Hashable, float], *, slack: int = 0, level: bool = False
) -> float:
    """The largest share of its bound that the gap between two tenants reached. O(tenants) for every request.

    The gap is by how much more one's service, divided by its weight w, has grown than another's, over any time in which
    both had requests waiting; with `level`, over that time from its start only, for a trace on which all start level.
    The bound is L/w1 + L/w2, L being the largest cost, and `slack` times the cost of a batch: the most that the costs
    in one batch, each over its tenant's weight, add up to.
    """
    largest = max(request.cost for _, request in one_by_one(said))
    shares = (sum(request.cost / weights[request.tenant] for request in batch) for batch in batches(said))
    more = slack * max(shares)
    waiting: Counter[Hashable] = Counter()
    service = dict.fromkeys(weights, 0.0)
    least: dict[tuple[Hashable, Hashable], float] = {}  # of (the first's service less the second's) since both wait
    widest = 0.0
    for event, request in one_by_one(said):
        tenant = request.tenant
        others = [other for other, count in waiting.items() if count and other != tenant]
        waiting[tenant] += 1 if event == JOINED else -1
        if event == JOINED and waiting[tenant] == 1:
            for other in others:
                least[tenant, other] = service[tenant] - service[other]
                least[other, tenant] = service[other] - service[tenant]
        if event == SERVED:
            service[tenant] += request.cost / weights[tenant]
            for other in others:
                ahead = service[tenant] - service[other]
                if not level:
                    least[other, tenant] = min(least[other, tenant], -ahead)
                bound = largest / weights[tenant] + largest / weights[other] + more
                widest = max(widest, (ahead - least[tenant, other]) / bound)
    return widest


def furthest_overtaking(said: Sequence[Said], aging: float, *, by_oldest: bool) -> float:
    """How far service went beyond what linear aging allows, in seconds; at most 0 where the bound holds.

    Every time a request is served, each class whose oldest waiting one arrived earlier has been passed over. Allowed
    is a difference of arrivals of `aging` times the difference of the priorities. by_oldest: not the arrival of the
    request served counts but that of the oldest in its class, which is what holds for any inner policy.
    """
    waiting: dict[float, dict[Request, None]] = {}
    furthest = -math.inf
    for event, request in one_by_one(said):
        mates = waiting.setdefault(request.priority, {})
        if event == JOINED:
            mates[request] = None
            continue
        if event == SERVED:
            arrival = next(iter(mates)).arrival if by_oldest else request.arrival
            for priority, others in waiting.items():
                oldest = next(iter(others), request)
                if oldest is not request and not (by_oldest and others is mates):
                    furthest = max(furthest, arrival - oldest.arrival - aging * (priority - request.priority))
        del mates[request]
    return furthest


def passed_over(said: Sequence[Said]) -> int:
    """How many batches left without the oldest of all that waited."""
    waiting: dict[Request, None] = {}
    count = 0
    for event, requests in said:
        if event == JOINED:
            waiting |= dict.fromkeys(requests)
            continue
        if event == SERVED:
            count += next(iter(waiting)) not in requests
        for request in requests:
            del waiting[request]
    return count
