"""To inspect, to pickle and to frameworks a batched function is a coroutine function of one item."""

import asyncio
import copy
import functools
import inspect
import pickle
import typing
from collections.abc import Callable, Sequence
from typing import Any, Optional, Union

import pytest

from batchlib import Batched, batched


@batched(max_batch_size=4, max_wait=0.0)
def embed(texts: list[str], *, normalise: bool = False) -> list[float]:
    """Embeds."""
    return [float(len(text)) * (2 if normalise else 1) for text in texts]


@batched
async def embed_async(texts: list[str]) -> list[float]:
    return [float(len(text)) for text in texts]


class Model:
    def __init__(self, factor: int = 2) -> None:
        self.factor = factor

    @batched
    def run(self, items: list[int], *, plus: int = 0) -> list[int]:
        """Runs."""
        return [self.factor * item + plus for item in items]

    @batched
    @classmethod
    def make(cls, items: list[int]) -> list[int]:
        return items

    @batched
    @staticmethod
    def same(items: list[int]) -> list[int]:
        return items


def plain(items: list[int]) -> list[int]:
    return items


FACES: list[Any] = [embed, embed_async, Model().run, Model.make, Model().make, Model.same, Model().same, batched(plain)]


@pytest.mark.parametrize("face", FACES, ids=str)
def test_it_is_a_coroutine_function(face: Any) -> None:
    assert inspect.iscoroutinefunction(face)
    assert callable(face)
    assert not inspect.isgeneratorfunction(face)
    assert not inspect.isasyncgenfunction(face)


@pytest.mark.parametrize("face", FACES, ids=str)
def test_it_is_one_to_asyncio_too(face: Any, recwarn: pytest.WarningsRecorder) -> None:
    assert asyncio.iscoroutinefunction(face)


def test_a_call_is_a_coroutine() -> None:
    call = embed("a")
    assert inspect.iscoroutine(call)
    assert asyncio.run(call) == 1.0


def signature(function: Callable[..., Any]) -> str:
    return str(inspect.signature(batched(function)))


def one(texts: list[str]) -> list[float]: ...
def tuples(texts: tuple[str, ...]) -> tuple[float, ...]: ...
def sequences(texts: Sequence[str]) -> Sequence[float]: ...
def settings(texts: list[str], *, scale: float = 1.0, mode: str) -> list[float]: ...
def two(a: list[str], b: list[int]) -> list[bool]: ...
def with_default(a: list[str], b: list[int] = [0]) -> list[bool]: ...  # noqa: B006
def untyped(a, b=[None]): ...  # type: ignore[no-untyped-def]  # noqa: B006
def errors(a: list[str]) -> list[float | ValueError]: ...
def optional(a: list[Optional[str]]) -> list[Union[int, None]]: ...  # noqa: UP007, UP045
def arrays(a: list[Any]) -> Any: ...
def var(*columns: list[int], **options: bool) -> list[int]: ...
def positional(a: list[int], /, b: list[int]) -> list[int]: ...
async def asynchronous(a: list[int]) -> list[str]: ...


SIGNATURES = [
    (one, "(texts: str) -> float"),
    (tuples, "(texts: str) -> float"),
    (sequences, "(texts: str) -> float"),
    (settings, "(texts: str, *, scale: float = 1.0, mode: str) -> float"),
    (two, "(a: str, b: int) -> bool"),
    (with_default, "(a: str, b: int = 0) -> bool"),
    (untyped, "(a, b=None)"),
    (errors, "(a: str) -> float"),
    (optional, "(a: Optional[str]) -> Optional[int]"),
    (arrays, "(a: Any) -> Any"),
    (var, "(*columns: int, **options: bool) -> int"),
    (positional, "(a: int, /, b: int) -> int"),
    (asynchronous, "(a: int) -> str"),
]


@pytest.mark.parametrize(("function", "shown"), SIGNATURES)
def test_the_signature_is_the_callers(function: Callable[..., Any], shown: str) -> None:
    assert signature(function).replace("typing.", "") == shown


