"""What a request carries, and who may say so: the call over its surroundings over the decorator."""

from collections.abc import Callable
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
from support import VirtualClock

from batchlib import batch_context, request_options

from .held import Kind, of_kind
from .runtimes import FuturesRuntime, LoopRuntime, Runtime, ThreadsRuntime

Make = Callable[..., Any]
NOW = 100.0  # where the virtual clock stands


def carried(items: list[Any]) -> list[Any]:
    return [(context.tenant, context.priority, context.deadline) for context in batch_context()]


@contextmanager
def nested(*blocks: dict[str, Any]) -> Any:
    with ExitStack() as stack:
        for options in blocks:
            stack.enter_context(request_options(**options))
        yield


PRECEDENCE = {
    "nothing said": ({}, [], {}, (None, 0)),
    "the decorator": ({"tenant": "d", "priority": 3}, [], {}, ("d", 3)),
    "around it over the decorator": (
        {"tenant": "d", "priority": 3},
        [{"tenant": "r", "priority": 2}],
        {},
        ("r", 2),
    ),
    "the call over all": (
        {"tenant": "d", "priority": 3},
        [{"tenant": "r", "priority": 2}],
        {"tenant": "o", "priority": -1},
        ("o", -1),
    ),
    "the innermost block": ({}, [{"tenant": "outer", "priority": 1}, {"tenant": "inner"}], {}, ("inner", 1)),
    "None is a tenant that was said": ({"tenant": "d"}, [{"tenant": None}], {}, (None, 0)),
    "each by itself": ({"tenant": "d"}, [{"priority": 2}], {}, ("d", 2)),
}


@pytest.mark.parametrize("case", PRECEDENCE)
def test_tenant_and_priority(runtime: Runtime, kind: Kind, case: str, make: Make) -> None:
    decorator, blocks, call, expected = PRECEDENCE[case]
    function = make(of_kind(kind, carried), **decorator)
    chosen = function.options(**call) if call else function
    assert runtime.start(chosen, 1, inside=nested(*blocks)).result()[:2] == expected


@pytest.mark.parametrize("priority", [float("inf"), -5, 2.5])
def test_any_number_is_a_priority(runtime: Runtime, priority: float, make: Make) -> None:
    assert runtime.start(make(carried).options(priority=priority), 1).result()[1] == priority


def test_a_callable_priority_gets_the_calls_own_arguments(runtime: Runtime, make: Make) -> None:
    def both(queries: list[str], documents: list[str]) -> list[Any]:
        return carried(queries)

    function = make(both, priority=lambda query, document: len(query) - len(document))
    assert runtime.start(function, "abc", "a").result()[1] == 2
    assert runtime.start(function.options(priority=7), "abc", "a").result()[1] == 7
    assert runtime.start(function, "a", "abc", inside=request_options(priority=5)).result()[1] == 5


@pytest.mark.parametrize("wrong", ["high", None, True, float("nan")])
def test_a_callable_priority_that_gives_no_number_fails_its_own_call(wrong: Any, make: Make) -> None:
    function = make(carried, priority=lambda item: wrong if item == 1 else 0)
    with pytest.raises((TypeError, ValueError), match="priority must be a number"):
        function.call(1)
    assert function.call(2)[1] == 0


def deadline(runtime: Runtime, function: Any, *blocks: dict[str, Any]) -> float | None:
    return runtime.start(function, 1, inside=nested(*blocks)).result()[2]  # type: ignore[no-any-return]


def test_a_timeout_becomes_a_deadline_at_the_call(
    runtime: Runtime, kind: Kind, clock: VirtualClock, make: Make
) -> None:
    function = make(of_kind(kind, carried), clock=clock, timeout=50)
    assert deadline(runtime, function) == NOW + 50
    assert deadline(runtime, function.options(timeout=20)) == NOW + 20
    assert deadline(runtime, function.options(timeout=80)) == NOW + 80  # replaces the decorator's, longer too
    assert deadline(runtime, function.options(timeout=None)) is None
    assert deadline(runtime, function.options(priority=1)) == NOW + 50


