"""Wrong arguments are errors at decoration, and name the parameter, the value and what is legal."""

import math
import re
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from batchlib import batched
from batchlib.policies import CostLimit, Fifo, Greedy, MaxWaiting, SizeOrWait

NAN, INF = math.nan, math.inf
WHOLE = "must be a whole number >= 1"
SECONDS = "a number of seconds >= 0, or None for no limit"


def upper(texts: list[str]) -> list[str]:
    return [text.upper() for text in texts]


def numbers(option: str, *, none: bool, zero: bool, infinite: bool, legal: str) -> Iterator[tuple[str, Any, str]]:
    """The wrong values of an option that takes a number."""
    yield from ((option, value, legal) for value in (-1, -0.5, NAN, True, False, "5", [5], object))
    if not none:
        yield option, None, legal
    if not zero:
        yield option, 0, legal
    if not infinite:
        yield option, INF, legal


WRONG = [
    *((option, value, WHOLE) for option in ("max_batch_size", "max_waiting", "max_concurrent_batches")
      for value in (0, -1, 2.0, NAN, INF, True, False, "8", [8])),
    *numbers("max_wait", none=False, zero=True, infinite=False, legal="finite number of seconds >= 0"),
    *numbers("timeout", none=True, zero=True, infinite=True, legal=SECONDS),
    *numbers("max_execution_time", none=True, zero=True, infinite=True, legal=SECONDS),
    ("max_wait", timedelta(seconds=-1), "finite number of seconds >= 0"),
    ("timeout", timedelta(seconds=-1), SECONDS),
    *((option, value, "must be callable") for option in ("cost", "group_by", "collate") for value in (5, "len", [len])),
    *((option, value, "must be one of") for option, values in {
        "overflow": ("drop", "Wait", None, True), "on_error": ("raise", None), "oversize": ("cut", None, 1),
    }.items() for value in values),
    ("priority", "high", "must be a number"),
    ("priority", NAN, "must be a number"),
    ("priority", None, "must be a number"),
    ("hooks", 5, "must be callables"),
    ("hooks", [print, 5], "must be callables"),
    ("hooks", "print", "must be callables"),
    ("name", 5, "must be a str or None"),
    ("version", 1.0, "must be a str or None"),
    ("admission", MaxWaiting, "policy objects"),
    ("admission", 5, "policy objects"),
    ("ordering", Fifo, "policy objects"),
    ("ordering", "fifo", "policy objects"),
    ("dispatch", Greedy, "policy objects"),
    ("dispatch", 5, "policy objects"),
    ("dispatch", (Greedy(), SizeOrWait), "policy objects"),
    ("dispatch", Fifo(), "neither a Dispatcher nor a Limiter"),
]  # fmt: skip


@pytest.mark.parametrize(("option", "value", "legal"), WRONG, ids=repr)
def test_a_wrong_value(option: str, value: Any, legal: str) -> None:
    with pytest.raises((TypeError, ValueError), match=rf"(?s){option}.*{re.escape(legal)}") as refused:
        batched(upper, **{option: value})
    shown = value[1] if isinstance(value, list | tuple) and len(value) == 2 else value
    assert repr(shown) in str(refused.value)
    with pytest.raises(type(refused.value)):
        batched(**{option: value})  # before any function is there


@pytest.mark.parametrize("value", [0, -1.0, NAN, INF, True, "5"])
def test_a_wrong_cost_limit(value: Any) -> None:
    legal = re.escape(f"max_batch_cost must be a finite number > 0, or None for no limit, not {value!r}")
    with pytest.raises((TypeError, ValueError), match=legal):
        batched(upper, cost=len, max_batch_cost=value)


@pytest.mark.parametrize("value", [0, -1.0, NAN, INF])
def test_a_wrong_limit_of_the_policy_itself(value: float) -> None:
    with pytest.raises(ValueError, match=f"max_cost must be a finite number above 0, not {value!r}"):
        CostLimit(value)


TOGETHER: list[tuple[dict[str, Any], str]] = [
    ({"dispatch": (Greedy(), SizeOrWait(1))}, r"one dispatch policy.*Greedy.*SizeOrWait"),
    ({"dispatch": Greedy(), "max_wait": 0.1}, r"max_wait is what Greedy\(\) replaces"),
    ({"dispatch": SizeOrWait(1), "max_wait": 0.1}, r"max_wait is what SizeOrWait.* replaces"),
    ({"admission": MaxWaiting(5), "max_waiting": 5}, r"max_waiting is what admission=MaxWaiting.* replaces"),
    ({"admission": MaxWaiting(5), "overflow": "reject"}, r"overflow is what admission=MaxWaiting.* replaces"),
    ({"dispatch": CostLimit(5), "cost": len, "max_batch_cost": 5}, r"max_batch_cost is what CostLimit.*replaces"),
    ({"dispatch": CostLimit(5)}, r"needs cost="),
    ({"max_batch_cost": 5}, r"max_batch_cost needs cost="),
    ({"oversize": "split"}, r'oversize="split" needs max_batch_cost= .* and cost='),
    ({"oversize": "split", "cost": len}, r'oversize="split" needs max_batch_cost='),
    ({"join": sum, "cost": len, "max_batch_cost": 5}, r'join is for the parts.* oversize="split"'),
]


