"""Nonsense from callers, owners and policies: a clear error for whoever caused it, and the batcher goes on."""

import math
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest
from core_bench import Bench, policies
from support import Held
from support.until import until

from batchlib import BatchFailed, ItemTooLarge, Overloaded, Rejected, batched, request_options
from batchlib._core._protocols import Decision
from batchlib._core._request import Request
from batchlib._core._transitions import State
from batchlib.policies import CostLimit, FairShare, Fifo, Greedy, MaxWaiting, Priority, TenantQuota

HUGE = 10**400  # a whole number that is no float


def same(items: list[Any]) -> list[Any]:
    return items


# ---- at decoration


@pytest.mark.parametrize("weight", [0, -1, math.nan, math.inf, "3", None, True, HUGE])
@pytest.mark.parametrize("where", ["weights", "default_weight"])
def test_a_weight_that_is_none_is_named(weight: Any, where: str) -> None:
    if (where, weight) == ("default_weight", None):
        return  # which is how to say that tenants need a weight of their own
    options: dict[str, Any] = {"weights": {"acme": weight}} if where == "weights" else {"default_weight": weight}
    with pytest.raises((TypeError, ValueError), match=r"weight.* must be .*, not "):
        FairShare(**options)


class Without:
    """A policy whose state lacks what its kind needs."""

    def start(self) -> object:
        return object()


@pytest.mark.parametrize(
    ("option", "words"), [("admission", r"admit\(\)"), ("ordering", r"queue\(\)"), ("dispatch", "starts neither")]
)
def test_a_policy_whose_state_is_none_is_told_at_decoration(option: str, words: str) -> None:
    for given in (Without(), [Without()] if option != "ordering" else Without()):
        with pytest.raises(TypeError, match=words):
            batched(same, **{option: given})


@pytest.mark.parametrize("priority", ["high", None, True, 1j, math.nan, HUGE, [1]])
def test_a_priority_that_cannot_be_compared_is_its_owners_error(priority: Any) -> None:
    f = batched(same, priority=lambda item: priority if item == "bad" else 0)
    with pytest.raises((TypeError, ValueError), match="priority must be a number, not"):
        batched(same, priority=priority)
    with pytest.raises((TypeError, ValueError), match="priority must be a number, not"):
        f.options(priority=priority)
    with (
        pytest.raises((TypeError, ValueError), match="priority must be a number, not"),
        request_options(priority=priority),
    ):
        raise AssertionError("not entered")
    with pytest.raises((TypeError, ValueError), match="priority must be a number, not"):
        f.call("bad")
    assert f.call("good") == "good"
    assert f.statistics().submitted == 1


# ---- from a call


@pytest.mark.parametrize("cost", [math.nan, math.inf, -math.inf, -1, -0.001, "3", None, True, 1j, HUGE, [1], object()])
def test_a_cost_that_is_none_fails_its_own_call(cost: Any) -> None:
    f = batched(same, cost=lambda item: cost if item == "bad" else 1, max_batch_cost=10, ordering=FairShare())
    with pytest.raises((TypeError, ValueError), match=r"cost must be a( finite)? number"):
        f.call("bad")
    assert f.call("good") == "good"
    assert f.statistics().submitted == 1


@pytest.mark.parametrize("cost", [0, 0.0, 10, Decimal("2.5"), 1e-300])
def test_any_other_cost_is_one(cost: Any) -> None:
    f = batched(same, cost=lambda item: cost, max_batch_cost=10, ordering=FairShare())
    assert f.call(1) == 1


UNKNOWN: dict[str, dict[str, Any]] = {
    "no weight": {"ordering": FairShare({"known": 2}, default_weight=None)},
    "no weight, nested": {"ordering": Priority(within=FairShare({"known": 2}, default_weight=None))},
    "no quota": {"admission": TenantQuota(max_waiting=0, overrides={"known": TenantQuota()})},
    "no flight": {"admission": TenantQuota(max_in_flight=0, overrides={"known": TenantQuota()})},
}


