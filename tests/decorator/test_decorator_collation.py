"""What a collation brings into a decorated function: filled parameters, checked items, costs and limits.

`Padded` is a collation of plain lists; those of `batchlib.torch` have their own tests.
"""

import asyncio
import copy
import gc
import pickle
import weakref
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from support import Held
from support.until import until

from batchlib import BatchContractError, ItemTooLarge, batched
from batchlib._core._request import Request
from batchlib.policies import CostLimit, Fifo, Greedy, PaddedCost
from batchlib.policies.structures._lengths import Lengths
from batchlib.protocols import Accepted, Collated


@dataclass(frozen=True)
class Padded:
    """Pads lists to the longest one with None; gives their lengths by name."""

    pads: bool = True
    usual_batch_cost: float | None = 12
    names = ("lengths",)

    def start(self, taken: Collection[str], function: str) -> "Padder":
        if not taken:
            raise TypeError(f"{function} takes no lengths")
        return Padder()


class Padder:
    def accept(self, args: tuple[Any, ...]) -> Accepted:
        if not all(isinstance(arg, list) for arg in args):
            raise TypeError("items are lists")
        return Accepted(args, type(args[0][0]) if args[0] else None, sum(map(len, args)))

    def collate(self, columns: Sequence[list[Any]], *, rows: int | None = None, allocate: Any = None) -> Collated:
        lengths = [len(item) for item in columns[0]]
        padded = tuple([item + [None] * (max(map(len, column)) - len(item)) for item in column] for column in columns)
        return Collated(padded, {"lengths": lengths}, len(lengths), len(lengths), note=lengths)

    def uncollate(self, result: Any, collated: Collated, copy: Any) -> Sequence[Any]:
        if not isinstance(result, list):
            raise BatchContractError("no list")
        return [
            row[:length] if isinstance(row, list) else row for row, length in zip(result, collated.note, strict=True)
        ]


def test_what_the_collation_fills_is_neither_batched_nor_a_setting() -> None:
    @batched(collate=Padded())
    def sums(rows: list[list[int]], lengths: list[int], *, scale: int = 1) -> list[int]:
        return [scale * sum(row[:length]) for row, length in zip(rows, lengths, strict=True)]

    assert sums.call([1, 2, 3]) == 6
    assert sums.call([1, 2], scale=10) == 30
    with pytest.raises(TypeError):
        sums.call([1], [2])
    with pytest.raises(TypeError):
        sums.call([1], lengths=[1])


def test_batched_parameters_behind_a_filled_one() -> None:
    @batched(collate=Padded())
    def joined(left: list[list[int]], lengths: list[int], right: list[list[int]]) -> list[list[int]]:
        return [[length, *a, *b] for a, length, b in zip(left, lengths, right, strict=True)]

    assert joined.call([5], [6, 7]) == [1]  # cut to the length of the first one
    assert joined.call([5, 6, 7], [8]) == [3, 5, 6]


def test_methods_and_async_functions_are_filled_too() -> None:
    class Model:
        @batched(collate=Padded())
        async def run(self, rows: list[list[int]], *, lengths: list[int]) -> list[int]:
            return lengths

    assert Model().run.call([1, 2]) == 2


def test_a_collation_that_cannot_do_with_the_parameters_is_refused_at_decoration() -> None:
    with pytest.raises(TypeError, match="takes no lengths"):
        batched(collate=Padded())(lambda rows: rows)
    with pytest.raises((TypeError, RuntimeError)):  # until 3.11 Python wraps what `__set_name__` raises

        class _Model:
            @batched(collate=Padded())
            def run(self, rows: Any) -> Any:
                return rows


def positional(rows: Any, lengths: Any, /) -> Any: ...


def before_star(rows: Any, lengths: Any, *more: Any) -> Any: ...


@pytest.mark.parametrize("function", [positional, before_star])
def test_a_filled_parameter_that_cannot_be_given_by_name_is_refused(function: Any) -> None:
    with pytest.raises(TypeError, match=r"'lengths' is filled by the collation.*put it after a `\*`"):
        batched(function, collate=Padded())


async def test_an_item_that_is_not_accepted_fails_its_caller_alone() -> None:
    echo = batched(lambda rows, lengths: rows, collate=Padded())
    good = asyncio.ensure_future(echo([1, 2]))
    with pytest.raises(TypeError, match="items are lists"):
        await echo("no list")
    assert await good == [1, 2]


