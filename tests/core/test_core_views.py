"""What policies are shown of the batcher, what it learns, and the ordering that takes over."""

from collections.abc import Iterator, Sequence
from typing import Any

from core_bench import Bench, policies

from batchlib._core._protocols import Decision, Group, WaitingRoom
from batchlib._core._request import Request
from batchlib._core._transitions import State
from batchlib.policies import Fifo, Greedy, SizeOrWait


class Newest:
    """Last in, first out, and a rank that says so."""

    arrival_order = False
    tenants_tracked = 7

    def __init__(self) -> None:
        self.requests: list[Request] = []

    def start(self) -> "Newest":
        return Newest()

    def queue(self) -> "Newest":
        return Newest()

    def push(self, request: Request) -> None:
        self.requests.append(request)

    def in_order(self) -> Iterator[Request]:
        return (request for request in reversed(self.requests) if request.state is State.WAITING)

    def due_from(self, instant: float) -> Iterator[Request]:
        return (request for request in self.in_order() if request.deadline is None or request.deadline >= instant)

    def rank(self) -> int:
        return -next(self.in_order()).sequence

    def dispatched(self, requests: Sequence[Request], now: float) -> None: ...

    def removed(self, request: Request) -> None: ...


class Looking:
    """A dispatch policy that notes what it sees, and is greedy."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def start(self) -> "Looking":
        return self

    def decide(self, group: Group, now: float) -> Decision:
        self.seen.append((group.running_batches, group.max_batch_size, group.deadline_order))
        return Decision(group.fill().requests)


def test_a_dispatch_policy_sees_the_batcher_around_its_group() -> None:
    looking = Looking()
    bench = Bench(policies(dispatch=looking, max_batch_size=2, max_concurrent_batches=2))
    bench.arrive("a", "b")
    assert looking.seen == [(0, 2, False), (1, 2, False)]
    bench = Bench(policies(dispatch=looking, ordering=Newest()))
    bench.arrive("a")
    assert looking.seen[2:] == [(0, 4, True)]


def test_nothing_is_learned_until_somebody_asks() -> None:
    bench = Bench()
    bench.arrive("")
    bench.finish(bench.running[0])
    assert bench.core.statistics(0.0).latency_model is None

    model = bench.core.latency_model
    for _ in range(3):
        bench.arrive("", "")
        bench.now += 4
        bench.finish(bench.running[0])
    assert bench.core.latency_model is model
    assert model.predict(2) == 4
    assert bench.core.statistics(0.0).latency_model == model.estimate()


def test_both_sides_see_the_same_model() -> None:
    models: list[Any] = []

    class Both:
        def start(self) -> "Both":
            return self

        def admit(self, request: Request, room: WaitingRoom, now: float) -> None:
            models.append((room.latency_model, room.max_concurrent_batches, len(room.running_batches)))

        def decide(self, group: Group, now: float) -> Decision:
            models.append((group.latency_model, 3, group.running_batches))
            return Decision(group.fill().requests)

    both = Both()
    bench = Bench(policies(admission=(both,), dispatch=both, max_concurrent_batches=3))
    bench.arrive("")
    assert models == [(bench.core.latency_model, 3, 0)] * 2


def test_a_batch_in_which_everything_failed_teaches_nothing() -> None:
    """An outage that answers at once would otherwise make every deadline look easy."""
    bench = Bench()
    model = bench.core.latency_model

    def run(seconds: float, *outcomes: Any) -> bool:
        bench.arrive("", "")
        bench.now += seconds
        bench.finish(bench.running[0], outcomes)
        return model.last_sample == bench.now

    assert not run(4, "first of", "its shape")
    assert run(4, "a", "b")
    assert not run(0.001, ValueError(), ValueError())
    assert run(4, ValueError(), "b")
    assert model.predict(2) == 4


def carried(**options: Any) -> Bench:
    return Bench(policies(ordering=Fifo(), carried_ordering=Newest(), max_batch_size=2, **options))


def test_first_in_first_out_until_a_request_carries_something() -> None:
    for field in ({"priority": 1}, {"priority": -0.5}, {"tenant": "acme"}, {"tenant": 0}):
        bench = carried()
        bench.arrive("", "", "", priority=0, tenant=None)
        bench.arrive("", "", "")
        bench.finish(bench.running[0])
        assert bench.items == [[0, 1], [2, 3]]
        bench.arrive("", "")
        assert bench.core.statistics(0.0).tenants_tracked == 0
        bench.arrive("", **field)
        assert bench.core.statistics(0.0).tenants_tracked == 7
        for _ in range(3):
            bench.finish(bench.running[0])
        assert bench.items[2:] == [[8, 7], [6, 5], [4]], field


def test_all_groups_change_their_order_and_are_asked_again() -> None:
    """One that slept under the old order is not forgotten, and ranks of the two orders are never compared."""
    bench = carried(dispatch=SizeOrWait(5))
    bench.submit("a")
    bench.submit("b")
    bench.wake()
    bench.now = 1.0
    bench.submit("c", tenant="acme")
    bench.wake()
    bench.now = 2.0
    bench.submit("b")
    bench.wake()
    assert bench.items == [[3, 1]]
    bench.finish(bench.running[0])
    bench.advance_to(5.0)
    assert bench.items == [[3, 1], [0]]
    bench.finish(bench.running[0])
    bench.advance_to(6.0)
    assert bench.items == [[3, 1], [0], [2]]


def test_those_who_left_before_are_not_taken_over() -> None:
    bench = carried()
    bench.arrive(*"aaaaaa")
    bench.cancel(bench.requests[3])
    bench.arrive("a", tenant="acme")
    bench.drain()
    assert bench.items == [[0, 1], [6, 5], [4, 2]]
    assert bench.core.idle


def test_the_change_comes_once() -> None:
    bench = carried()
    for _ in range(3):
        bench.arrive("", tenant="acme")
    ordering = bench.core._states.ordering
    bench.arrive("", tenant="other")
    assert bench.core._states.ordering is ordering
    bench.configure(policies(ordering=Fifo(), carried_ordering=Newest(), max_batch_size=3))
    assert bench.core._states.ordering is ordering


def test_the_estimate_of_a_refusal_goes_by_batches_that_have_ended() -> None:
    bench = Bench(policies(dispatch=Greedy(), max_batch_size=2))
    assert bench.core._books.time_to_clear(bench.core) is None
    bench.arrive("", "", "", "", "")
    bench.now = 3
    bench.finish(bench.running[0])
    assert bench.core._books.time_to_clear(bench.core) == 3  # of the one that waits: a batch of its own
