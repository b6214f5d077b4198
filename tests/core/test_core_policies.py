"""What policies may do, and what their callers get when they do what they may not."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from core_bench import Bench, policies

from batchlib._core._batch import Batch
from batchlib._core._protocols import Decision, Group, WaitingRoom
from batchlib._core._request import Request
from batchlib._core._transitions import State
from batchlib.errors import BatchFailed, Closed, ItemTooLarge, Overloaded, Rejected, Shed
from batchlib.policies import CostLimit, Fifo, Greedy, MaxWaiting


class Dispatching:
    """A dispatch policy from a function."""

    def __init__(self, decide: Any) -> None:
        self.decide = decide

    def start(self) -> "Dispatching":
        return self


# ---- dispatch policies


@pytest.mark.parametrize(
    "decide",
    [
        pytest.param(lambda group, now: Decision(), id="nothing"),
        pytest.param(lambda group, now: Decision(wake_at=now), id="an instant that is not ahead"),
        pytest.param(lambda group, now: Decision(wake_at=math.inf), id="never"),
        pytest.param(lambda group, now: Decision(wake_at=math.nan), id="no instant"),
        pytest.param(lambda group, now: Decision([Request((), "", 0.0)]), id="a request that does not wait"),
        pytest.param(lambda group, now: Decision([next(group.in_order())] * 2), id="a request twice"),
        pytest.param(lambda group, now: Decision(drop=[Request((), "", 0.0)]), id="a drop that drops nobody"),
        pytest.param(
            lambda group, now: Decision(group.fill().requests, drop=group.fill().requests), id="both run and dropped"
        ),
    ],
)
def test_a_decision_that_is_none_fails_those_who_are_next(decide: Any) -> None:
    bench = Bench(policies(dispatch=Dispatching(decide), max_batch_size=2))
    bench.arrive("", "", "")
    assert bench.states == ["failed"] * 3
    assert bench.core.idle
    errors = [request.outcome for request in bench.requests]
    assert len(set(map(id, errors))) == 3
    for error in errors:
        assert isinstance(error, BatchFailed)
        assert "Dispatching decided what cannot be done now (t=0)" in str(error)
        assert "fault of the policy" in str(error)


@pytest.mark.parametrize(
    ("decide", "name"),
    [
        (lambda group, now: 1 / 0, "ZeroDivisionError"),
        (lambda group, now: next(iter(())), "StopIteration"),
        (lambda group, now: None, "AttributeError"),
        (lambda group, now: Decision(iter(group.fill().requests)), "TypeError"),
        (lambda group, now: Decision(drop=[None]), "AttributeError"),
    ],
)
def test_a_dispatch_policy_that_raises_is_the_cause_of_its_callers_error(decide: Any, name: str) -> None:
    bench = Bench(policies(dispatch=Dispatching(decide), max_batch_size=2))
    bench.arrive("", "", "")
    assert bench.states == ["failed"] * 3
    for request in bench.requests:
        assert f"Dispatching raised {name}" in str(request.outcome)
        assert type(request.outcome.__cause__).__name__ == name


def test_a_policy_cannot_dispatch_more_than_the_limit() -> None:
    policy = Dispatching(lambda group, now: Decision(list(group.in_order())))
    bench = Bench(policies(dispatch=policy, max_batch_size=2))
    bench.arrive("", "", "")
    assert bench.states == ["failed", "failed", "running"]
    bench = Bench(policies(dispatch=policy, limits=(CostLimit(3),)))
    bench.arrive("", "", cost=2)
    assert bench.states == ["failed", "running"]


def test_a_policy_cannot_dispatch_a_request_of_another_group() -> None:
    requests: list[Request] = []
    bench = Bench(policies(dispatch=Dispatching(lambda group, now: Decision(requests))))
    requests += [bench.submit("a"), bench.submit("b")]
    bench.wake()
    assert bench.states == ["failed", "failed"]


def test_a_batch_that_was_filled_earlier_is_looked_at_again() -> None:
    """One of it may have left in the meantime."""
    first_fill: list[Any] = []

    def decide(group: Group, now: float) -> Decision:
        if not first_fill:
            first_fill.append(group.fill().requests)
            return Decision(wake_at=now + 1)
        return Decision(first_fill[0])

    bench = Bench(policies(dispatch=Dispatching(decide)))
    gone, stays = bench.arrive("", "")
    bench.cancel(gone)
    bench.advance_to(1)
    assert bench.batches == []
    assert stays.state is State.FAILED


def test_a_policy_may_choose_a_batch_by_itself() -> None:
    def decide(group: Group, now: float) -> Decision:
        room = group.room()
        chosen = [request for request in reversed(list(group.in_order())) if room.add(request)]
        return Decision(chosen, reason="newest")

    bench = Bench(policies(dispatch=Dispatching(decide), max_batch_size=2, limits=(CostLimit(3),)))
    bench.submit(cost=1)
    bench.submit(cost=1)
    bench.submit(cost=2)
    bench.wake()
    assert bench.items == [[2, 1]]
    assert bench.reasons == ["newest"]
    bench.finish(bench.running[0])
    assert bench.items == [[2, 1], [0]]


def test_a_policy_that_gives_no_reason_is_one() -> None:
    bench = Bench(policies(dispatch=Dispatching(lambda group, now: Decision(group.fill().requests))))
    bench.arrive("")
    assert bench.reasons == ["policy"]


def test_a_single_request_over_the_limit_may_leave_alone_where_that_is_allowed() -> None:
    policy = Dispatching(lambda group, now: Decision([next(group.in_order())]))
    for alone, state in ((True, "running"), (False, "rejected")):
        bench = Bench(policies(dispatch=policy, limits=(CostLimit(3),), oversize_alone=alone))
        bench.arrive("", cost=4)
        assert bench.states == [state]
        assert bench.reasons == (["oversize"] if alone else [])


def test_a_limit_that_raises_what_ends_a_loop_lets_nothing_over_the_others() -> None:
    class Ends:
        full = False

        def start(self) -> "Ends":
            return self

        def open(self) -> "Ends":
            return self

        def exceeds(self, request: Request) -> None:
            return None

        def add(self, request: Request) -> bool:
            raise StopIteration

    everyone = Dispatching(lambda group, now: Decision(list(group.in_order())))
    bench = Bench(policies(dispatch=everyone, limits=(CostLimit(3), Ends())))
    bench.arrive("", "", "", cost=2)
    assert bench.states == ["failed"] * 3
    assert isinstance(bench.requests[0].outcome.__cause__, StopIteration)


def test_dropped_requests_are_shed_and_the_rest_is_asked_for_again() -> None:
    def decide(group: Group, now: float) -> Decision:
        doomed = [request for request in group.in_order() if request.cost > 2]
        return Decision(drop=doomed + doomed) if doomed else Decision(group.fill().requests)

    bench = Bench(policies(dispatch=Dispatching(decide)))
    for cost in (1, 5, 2):
        bench.submit(cost=cost)
    bench.wake()
    assert bench.states == ["running", "shed", "running"]
    assert isinstance(bench.requests[1].outcome, Shed)
    assert "given up by policy before it ran (3 waiting)" in str(bench.requests[1].outcome)


def test_a_drop_may_come_with_a_batch_or_with_an_instant() -> None:
    def decide(group: Group, now: float) -> Decision:
        first, *others = group.in_order()
        if now < 1:
            return Decision(drop=[first], wake_at=1)
        return Decision(others[:1], drop=[first])

    bench = Bench(policies(dispatch=Dispatching(decide), max_concurrent_batches=9))
    bench.arrive(*"aaaa", "b")
    assert bench.states == ["shed", "waiting", "waiting", "waiting", "shed"]
    bench.advance_to(1)
    assert bench.states == ["shed", "shed", "running", "shed", "shed"]


def test_what_policies_watch() -> None:
    @dataclass
    class Watching:
        seen: list[tuple[Any, ...]] = field(default_factory=list)

        def start(self) -> "Watching":
            return self

        def decide(self, group: Group, now: float) -> Decision:
            self.seen.append(("decide", group.waiting, group.oldest_arrival))
            return Decision(group.fill().requests)

        def observe(self, batch: Batch, execution_time: float) -> None:
            self.seen.append(("observe", batch.size, batch.cost, execution_time, len(batch.requests)))

    watching = Watching()
    bench = Bench(policies(dispatch=watching), now=1)
    bench.submit(cost=3)
    bench.now = 2
    bench.submit(cost=4)
    bench.wake()
    bench.now = 5
    bench.finish(bench.running[0])
    assert watching.seen == [("decide", 2, 1), ("observe", 2, 7, 3, 2)]


def test_what_an_observer_raises_is_reported_once_and_harms_nobody() -> None:
    @dataclass(frozen=True)
    class Watching(Greedy):
        def start(self) -> Any:
            state = super().start()
            state.observe = lambda batch, execution_time: 1 / 0  # type: ignore[attr-defined]
            return state

    bench = Bench(policies(dispatch=Watching()))
    bench.arrive("")
    bench.finish(bench.running[0])
    assert bench.states == ["completed"]
    assert [type(error) for error in bench.reports] == [ZeroDivisionError]
    bench.wake()
    assert len(bench.reports) == 1


# ---- orderings


class Ranked:
    """A small ordering of a user's own: the lowest priority number first, in every group and over all groups."""

    def start(self) -> "Ranked":
        return self

    def queue(self) -> "RankedQueue":
        return RankedQueue()


