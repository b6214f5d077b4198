"""Instants: what happens at T and just before, wake-ups that do not loop, and memory that follows what is in flight."""

import gc
import math
import weakref

import pytest
from core_bench import Bench, policies

from batchlib._core._deadlines import Deadlines
from batchlib._core._groups import WaitingGroup
from batchlib._core._refusals import expired
from batchlib._core._request import Request
from batchlib._core._transitions import State
from batchlib.errors import DeadlineExceeded
from batchlib.policies import Greedy, SizeOrWait


class Thing:
    """Something that can be watched as it goes."""


def just_before(instant: float) -> float:
    return math.nextafter(instant, -math.inf)


@pytest.mark.parametrize("start", [0.0, 1e9])
def test_a_waiting_request_expires_at_its_deadline_and_not_before(start: float) -> None:
    bench = Bench(now=start)
    bench.arrive("")
    request = bench.submit("", timeout=5, tenant="acme")
    assert bench.wakes == [start + 5]
    bench.now = just_before(start + 5)
    bench.wake()
    assert request.state is State.WAITING
    bench.advance_to(start + 5)
    assert request.state is State.EXPIRED
    assert isinstance(request.outcome, DeadlineExceeded)
    assert isinstance(request.outcome, TimeoutError)
    message = str(request.outcome)
    assert "while it waited: 5 s were granted, 5 s have gone by (1 waiting, tenant='acme')" in message


def test_a_deadline_that_had_passed_before_the_queue_is_told_as_that() -> None:
    request = Request(("late",), "", 10.0)
    request.deadline, request.state = 9.0, State.WAITING
    error = expired(request, 1, 10.5)
    assert "while it waited: no time was left when it was queued, 0.5 s have gone by" in str(error)


def test_a_request_that_can_still_run_just_before_its_deadline_does() -> None:
    bench = Bench()
    bench.arrive("")
    request = bench.submit("", timeout=5)
    bench.now = just_before(5)
    bench.finish(bench.running[0])
    assert request.state is State.RUNNING


def test_what_expires_when_an_executor_becomes_free_is_not_dispatched() -> None:
    bench = Bench()
    bench.arrive("")
    late, well = bench.submit("", timeout=5), bench.submit("", timeout=6)
    bench.now = 5
    bench.finish(bench.running[0])
    assert (late.state, well.state) == (State.EXPIRED, State.RUNNING)


def test_a_running_request_expires_on_time_and_its_batch_goes_on() -> None:
    bench = Bench()
    gone, stays = bench.submit(timeout=5), bench.submit()
    bench.wake()
    bench.advance_to(5)
    assert (gone.state, stays.state) == (State.EXPIRED, State.RUNNING)
    assert "while its batch ran" in str(gone.outcome)
    assert bench.abandoned == []
    bench.finish(bench.running[0])
    assert stays.state is State.COMPLETED


def test_a_batch_that_everybody_has_left_is_abandoned_and_keeps_its_executor() -> None:
    bench = Bench()
    first, second = bench.arrive("", "", timeout=5)
    waits = bench.submit()
    bench.cancel(first)
    assert bench.abandoned == []
    bench.advance_to(5)
    assert bench.abandoned == bench.running == bench.batches
    assert bench.batches[0].abandoned
    assert second.state is State.EXPIRED
    assert waits.state is State.WAITING
    bench.close(drain=False, running=True)
    bench.finish(bench.running[0])
    assert bench.core.idle


def test_a_request_whose_time_is_over_at_submit_expires_in_its_tick() -> None:
    bench = Bench()
    request = bench.submit(timeout=0)
    bench.wake()
    assert request.state is State.EXPIRED


def test_max_wait_ends_exactly_on_time() -> None:
    bench = Bench(policies(dispatch=SizeOrWait(0.3)), now=0.1)
    bench.arrive("")
    (due,) = bench.wakes
    bench.now = just_before(due)
    bench.wake()
    assert bench.batches == []
    bench.advance_to(due)
    assert bench.reasons == ["max_wait"]


def test_max_wait_counts_from_the_oldest_that_still_waits() -> None:
    bench = Bench(policies(dispatch=SizeOrWait(1)))
    (first,) = bench.arrive("")
    bench.advance_to(0.5)
    bench.arrive("")
    bench.cancel(first)
    bench.advance_to(1.25)
    assert bench.batches == []
    bench.advance_to(1.5)
    assert bench.items == [[1]]


def test_the_request_that_fills_a_batch_wakes_a_group_that_waits_for_company() -> None:
    bench = Bench(policies(dispatch=SizeOrWait(1000), max_batch_size=2))
    bench.arrive("")
    bench.advance_to(1)
    bench.arrive("")
    assert bench.reasons == ["full"]


def test_a_group_that_waits_for_company_does_not_delay_one_that_is_ready() -> None:
    bench = Bench(policies(dispatch=SizeOrWait(1000), max_batch_size=2))
    bench.arrive("slow", "quick", "quick")
    assert bench.items == [[1, 2]]


def test_a_wait_made_shorter_counts_at_once() -> None:
    bench = Bench(policies(dispatch=SizeOrWait(1000)))
    bench.arrive("")
    bench.advance_to(1)
    bench.configure(policies(dispatch=SizeOrWait(2)))
    assert bench.batches == []
    bench.advance_to(2)
    assert bench.reasons == ["max_wait"]


