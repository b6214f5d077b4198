"""The core knows differences of instants only: the same story an hour later is the same story."""

from core_bench import Bench, policies
from hypothesis import given, settings
from hypothesis import strategies as st

from batchlib.policies import CostLimit, SizeOrWait

events = st.one_of(
    st.tuples(st.just("submit"), st.integers(0, 2), st.integers(1, 3)),
    st.tuples(st.just("expiring"), st.integers(0, 2), st.integers(0, 9)),
    st.tuples(st.just("wait"), st.integers(1, 4), st.just(0)),
    st.tuples(st.just("cancel"), st.integers(0, 30), st.just(0)),
    st.tuples(st.just("finish"), st.integers(0, 30), st.just(0)),
)


def tell(story: list[tuple[str, int, int]], start: float) -> list[object]:
    bench = Bench(
        policies(dispatch=SizeOrWait(1.0), limits=(CostLimit(5),), max_batch_size=3, max_concurrent_batches=2), start
    )
    told: list[object] = []
    for event, first, second in story:
        match event:
            case "submit":
                bench.submit(first, cost=second)
                bench.wake()
            case "expiring":
                bench.submit(first, timeout=second / 4)
                bench.wake()
            case "wait":
                bench.advance_to(bench.now + first / 4)
            case "cancel" if bench.requests:
                bench.cancel(bench.requests[first % len(bench.requests)])
            case "finish" if bench.running:
                bench.finish(bench.running[first % len(bench.running)])
        told.append((bench.states, sorted(wake - start for wake in bench.wakes)))
    return [*told, bench.items, bench.reasons, [batch.started - start for batch in bench.batches]]


@settings(max_examples=60, deadline=None, database=None)
@given(st.lists(events, min_size=5, max_size=40), st.integers(1, 1 << 20))
def test_a_shift_of_time_changes_nothing(story: list[tuple[str, int, int]], shift: int) -> None:
    assert tell(story, 0.0) == tell(story, float(shift))