@pytest.mark.parametrize("case", UNKNOWN)
@pytest.mark.parametrize("tenant", ["stranger", None])
def test_an_unknown_tenant_is_told_and_the_known_are_served(case: str, tenant: Any) -> None:
    held = Held()
    f = batched(held, **UNKNOWN[case])
    running = f.options(tenant="known").submit(1)
    assert held.started.wait(30)
    waiting = f.options(tenant="known").submit(2)
    with pytest.raises((ValueError, Overloaded), match=f"tenant {tenant!r}"):
        f.options(tenant=tenant).submit(3).result()
    held.gate.set()
    assert [running.result(), waiting.result(), f.options(tenant="known").call(4)] == [1, 2, 4]
    assert f.statistics().rejected == 1
    f.close()


# ---- from a policy


class Once:
    """A policy of every kind that does its deed for as long as a request with the item "bad" is concerned."""

    arrival_order = False

    def __init__(self, deed: Callable[..., Any], *methods: str) -> None:
        self.deed, self.methods = deed, methods
        self.seen: list[Request] = []

    def start(self) -> "Once":
        return self

    def bad(self, method: str, *requests: Request) -> bool:
        return method in self.methods and any(request.args == ("bad",) for request in requests)

    def admit(self, request: Request, room: Any, now: float) -> Any:
        return self.deed() if self.bad("admit", request) else None

    def decide(self, group: Any, now: float) -> Any:
        waiting = list(group.in_order())
        decided = self.deed(waiting, self.seen) if self.bad("decide", *waiting) else Decision(group.fill().requests)
        self.seen += waiting
        return decided

    def queue(self) -> "Once":
        queue = Once(self.deed, *self.methods)
        queue.inner = Fifo().start().queue()  # type: ignore[attr-defined]
        return queue

    def __getattr__(self, name: str) -> Any:
        if name not in ("push", "in_order", "rank", "dispatched", "removed"):
            raise AttributeError(name)

        def method(*args: Any) -> Any:
            waiting = list(self.inner.in_order())
            if name in ("in_order", "rank"):
                return self.deed(waiting) if self.bad(name, *waiting) else getattr(self.inner, name)(*args)
            requests = args[0] if name == "dispatched" else args[:1]
            getattr(self.inner, name)(*args)
            return self.deed() if self.bad(name, *requests) else None

        return method


class OnceLimit(CostLimit):
    """Likewise a limit."""

    deed: Any
    method: str

    def __init__(self, deed: Callable[..., Any], method: str) -> None:
        object.__setattr__(self, "max_cost", 100)
        object.__setattr__(self, "deed", deed)
        object.__setattr__(self, "method", method)

    def start(self) -> Any:
        policy = self

        class Limiter:
            full = False

            def open(self) -> Any:
                return self

            def add(self, request: Request) -> Any:
                return policy.deed() if policy.method == "add" and request.args == ("bad",) else True

            def exceeds(self, request: Request) -> Any:
                return policy.deed() if policy.method == "exceeds" and request.args == ("bad",) else None

        return Limiter()

    __slots__ = ("deed", "method")


def raises(*_: Any) -> Any:
    raise KeyError("nonsense")


class Unspeakable:
    def __str__(self) -> str:
        raise KeyError("nonsense")


OTHER_GROUP = Request(("other group",), "other", 0.0)
OTHER_GROUP.state = State.WAITING

