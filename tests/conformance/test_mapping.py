"""`map`: in order, within bounds, on every runtime, and nothing left behind when it is left early."""

import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import aclosing
from typing import Any

import anyio
import pytest
from support.until import until

from batchlib import BatchlibError, BlockingCallError, Closed

from .held import Gate, Held, Kind, of_kind
from .runtimes import LOOPS, RUNTIMES, Call, Left, LoopRuntime, Runtime

Make = Callable[..., Any]


@pytest.fixture(params=[*LOOPS, "threads"])
def mapping(request: pytest.FixtureRequest) -> Iterator[Runtime]:
    """Where `for` or `async for` goes over the results."""
    with RUNTIMES[request.param]() as runtime:
        yield runtime


def start(runtime: Runtime, results: Any, into: list[Any], stop: Callable[[Any], bool] = lambda _: False) -> Call:
    """Goes over the results, one by one into a list, until `stop` is true of one."""

    async def over_async() -> None:
        async with aclosing(aiter(results)) as iterator:
            async for value in iterator:
                into.append(value)
                if stop(value):
                    break

    def over() -> None:
        for value in results:
            into.append(value)
            if stop(value):
                break

    if isinstance(runtime, LoopRuntime):
        return runtime.spawn(over_async)[0]
    call = Call()
    threading.Thread(target=call.end_as, args=(over,), daemon=True).start()
    return call


def collected(runtime: Runtime, results: Any) -> list[Any]:
    into: list[Any] = []
    start(runtime, results, into).result()
    return into


def counting(items: Iterable[Any], pulled: list[Any]) -> Iterator[Any]:
    for item in items:
        pulled.append(item)
        yield item


def test_results_come_in_the_order_of_the_items(mapping: Runtime, kind: Kind, make: Make) -> None:
    function = make(of_kind(kind, lambda items: [2 * item for item in items]), max_batch_size=7)
    assert collected(mapping, function.map(range(200))) == [2 * number for number in range(200)]
    done = function.statistics()
    assert (done.submitted, done.completed) == (200, 200)


def test_several_batches_at_once_keep_the_order(mapping: Runtime, kind: Kind, make: Make) -> None:
    function = make(of_kind(kind, lambda items: items), max_batch_size=3, max_concurrent_batches=4)
    assert collected(mapping, function.map(range(100))) == list(range(100))


def test_map_fills_its_batches(mapping: Runtime, kind: Kind, make: Make) -> None:
    function = make(of_kind(kind, lambda items: items), max_batch_size=10)
    collected(mapping, function.map(range(40), look_ahead=40))
    assert function.statistics().mean_batch_size == 10


def test_unordered_gives_results_as_they_come(mapping: Runtime, make: Make) -> None:
    gate = Gate()

    def function(items: list[int]) -> list[str]:
        if items == [0]:
            gate.wait()
        return [f"result {item}" for item in items]

    batcher = make(function, max_batch_size=1, max_concurrent_batches=2)
    into: list[Any] = []
    call = start(mapping, batcher.map(range(4), ordered=False), into)
    until(lambda: len(into) == 3)
    assert {index for index, _ in into} == {1, 2, 3}
    gate.open()
    call.result()
    assert into[3] == (0, "result 0")
    assert dict(into) == {number: f"result {number}" for number in range(4)}


def some_fail(items: list[int]) -> list[Any]:
    return [ValueError(f"bad {item}") if item % 5 == 3 else item for item in items]


def test_errors_as_values_stand_in_their_places(mapping: Runtime, kind: Kind, make: Make) -> None:
    function = make(of_kind(kind, some_fail), max_batch_size=4)
    values = collected(mapping, function.map(range(20), return_exceptions=True))
    for number, value in enumerate(values):
        assert str(value) == f"bad {number}" if number % 5 == 3 else value == number
    pairs = dict(collected(mapping, function.map(range(20), return_exceptions=True, ordered=False)))
    assert sorted(pairs) == list(range(20))
    assert all(isinstance(pairs[number], ValueError) == (number % 5 == 3) for number in pairs)


