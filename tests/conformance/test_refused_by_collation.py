"""What a collation calls too large is refused like an item over a limit: counted, told to hooks, its caller's alone."""

from collections.abc import Callable, Collection, Sequence
from typing import Any

import pytest
from support.until import until

from batchlib import Closed, ItemTooLarge
from batchlib.protocols import Accepted, Collated

from .held import Held, Kind, of_kind
from .runtimes import Runtime
from .test_mapping import collected

Make = Callable[..., Any]


class AtMostFour:
    """A collation of lists that hold four elements at the most."""

    names = ()
    pads = True
    usual_batch_cost = 8

    def start(self, taken: Collection[str], function: str) -> "AtMostFour":
        return self

    def accept(self, args: tuple[Any, ...]) -> Accepted:
        if len(args[0]) > 4:
            raise ItemTooLarge(f"the item is {len(args[0])} long")
        return Accepted(args, None, len(args[0]))

    def collate(self, columns: Sequence[list[Any]], *, rows: int | None = None, allocate: Any = None) -> Collated:
        return Collated((columns[0],), {}, len(columns[0]), len(columns[0]))

    def uncollate(self, result: Any, collated: Collated, copy: Any) -> Sequence[Any]:
        return list(result)


@pytest.mark.parametrize("options", [{}, {"max_batch_cost": 4}, {"oversize": "alone", "max_batch_cost": 3}])
def test_it_is_counted_and_told(runtime: Runtime, kind: Kind, make: Make, options: Any) -> None:
    events: list[Any] = []
    held = Held(kind)
    function = make(held, collate=AtMostFour(), hooks=[events.append], **options)
    running = runtime.start(function, "abc")
    until(lambda: held.seen)
    events.clear()
    neighbour, refused = runtime.start_each(function, ["ab", "abcde"])
    error = refused.error()
    assert isinstance(error, ItemTooLarge)
    assert str(error) == "the item is 5 long"
    (event,) = [event for event in events if hasattr(event, "state")]
    assert (event.state.value, event.error, event.detail) == ("rejected", "ItemTooLarge", "the item is 5 long")
    assert (event.cost, event.batch) == (0, None)  # it has no length that could be compared with a limit
    until(lambda: function.statistics().submitted == 3)
    assert (function.statistics().rejected, function.statistics().waiting) == (1, 1)
    held.gate.open()
    assert (running.result(), neighbour.result()) == ("abc", "ab")


def test_each_caller_has_an_error_of_its_own(runtime: Runtime, make: Make) -> None:
    function = make(of_kind("plain", lambda items: items), collate=AtMostFour())
    errors = [call.error() for call in runtime.start_each(function, ["abcde"] * 3)]
    assert [type(error) for error in errors] == [ItemTooLarge] * 3
    assert len(set(map(id, errors))) == 3
    assert function.statistics().rejected == 3


def test_options_of_a_call_are_told_with_it(runtime: Runtime, make: Make) -> None:
    events: list[Any] = []
    function = make(of_kind("plain", lambda items: items), collate=AtMostFour(), hooks=[events.append])
    call = runtime.start(function.options(tenant="acme", priority=3, timeout=60), "abcde")
    assert isinstance(call.error(), ItemTooLarge)
    (event,) = events
    assert (event.tenant, event.priority) == ("acme", 3)


def test_a_closed_batcher_says_that_it_is_closed(runtime: Runtime, make: Make) -> None:
    function = make(of_kind("plain", lambda items: items), collate=AtMostFour())
    function.close(drain=False)
    assert isinstance(runtime.start(function, "abcde").error(), Closed)


@pytest.mark.parametrize("admission", [None, "counting"])
def test_admission_policies_do_not_hear_of_it(runtime: Runtime, make: Make, admission: str | None) -> None:
    asked: list[Any] = []

    class Counting:
        def start(self) -> "Counting":
            return self

        def admit(self, request: Any, room: Any, now: float) -> None:
            asked.append(request.args)

        def ended(self, request: Any) -> None:
            asked.append(request.state)

    function = make(
        of_kind("plain", lambda items: items), collate=AtMostFour(), admission=admission and Counting(), name="f"
    )
    assert isinstance(runtime.start(function, "abcde").error(), ItemTooLarge)
    assert asked == []
    assert runtime.start(function, "abc").result() == "abc"


def test_a_map_has_it_in_its_place(loop: Runtime, make: Make) -> None:
    function = make(of_kind("plain", lambda items: items), collate=AtMostFour())
    got = collected(loop, function.map(["a", "abcde", "b"], return_exceptions=True))
    assert [str(each) for each in got] == ["a", "the item is 5 long", "b"]
    assert function.statistics().rejected == 1


def test_and_so_has_one_in_a_thread(make: Make) -> None:
    function = make(of_kind("plain", lambda items: items), collate=AtMostFour())
    got = list(function.map(["a", "abcde", "b"], return_exceptions=True))
    assert [str(each) for each in got] == ["a", "the item is 5 long", "b"]
    with pytest.raises(ItemTooLarge, match="the item is 5 long"):
        list(function.map(["a", "abcde", "b"]))
    assert function.statistics().rejected == 2