def test_the_signature_of_a_method_has_no_self() -> None:
    assert str(inspect.signature(Model().run)) == "(items: int, *, plus: int = 0) -> int"
    assert str(inspect.signature(Model.make)) == "(items: int) -> int"
    assert str(inspect.signature(Model.same)) == "(items: int) -> int"


def test_the_types_in_a_signature_are_types() -> None:
    parameters = inspect.signature(embed).parameters
    assert parameters["texts"].annotation is str
    assert parameters["normalise"].annotation is bool
    assert inspect.signature(embed).return_annotation is float


def test_annotations_that_only_a_checker_can_evaluate() -> None:
    def later(items: "list[Undefined]") -> "list[Undefined]":  # type: ignore[name-defined]  # noqa: F821
        return items

    with batched(later) as function:
        assert function.call(1) == 1


def test_it_wears_the_functions_names() -> None:
    assert (embed.__name__, embed.__qualname__, embed.__doc__) == ("embed", "embed", "Embeds.")
    assert embed.__module__ == __name__
    assert (Model().run.__name__, Model().run.__qualname__, Model().run.__doc__) == ("run", "Model.run", "Runs.")
    assert batched(functools.partial(plain)).__name__ == "partial"


def test_the_function_itself_is_at_hand() -> None:
    assert embed.direct(["a", "bc"]) == [1.0, 2.0]
    assert embed.__wrapped__(["a"], normalise=True) == [2.0]
    assert inspect.unwrap(embed) is embed.__wrapped__
    assert Model(3).run.direct([1, 2], plus=1) == [4, 7]
    assert Model.run.__wrapped__(Model(3), [1]) == [3]


def test_type_hints_can_be_asked_for() -> None:
    assert typing.get_type_hints(embed.__wrapped__)["texts"] == list[str]


@pytest.mark.parametrize(
    ("face", "shown"),
    [(embed, "<batched embed>"), (Model().run, "<batched Model.run>"), (Model.run, "<batched method Model.run>")],
)
def test_repr(face: Any, shown: str) -> None:
    assert repr(face) == shown


# ---- pickling


def roundtrip(value: Any, protocol: int = pickle.HIGHEST_PROTOCOL) -> Any:
    return pickle.loads(pickle.dumps(value, protocol))


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("face", [embed, embed_async, Model.run], ids=str)
def test_what_a_module_holds_pickles_by_name(face: Any, protocol: int) -> None:
    assert roundtrip(face, protocol) is face


def test_a_bound_method_pickles_with_its_instance() -> None:
    model = Model(5)
    model.run.call(1)
    twin = roundtrip(model.run)
    assert isinstance(twin, Batched)
    assert twin.call(4) == 20
    assert twin.statistics().submitted == 1  # its own: the batcher did not travel


def test_class_and_static_methods_pickle() -> None:
    assert roundtrip(Model.make).call(4) == 4
    assert roundtrip(Model.same).call(4) == 4


def test_what_no_name_leads_to_pickles_as_function_and_options() -> None:
    there = roundtrip(batched(plain, max_batch_size=3, timeout=50))
    assert there.__wrapped__ is plain
    futures = [there.submit(number) for number in range(9)]
    assert [future.result(30) for future in futures] == list(range(9))
    assert there.statistics().batches >= 3
    there.close()


def test_a_local_function_cannot_be_pickled_and_says_so() -> None:
    with pytest.raises((AttributeError, pickle.PicklingError), match="local"):
        pickle.dumps(batched(lambda items: items))


def test_a_closed_one_comes_back_open_where_it_is_made_anew() -> None:
    function = batched(plain)
    function.close()
    twin = roundtrip(function)
    assert twin.call(1) == 1
    twin.close()


def test_copies_of_what_a_module_holds_are_itself() -> None:
    assert copy.copy(embed) is embed
    assert copy.deepcopy(embed) is embed
    assert copy.deepcopy({"f": embed})["f"] is embed
