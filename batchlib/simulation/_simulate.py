"""The production core on virtual time: a runtime that performs its actions, with a model in place of the executor.

Within one instant the order is that of a loop's turn. Batches end first, which may dispatch what waits; then requests
arrive; then callers leave and wake-ups come due; and last the core is woken, once, if an arrival or a wake-up asked for
it. So arrivals of the same instant are one tick, a batch that ends at its requests' very deadline is in time, and a
request that arrives as a batch ends is not in the batch that this end dispatches.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import count
from typing import Any

from .._batched import Batched
from .._context import number
from .._core._actions import SOON, Action, Dispatch, Report, Resolve, WakeAt
from .._core._batch import Batch
from .._core._batcher import Batcher
from .._core._policies import Policies
from .._core._request import Request
from .._core._transitions import FINAL, State
from .._decorator import given_options
from .._intake import IntakeOptions
from ..errors import Rejected
from ._executor_models import ExecutorModel
from ._results import BatchRecord, RequestRecord, Simulation
from ._workloads import Arrival

_END, _LEAVE, _WAKE = range(3)  # kinds of events, in the order in which those of one instant happen
_MOST_WAKES = 100_000  # in a row after the last arrival, without a batch or an end: nothing will come of the next


def simulate(
    options: Mapping[str, Any] | Batched[..., Any],
    workload: Iterable[Arrival],
    executor_model: ExecutorModel,
    *,
    start: float = 0.0,
    drain: bool = True,
) -> Simulation:
    """Runs the production core on virtual time, and says what happened to every request.

    options: those of the decorator, as a mapping, or a batched function, whose options are taken. Only what concerns
        the policies and the requests matters. `cost`, `group_by` and a callable `priority` are not called, since there
        are no items: the arrivals carry what they would give. `timeout`, `target_latency`, `tenant` and `priority`
        count for arrivals that carry none.
    workload: arrivals in the order of their instants, as a Workload gives them. As awaiting callers do, they join
        whatever `overflow="wait"` would hold back.
    executor_model: gives the seconds that a batch takes; finite, at least 0.
    start: the instant that the arrivals' own count from.
    drain: whether to go on after the last arrival until every request has ended.

    Deterministic: it draws nothing and reads no clock. Raises TypeError or ValueError for options that `batched` would
    refuse, for `oversize="split"` (there are no items to cut) and for an execution time out of range, RuntimeError if
    the dispatch policy leaves requests to wait for ever.

    >>> from batchlib.simulation import Affine, Workload, simulate
    >>> workload = Workload.poisson(rate=500, n=2000, seed=1)
    >>> simulation = simulate({"max_batch_size": 32, "timeout": 0.1}, workload, Affine(base=0.005, per_item=0.001))
    >>> simulation.goodput, round(simulation.mean_batch_size, 1)
    (2000, 4.8)
    """
    resolved = given_options(options).resolve("simulate")
    if resolved.policies.oversize_split:
        raise ValueError('oversize="split" cuts items, and an arrival has none: let its parts arrive at one instant')
    if not callable(executor_model):
        raise TypeError(
            f"executor_model must be called with a batch and give seconds, as Affine does: {executor_model!r}"
        )
    requests = [_request(arrival, start, resolved.intake) for arrival in workload]
    first = min(start, requests[0].arrival) if requests else start  # a workload may have been shifted to before 0
    run = _Run(resolved.policies, executor_model, first)
    run.play(requests, drain)
    return run.result()


def _request(arrival: Any, start: float, options: IntakeOptions) -> Request:
    """The request of an arrival; its item is the arrival itself."""
    if not isinstance(arrival, Arrival):
        raise TypeError(f"a workload holds arrivals, Arrival(at, ...), and not {arrival!r}; see Workload.trace")
    request = Request((arrival,), arrival.group, start + arrival.at)
    request.cost = arrival.cost
    request.tenant = options.tenant if arrival.tenant is None else arrival.tenant
    request.priority = arrival.priority or (0 if callable(options.priority) else options.priority)
    timeout = options.timeout if arrival.timeout is None else arrival.timeout
    if timeout is not None:
        request.deadline = request.arrival + timeout
    return request


def _is_faulty(request: Request) -> bool:
    """Whether its outcome is what a policy raised: the executor never fails here, and refusals have their type."""
    if request.state is State.REJECTED:
        return not isinstance(request.outcome, Rejected)
    return request.state is State.FAILED


class _Run:
    """One simulation under way. Operations: an arrival or an event O(log n), n being what is running or asked for."""

    def __init__(self, policies: Policies, executor_model: ExecutorModel, start: float) -> None:
        self.core = Batcher(policies)
        self.now = self.start = start
        self._model = executor_model
        # (instant, kind, ticket, what it concerns); the sentinel saves asking whether there is any
        self._events: list[tuple[float, int, int, Any]] = [(math.inf, _WAKE, 0, None)]
        self._tickets = count(1)
        self._requests: Sequence[Request] = ()
        self._ended: dict[Request, float] = {}
        self._batches: list[BatchRecord] = []
        self._reports: list[Exception] = []
        self._fruitless = 0  # wake-ups since the last batch or end

    def play(self, requests: Sequence[Request], drain: bool) -> None:
        self._requests = requests
        events, submit = self._events, self.core.submit
        coming = iter(requests)
        following = next(coming, None)
        while following is not None or drain:
            arrival = math.inf if following is None else following.arrival
            now = min(arrival, events[0][0])
            if now == math.inf:
                break
            if now < self.now:
                raise ValueError(f"arrivals must come in the order of their instants: {now:g} after {self.now:g}")
            self.now = now
            while events[0][0] == now and events[0][1] == _END:
                batch = heapq.heappop(events)[3]
                self._perform(self.core.finish(batch, [None] * batch.size, now, clean=True))
            wake = False
            while following is not None and following.arrival == now:
                actions = submit(following, now)
                if actions is SOON:
                    wake = True
                elif actions:
                    wake = self._perform(actions) or wake
                cancel_after = following.args[0].cancel_after
                if cancel_after is not None:
                    self._at(now + cancel_after, _LEAVE, following)
                following = next(coming, None)
            while events[0][0] == now and events[0][1] != _END:
                _, kind, _, request = heapq.heappop(events)
                if kind == _LEAVE:
                    self._leave(request)
                else:
                    wake = True
            if wake:
                self._perform(self.core.wake(now))
                self._watch(following is None)

    def _perform(self, actions: Sequence[Action]) -> bool:
        """Performs actions in order; says whether one asks for a wake-up at the end of the instant."""
        soon = False
        for action in actions:
            if isinstance(action, Dispatch):
                self._start(action.batch)
            elif isinstance(action, Resolve):
                self._fruitless = 0
                for request in action.requests:
                    self._ended[request] = self.now
            elif isinstance(action, WakeAt):
                if action.instant == -math.inf:
                    soon = True
                else:
                    self._at(action.instant, _WAKE, None)
            elif isinstance(action, Report):
                self._reports.append(action.error)
        return soon  # an Abandon changes nothing: a plain function cannot be stopped

    def _at(self, instant: float, kind: int, what: object) -> None:
        heapq.heappush(self._events, (instant, kind, next(self._tickets), what))

    def _start(self, batch: Batch) -> None:
        self._fruitless = 0
        seconds = number("what executor_model gives", self._model(batch), "a finite number of seconds >= 0")
        if not 0 <= seconds < math.inf:
            raise ValueError(f"executor_model must give a finite number of seconds >= 0, not {seconds!r} for {batch!r}")
        costs = [request.cost for request in batch.requests]
        end = self.now + seconds
        self._batches.append(
            BatchRecord(batch.number, batch.size, sum(costs), max(costs), batch.reason, batch.group, self.now, end)
        )
        self._at(end, _END, batch)

    def _leave(self, request: Request) -> None:
        if request.state not in FINAL:
            self._perform(self.core.cancel(request, self.now))
            self._ended[request] = self.now

    def _watch(self, nobody_comes: bool) -> None:
        self._fruitless += 1
        if nobody_comes and self._fruitless > _MOST_WAKES:
            raise RuntimeError(
                f"the dispatch policy leaves {self.core.waiting} requests to wait and has asked {_MOST_WAKES} times "
                "in a row to be woken later, with nobody left to arrive: it would never end"
            )

    def result(self) -> Simulation:
        records = [self._record(request) for request in self._requests]
        return Simulation(
            requests=tuple(records),
            batches=tuple(self._batches),
            start=self.start,
            end=self.now,
            statistics=self.core.statistics(self.now),
            faults=(*self._reports, *[request.outcome for request in self._requests if _is_faulty(request)]),
        )

    def _record(self, request: Request) -> RequestRecord:
        batch = request.batch
        return RequestRecord(
            request.arrival,
            request.cost,
            request.tenant,
            request.priority,
            request.deadline,
            request.group,
            request.state,
            None if batch is None else batch.started,
            self._ended.get(request),
            None if batch is None else batch.number,
        )