@pytest.mark.parametrize("length", [-1, float("nan"), float("inf"), None, "3"])
def test_a_length_that_no_limit_can_add_up_is_refused(length: Any) -> None:
    class Mismeasured(Padder):
        def accept(self, args: tuple[Any, ...]) -> Accepted:
            return Accepted(args, None, length)

    class Mismeasuring(Padded):
        def start(self, taken: Collection[str], function: str) -> Padder:
            return Mismeasured()

    function = batched(lambda items, lengths: items, collate=Mismeasuring(), max_batch_cost=10)
    with pytest.raises(ValueError, match=rf"a length that is a finite number >= 0, not {length!r}"):
        function.call([1])
    measured = batched(lambda items, lengths: items, collate=Mismeasuring(), max_batch_cost=10, cost=len)
    assert measured.call([1]) == [1]


def test_an_item_that_is_refused_is_not_kept() -> None:
    class Item(list[int]):
        pass

    class AtMostTwo(Padder):
        def accept(self, args: tuple[Any, ...]) -> Accepted:
            raise ItemTooLarge("longer than two")

    @dataclass(frozen=True)
    class Refusing(Padded):
        def start(self, taken: Collection[str], function: str) -> Padder:
            return AtMostTwo()

    call = batched(lambda rows, lengths: rows, collate=Refusing())
    item = Item([1, 2, 3])
    alive = weakref.ref(item)
    gc.disable()
    try:
        assert str(call.submit(item).exception(10)) == "longer than two"
        del item
        assert alive() is None  # no cycle of error, frame and request
    finally:
        gc.enable()


async def test_items_that_are_not_alike_never_share_a_batch() -> None:
    batches: list[list[Any]] = []

    @batched(collate=Padded())
    def echo(rows: list[Any], lengths: list[int]) -> list[Any]:
        batches.append(rows)
        return rows

    await asyncio.gather(echo([1]), echo(["a"]), echo([2, 3]))
    assert sorted(batches, key=len) == [[["a"]], [[1, None], [2, 3]]]


async def test_callbacks_see_what_the_caller_gave() -> None:
    seen: list[Any] = []

    @dataclass(frozen=True)
    class Tupled(Padded):
        def start(self, taken: Collection[str], function: str) -> Any:
            padder = Padder()

            class Started(Padder):
                def accept(self, args: tuple[Any, ...]) -> Accepted:
                    return padder.accept(([*args[0]],))

            return Started()

    echo = batched(lambda rows, lengths: rows, collate=Tupled(), cost=lambda item: seen.append(item) or 1)
    assert await echo((1, 2)) == [1, 2]
    assert seen == [(1, 2)]


def sizes_of_batches(lengths: Sequence[int], **options: Any) -> list[list[int]]:
    """Which lengths share a batch, when all of them wait before the first one leaves."""
    held = Held()
    function = batched(lambda rows, lengths: held(rows), collate=Padded(), max_batch_size=4, **options)
    futures = [function.submit([0])]
    until(held.started.is_set)
    futures += [function.submit([0] * length) for length in lengths]
    until(lambda: function.statistics().waiting == len(lengths))
    held.gate.set()
    for future in futures:
        future.result(10)
    return [[len([each for each in row if each is not None]) for row in batch] for batch in held.seen[1:]]


def test_max_batch_cost_bounds_what_is_computed_and_near_lengths_share_a_batch() -> None:
    assert sizes_of_batches([1, 6, 2, 6, 2], max_batch_cost=12) == [[1, 2, 2], [6, 6]]
    assert sizes_of_batches([1, 6, 2, 6, 2], max_batch_cost="auto") == [[1, 2, 2], [6, 6]]
    assert sizes_of_batches([6, 6], max_batch_cost=11.9) == [[6], [6]]


def test_the_longest_on_each_of_several_lengths_are_what_a_batch_computes() -> None:
    room = PaddedCost(40).start().open()
    costs = [Lengths((10, 1)), Lengths((1, 10)), Lengths((9, 2))]
    assert [room.add(with_cost(cost)) for cost in costs] == [True, True, False]  # 2 rows of 10 + 10 are 40
    assert room.full
    alike = PaddedCost(40).start().open()
    assert [alike.add(with_cost(cost)) for cost in (costs[0], costs[2], costs[0])] == [True, True, True]
    assert not alike.add(with_cost(costs[0]))  # 4 rows of 10 + 2 are 48