def test_the_first_error_is_raised_in_its_place_and_cancels_the_rest(mapping: Runtime, kind: Kind, make: Make) -> None:
    function = make(of_kind(kind, some_fail), max_batch_size=2)
    into: list[Any] = []
    pulled: list[Any] = []
    error = start(mapping, function.map(counting(range(1000), pulled), look_ahead=20), into).error()
    assert str(error) == "bad 3"
    assert into == [0, 1, 2]
    assert len(pulled) < 100
    until(lambda: function.statistics().running_batches == 0)
    done = function.statistics()
    assert done.waiting == 0
    assert done.submitted == len(pulled) == done.completed + done.failed + done.cancelled


def test_a_wrong_call_and_a_callbacks_error_have_their_places_too(mapping: Runtime, kind: Kind, make: Make) -> None:
    function = make(of_kind(kind, lambda items: items), cost=len)
    values = collected(mapping, function.map(["a", 2, "c"], return_exceptions=True))
    assert (values[0], type(values[1]), values[2]) == ("a", TypeError, "c")
    into: list[Any] = []
    assert isinstance(start(mapping, function.map(["a", "b", 3, "d"]), into).error(), TypeError)
    assert into == ["a", "b"]
    pairs = collected(mapping, function.map(["a", "b"], ["c", "d"], return_exceptions=True))
    assert [type(value) for value in pairs] == [TypeError, TypeError]


@pytest.mark.parametrize("look_ahead", [1, 3, 10])
def test_no_more_is_pulled_than_looked_ahead(mapping: Runtime, kind: Kind, look_ahead: int, make: Make) -> None:
    pulled: list[Any] = []
    into: list[Any] = []
    ahead: list[int] = []

    def source() -> Iterator[int]:
        for number in range(50):
            pulled.append(number)
            ahead.append(len(pulled) - len(into))
            yield number

    function = make(of_kind(kind, lambda items: items), max_batch_size=4)
    start(mapping, function.map(source(), look_ahead=look_ahead), into).result()
    assert into == list(range(50))
    # One result may have left the window and be on its way into the list.
    assert max(ahead) <= look_ahead + 1


def test_the_usual_look_ahead_is_four_batches(mapping: Runtime, kind: Kind, make: Make) -> None:
    held = Held(kind)
    function = make(held, max_batch_size=2)
    pulled: list[Any] = []
    into: list[Any] = []
    call = start(mapping, function.map(counting(range(100), pulled)), into)
    until(lambda: held.seen and function.statistics().submitted == 8)
    assert len(pulled) == 8
    held.gate.open()
    call.result()
    assert into == list(range(100))


def test_nothing_is_pulled_before_the_first_result_is_asked_for(make: Make) -> None:
    function = make(lambda items: items)
    pulled: list[Any] = []
    results = function.map(counting(range(10), pulled))
    assert pulled == []
    assert next(results) == 0
    assert pulled == list(range(10))
    assert list(results) == list(range(1, 10))


def test_results_are_iterators_too(loop: LoopRuntime, make: Make) -> None:
    function = make(lambda items: items)

    async def main() -> list[Any]:
        results = function.map(range(4))
        first = await anext(results)
        return [first, *[value async for value in results]]

    assert loop.run(main) == [0, 1, 2, 3]


def test_leaving_early_cancels_what_waits(mapping: Runtime, make: Make) -> None:
    gate = Gate()
    ran: list[int] = []

    def function(items: list[int]) -> list[int]:
        ran.extend(items)
        if 1 in items:
            gate.wait()
        return items

    batcher = make(function, max_batch_size=1)
    into: list[Any] = []
    start(mapping, batcher.map(range(100), look_ahead=10), into, stop=lambda value: value == 0).result()
    now = batcher.statistics()
    assert into == [0]
    assert now.waiting == 0
    assert now.cancelled >= 8
    gate.open()
    until(lambda: batcher.statistics().running_batches == 0)
    assert set(ran) <= {0, 1}


def test_a_plain_break_is_enough(mapping: Runtime, make: Make) -> None:
    """Without aclosing: whoever breaks out of the loop has left."""
    gate = Gate()
    function = make(lambda items: gate.wait() if items[0] else items, max_batch_size=1)  # only the first batch ends

    async def leave_async() -> int:
        async for _ in function.map(range(100), look_ahead=10):
            break
        return function.statistics().waiting

    def leave() -> int:
        for _ in function.map(range(100), look_ahead=10):
            break
        return function.statistics().waiting

    assert (mapping.run(leave_async) if isinstance(mapping, LoopRuntime) else leave()) == 0
    assert function.statistics().cancelled == 9
    gate.open()
    until(lambda: function.statistics().running_batches == 0)