def test_a_wait_made_shorter_while_the_executor_is_busy_counts_when_it_is_free() -> None:
    bench = Bench(policies(dispatch=SizeOrWait(1000), max_concurrent_batches=2))
    bench.arrive("a")
    bench.configure(policies(dispatch=Greedy(), max_concurrent_batches=1))
    bench.configure(policies(dispatch=SizeOrWait(1000)))
    bench.arrive("b")
    bench.finish(bench.running[0])
    assert bench.batches[1:] == []
    bench.configure(policies(dispatch=Greedy()))
    assert bench.items == [[0], [1]]


def test_a_drain_waits_for_nobody() -> None:
    bench = Bench(policies(dispatch=SizeOrWait(1000), max_concurrent_batches=2))
    bench.arrive("a", "b")
    bench.close(drain=True)
    assert bench.reasons == ["drain", "drain"]


def test_without_a_wakeup_nobody_is_held_back_and_with_the_next_one_they_are_again() -> None:
    bench = Bench(policies(dispatch=SizeOrWait(1), max_concurrent_batches=3))
    bench.scarce = True
    bench.arrive("a", "b", "a")
    assert (bench.items, bench.reasons) == ([[0, 2], [1]], ["no_clock", "no_clock"])
    bench.scarce = False
    bench.arrive("a")
    assert bench.sizes == [2, 1]
    bench.advance_to(1)
    assert bench.reasons[2:] == ["max_wait"]


def test_without_a_wakeup_those_who_are_not_held_back_wait_for_the_end_of_their_tick() -> None:
    bench = Bench(policies())
    bench.scarce = True
    bench.arrive("", "", "", timeout=5)
    assert (bench.sizes, bench.reasons) == ([3], ["executor_free"])


def test_every_event_asks_again_for_a_wakeup_that_could_not_be_had() -> None:
    for event in (lambda bench: bench.submit(timeout=50), Bench.wake, lambda bench: bench.finish(bench.running[0])):
        bench = Bench(policies(max_batch_size=1, max_concurrent_batches=2))
        bench.arrive("", "")
        bench.scarce = True
        bench.arrive("", "", timeout=5)
        assert bench.wakes == []
        bench.scarce = False
        event(bench)
        assert bench.wakes == [5]


def test_what_could_not_be_watched_expires_before_anything_is_dispatched() -> None:
    bench = Bench(policies(max_batch_size=1))
    bench.arrive("")
    bench.scarce = True
    bench.arrive("", "", timeout=5)
    bench.arrive("")
    bench.stall(5)
    bench.finish(bench.running[0])
    assert bench.states == ["completed", "expired", "expired", "running"]


def test_a_drain_without_wakeups_is_still_a_drain() -> None:
    bench = Bench(policies(dispatch=SizeOrWait(1000), max_batch_size=2))
    bench.scarce = True
    bench.arrive("a", "b", "c", timeout=5)
    bench.drain()
    assert bench.reasons == ["no_clock", "drain", "drain"]


def test_while_executors_are_busy_a_wait_that_ends_wakes_nobody() -> None:
    bench = Bench(policies(dispatch=SizeOrWait(1), max_batch_size=2))
    bench.arrive("a")
    bench.arrive("b", "b")
    bench.advance_to(1)
    assert bench.items == [[1, 2]]
    assert bench.wakes == []
    bench.finish(bench.running[0])
    assert bench.items == [[1, 2], [0]]


def test_deadlines_of_requests_that_have_ended_are_not_kept() -> None:
    """Grants of an hour must not keep an hour's worth of requests."""
    bench = Bench(policies(max_concurrent_batches=2))
    bench.arrive("", timeout=3600)  # runs all the time, and is the first to expire
    items: list[weakref.ref[Thing]] = []
    for number in range(2_000):
        request = Request((Thing(),), "", 0.0)
        request.deadline = 3600.0 + number
        bench.core.submit(request, 0.0)
        bench.core.wake(0.0)
        bench.core.finish(bench.core.running_batches[1], [None], 0.0)
        items.append(weakref.ref(request.args[0]))
    assert sum(item() is not None for item in items) < 100


def test_the_earliest_deadline_comes_first_and_those_who_left_are_skipped() -> None:
    deadlines = Deadlines()
    assert deadlines.next() == math.inf
    requests = []
    for sequence, deadline in enumerate([5.0, 1.0, 3.0]):
        request = Request((), "", 0.0)
        request.deadline, request.sequence, request.state = deadline, sequence, State.WAITING
        deadlines.add(request, 3)
        requests.append(request)
    requests[1].state = State.CANCELLED
    assert deadlines.next() == 3.0
    requests[2].state = State.COMPLETED
    assert list(deadlines.due(4.0)) == []
    assert list(deadlines.due(5.0)) == [requests[0]]


@pytest.mark.parametrize("dispatch", [Greedy(), SizeOrWait(3600)])
def test_groups_that_have_become_empty_leave_nothing(dispatch: object) -> None:
    """A key is used once and never again, as lengths and tenants are."""
    bench = Bench(policies(dispatch=dispatch, max_concurrent_batches=1))
    if isinstance(dispatch, Greedy):
        bench.arrive("busy")
    keys: list[weakref.ref[Thing]] = []
    for _ in range(1_000):
        key = Thing()
        keys.append(weakref.ref(key))
        request = Request((), key, 0.0)
        bench.core.submit(request, 0.0)
        bench.core.wake(0.0)
        bench.core.cancel(request, 0.0)
        del key, request
    assert sum(key() is not None for key in keys) < 150
    entries = [entry for entry in gc.get_objects() if type(entry) is tuple and len(entry) == 3]
    assert sum(isinstance(entry[2], WaitingGroup) for entry in entries) < 150
    assert bench.core.statistics(0.0).groups == bench.core.waiting == 0