class RankedQueue:
    arrival_order = False

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.told: list[tuple[Any, ...]] = []

    def push(self, request: Request) -> None:
        self.requests.append(request)

    def in_order(self) -> Iterator[Request]:
        alive = [request for request in self.requests if request.state is State.WAITING]
        return iter(sorted(alive, key=lambda request: (request.priority, request.sequence)))

    def rank(self) -> Any:
        first = next(self.in_order())
        return first.priority, first.sequence

    def dispatched(self, requests: Sequence[Request], now: float) -> None: ...

    def removed(self, request: Request) -> None: ...


def test_an_ordering_holds_within_a_group_and_over_groups() -> None:
    bench = Bench(policies(ordering=Ranked(), max_batch_size=2))
    for group, priority in (("a", 3), ("b", 2), ("a", 1), ("b", 5), ("a", 4)):
        bench.submit(group, priority=priority)
    bench.wake()
    for _ in range(3):
        bench.finish(bench.running[0])
    assert bench.items == [[2, 0], [1, 3], [4]]


def test_a_late_but_urgent_arrival_brings_its_group_forward() -> None:
    bench = Bench(policies(ordering=Ranked(), max_batch_size=1))
    bench.arrive("busy")
    bench.submit("a", priority=1)
    bench.submit("b", priority=2)
    bench.submit("b", priority=0)
    bench.finish(bench.running[0])
    assert bench.items[1] == [3]