def test_cancelling_the_task_that_iterates_cancels_what_waits(loop: LoopRuntime, kind: Kind, make: Make) -> None:
    held = Held(kind)
    function = make(held, max_batch_size=1)
    into: list[Any] = []
    call = start(loop, function.map(range(100), look_ahead=10), into)
    until(lambda: function.statistics().submitted == 10)
    call.leave()
    with pytest.raises(Left):
        call.result()
    now = function.statistics()
    assert (now.cancelled, now.waiting) == (10, 0)
    assert into == []


async def asynchronous(items: Iterable[Any]) -> AsyncIterator[Any]:
    for item in items:
        await anyio.sleep(0)
        yield item


def test_an_async_source(loop: LoopRuntime, kind: Kind, make: Make) -> None:
    function = make(of_kind(kind, lambda items: [2 * item for item in items]))
    assert collected(loop, function.map(asynchronous(range(50)))) == [2 * number for number in range(50)]


def test_an_async_source_beside_a_plain_one(loop: LoopRuntime, make: Make) -> None:
    function = make(lambda xs, ys: [x + y for x, y in zip(xs, ys, strict=True)])
    assert collected(loop, function.map(asynchronous(range(5)), range(10, 15))) == [10, 12, 14, 16, 18]


def test_a_slow_source_holds_back_no_result(loop: LoopRuntime, kind: Kind, make: Make) -> None:
    gate = Gate()

    async def slow() -> AsyncIterator[int]:
        yield 0
        yield 1
        await gate.wait_async()
        yield 2

    function = make(of_kind(kind, lambda items: items))
    into: list[Any] = []
    call = start(loop, function.map(slow()), into)
    until(lambda: into == [0, 1])
    assert not call.done
    gate.open()
    call.result()
    assert into == [0, 1, 2]


def test_leaving_while_an_async_source_is_slow(loop: LoopRuntime, make: Make) -> None:
    gate, closed = Gate(), Gate()

    async def slow() -> AsyncIterator[int]:
        try:
            yield 0
            await gate.wait_async()
        finally:
            closed.open()

    function = make(lambda items: items)
    into: list[Any] = []
    start(loop, function.map(slow()), into, stop=lambda _: True).result()
    assert into == [0]
    closed.wait()


def test_an_async_source_is_not_pulled_without_bound(loop: LoopRuntime, make: Make) -> None:
    held = Held("plain")
    function = make(held, max_batch_size=2)
    pulled: list[Any] = []

    async def source() -> AsyncIterator[int]:
        for number in range(50):
            pulled.append(number)
            yield number

    into: list[Any] = []
    call = start(loop, function.map(source(), look_ahead=6), into)
    until(lambda: function.statistics().submitted == 6)
    assert len(pulled) == 6
    held.gate.open()
    call.result()
    assert into == list(range(50))


def test_an_async_source_in_a_thread_is_a_type_error(make: Make) -> None:
    with pytest.raises(TypeError, match="async for"):
        list(make(lambda items: items).map(asynchronous(range(3))))


def test_several_sources_are_parallel(mapping: Runtime, kind: Kind, make: Make) -> None:
    def score(queries: list[str], documents: list[str]) -> list[str]:
        return [f"{query}{document}" for query, document in zip(queries, documents, strict=True)]

    async def score_async(queries: list[str], documents: list[str]) -> list[str]:
        return score(queries, documents)

    function = make(score if kind == "plain" else score_async)
    assert collected(mapping, function.map("abc", "xyz")) == ["ax", "by", "cz"]


@pytest.mark.parametrize("sources", [("abcd", "xy"), ("ab", "wxyz")])
def test_sources_must_be_equally_long(mapping: Runtime, sources: tuple[str, str], make: Make) -> None:
    function = make(lambda xs, ys: [x + y for x, y in zip(xs, ys, strict=True)])
    into: list[Any] = []
    error = start(mapping, function.map(*sources), into).error()
    assert isinstance(error, ValueError)
    assert into == [sources[0][0] + sources[1][0], sources[0][1] + sources[1][1]]  # what was whole comes first


