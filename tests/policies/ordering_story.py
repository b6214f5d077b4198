"""Stories played through the real core: arrivals, cancellations and batches that end, and what each batch overtook."""

from collections.abc import Iterator, Sequence
from typing import Any

from core_bench import Bench, policies
from hypothesis import strategies as st

from batchlib._core._request import Request
from batchlib._core._transitions import State

priorities = st.sampled_from([0, 0, 1, 2, -1, 0.5, float("inf"), float("-inf")])
Event = tuple[str, Any]


def stories(groups: str = "ab", tenants: str = "xyz", priority: Any = priorities) -> st.SearchStrategy[list[Event]]:
    """Whole numbers of half seconds and whole costs, so that sums are exact."""
    arrival = st.fixed_dictionaries(
        {
            "group": st.sampled_from(groups),
            "tenant": st.sampled_from(tenants),
            "priority": priority,
            "cost": st.integers(1, 4),
            "timeout": st.none() | st.integers(20, 90).map(float),
        }
    )
    event = st.one_of(
        st.tuples(st.just("submit"), st.lists(arrival, min_size=1, max_size=6)),
        st.tuples(st.just("wait"), st.integers(1, 6).map(lambda halves: halves / 2)),
        st.tuples(st.just("finish"), st.none()),
        st.tuples(st.just("cancel"), st.integers(0, 60)),
        st.tuples(st.just("cancel all of"), st.sampled_from(tenants)),
        st.tuples(st.just("finish all"), st.none()),
    )
    return st.lists(event, min_size=4, max_size=40)


class Story:
    """Plays a story on a bench. One batch at a time, so each event dispatches at most one, except `finish all`."""

    def __init__(self, ordering: Any, size: int, start: float = 0.0, **options: Any) -> None:
        self.bench = Bench(policies(ordering=ordering, max_batch_size=size, **options), start)

    def play(self, story: Sequence[Event]) -> Iterator[tuple[list[Request], list[Request]]]:
        """Each batch with those who waited when it was formed, itself included."""
        for event, what in [*story, ("finish all", None)]:
            for step in self.steps(event, what):
                waited = [request for request in self.bench.requests if request.state is State.WAITING]
                known, seen = len(self.bench.requests), len(self.bench.batches)
                step()
                waited += [each for each in self.bench.requests[known:] if each.state in (State.WAITING, State.RUNNING)]
                for batch in self.bench.batches[seen:]:
                    yield self.bench.contents[batch], waited
                self.looked_at()

    def looked_at(self) -> None:
        """For what a test holds after every step."""

    def steps(self, event: str, what: Any) -> Iterator[Any]:
        bench = self.bench
        if event == "submit":
            for arrival in what:
                yield lambda arrival=arrival: bench.submit(**arrival)
            yield bench.wake
        elif event == "wait":
            yield lambda: bench.advance_to(bench.now + what)
        elif event == "cancel" and bench.requests:
            yield lambda: bench.cancel(bench.requests[what % len(bench.requests)])
        elif event == "cancel all of":
            for each in list(bench.requests):
                if each.tenant == what:
                    yield lambda each=each: bench.cancel(each)
        elif event.startswith("finish"):
            while bench.running:
                yield lambda: bench.finish(bench.running[0])
                if event == "finish":
                    break
