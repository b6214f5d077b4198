"""What `EarliestDeadline` promises, and the sorted list that it and the others stand on."""

import pytest
from core_bench import Bench, policies
from hypothesis import given, settings
from hypothesis import strategies as st
from ordering_story import Event, Story, stories

from batchlib.policies import EarliestDeadline
from batchlib.policies.structures import _sorted
from batchlib.policies.structures._deadlines import due
from batchlib.policies.structures._sorted import Sorted


@settings(max_examples=100, deadline=None, database=None)
@given(stories(), st.integers(1, 4))
def test_a_batch_holds_those_who_are_due_first(story: list[Event], size: int) -> None:
    for batch, waited in Story(EarliestDeadline(), size).play(story):
        key = [(due(request), request.sequence) for request in batch]
        assert key == sorted((due(x), x.sequence) for x in waited if x.group == batch[0].group)[: len(batch)]
        assert key[0] == min((due(x), x.sequence) for x in waited)


def test_due_is_the_deadline_or_the_end_of_the_callers_scope() -> None:
    bench = Bench(policies(ordering=EarliestDeadline(), max_batch_size=8))
    bench.submit("")
    bench.submit("", timeout=9.0)
    bench.submit("", timeout=5.0, hint=8.0)
    bench.submit("", hint=7.0)
    bench.submit("", timeout=8.0, hint=6.0)
    bench.submit("")
    bench.wake()
    assert bench.items == [[2, 4, 3, 1, 0, 5]]


def test_it_says_that_its_order_is_that_of_the_deadlines() -> None:
    assert hasattr(EarliestDeadline().start().queue(), "due_from")


changes = st.lists(
    st.tuples(st.sampled_from(["add", "add", "remove", "remove the first", "remove several"]), st.integers(0, 40)),
    max_size=60,
)


@settings(max_examples=300, deadline=None, database=None)
@given(changes)
def test_a_sorted_list_is_a_sorted_list(changes: list[tuple[str, int]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_sorted, "_FULL", 4)
        entries: Sorted[tuple[int, int]] = Sorted()
        expected: list[tuple[int, int]] = []
        for number, (change, value) in enumerate(changes):
            if change == "add":
                entries.add((value, number))
                expected = sorted([*expected, (value, number)])
            elif expected:
                gone = [expected[value % len(expected)]]
                if change == "remove":
                    entries.remove(gone[0])
                else:
                    gone = expected[: value % 6] if change == "remove the first" else expected[value % 3 :: 3]
                    entries.remove_all(gone)
                expected = [entry for entry in expected if entry not in gone]
            assert list(entries) == expected
            assert bool(entries) is bool(expected)
            assert not expected or entries.first() == expected[0]
            assert all(1 <= len(chunk) <= 4 for chunk in entries._chunks)
            assert entries._last == [chunk[-1] for chunk in entries._chunks]  # nothing keeps alive what has left


@pytest.mark.parametrize("there", [[], [(1, 1)], [(1, 1), (3, 3)]])
def test_what_is_not_in_a_sorted_list_cannot_be_removed(there: list[tuple[int, int]]) -> None:
    entries: Sorted[tuple[int, int]] = Sorted()
    for entry in there:
        entries.add(entry)
    for absent in [(0, 0), (2, 2), (9, 9)]:
        with pytest.raises(KeyError):
            entries.remove(absent)
    assert list(entries) == there
