"""A decision about deadlines looks at no more requests, and asks no more questions, than it needs."""

from collections.abc import Iterator, Sequence

from core_bench import Bench, policies

from batchlib._core._request import Request
from batchlib.policies import DeadlineAware, Fifo
from batchlib.policies.structures._feasible import largest_run
from batchlib.protocols import Queue


class Counting:
    """Fifo that counts how many requests are looked at."""

    def __init__(self) -> None:
        self.looked_at = 0

    def start(self) -> "Counting":
        self._inside = Fifo().start()
        return self

    def queue(self) -> "CountingQueue":
        return CountingQueue(self, self._inside.queue())


class CountingQueue:
    arrival_order = False

    def __init__(self, counting: Counting, inside: Queue) -> None:
        self._counting, self._inside = counting, inside
        self.push, self.rank = inside.push, inside.rank
        self.dispatched, self.removed = inside.dispatched, inside.removed

    def in_order(self) -> Iterator[Request]:
        for request in self._inside.in_order():
            self._counting.looked_at += 1
            yield request


def test_in_another_order_only_those_who_fit_are_looked_at() -> None:
    counting = Counting()
    told = DeadlineAware(execution_time=lambda size, longest: size / 100)
    bench = Bench(policies(ordering=counting, dispatch=told, max_batch_size=4))
    for _ in range(200):
        bench.submit(timeout=10.0)
    bench.wake()
    assert bench.sizes == [4]
    assert counting.looked_at <= 5  # one more says that the batch is closed


def test_hopeless_heads_are_not_asked_about_one_by_one() -> None:
    asked: list[int] = []

    def time(size: int, longest: float) -> float:
        asked.append(size)
        return 1.0 + size * longest / 100

    heads = [_due(0.5, cost) for cost in (1.0, 2.0)] * 100
    hopeful: Sequence[Request] = [_due(9.0, cost) for cost in (1.0, 2.0)] * 8
    assert largest_run([*heads, *hopeful], 8, 0.0, time) == (200, 8)
    assert len(asked) < 20


def _due(deadline: float, cost: float) -> Request:
    request = Request((), "", 0.0)
    request.deadline, request.cost = deadline, cost
    return request