def test_a_group_whose_first_has_left_goes_to_its_new_place() -> None:
    bench = Bench(policies(ordering=Ranked(), max_batch_size=1))
    bench.arrive("busy")
    first = bench.submit("a", priority=0)
    bench.submit("a", priority=9)
    bench.submit("b", priority=5)
    bench.submit("c", priority=7)
    bench.cancel(first)
    for _ in range(4):
        bench.finish(bench.running[0])
    assert bench.items == [[0], [3], [4], [2]]


def test_the_oldest_of_a_group_is_known_whatever_its_order() -> None:
    bench = Bench(policies(ordering=Ranked()))
    bench.arrive("busy")
    old = bench.submit(priority=9)
    bench.now = 5
    bench.submit(priority=1)
    bench.now = 8
    assert bench.core.statistics(8).oldest_waiting_age == 8
    bench.cancel(old)
    assert bench.core.statistics(8).oldest_waiting_age == 3


def test_a_group_that_is_never_empty_keeps_no_record_of_those_who_left() -> None:
    bench = Bench(policies(ordering=Ranked(), max_batch_size=1))
    bench.arrive("")
    bench.submit("backlog", priority=100)
    group = bench.core._groups.by_key["backlog"]
    for _ in range(1_000):
        request = Request((), "backlog", 0.0)
        bench.core.submit(request, 0.0)
        bench.core.cancel(request, 0.0)
    assert group._arrivals is not None
    assert len(group._arrivals) < 100