DECISIONS: dict[str, Callable[..., Any]] = {
    "raises": raises,
    "None": lambda waiting, seen: None,
    "a text": lambda waiting, seen: "dispatch",
    "a list": lambda waiting, seen: waiting,
    "a number": lambda waiting, seen: 7,
    "the class": lambda waiting, seen: Decision,
    "nothing": lambda waiting, seen: Decision(),
    "no requests": lambda waiting, seen: Decision([1, 2]),  # type: ignore[list-item]
    "a text of requests": lambda waiting, seen: Decision("ab"),  # type: ignore[arg-type]
    "None of requests": lambda waiting, seen: Decision(None, wake_at=None),  # type: ignore[arg-type]
    "another group's": lambda waiting, seen: Decision([*waiting, OTHER_GROUP]),
    "duplicates": lambda waiting, seen: Decision([*waiting, *waiting]),
    "served already": lambda waiting, seen: Decision([*waiting, *seen]),
    "dropped and dispatched": lambda waiting, seen: Decision(waiting, drop=waiting),
    "drops no requests": lambda waiting, seen: Decision(drop=[None]),  # type: ignore[list-item]
    "drops another group's": lambda waiting, seen: Decision(drop=[OTHER_GROUP]),
    "drops a number": lambda waiting, seen: Decision(drop=5),  # type: ignore[arg-type]
    "wakes at NaN": lambda waiting, seen: Decision(wake_at=math.nan),
    "wakes at infinity": lambda waiting, seen: Decision(wake_at=math.inf),
    "wakes in the past": lambda waiting, seen: Decision(wake_at=-math.inf),
    "wakes at a text": lambda waiting, seen: Decision(wake_at="soon"),  # type: ignore[arg-type]
    "a reason that cannot be said": lambda waiting, seen: Decision(waiting, reason=Unspeakable()),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("name", DECISIONS)
def test_what_is_no_decision_fails_those_concerned_and_nobody_else(name: str) -> None:
    f = batched(same, dispatch=Once(DECISIONS[name], "decide"), group_by=lambda item: item == "bad")
    assert f.call("before") == "before"
    with pytest.raises(
        BatchFailed, match=r"Once (raised KeyError|raised |decided what cannot).*: this is a fault of the policy"
    ):
        f.call("bad")
    assert f.call("good") == "good"
    now = f.statistics()
    assert (now.completed, now.failed, now.waiting) == (2, 1, 0)


@pytest.mark.parametrize("decide", [lambda those: Decision(those), lambda those: Decision(drop=those)])
def test_a_request_of_another_batcher_is_none_of_this_one(decide: Any) -> None:
    """It looks like one that waits here, and has to be known for a stranger."""
    other = Bench()
    elsewhere = other.submit()
    bench = Bench(policies(dispatch=Once(lambda waiting, seen: decide([*waiting, elsewhere]), "decide")))
    bad = Request(("bad",), "", 0.0)
    bench.requests.append(bad)
    bench.perform(bench.core.submit(bad, 0.0), submitting=True)
    bench.wake()
    assert bad.state is State.FAILED
    assert elsewhere.state is State.WAITING
    assert bench.arrive("")[0].state is State.RUNNING
    other.wake()
    assert elsewhere.state is State.RUNNING


ANSWERS: dict[str, tuple[Callable[..., Any], type[Exception], str]] = {
    "raises": (raises, KeyError, "nonsense"),
    "True": (lambda: True, BatchFailed, "refused with True, which no caller can be given"),
    "a text": (lambda: "no", BatchFailed, "refused with 'no'"),
    "the class": (lambda: Overloaded, BatchFailed, "refused with <class"),
    "what ends a loop": (lambda: StopIteration(), BatchFailed, "refused with StopIteration"),
    "what ends a program": (lambda: KeyboardInterrupt(), BatchFailed, "refused with KeyboardInterrupt"),
    "another error": (lambda: LookupError("of its own"), LookupError, "of its own"),
}


@pytest.mark.parametrize("name", ANSWERS)
@pytest.mark.parametrize("place", [0, 1])
def test_what_is_no_refusal_reaches_its_caller_as_an_error(name: str, place: int) -> None:
    deed, error, words = ANSWERS[name]
    admission: list[Any] = [MaxWaiting(10, "reject"), TenantQuota(max_in_flight=1)]
    admission.insert(2 * place, Once(deed, "admit"))
    f = batched(same, admission=admission)
    with pytest.raises(error, match=words):
        f.call("bad")
    assert f.call("good") == "good"
    assert f.statistics().rejected == 1
    assert f.statistics().tenants_tracked == 0


EXCESSES: dict[str, Callable[..., Any]] = {
    "raises": raises,
    "True": lambda: True,
    "a number": lambda: 7,
    "too few": lambda: (7,),
    "texts": lambda: ("much", "little"),
    "what is no float": lambda: (HUGE, 1),
}


@pytest.mark.parametrize("name", EXCESSES)
@pytest.mark.parametrize("oversize", ["reject", "alone"])
def test_an_excess_that_is_none_fails_its_own_call(name: str, oversize: Any) -> None:
    f = batched(same, cost=lambda item: 1, dispatch=OnceLimit(EXCESSES[name], "exceeds"), oversize=oversize)
    if oversize == "alone":
        assert f.call("bad") == "bad"  # nobody is refused, so nobody asks
    else:
        with pytest.raises((KeyError, TypeError, ValueError, OverflowError)):
            f.call("bad")
        assert f.statistics().rejected == 1
    assert f.call("good") == "good"


def test_a_room_that_raises_fails_those_concerned() -> None:
    f = batched(same, cost=lambda item: 1, dispatch=(Greedy(), OnceLimit(raises, "add")))
    with pytest.raises(BatchFailed, match=r"raised KeyError.*: this is a fault of the policy"):
        f.call("bad")
    assert f.call("good") == "good"


def test_a_room_that_has_none_lets_the_request_run_alone() -> None:
    f = batched(same, cost=lambda item: 1, dispatch=(Greedy(), OnceLimit(lambda: None, "add")))
    assert f.call("bad") == "bad"
    assert f.call("good") == "good"


ORDERS: dict[str, tuple[str, Callable[..., Any], type[Exception] | None]] = {
    "push raises": ("push", raises, KeyError),
    "rank raises": ("rank", raises, KeyError),
    "rank is None": ("rank", lambda waiting: None, None),
    "in_order raises": ("in_order", raises, BatchFailed),
    "in_order is None": ("in_order", lambda waiting: None, BatchFailed),
    "in_order gives texts": ("in_order", lambda waiting: iter("ab"), BatchFailed),
    "in_order gives nobody": ("in_order", lambda waiting: iter(()), BatchFailed),
    "in_order gives duplicates": ("in_order", lambda waiting: iter(waiting * 2), BatchFailed),
    "in_order gives strangers": ("in_order", lambda waiting: iter([*waiting, OTHER_GROUP]), BatchFailed),
    "dispatched raises": ("dispatched", raises, None),
}


@pytest.mark.parametrize("name", ORDERS)
def test_an_ordering_that_gives_nonsense_fails_those_concerned(name: str) -> None:
    method, deed, error = ORDERS[name]
    f = batched(same, ordering=Once(deed, method))
    if error is None:
        assert f.call("bad") == "bad"
    else:
        with pytest.raises(error):
            f.call("bad")
    assert f.call("good") == "good"
    assert f.statistics().waiting == f.statistics().groups == 0


def test_ranks_that_cannot_be_compared_fail_those_that_wait_and_no_more() -> None:
    held = Held()
    f = batched(held, ordering=Once(lambda waiting: None, "rank"), group_by=lambda item: item)
    running = f.submit("first")
    assert held.started.wait(30)
    waiting = [f.submit(item) for item in ("good", "bad")]
    until(lambda: f.statistics().waiting < 2 or f.statistics().groups == 2)
    held.gate.set()
    assert running.result() == "first"
    errors = [future.exception() for future in waiting]
    assert all(isinstance(error, BatchFailed | TypeError) for error in errors if error)
    assert any(errors)
    assert f.call("good") == "good"


def test_an_item_over_the_limit_is_told_what_it_needs() -> None:
    f = batched(same, cost=lambda item: item, max_batch_cost=10)
    with pytest.raises(ItemTooLarge, match="needs 11 and a batch may hold 10"):
        f.call(11)
    assert issubclass(ItemTooLarge, Rejected)
    assert f.call(10) == 10