def test_async_sources_must_be_equally_long(loop: LoopRuntime, make: Make) -> None:
    function = make(lambda xs, ys: [x + y for x, y in zip(xs, ys, strict=True)])
    into: list[Any] = []
    error = start(loop, function.map(asynchronous("abc"), "xy"), into).error()
    assert isinstance(error, ValueError)
    assert "equally long" in str(error)
    assert into == ["ax", "by"]


def test_what_a_source_raises_comes_in_its_place(mapping: Runtime, make: Make) -> None:
    def source() -> Iterator[int]:
        yield 0
        yield 1
        raise LookupError("no more")

    function = make(lambda items: items)
    into: list[Any] = []
    error = start(mapping, function.map(source()), into).error()
    assert isinstance(error, LookupError)
    assert into == [0, 1]
    assert function.statistics().waiting == 0


def test_what_an_async_source_raises_comes_in_its_place(loop: LoopRuntime, make: Make) -> None:
    async def source() -> AsyncIterator[int]:
        yield 0
        yield 1
        raise LookupError("no more")

    into: list[Any] = []
    error = start(loop, make(lambda items: items).map(source()), into).error()
    assert isinstance(error, LookupError)
    assert into == [0, 1]


@pytest.mark.parametrize("options", [{}, {"ordered": False}, {"return_exceptions": True}, {"look_ahead": 1}])
def test_an_empty_source_gives_nothing(mapping: Runtime, kind: Kind, options: Any, make: Make) -> None:
    function = make(of_kind(kind, lambda items: items))
    assert collected(mapping, function.map([], **options)) == []
    assert function.statistics().submitted == 0


def test_an_empty_async_source_gives_nothing(loop: LoopRuntime, make: Make) -> None:
    assert collected(loop, make(lambda items: items).map(asynchronous([]))) == []


def test_for_on_a_loops_thread_is_refused(loop: LoopRuntime, make: Make) -> None:
    function = make(lambda items: items)
    pulled: list[Any] = []
    with pytest.raises(BlockingCallError, match="async for"):
        loop.do(lambda: list(function.map(counting(range(3), pulled))))
    with pytest.raises(BlockingCallError, match="async for"):
        loop.do(lambda: next(function.map(counting(range(3), pulled))))
    assert pulled == []


def test_call_on_a_loops_thread_is_refused(loop: LoopRuntime, kind: Kind, make: Make) -> None:
    function = make(of_kind(kind, lambda items: items))
    with pytest.raises(BlockingCallError, match="await") as caught:
        loop.do(lambda: function.call(1))
    assert isinstance(caught.value, BatchlibError)
    assert function.statistics().submitted == 0


@pytest.mark.parametrize("wrong", [0, -1, 2.5, True, "4"])
def test_a_wrong_look_ahead_is_refused(wrong: Any, make: Make) -> None:
    with pytest.raises((TypeError, ValueError), match="look_ahead must be a whole number >= 1"):
        make(lambda items: items).map([1], look_ahead=wrong)


def test_map_of_nothing_is_a_type_error(make: Make) -> None:
    with pytest.raises(TypeError, match="at least one iterable"):
        make(lambda items: items).map()


def test_closing_ends_a_map(mapping: Runtime, kind: Kind, make: Make) -> None:
    held = Held(kind)
    function = make(held, max_batch_size=1)
    into: list[Any] = []
    call = start(mapping, function.map(range(100), look_ahead=5), into)
    until(lambda: held.seen and function.statistics().submitted == 5)
    function.close(drain=False)
    held.gate.open()
    assert isinstance(call.error(), Closed)
    assert into == [0]


def test_maps_of_all_runtimes_at_once(kind: Kind, make: Make) -> None:
    function = make(of_kind(kind, lambda items: items), max_batch_size=8, max_waiting=20)
    with (
        RUNTIMES["asyncio"]() as one,
        RUNTIMES["trio"]() as two,
        RUNTIMES["uvloop"]() as three,
        RUNTIMES["threads"]() as four,
    ):
        taken: list[list[Any]] = [[] for _ in range(8)]
        calls = [start([one, two, three, four][n % 4], function.map(range(n, 60 + n)), taken[n]) for n in range(8)]
        for number, call in enumerate(calls):
            call.result()
            assert taken[number] == list(range(number, 60 + number))