@dataclass
class Broken(Ranked):
    """An ordering one of whose methods raises, from when it is told to."""

    method: str
    now: bool = False

    def start(self) -> "Broken":
        return self

    def queue(self) -> Any:
        if self.method == "queue" and self.now:
            raise ZeroDivisionError
        queue = RankedQueue()
        if self.method != "queue":
            works = getattr(queue, self.method)
            setattr(queue, self.method, lambda *args: 1 / 0 if self.now else works(*args))
        return queue


@pytest.mark.parametrize("method", ["queue", "push", "rank"])
def test_an_ordering_that_fails_on_a_request_fails_its_caller_alone(method: str) -> None:
    ordering = Broken(method)
    bench = Bench(policies(ordering=ordering))
    bench.arrive("busy")
    bench.submit("a")
    ordering.now = True
    victim = bench.submit("b" if method == "queue" else "a")
    assert victim.state is State.REJECTED
    assert isinstance(victim.outcome, ZeroDivisionError)
    newcomer = bench.submit("new")
    assert newcomer.state is State.REJECTED
    ordering.now = False
    bench.finish(bench.running[0])
    assert bench.states == ["completed", "running", "rejected", "rejected"]


def test_an_ordering_that_cannot_say_who_is_next_fails_the_whole_group() -> None:
    ordering = Broken("in_order")
    bench = Bench(policies(ordering=ordering))
    bench.arrive("busy")
    bench.submit("a")
    bench.submit("a")
    ordering.now = True
    bench.finish(bench.running[0])
    assert bench.states == ["completed", "failed", "failed"]
    assert "GreedyDispatcher raised ZeroDivisionError" in str(bench.requests[1].outcome)


def test_an_ordering_that_cannot_rank_its_groups_fails_all_that_wait_and_starts_afresh() -> None:
    ordering = Broken("rank")
    bench = Bench(policies(ordering=ordering))
    bench.arrive("busy")
    bench.submit("a")
    bench.submit("b")
    ordering.now = True
    bench.finish(bench.running[0])
    assert bench.states == ["completed", "failed", "failed"]
    assert "Broken raised ZeroDivisionError" in str(bench.requests[1].outcome)
    ordering.now = False
    bench.arrive("c")
    assert bench.states[-1] == "running"


@pytest.mark.parametrize("method", ["dispatched", "removed"])
def test_what_an_ordering_raises_when_told_is_reported(method: str) -> None:
    bench = Bench(policies(ordering=Broken(method, now=True)))
    gone, _ = bench.submit(), bench.submit()
    bench.cancel(gone)
    bench.wake()
    assert bench.states == ["cancelled", "running"]
    assert [type(error) for error in bench.reports] == [ZeroDivisionError]


@pytest.mark.parametrize("given", ["nobody", "one who left"])
def test_an_ordering_that_gives_the_wrong_requests_loops_nowhere(given: str) -> None:
    class Wrong(Ranked):
        def queue(self) -> Any:
            queue = RankedQueue()
            queue.in_order = lambda: iter([] if given == "nobody" else queue.requests[:1])  # type: ignore[method-assign]
            queue.rank = lambda: 0  # type: ignore[method-assign]
            return queue

    bench = Bench(policies(ordering=Wrong()))
    gone, stays = bench.submit(), bench.submit()
    bench.cancel(gone)
    bench.wake()
    assert bench.batches == []
    assert stays.state is State.FAILED


