"""The clock that is moved by hand: order, instants, threads, and callbacks that raise."""

import asyncio
import math
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchlib import DeadlineExceeded, batched
from batchlib.simulation import VirtualClock


@settings(max_examples=100, deadline=None, database=None)
@given(
    st.lists(st.integers(0, 20)),
    st.lists(st.integers(0, 5), min_size=1),
)
def test_callbacks_run_in_order_each_at_its_own_instant(instants: list[int], steps: list[int]) -> None:
    clock = VirtualClock()
    seen: list[tuple[float, int]] = []
    for number, instant in enumerate(instants):
        clock.call_at(instant, lambda number=number: seen.append((clock.now(), number)))
    for step in steps:
        clock.advance(step)
        left = [instant for instant in instants if instant > clock.now()]
        assert clock.next_due == (min(left) if left else None)
    due = [(instant, number) for number, instant in enumerate(instants) if instant <= sum(steps)]
    assert seen == sorted(due)
    assert clock.now() == sum(steps)


def test_what_a_callback_asks_for_runs_in_the_same_advance() -> None:
    clock = VirtualClock(5.0)
    seen: list[float] = []

    def again() -> None:
        seen.append(clock.now())
        clock.call_at(clock.now() + 1, again)

    clock.call_at(0.0, again)  # an instant that has passed: at the next advance
    assert clock.next_due == 0.0
    clock.advance_to(7.5)
    assert seen == [5.0, 6.0, 7.0]
    assert clock.now() == 7.5
    assert clock.next_due == 8.0


def test_one_that_raises_stops_nothing() -> None:
    clock = VirtualClock()
    seen: list[float] = []

    def fail() -> None:
        raise KeyError(clock.now())

    clock.call_at(1.0, fail)
    clock.call_at(2.0, lambda: seen.append(clock.now()))
    with pytest.raises(KeyError, match=r"1\.0"):
        clock.advance(3)
    assert (seen, clock.now(), clock.next_due) == ([2.0], 3.0, None)


def test_several_that_raise_come_as_a_group() -> None:
    clock = VirtualClock()
    for instant in (1.0, 2.0):
        clock.call_at(instant, lambda: 1 / 0)
    with pytest.raises(ExceptionGroup) as caught:
        clock.advance(2)
    assert [type(error) for error in caught.value.exceptions] == [ZeroDivisionError] * 2


def test_an_interrupt_ends_the_advance_and_loses_nothing() -> None:
    clock = VirtualClock()
    seen: list[float] = []

    def interrupt() -> None:
        raise KeyboardInterrupt

    clock.call_at(1.0, interrupt)
    clock.call_at(2.0, lambda: seen.append(clock.now()))
    with pytest.raises(KeyboardInterrupt):
        clock.advance(3)
    assert (seen, clock.now(), clock.next_due) == ([], 1.0, 2.0)
    clock.advance_to(3)
    assert seen == [2.0]


@pytest.mark.parametrize("instant", [math.nan, math.inf, 1.5])
def test_time_goes_forward_and_is_finite(instant: float) -> None:
    clock = VirtualClock(2.0)
    with pytest.raises(ValueError, match=r"instant must be a finite number|time never goes back: it is 2"):
        clock.advance_to(instant)
    assert clock.now() == 2.0


def test_it_starts_at_a_number() -> None:
    with pytest.raises(TypeError, match="start must be a finite number of seconds, not 'now'"):
        VirtualClock("now")  # type: ignore[arg-type]
    assert repr(VirtualClock(3.5)) == "<VirtualClock now=3.5>"


def test_callbacks_come_from_many_threads_and_none_is_lost() -> None:
    clock = VirtualClock()
    seen: list[int] = []
    barrier = threading.Barrier(5)

    def ask(first: int) -> None:
        barrier.wait()
        for number in range(first, first + 500):
            clock.call_at(number % 7, lambda number=number: seen.append(number))

    threads = [threading.Thread(target=ask, args=(500 * place,)) for place in range(4)]
    for thread in threads:
        thread.start()
    barrier.wait()
    while any(thread.is_alive() for thread in threads):
        clock.advance(0)
    clock.advance(7)
    assert sorted(seen) == list(range(2000))


async def test_a_batcher_keeps_its_time_by_it() -> None:
    clock = VirtualClock()
    async with batched(lambda xs: xs, max_batch_size=8, max_wait=0.5, clock=clock) as echo:
        call = asyncio.ensure_future(echo(1))
        late = asyncio.ensure_future(echo.options(timeout=0.25)(2))
        while echo.statistics().waiting < 2:
            await asyncio.sleep(0)
        while clock.next_due is None:  # until the tick is over, and the batcher has asked to be woken
            await asyncio.sleep(0)
        clock.advance(0.25)
        with pytest.raises(DeadlineExceeded):
            await late
        assert not call.done()
        clock.advance(0.25)
        assert await call == 1