def test_the_earliest_deadline_wins(runtime: Runtime, clock: VirtualClock, make: Make) -> None:
    """A budget runs in real time from its beginning, so it gives at most what it granted, a little less at the call."""
    function = make(carried, clock=clock, timeout=5_000)
    hour = {"timeout": 3_600}
    within = deadline(runtime, function, hour)
    assert within is not None
    assert NOW < within <= NOW + 3_600
    assert deadline(runtime, function.options(timeout=20), hour) == NOW + 20
    assert deadline(runtime, function, {"timeout": 100_000}) == NOW + 5_000
    unlimited = deadline(runtime, function.options(timeout=None), hour)
    assert unlimited is not None
    assert unlimited <= NOW + 3_600
    for blocks in ([hour, {"timeout": 90_000}], [{"timeout": 90_000}, hour], [hour, {"timeout": None}]):
        both = deadline(runtime, function, *blocks)
        assert both is not None
        assert both <= NOW + 3_600


def test_a_budget_is_one_for_all_calls_inside(make: Make, clock: VirtualClock) -> None:
    function = make(carried, clock=clock)
    with request_options(timeout=3_600):
        deadlines = [function.call(number)[2] for number in range(5)]
    assert deadlines == sorted(deadlines, reverse=True)
    assert function.call(1)[2] is None


def test_no_budget_left_is_never_started(runtime: Runtime, make: Make) -> None:
    ran: list[Any] = []
    function = make(lambda items: ran.append(items) or items)
    assert isinstance(runtime.start(function, 1, inside=request_options(timeout=0)).error(), TimeoutError)
    assert ran == []


def test_options_reach_the_tasks_that_are_started_inside(loop: LoopRuntime, make: Make) -> None:
    function = make(carried)

    async def main() -> list[Any]:
        with request_options(tenant="acme"):
            inside = await loop.gather(function, range(3))
        return [*inside, await function(1)]

    assert [tenant for tenant, _, _ in loop.run(main)] == ["acme", "acme", "acme", None]


@pytest.mark.parametrize("calling", [ThreadsRuntime, FuturesRuntime])
def test_options_are_the_threads_own(calling: type[Runtime], make: Make) -> None:
    function = make(carried)
    with calling() as runtime:
        assert runtime.start(function, 1, inside=request_options(tenant="acme")).result()[0] == "acme"
        assert runtime.start(function, 1).result()[0] is None


def test_map_carries_them_too(make: Make) -> None:
    function = make(carried)
    with request_options(tenant="acme"):
        assert [tenant for tenant, _, _ in function.map(range(3))] == ["acme"] * 3
    assert [tenant for tenant, _, _ in function.options(tenant="o").map(range(3))] == ["o"] * 3


WRONG: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"timeout": -1}, ValueError, "timeout must be a number of seconds >= 0.*-1"),
    ({"timeout": float("nan")}, ValueError, "timeout must be.*nan"),
    ({"timeout": "5"}, TypeError, "timeout must be a number of seconds.*not '5'"),
    ({"timeout": True}, TypeError, "timeout must be a number of seconds.*not True"),
    ({"priority": float("nan")}, ValueError, "priority must be a number, not nan"),
    ({"priority": "high"}, TypeError, "priority must be a number, not 'high'"),
    ({"priority": None}, TypeError, "priority must be a number, not None"),
    ({"tenants": "acme"}, TypeError, "tenants"),
]


@pytest.mark.parametrize(("wrong", "error", "message"), WRONG, ids=lambda value: repr(value))
def test_wrong_options_are_refused_where_they_are_given(
    wrong: dict[str, Any], error: type[Exception], message: str, make: Make
) -> None:
    with pytest.raises(error, match=message):
        make(carried).options(**wrong)
    with pytest.raises(error, match=message):
        request_options(**wrong).__enter__()