def test_a_rank_that_grows_with_every_look_loops_nowhere() -> None:
    looks = iter(range(1_000_000))

    class Restless(Ranked):
        def queue(self) -> Any:
            queue = RankedQueue()
            queue.rank = lambda: next(looks)  # type: ignore[method-assign]
            return queue

    bench = Bench(policies(ordering=Restless(), max_concurrent_batches=9))
    bench.arrive("a", "b", "c")
    assert bench.states == ["running"] * 3


# ---- admission and limits


class Admitting:
    def __init__(self, admit: Any = None) -> None:
        self.told: list[tuple[str, State]] = []
        self._admit = admit

    def start(self) -> "Admitting":
        return self

    def admit(self, request: Request, room: WaitingRoom, now: float) -> Any:
        return self._admit and self._admit(request, room, now)

    def dispatched(self, request: Request) -> None:
        self.told.append(("dispatched", request.state))

    def ended(self, request: Request) -> None:
        self.told.append(("ended", request.state))


def test_what_an_admission_policy_knows_and_says() -> None:
    def admit(request: Request, room: WaitingRoom, now: float) -> Rejected | None:
        seen.append((room.waiting, room.running, room.max_batch_size, now))
        return Rejected("no") if room.waiting else None

    seen: list[tuple[float, ...]] = []
    bench = Bench(policies(admission=(Admitting(admit),)), now=7)
    bench.arrive("")
    bench.submit()
    refused = bench.submit()
    assert seen == [(0, 0, 4, 7), (0, 1, 4, 7), (1, 1, 4, 7)]
    assert str(refused.outcome) == "no"


@pytest.mark.parametrize("end", ["finish", "fail", "cancel waiting", "cancel running", "close", "expire"])
def test_an_admission_policy_is_told_once_of_every_end(end: str) -> None:
    admitting = Admitting()
    bench = Bench(policies(admission=(admitting,)))
    request = bench.submit(timeout=1)
    if end == "cancel waiting":
        bench.cancel(request)
    elif end == "close":
        bench.close(drain=False)
    else:
        bench.wake()
        if end in ("finish", "fail"):
            bench.finish(bench.running[0], [None if end == "finish" else OSError()])
        elif end == "expire":
            bench.advance_to(1)
        else:
            bench.cancel(request)
    bench.drain()
    before = [] if end in ("cancel waiting", "close") else [("dispatched", State.RUNNING)]
    assert admitting.told == [*before, ("ended", request.state)]


def test_a_policy_that_said_yes_is_told_when_the_next_says_no() -> None:
    """It may have counted the request in."""
    first, second = Admitting(), Admitting(lambda *_: Rejected("no"))
    bench = Bench(policies(admission=(first, second)))
    bench.submit()
    assert first.told == [("ended", State.REJECTED)]
    assert second.told == []


def test_a_policy_that_said_yes_is_told_when_the_ordering_fails() -> None:
    admitting = Admitting()
    bench = Bench(policies(admission=(admitting,), ordering=Broken("push", now=True)))
    bench.submit()
    assert admitting.told == [("ended", State.REJECTED)]


def test_an_admission_policy_that_raises_fails_its_caller_alone() -> None:
    bench = Bench(policies(admission=(Admitting(lambda request, *_: 1 / 0 if request.cost == 2 else None),)))
    bench.submit(cost=2)
    bench.submit(cost=1)
    bench.wake()
    assert bench.states == ["rejected", "running"]
    assert isinstance(bench.requests[0].outcome, ZeroDivisionError)


@pytest.mark.parametrize("answer", [True, "full", KeyboardInterrupt(), StopIteration()])
def test_an_answer_that_no_caller_can_be_given_is_wrapped(answer: object) -> None:
    bench = Bench(policies(admission=(Admitting(lambda *_: answer),)))
    request = bench.submit()
    assert isinstance(request.outcome, BatchFailed)
    assert f"Admitting refused with {answer!r}" in str(request.outcome)
    assert request.outcome.__cause__ is (answer if isinstance(answer, BaseException) else None)


