"""Every kind of callable can be batched, in any place of a stack of decorators; a method has a batcher per instance."""

import asyncio
import copy
import functools
import gc
import pickle
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pytest

from batchlib import Batched, Closed, batched


def twice(items: list[int]) -> list[int]:
    return [2 * item for item in items]


def scaled(items: list[int], *, by: int = 1) -> list[int]:
    return [by * item for item in items]


class Doubler:
    def __call__(self, items: list[int]) -> list[int]:
        return twice(items)

    def run(self, items: list[int]) -> list[int]:
        return twice(items)

    @classmethod
    def of_class(cls, items: list[int]) -> list[int]:
        return twice(items)

    @staticmethod
    def of_nobody(items: list[int]) -> list[int]:
        return twice(items)


class AsyncDoubler:
    async def __call__(self, items: list[int]) -> list[int]:
        return twice(items)


async def twice_async(items: list[int]) -> list[int]:
    return twice(items)


KINDS: dict[str, Callable[..., Any]] = {
    "a function": twice,
    "an async function": twice_async,
    "a lambda": lambda items: [2 * item for item in items],
    "a partial": functools.partial(scaled, by=2),
    "an async partial": functools.partial(twice_async),
    "an object": Doubler(),
    "an object with an async call": AsyncDoubler(),
    "a bound method": Doubler().run,
    "a bound classmethod": Doubler.of_class,
    "a static method": Doubler.of_nobody,
    "a decorated function": functools.wraps(twice)(lambda *args, **kwargs: twice(*args, **kwargs)),
    "a cached function's kind of object": functools.singledispatch(twice),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_callable(kind: str) -> None:
    with batched(KINDS[kind]) as function:
        assert function.call(4) == 8
        assert asyncio.run(awaited(function, 5)) == 10
        assert function.__wrapped__ is KINDS[kind]


async def awaited(function: Any, *args: Any) -> Any:
    return await function(*args)


def test_with_and_without_parentheses() -> None:
    for decorate in (batched, batched(), batched(max_batch_size=4)):
        with decorate(twice) as function:
            assert function.call(4) == 8


def test_an_async_function_runs_as_one() -> None:
    async def where(items: list[int]) -> list[Any]:
        return [asyncio.get_running_loop()] * len(items)

    with batched(where) as function:

        async def main() -> bool:
            return await function(1) is asyncio.get_running_loop()

        assert asyncio.run(main())
        assert function.call(1) is not None


def test_below_another_decorator() -> None:
    def loud(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        async def call(*args: Any, **kwargs: Any) -> str:
            return f"{await function(*args, **kwargs)}!"

        return call

    @loud
    @batched
    def double(items: list[int]) -> list[int]:
        return twice(items)

    assert asyncio.run(awaited(double, 4)) == "8!"
    double.__wrapped__.close()  # type: ignore[attr-defined]


def logged(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return [f"logged {result}" for result in function(*args, **kwargs)]

    return call


def test_above_another_decorator() -> None:
    @batched(max_batch_size=4)
    @logged
    def double(items: list[int]) -> list[int]:
        return twice(items)

    with double:
        assert double.call(4) == "logged 8"  # type: ignore[comparison-overlap]


# ---- methods


class Model:
    """One of each, at its places above and below the standard decorators."""

    factor: ClassVar[int] = 3

    def __init__(self, factor: int = 2) -> None:
        self.own = factor

    @batched(max_batch_size=8)
    def plain(self, items: list[int], *, plus: int = 0) -> list[int]:
        """Multiplies by the instance's own factor."""
        return [self.own * item + plus for item in items]

    @batched
    async def asynchronous(self, items: list[int]) -> list[int]:
        return [self.own * item for item in items]

    @batched
    @classmethod
    def above_class(cls, items: list[int]) -> list[int]:
        return [cls.factor * item for item in items]

    @classmethod
    @batched
    def below_class(cls, items: list[int]) -> list[int]:
        return [cls.factor * item for item in items]

    @batched
    @staticmethod
    def above_static(items: list[int]) -> list[int]:
        return twice(items)

    @staticmethod
    @batched
    def below_static(items: list[int]) -> list[int]:
        return twice(items)

    @batched
    @logged
    def above_another(self, items: list[int]) -> list[int]:
        return [self.own * item for item in items]

    @batched
    def __call__(self, items: list[int]) -> list[int]:
        return [self.own * item for item in items]


@pytest.mark.parametrize("name", ["plain", "asynchronous", "__call__"])
def test_a_method_works_on_its_instance(name: str) -> None:
    two, five = Model(2), Model(5)
    assert getattr(two, name).call(4) == 8
    assert getattr(five, name).call(4) == 20
    assert asyncio.run(awaited(getattr(two, name), 4)) == 8
    assert list(getattr(five, name).map([1, 2])) == [5, 10]


def test_an_instance_can_be_called_itself() -> None:
    model = Model(5)
    assert asyncio.run(awaited(model, 4)) == 20


@pytest.mark.parametrize(("name", "result"), [("above_class", 12), ("above_static", 8), ("below_static", 8)])
def test_class_and_static_methods(name: str, result: int) -> None:
    assert getattr(Model, name).call(4) == result
    assert getattr(Model(), name).call(4) == result


@pytest.mark.parametrize("name", ["above_class", "below_class", "above_static", "below_static"])
def test_class_and_static_methods_are_awaited(name: str) -> None:
    result = 12 if "class" in name else 8
    assert asyncio.run(awaited(getattr(Model, name), 4)) == result
    assert asyncio.run(awaited(getattr(Model(), name), 4)) == result


def test_a_class_method_belongs_to_the_class_it_is_used_on() -> None:
    class Other(Model):
        factor = 10

    assert Other.above_class.call(4) == 40
    assert Other().above_class.call(4) == 40
    assert Model.above_class.call(4) == 12
    assert asyncio.run(awaited(Other.below_class, 4)) == 40
    assert asyncio.run(awaited(Model.below_class, 4)) == 12


def test_what_else_there_is_below_a_classmethod() -> None:
    if sys.version_info < (3, 13):
        assert Model.below_class.call(4) == 12  # type: ignore[attr-defined]
    else:  # a classmethod no longer says on which class it is used
        with pytest.raises(AttributeError, match="put @batched above @classmethod"):
            Model.below_class.call(4)  # type: ignore[attr-defined]


def test_a_method_above_another_decorator() -> None:
    assert Model(5).above_another.call(4) == "logged 20"


def test_settings_and_controls_of_a_method() -> None:
    model = Model(5)
    assert model.plain.call(4, plus=1) == 21
    assert model.plain.options(timeout=50, priority=1).call(4) == 20
    assert model.plain.direct([1, 2], plus=1) == [6, 11]
    assert model.plain.submit(1).result(30) == 5
    assert model.plain.statistics().submitted == 3
    model.plain.configure(max_batch_size=2)
    model.plain.close()
    with pytest.raises(Closed):
        model.plain.call(1)


def test_a_method_is_called_on_its_class_with_the_instance_first() -> None:
    model = Model(5)
    assert asyncio.run(awaited(Model.plain, model, 4)) == 20
    assert model.plain.statistics().submitted == 1
    with pytest.raises(TypeError, match="needs an instance first"):
        Model.plain()
    with pytest.raises(AttributeError, match=r"Model\.plain\.statistics: every instance has a batcher of its own"):
        Model.plain.statistics()
    with pytest.raises(AttributeError, match="nonsense"):
        Model.plain.nonsense  # noqa: B018


def test_every_instance_has_a_batcher_of_its_own() -> None:
    one, other = Model(), Model()
    one.plain.call(1)
    assert (one.plain.statistics().submitted, other.plain.statistics().submitted) == (1, 0)
    one.plain.close()
    assert other.plain.call(4) == 8
    assert one.asynchronous.call(4) == 8  # a batcher per method, too


def test_threads_that_come_first_at_once_find_the_same_batcher() -> None:
    model = Model(5)
    ready = threading.Barrier(8)
    results: list[int] = []

    def call() -> None:
        ready.wait(30)
        results.append(model.plain.call(1))

    threads = [threading.Thread(target=call) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert results == [5] * 8
    assert model.plain.statistics().submitted == 8


# ---- instances of every kind


@dataclass
class Unhashable:
    own: int = 5
    seen: list[int] = field(default_factory=list)

    @batched
    def run(self, items: list[int]) -> list[int]:
        self.seen += items
        return [self.own * item for item in items]


@dataclass(frozen=True)
class Frozen:
    own: int = 5

    @batched
    def run(self, items: list[int]) -> list[int]:
        return [self.own * item for item in items]


@dataclass(frozen=True, slots=True, weakref_slot=True)
class FrozenSlots:
    own: int = 5

    @batched
    def run(self, items: list[int]) -> list[int]:
        return [self.own * item for item in items]


class Slots:
    __slots__ = ("__weakref__", "own")

    def __init__(self, own: int = 5) -> None:
        self.own = own

    @batched
    def run(self, items: list[int]) -> list[int]:
        return [self.own * item for item in items]


class EqualToAll:
    own = 5

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 1

    @batched
    def run(self, items: list[int]) -> list[int]:
        return [self.own * item for item in items]


class Falsy:
    own = 5

    def __len__(self) -> int:
        return 0

    @batched
    def run(self, items: list[int]) -> list[int]:
        return [self.own * item for item in items]


INSTANCES = [Unhashable, Frozen, FrozenSlots, Slots, EqualToAll, Falsy]


@pytest.mark.parametrize("kind", INSTANCES)
def test_instances_are_known_by_identity(kind: Any) -> None:
    one, other = kind(), kind()
    assert one.run.call(4) == 20
    assert other.run.statistics().submitted == 0
    assert other.run.call(4) == 20
    assert (one.run.statistics().submitted, other.run.statistics().submitted) == (1, 1)


@pytest.mark.parametrize("kind", INSTANCES)
def test_a_batcher_dies_with_its_instance(kind: Any) -> None:
    instance = kind()
    assert instance.run.call(4) == 20
    instance_gone, batcher_gone = weakref.ref(instance), weakref.ref(instance.run._live.driver)
    del instance
    gc.collect()
    assert instance_gone() is None
    assert batcher_gone() is None


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
@pytest.mark.parametrize("kind", [Model, Unhashable, Frozen, FrozenSlots, Slots, Falsy])
def test_a_copy_carries_no_batcher(kind: Any, duplicate: Callable[[Any], Any]) -> None:
    instance = kind()
    name = "plain" if kind is Model else "run"
    getattr(instance, name).call(1)
    twin = duplicate(instance)
    assert twin.own == instance.own
    method = getattr(twin, name)
    assert method.statistics().submitted == 0
    assert method.call(2) == twin.own * 2
    assert getattr(instance, name).statistics().submitted == 1


def test_without_weak_references_the_class_is_told_what_to_add() -> None:
    @dataclass(slots=True)
    class Bare:
        own: int = 5

        @batched
        def run(self, items: list[int]) -> list[int]:
            return items

    with pytest.raises(TypeError, match=r'Bare has batched methods.*add "__weakref__" to its __slots__'):
        Bare().run.call(1)


# ---- inheritance


class Base:
    own = 2

    @batched
    def run(self, items: list[int]) -> list[int]:
        return [self.own * item for item in items]

    @batched
    def other(self, items: list[int]) -> list[int]:
        return [-item for item in items]


class Inherits(Base):
    own = 7


class Overrides(Base):
    @batched
    def run(self, items: list[int]) -> list[int]:
        return [100 * item for item in items]


class OverridesPlainly(Base):
    def run(self, items: list[int]) -> list[int]:  # type: ignore[override]
        return items


class CallsSuper(Base):
    @batched
    def run(self, items: list[int]) -> list[int]:
        return [1 + super(CallsSuper, self).run.call(item) for item in items]


class CallsSuperDirect(Base):
    @batched
    def run(self, items: list[int]) -> list[int]:
        return [1 + item for item in super().run.direct(items)]


def test_inheritance() -> None:
    assert Base().run.call(4) == 8
    assert Inherits().run.call(4) == 28
    assert Overrides().run.call(4) == 400
    assert Overrides().other.call(4) == -4
    assert OverridesPlainly().run([4]) == [4]


def test_super_is_another_batcher() -> None:
    instance = CallsSuper()
    assert instance.run.call(4) == 9
    assert super(CallsSuper, instance).run.statistics().submitted == 1
    assert instance.run.statistics().submitted == 1
    assert CallsSuperDirect().run.call(4) == 9


def test_an_attribute_of_an_instance_or_class_may_be_batched_too() -> None:
    class Holder:
        run = batched(Doubler())  # an object is no method: it is given no instance

        def __init__(self) -> None:
            self.mine = batched(self.work)

        def work(self, items: list[int]) -> list[int]:
            return twice(items)

    holder = Holder()
    assert holder.run.call(4) == 8
    assert Holder.run.call(4) == 8
    assert holder.mine.call(4) == 8
    holder.mine.close()
    Holder.run.close()


def test_a_function_put_into_a_class_later_becomes_a_method() -> None:
    def run(self: Any, items: list[int]) -> list[int]:
        return [self.own * item for item in items]

    class Late:
        own = 5

    Late.run = batched(run)  # type: ignore[attr-defined]
    assert Late().run.call(4) == 20  # type: ignore[attr-defined]


def test_a_method_of_a_class_inside_a_function() -> None:
    class Local:
        @batched
        def run(self, items: list[int]) -> list[int]:
            return twice(items)

    assert Local().run.call(4) == 8


def test_the_same_options_may_decorate_many() -> None:
    decorate = batched(max_batch_size=2, name="shared")

    class Many:
        @decorate
        def one(self, items: list[int]) -> list[int]:
            return twice(items)

        @decorate
        def other(self, items: list[int]) -> list[int]:
            return [-item for item in items]

    many = Many()
    assert (many.one.call(1), many.other.call(1)) == (2, -1)
    assert many.one.statistics().submitted == 1


@pytest.fixture
def model() -> Iterator[Model]:
    instance = Model(5)
    yield instance
    instance.plain.close()


def test_what_an_instance_gives_is_a_batched(model: Model) -> None:
    assert isinstance(model.plain, Batched)
    assert model.plain.__doc__ == "Multiplies by the instance's own factor."
    bound = model.plain  # kept, as bound methods are
    assert bound.call(1) == 5
    assert model.plain.statistics().submitted == 1