def with_cost(cost: float) -> Request:
    request = Request((), None, 0.0)
    request.cost = cost
    return request


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda cost: pickle.loads(pickle.dumps(cost))])
def test_lengths_travel_like_numbers(copied: Any) -> None:
    """Events of hooks carry them."""
    cost = Lengths((3, 4))
    same = copied(cost)
    assert (same, type(same), same.each) == (7, Lengths, (3, 4))
    assert (f"{cost:g}", cost + 1, type(cost + 1)) == ("7", 8, float)


def test_an_ordering_that_is_given_stays() -> None:
    assert sizes_of_batches([1, 6, 2, 6, 2], max_batch_cost=12, ordering=Fifo()) == [[1, 6], [2, 6], [2]]


def test_without_a_limit_nothing_is_reordered() -> None:
    assert sizes_of_batches([1, 6, 2, 6, 2]) == [[1, 6, 2, 6], [2]]


def test_a_limit_that_brings_an_order_is_not_switched_in_use() -> None:
    """The limit alone would close a batch at the first long item, and the order alone would fill it with long ones."""

    def function(rows: Any, lengths: Any) -> Any:
        return rows

    for before, limit in (({}, 12), ({}, "auto"), ({"max_batch_cost": 12}, None)):
        call = batched(function, collate=Padded(), **before)
        with pytest.raises(TypeError, match=r"not switch it on or off .* chooses the ordering: decorate .* ordering="):
            call.configure(max_batch_cost=limit, max_batch_size=1)
        assert list(call.map([[1], [2]])) == [[1], [2]]
        assert call.statistics().batches == 1  # nothing of it was taken over
    batched(function, collate=Padded(), max_batch_cost=12).configure(max_batch_cost="auto")


@pytest.mark.parametrize(
    "options",
    [
        {"collate": Padded(), "ordering": Fifo()},
        {"collate": Padded(), "target_latency": 60},
        {"collate": Padded(pads=False)},
        {"cost": lambda item: 4},
    ],
)
def test_a_limit_that_brings_no_order_is_switched_in_use(options: Any) -> None:
    call = batched(lambda rows, *, lengths=None: rows, **options)
    call.configure(max_batch_cost=3)
    with pytest.raises(ItemTooLarge):
        call.call([1, 2, 3, 4])
    call.configure(max_batch_cost=None)
    assert call.call([1, 2, 3, 4]) == [1, 2, 3, 4]


def test_tenants_and_priorities_are_served_inside_the_order_of_lengths() -> None:
    function = batched(lambda rows, lengths: rows, collate=Padded(), max_batch_cost=12)
    assert function.options(tenant="a", priority=-1).call([1, 2]) == [1, 2]


def test_a_cost_of_ones_own_replaces_the_length() -> None:
    function = batched(lambda rows, lengths: rows, collate=Padded(), max_batch_cost=3, cost=lambda item: 3)
    assert function.call([1, 2, 3, 4]) == [1, 2, 3, 4]
    with pytest.raises(ItemTooLarge, match="needs 4 and a batch may hold 3"):
        batched(function.direct, collate=Padded(), max_batch_cost=3).call([1, 2, 3, 4])


def test_limits_that_say_the_same_twice_are_refused() -> None:
    for pads, limit in ((True, PaddedCost(5)), (False, CostLimit(5))):
        with pytest.raises(TypeError, match=f"max_batch_cost is what {type(limit).__name__}"):
            batched(max_batch_cost=5, collate=Padded(pads=pads), dispatch=(Greedy(), limit))


def test_auto_is_for_collations_with_lengths() -> None:
    for collation in (None, Padded(usual_batch_cost=None)):
        with pytest.raises(TypeError, match='"auto" is for collations'):
            batched(max_batch_cost="auto", collate=collation)
    with pytest.raises(TypeError, match="not 'atuo'; with a collation it may be \"auto\""):
        batched(max_batch_cost="atuo", collate=Padded())
    with pytest.raises(TypeError, match="needs cost="):
        batched(max_batch_cost=5, collate=Padded(usual_batch_cost=None))


def test_items_of_a_collation_are_not_cut() -> None:
    with pytest.raises(TypeError, match=r"cut large items in their caller"):
        batched(max_batch_cost=5, collate=Padded(), oversize="split")


def test_the_class_instead_of_a_collation() -> None:
    with pytest.raises(TypeError, match=r"did you mean Padded\(\.\.\.\)"):
        batched(collate=Padded)  # type: ignore[arg-type]