def test_a_hold_that_raises_is_the_concern_of_whoever_asks() -> None:
    admitting = Admitting()
    admitting.holds_back = lambda room: 1 / 0  # type: ignore[attr-defined]
    bench = Bench()
    assert not bench.core.held_back
    bench.configure(policies(admission=(admitting,)))
    with pytest.raises(ZeroDivisionError):
        _ = bench.core.held_back


class Even:
    """A limit of a user's own: batches of an even sum; an odd item fits nowhere."""

    seen: list[tuple[int, float]]

    def __init__(self) -> None:
        self.seen = []

    def start(self) -> "Even":
        return self

    def open(self) -> "Even":
        return self

    def add(self, request: Request) -> bool:
        return request.cost % 2 == 0

    full = False

    def exceeds(self, request: Request) -> tuple[float, float] | None:
        return (request.cost, 2) if request.cost % 2 else None

    def observe(self, batch: Batch, execution_time: float) -> None:
        self.seen.append((batch.size, execution_time))


def test_a_limit_of_ones_own() -> None:
    even = Even()
    bench = Bench(policies(limits=(CostLimit(10), even)))
    odd = bench.submit(cost=3)
    bench.submit(cost=4)
    bench.submit(cost=6)
    bench.wake()
    assert isinstance(odd.outcome, ItemTooLarge)
    assert bench.items == [[1, 2]]
    bench.now = 2
    bench.finish(bench.running[0])
    assert even.seen == [(2, 2)]


def test_limits_that_refuse_half_way_take_in_nobody_else() -> None:
    """The first limit has already counted a request that the second refuses."""
    bench = Bench(policies(limits=(CostLimit(10), Even()), oversize_alone=True))
    for cost in (2, 3, 4):
        bench.submit(cost=cost)
    bench.wake()
    assert bench.items == [[0]]
    assert bench.reasons == ["full"]
    group = bench.core._groups.by_key[""]
    room = group.room()
    odd, even = list(group.in_order())
    assert not room.add(odd)
    assert room.full
    assert not room.add(even)


@pytest.mark.parametrize("when", ["submit", "configure"])
def test_a_limit_that_raises_fails_its_callers_alone(when: str) -> None:
    class Raising(Even):
        def exceeds(self, request: Request) -> tuple[float, float] | None:
            if request.cost == 2:
                raise ZeroDivisionError
            return None

    bench = Bench(policies(limits=(Raising(),) if when == "submit" else ()))
    bench.arrive("busy", cost=6)
    victim, other = bench.submit(cost=2), bench.submit(cost=4)
    if when == "configure":
        bench.configure(policies(limits=(Raising(),)))
    assert isinstance(victim.outcome, ZeroDivisionError)
    assert (victim.state, other.state) == (State.REJECTED, State.WAITING)


# ---- refusals, their numbers, and limits that change


def test_a_refusal_carries_the_numbers_and_an_estimate() -> None:
    bench = Bench(policies(admission=(MaxWaiting(4, "reject"),), max_batch_size=2, max_concurrent_batches=2))
    first = Overloaded("as it is", retry_after=99)
    for _ in range(6):
        bench.arrive("")
    assert bench.states == ["running"] * 2 + ["waiting"] * 4
    unknown = bench.submit(tenant="acme").outcome
    assert isinstance(unknown, Overloaded)
    assert unknown.retry_after is None
    assert "4 requests wait and max_waiting is 4 (tenant='acme')" in str(unknown)
    bench.now = 3
    bench.finish(bench.running[0])  # took 3 s; 2 still wait
    bench.arrive("")
    bench.arrive("")
    assert bench.submit().outcome.retry_after == 3 * 1.0  # two batches ahead, two executors
    bench.configure(policies(admission=(MaxWaiting(1, "reject"),), max_batch_size=1, max_concurrent_batches=2))
    assert bench.submit().outcome.retry_after == 3 * 2.0  # four batches of one ahead
    bench.configure(policies(admission=(MaxWaiting(9), Admitting(lambda *_: first)), max_concurrent_batches=2))
    assert bench.submit().outcome is first
    assert first.retry_after == 99