@pytest.mark.parametrize(("options", "message"), TOGETHER, ids=lambda value: repr(value))
def test_what_does_not_go_together(options: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        batched(upper, **options)
    with pytest.raises(TypeError, match=message):
        batched(**options)


@pytest.mark.parametrize("option", ["max_size", "batch_size", "linger", "timeout_ms"])
def test_an_unknown_option(option: str) -> None:
    with pytest.raises(TypeError, match=f"unexpected keyword argument '{option}'"):
        batched(upper, **{option: 5})


@pytest.mark.parametrize("policy", [lambda: SizeOrWait(NAN), lambda: SizeOrWait(-1), lambda: SizeOrWait(INF)])
def test_a_policy_checks_its_own_numbers(policy: Callable[[], object]) -> None:
    with pytest.raises(ValueError, match="max_wait must be a finite number of seconds >= 0"):
        policy()


@pytest.mark.parametrize(("limit", "overflow"), [(0, "wait"), (-1, "reject"), (NAN, "wait"), (5, "drop")])
def test_admission_checks_its_own_numbers(limit: Any, overflow: Any) -> None:
    with pytest.raises(ValueError, match=r"max_waiting must be a whole number >= 1|overflow must be"):
        MaxWaiting(limit, overflow)


LEGAL: list[dict[str, Any]] = [
    {"max_batch_size": 1},
    {"max_batch_size": None},
    {"max_wait": 0},
    {"max_wait": timedelta(milliseconds=5)},
    {"max_waiting": None},
    {"max_waiting": 1},
    {"max_concurrent_batches": None},
    {"timeout": 0},
    {"timeout": None},
    {"timeout": INF},
    {"timeout": timedelta(seconds=5)},
    {"max_execution_time": None},
    {"priority": -INF},
    {"hooks": ()},
    {"hooks": print},
    {"dispatch": Greedy()},
    {"dispatch": (CostLimit(5), SizeOrWait(0.0)), "cost": len},
    {"dispatch": [CostLimit(5)], "cost": len, "max_wait": 0.001},
    {"admission": (MaxWaiting(5), MaxWaiting(3, "reject"))},
    {"ordering": Fifo()},
]


@pytest.mark.parametrize("options", LEGAL, ids=repr)
def test_the_ends_of_the_legal_range(options: dict[str, Any]) -> None:
    with batched(upper, **options) as function:
        if options.get("timeout", 1) != 0:
            assert function.call("a") == "A"


# ---- functions


def nothing() -> list[int]:
    return []


def only_settings(*, temperature: float) -> list[int]:
    return []


def plain_generator(items: list[int]) -> Iterator[int]:
    yield from items


async def async_generator(items: list[int]) -> AsyncIterator[int]:
    for item in items:
        yield item


class GeneratorObject:
    def __call__(self, items: list[int]) -> Iterator[int]:
        yield from items


def default_of_none(items: list[int], other: Any = None) -> list[int]:
    return items


def default_of_an_item(items: list[int], other: Any = 0) -> list[int]:
    return items


def default_of_two(items: list[int], other: Any = [0, 1]) -> list[int]:  # noqa: B006
    return items


def default_of_a_tuple(items: list[int], other: Any = (0,)) -> list[int]:
    return items


WRONG_FUNCTIONS: list[tuple[Any, str]] = [
    (nothing, "nothing has no positional parameter"),
    (only_settings, "only_settings has no positional parameter"),
    (plain_generator, "plain_generator is a generator"),
    (async_generator, "async_generator is a generator"),
    (GeneratorObject(), "GeneratorObject is a generator"),
    (default_of_none, r"default_of_none: .*'other'.*one-element list.*not None"),
    (default_of_an_item, r"default_of_an_item: .*'other'.*one-element list.*not 0"),
    (default_of_two, r"default_of_two: .*'other'.*one-element list.*not \[0, 1\]"),
    (default_of_a_tuple, r"default_of_a_tuple: .*'other'.*one-element list.*not \(0,\)"),
    (5, "takes a function or another callable, not 5"),
    ("upper", "takes a function or another callable, not 'upper'"),
    ({}, "takes a function or another callable, not {}"),
]


@pytest.mark.parametrize(("function", "message"), WRONG_FUNCTIONS)
def test_a_function_that_cannot_be_batched(function: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        batched(function)
    with pytest.raises(TypeError, match=message):
        batched(max_batch_size=4)(function)


def test_a_callable_without_a_signature() -> None:
    with pytest.raises(TypeError, match="has no signature: wrap it in a function"):
        batched(type)


def test_batched_twice() -> None:
    once = batched(upper)
    with pytest.raises(TypeError, match="is batched already"):
        batched(once)


def test_a_method_batched_twice() -> None:
    def decorate() -> None:
        class Model:
            @batched
            @batched
            def run(self, items: list[int]) -> list[int]:
                return items

    with pytest.raises(TypeError, match="is batched already"):
        decorate()


def test_a_method_that_takes_nothing_but_self() -> None:
    def decorate() -> None:
        class Model:
            @batched
            def run(self) -> list[int]:
                return []

    with pytest.raises((TypeError, RuntimeError)) as refused:  # Python 3.11 wraps what __set_name__ raises
        decorate()
    error = refused.value.__cause__ or refused.value
    assert isinstance(error, TypeError)
    assert "no positional parameter" in str(error)


def test_a_method_without_self() -> None:
    def decorate() -> None:
        class Model:
            @batched
            def run(*, setting: int) -> list[int]:
                return []

    with pytest.raises((TypeError, RuntimeError)) as refused:
        decorate()
    error = refused.value.__cause__ or refused.value
    assert isinstance(error, TypeError)
    assert "takes no self" in str(error)


def test_slots_without_weakref_are_named_at_the_first_use() -> None:
    class Slotted:
        __slots__ = ("factor",)

        @batched
        def run(self, items: list[int]) -> list[int]:
            return items

    with pytest.raises(TypeError, match=r'Slotted .*add "__weakref__" to its __slots__'):
        Slotted().run  # noqa: B018