def test_an_estimate_is_never_shorter_than_a_batch() -> None:
    bench = Bench(policies(admission=(MaxWaiting(1, "reject"),), max_batch_size=4, max_concurrent_batches=2))
    bench.arrive("")
    bench.now = 3
    bench.finish(bench.running[0])
    bench.arrive("")
    bench.arrive("")
    bench.submit()
    assert bench.submit().outcome.retry_after == 3


@pytest.mark.parametrize("overflow", ["wait", "reject"])
def test_a_full_queue_holds_back_or_refuses(overflow: Any) -> None:
    bench = Bench(policies(admission=(MaxWaiting(2, overflow),)))
    bench.arrive("runs")
    bench.submit()
    assert not bench.core.held_back
    bench.submit()
    assert bench.core.held_back is (overflow == "wait")
    assert bench.submit().state is (State.WAITING if overflow == "wait" else State.REJECTED)


def test_an_item_that_fits_nowhere_is_refused_at_submit_with_the_numbers() -> None:
    bench = Bench(policies(limits=(CostLimit(10),)))
    bench.arrive("", cost=99)
    (request,) = bench.requests
    assert isinstance(request.outcome, ItemTooLarge)
    assert "needs 99 and a batch may hold 10" in str(request.outcome)


def test_an_item_over_the_limit_runs_alone_where_that_is_allowed() -> None:
    bench = Bench(policies(limits=(CostLimit(10),), oversize_alone=True, admission=(MaxWaiting(9, "reject"),)))
    bench.submit(cost=99)
    bench.submit(cost=1)
    bench.wake()
    assert bench.items == [[0]]
    assert bench.reasons == ["oversize"]


def test_a_lowered_limit_refuses_those_that_fit_no_longer() -> None:
    bench = Bench(policies(limits=(CostLimit(10),)))
    bench.arrive("busy")
    for cost in (4, 8, 5):
        bench.submit(cost=cost)
    bench.configure(policies(limits=(CostLimit(5),)))
    assert bench.states == ["running", "waiting", "rejected", "waiting"]
    assert "needs 8 and a batch may hold 5" in str(bench.requests[2].outcome)
    bench.finish(bench.running[0])
    assert bench.items == [[0], [1]]


def test_a_lowered_limit_refuses_nobody_where_the_too_large_run_alone() -> None:
    bench = Bench(policies(limits=(CostLimit(10),), oversize_alone=True))
    bench.arrive("busy")
    bench.submit(cost=8)
    bench.configure(policies(limits=(CostLimit(5),), oversize_alone=True))
    bench.finish(bench.running[0])
    assert bench.reasons == ["executor_free", "oversize"]


def test_fewer_concurrent_batches_wait_for_those_that_run() -> None:
    bench = Bench(policies(max_concurrent_batches=2, max_batch_size=1))
    bench.arrive("", "", "")
    bench.configure(policies(max_concurrent_batches=1, max_batch_size=1))
    bench.finish(bench.running[0])
    assert bench.states == ["completed", "running", "waiting"]
    bench.finish(bench.running[0])
    assert bench.states == ["completed", "completed", "running"]


def test_configure_keeps_the_state_of_policies_that_stay_the_same() -> None:
    @dataclass(frozen=True)
    class Counting(Fifo):
        """Any policy: what counts is how often it is started."""

        label: str
        starts: list[str] = field(compare=False)

        def start(self) -> Any:
            self.starts.append(self.label)
            return Even() if self.label.startswith("limit") else Admitting()

    starts: list[str] = []
    first, second = Counting("one", starts), Counting("two", starts)
    limit = Counting("limit", starts)
    bench = Bench(policies(admission=(first, second), limits=(limit, CostLimit(10))))
    bench.configure(
        policies(admission=(first, Counting("three", starts)), limits=(Counting("limit", starts), CostLimit(6)))
    )
    bench.configure(policies(admission=(first,), limits=(limit,)))
    bench.configure(policies(admission=(first, second), limits=(limit,)))
    assert starts == ["one", "two", "limit", "three", "two"]


def test_a_policy_that_cannot_start_changes_nothing() -> None:
    class Failing(CostLimit):
        def start(self) -> Any:
            raise ZeroDivisionError

    bench = Bench(policies(max_batch_size=2))
    before = bench.policies
    with pytest.raises(ZeroDivisionError):
        bench.configure(policies(limits=(Failing(1),), max_batch_size=9))
    bench.policies = before
    bench.arrive("", "", "", cost=5)
    assert bench.sizes == [2]


def test_a_closed_batcher_says_so_to_everybody() -> None:
    bench = Bench()
    (runs,) = bench.arrive("")
    waits = bench.submit()
    assert not bench.core.closed
    bench.close(drain=False, running=True)
    assert bench.core.closed
    assert bench.core.statistics(0).closed
    late = bench.submit()
    for request, words in (
        (runs, "while the request's batch ran: it may have had effects"),
        (waits, "while the request waited: it never ran"),
        (late, "is closed and takes no more requests (0 still waiting)"),
    ):
        assert isinstance(request.outcome, Closed)
        assert words in str(request.outcome)
    bench.configure(policies(max_batch_size=9))
    assert bench.submit().state is State.REJECTED


# ---- evidence


def test_statistics_of_a_little_history() -> None:
    bench = Bench(policies(max_batch_size=2))
    empty = bench.core.statistics(0)
    assert empty.mean_batch_size is empty.mean_queue_delay is empty.oldest_waiting_age is None
    bench.submit("a")
    bench.now = 1
    bench.submit("a")
    bench.wake()
    bench.submit("b")
    bench.now = 4
    bench.finish(bench.running[0])
    bench.now = 6
    bench.submit("c")
    books = bench.core.statistics(6, max_execution_time=2)
    assert (books.batches, books.running_batches, books.groups) == (2, 1, 1)
    assert (books.mean_batch_size, books.mean_fill) == (1.5, 0.75)
    assert (books.mean_queue_delay, books.max_queue_delay) == ((1 + 0 + 3) / 3, 3)
    assert books.execution_time == 3
    assert books.reasons == {"full": 1, "executor_free": 1}
    assert (books.oldest_waiting_age, books.oldest_running_age) == (0, 2)
    assert books.healthy
    assert not bench.core.statistics(6.5, max_execution_time=2).healthy
    assert bench.core.statistics(6.5).healthy


def test_records_show_numbers_and_no_items() -> None:
    secret = Request(("secret",), "", 0.5)
    secret.sequence = 7
    assert repr(secret) == "<Request 7 new arrival=0.5 cost=1>"
    assert repr(Batch(3, "", [secret], "full", 0.0)) == "<Batch 3 size=1 reason=full>"


def test_a_request_whose_rank_cannot_be_had_leaves_the_queue_that_took_it_in() -> None:
    """Otherwise a policy that nests the broken one would keep its tenant's account for ever."""

    class Unranked:
        arrival_order = False

        def __init__(self) -> None:
            self.inside: list[Request] = []

        def start(self) -> "Unranked":
            return self

        def queue(self) -> "Unranked":
            return self

        def push(self, request: Request) -> None:
            self.inside.append(request)

        def in_order(self) -> Iterator[Request]:
            return iter(self.inside)

        def rank(self) -> int:
            raise ValueError("no rank")

        def dispatched(self, requests: Sequence[Request], now: float) -> None: ...

        def removed(self, request: Request) -> None:
            assert request.state is State.REJECTED
            self.inside.remove(request)

    policy = Unranked()
    bench = Bench(policies(ordering=policy))
    bench.arrive("", "")
    assert bench.states == ["rejected"] * 2
    assert policy.inside == []
    assert bench.reports == []
