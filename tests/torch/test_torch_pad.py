"""`pad`: what the function is given, what is told it, and what comes back, for every side, dimension and nesting."""

import asyncio
import collections
from typing import Any

import numpy as np
import pytest
import torch
from collating import Pair, arena, collated, leaf_at, outcomes, ragged_items, ragged_paths, same, started
from hypothesis import given
from hypothesis import strategies as st

from batchlib import batched
from batchlib.errors import BatchContractError, ItemTooLarge
from batchlib.torch import TorchExecutor, check_batching, pack, pad, unpad, warmup

SIDES = st.sampled_from(["right", "left"])


def as_tensors(item: Any) -> Any:
    return torch.from_numpy(item) if isinstance(item, np.ndarray) else item


def comparable(tensor: torch.Tensor) -> torch.Tensor:
    """Torch has no comparison, and no choice of elements, for its rarer dtypes."""
    return tensor.detach().to(torch.complex128)


@given(st.data(), SIDES, st.integers(0, 2), st.integers(0, 2), st.booleans())
def test_padded_items_come_back(data: st.DataObject, side: Any, dim: int, fillers: int, staged: bool) -> None:
    items = data.draw(ragged_items(dim))
    collator = started(pad(1, side=side, dim=dim, unpad=ragged_paths(items[0])))
    back = outcomes(collator, items, lambda x, **_: x, rows=len(items) + fillers, allocate=arena if staged else None)
    assert same(back, [as_tensors(item) for item in items] if staged else items)


@given(st.data(), SIDES, st.integers(0, 1), st.sampled_from([{}, {"multiple_of": 4}, {"sizes": (3, 9)}]))
def test_what_the_function_is_given(data: st.DataObject, side: Any, dim: int, rounding: Any) -> None:
    items = data.draw(ragged_items(dim))
    collator = started(pad(1, side=side, dim=dim, **rounding))
    rows = len(items) + data.draw(st.integers(0, 2))
    batch, staged = collated(collator, items, rows), collated(collator, items, rows, arena)
    assert same(staged.args, tuple(map(as_tensors, batch.args)))
    assert same([*staged.extras.values()], [as_tensors(extra) for extra in batch.extras.values()])
    assert staged.bucket == batch.bucket
    path = ragged_paths(items[0])[0]
    whole, mask, lengths = leaf_at(staged.args[0], path), staged.extras["mask"], staged.extras["lengths"]
    own = [leaf_at(item, path).shape[dim] for item in items]
    longest = max(own)
    if rounding:
        longest = -(-longest // 4) * 4 if "multiple_of" in rounding else 3 if longest <= 3 else 9
    assert (whole.shape[0], whole.shape[dim + 1]) == (rows, longest)
    assert (lengths.dtype, mask.dtype, mask.shape) == (torch.int64, torch.bool, (rows, longest))
    assert lengths.tolist() == own + own[:1] * (rows - len(items))
    assert mask.sum(1).tolist() == lengths.tolist()
    by_position = comparable(whole).movedim(dim + 1, 1)
    assert bool((by_position[~mask] == 1).all())
    for row, marked, item in zip(by_position, mask, items, strict=False):
        assert same(row[marked], comparable(as_tensors(leaf_at(item, path))).movedim(dim, 0).contiguous())


@pytest.mark.parametrize("side", ["right", "left"])
def test_arrays_are_padded_like_tensors(side: Any) -> None:
    arrays = [np.arange(n * 2, dtype=np.float32).reshape(2, n) for n in (3, 0, 5)]
    collator = started(pad(-1, side=side, dim=1, multiple_of=4))
    of_arrays = collated(collator, arrays)
    of_tensors = collated(collator, [torch.from_numpy(array) for array in arrays])
    given, expected = [[*batch.args, *batch.extras.values()] for batch in (of_arrays, of_tensors)]
    assert all(isinstance(each, np.ndarray) for each in given)
    assert same([torch.from_numpy(each) for each in given], expected)


@pytest.mark.parametrize("side", ["right", "left"])
async def test_a_batch_gives_what_single_items_give(side: Any) -> None:
    """What is filled in would be seen in any result that it got into."""
    sizes: list[int] = []

    def mean(values: Any, lengths: Any, mask: Any) -> Any:
        sizes.append(len(values))
        assert mask.sum(1).tolist() == lengths.tolist()
        return (values * mask).sum(1) / lengths

    def twice(values: Any, lengths: Any, mask: Any) -> Any:
        sizes.append(len(values))
        return values * 2

    items = [torch.arange(n, dtype=torch.float32) + 1 for n in (1, 3, 18)]
    async with batched(mean, max_batch_size=3, max_wait=30, collate=pad(-9999.0, side=side)) as call:
        means = await asyncio.gather(*(call(item) for item in items))
    async with batched(twice, max_batch_size=3, max_wait=30, collate=pad(-9999.0, side=side, unpad=True)) as call:
        doubled = await asyncio.gather(*(call(item) for item in items))
    assert sizes == [3, 3]
    for item, mine, own in zip(items, means, doubled, strict=True):
        assert torch.allclose(mine, item.mean())
        assert torch.equal(own, item * 2)


def test_the_longest_of_a_size_and_one_more() -> None:
    collator = started(pad(sizes=[8, 4, 8]))
    assert collator.lengths_of_buckets == (4, 8)
    for length, size in ((0, 4), (4, 4), (5, 8), (8, 8)):
        assert collator.accept((torch.zeros(length),)).length == size
        assert collated(collator, [torch.zeros(length)]).args[0].shape == (1, size)
    with pytest.raises(ItemTooLarge, match=r"the item is 9 long, and the largest of sizes= is 8"):
        collator.accept((torch.zeros(9),))


@pytest.mark.parametrize("executor", [None, TorchExecutor("cpu")])
def test_what_is_longer_than_all_sizes_is_refused_and_counted(executor: Any) -> None:
    events: list[Any] = []
    call = batched(
        lambda ids, mask: ids.sum(1), collate=pad(sizes=[4]), oversize="alone", hooks=[events.append], executor=executor
    )
    said = "the item is 5 long, and the largest of sizes= is 4: shorten it"
    with pytest.raises(ItemTooLarge, match=said):
        call.call([1] * 5)
    assert isinstance(call.submit([1] * 5).exception(10), ItemTooLarge)
    with pytest.raises(ItemTooLarge, match=said):
        list(call.options(timeout=60).map([[1], [1] * 5]))
    short, long = call.map([[1], [1] * 5], return_exceptions=True)
    assert (short, type(long)) == (1, ItemTooLarge)
    assert call.statistics().rejected == 4
    assert [event.detail for event in events if getattr(event, "error", None) == "ItemTooLarge"] == [said] * 4


@pytest.mark.parametrize("collation", [pad(max_item_length=4), pack(max_item_length=4)])
@pytest.mark.parametrize("executor", [None, TorchExecutor("cpu")])
def test_an_item_longer_than_the_model_takes_does_not_fail_its_neighbours(executor: Any, collation: Any) -> None:
    positions = torch.arange(4)

    def model(ids: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        assert max(lengths) <= len(positions)
        return lengths

    call = batched(model, collate=collation, max_batch_cost="auto", executor=executor)
    outcomes = list(call.map([[1] * n for n in (3, 5, 4)], return_exceptions=True))
    assert (outcomes[0], str(outcomes[1]), outcomes[2]) == (
        3,
        "the item is 5 long, and max_item_length is 4: shorten it",
        4,
    )
    assert type(outcomes[1]) is ItemTooLarge
    assert call.statistics().rejected == 1


def test_no_batch_is_padded_past_the_longest_item_that_is_allowed() -> None:
    collator = started(pad(multiple_of=4, max_item_length=8))
    assert collated(collator, [torch.zeros(8), torch.zeros(5)]).args[0].shape == (2, 8)
    with pytest.raises(ValueError, match=r"max_item_length must be a multiple of multiple_of=4, .*not 10"):
        pad(multiple_of=4, max_item_length=10)
    with pytest.raises(TypeError, match=r"give sizes= or max_item_length=, not both"):
        pad(sizes=[8], max_item_length=8)
    for wrong in (0, -1, 1.5, "8", True):
        for collation in (pad, pack):
            with pytest.raises((TypeError, ValueError), match="max_item_length"):
                collation(max_item_length=wrong)


def test_of_several_parameters_none_may_be_longer() -> None:
    collator = pad(max_item_length=4).start(["mask"], "f")
    assert collator.accept(([1] * 4, [1] * 4)).length == 8
    with pytest.raises(ItemTooLarge, match="the item is 5 long"):
        collator.accept(([1], [1] * 5))


def test_checking_and_warming_up_refuse_it_too() -> None:
    call = batched(lambda ids, mask: ids.sum(1), collate=pad(sizes=[4]), executor=TorchExecutor("cpu"))
    with pytest.raises(ItemTooLarge, match="the item is 5 long"):
        check_batching(call, [[1], [1] * 5])
    with pytest.raises(ItemTooLarge, match="the item is 5 long"):
        warmup(call, [[1] * 5])


def test_a_multiple_and_one_more() -> None:
    collator = started(pad(multiple_of=8))
    assert collator.lengths_of_buckets == ()
    for length, rounded in ((0, 0), (1, 8), (8, 8), (9, 16)):
        assert collator.accept((torch.zeros(length),)).length == rounded
        assert collated(collator, [torch.zeros(length)]).args[0].shape == (1, rounded)


def test_batches_of_one_bucket_are_padded_alike() -> None:
    collator = started(pad(sizes=[4, 8]))
    buckets = [collated(collator, [torch.zeros(length)]).bucket for length in (3, 4, 5)]
    assert buckets[0] == buckets[1] != buckets[2]
    assert len({*buckets, collated(collator, [[1, 2]]).bucket}) == 3  # another dtype


def test_the_length_of_an_item_is_what_its_row_would_cost() -> None:
    collator = started(pad(multiple_of=4))
    args = ([1, 2, 3], torch.zeros(5), 7)
    assert collator.accept(args).length == collator.row_length(args) == 4 + 8
    assert pad().usual_batch_cost == 768
    assert pad().pads


@pytest.mark.parametrize("value", [np.int64(7), np.float32(7), {"": np.int8(7)}], ids=repr)
def test_numpys_numbers_fill_as_well_as_pythons(value: Any) -> None:
    (batch,) = collated(started(pad(value=value)), [torch.zeros(1), torch.zeros(2)]).args
    assert batch.tolist() == [[0, 7], [0, 0]]


def test_each_leaf_is_filled_with_its_own_value() -> None:
    collator = started(pad({"input_ids": 1, "deep.labels": -100}))
    items = [{"input_ids": [7] * n, "mask": [1] * n, "deep": {"labels": [8] * n}} for n in (1, 2)]
    (batch,) = collated(collator, items).args
    assert batch["input_ids"].tolist() == [[7, 1], [7, 7]]
    assert batch["mask"].tolist() == [[1, 0], [1, 1]]
    assert batch["deep"]["labels"].tolist() == [[8, -100], [8, 8]]


def test_only_some_leaves_are_padded() -> None:
    collator = started(pad(only="tokens"))
    items = [{"tokens": [7] * n, "image": torch.zeros(3), "k": 1} for n in (1, 2)]
    batch = collated(collator, items)
    assert {key: tuple(value.shape) for key, value in batch.args[0].items()} == {
        "tokens": (2, 2),
        "image": (2, 3),
        "k": (2,),
    }
    assert batch.extras["lengths"].tolist() == [1, 2]
    assert collator.accept(({"tokens": [7], "image": torch.zeros(4), "k": 1},)).key != collator.accept((items[0],)).key


def test_several_parameters_are_padded_each_to_its_own_length() -> None:
    collator = started(pad(unpad=True))
    calls = [collator.accept((torch.ones(n), torch.ones(2 * n), n)) for n in (1, 3)]
    assert calls[0].key == calls[1].key
    batch = collator.collate([list(column) for column in zip(*[call.args for call in calls], strict=True)])
    assert [tuple(arg.shape) for arg in batch.args] == [(2, 3), (2, 6), (2,)]
    source, target, number = batch.extras["mask"]
    assert (source.sum(1).tolist(), target.sum(1).tolist(), number) == ([1, 3], [2, 6], None)
    assert [each if each is None else each.tolist() for each in batch.extras["lengths"]] == [[1, 3], [2, 6], None]
    rows = collator.uncollate(batch.args[0], batch, "auto")
    assert [len(row) for row in rows] == [1, 3]
    with pytest.raises(BatchContractError, match="the padded length on axis 1: 3; the result has shape"):
        collator.uncollate(batch.args[1], batch, "auto")


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=12), st.booleans())
def test_what_several_parameters_compute_never_exceeds_the_limit(lengths: list[tuple[int, int]], rounded: bool) -> None:
    """Not even if the one that is long here is short there."""
    computed: list[int] = []

    @batched(collate=pad(multiple_of=4 if rounded else None), max_batch_cost=48, max_wait=0)
    def model(source: Any, target: Any, mask: Any) -> Any:
        computed.append(source.numel() + target.numel())
        return [len(row) for row in source]

    async def everybody() -> list[Any]:
        return await asyncio.gather(*(model([1] * one, [1] * other) for one, other in lengths))

    asyncio.run(everybody())
    assert max(computed) <= 48


async def test_what_several_parameters_compute_fills_the_limit() -> None:
    sizes: list[int] = []

    @batched(collate=pad(mask=False), max_batch_cost=40, max_batch_size=8)
    def model(source: Any, target: Any, lengths: Any) -> Any:
        sizes.append(len(source))
        return source.sum(1)

    crossed = [model([1] * 10, [1]), model([1], [1] * 10)]  # 2 rows of 10 + 10 are 40
    await asyncio.gather(*crossed)
    await asyncio.gather(*(model([1] * 9, [1]) for _ in range(4)))
    await asyncio.gather(model([1] * 11, [1]), model([1], [1] * 10))
    assert sizes == [2, 4, 1, 1]


def test_the_function_gets_what_it_takes() -> None:
    options = pad(mask="attention_mask", lengths=False)
    assert options.names == ("attention_mask",)
    assert list(collated(options.start(["attention_mask"], "f"), [[1, 2]]).extras) == ["attention_mask"]
    assert list(collated(pad().start(["lengths"], "f"), [[1, 2]]).extras) == ["lengths"]
    off = pad(mask=False, lengths=False)
    assert off.names == ()
    assert collated(off.start([], "f"), [[1, 2]]).extras == {}


def test_a_function_that_cannot_tell_padding_is_refused() -> None:
    with pytest.raises(TypeError, match=r"f takes none of the parameters mask, lengths, .*mask=False, lengths=False"):
        pad().start([], "f")
    with pytest.raises(TypeError, match="embed takes none of the parameters where,"):
        pad(mask="where", lengths=False).start([], "embed")

    with pytest.raises(TypeError, match="deaf takes none of the parameters mask, lengths"):

        @batched(collate=pad())
        def deaf(values: Any) -> Any:
            return values


# What comes back.


def test_only_named_leaves_are_cut() -> None:
    collator = started(pad(unpad=("tokens", "deep[0]")))
    items = [torch.ones(n) for n in (1, 3)]
    rows = outcomes(collator, items, lambda x, mask, lengths: {"tokens": x, "deep": (x + 1, x), "sum": x.sum(1)})
    assert [row["tokens"].tolist() for row in rows] == [[1], [1, 1, 1]]
    assert [row["deep"][0].tolist() for row in rows] == [[2], [2, 2, 2]]
    assert [row["deep"][1].tolist() for row in rows] == [[1, 0, 0], [1, 1, 1]]
    assert [row["sum"].item() for row in rows] == [1, 3]


@pytest.mark.parametrize(
    ("result", "said"),
    [
        (lambda x: x.sum(1), r"on axis 1: 3; the result has shape \(2,\)"),
        (lambda x: (x, x[:, :2]), r"2 rows on axis 0 and the padded length on axis 1: 3; `\[1\]` has shape \(2, 2\)"),
        (lambda x: {"x": x[:1]}, r"`x` has shape \(1, 3\)"),
    ],
)
def test_what_has_not_the_padded_length_is_refused(result: Any, said: str) -> None:
    items = [torch.ones(n) for n in (1, 3)]
    with pytest.raises(BatchContractError, match=said):
        outcomes(started(pad(unpad=True)), items, lambda x, mask, lengths: result(x))


def test_a_leaf_to_be_cut_must_be_there() -> None:
    with pytest.raises(
        BatchContractError, match=r"unpad=, or unpack=, must name leaves of the result: tokens is none of"
    ):
        outcomes(started(pad(unpad="tokens")), [[1, 2]], lambda x, mask, lengths: {"ids": x})


LISTED: dict[str, Any] = {
    "tensors": lambda x: list(x),
    "arrays": lambda x: list(x.numpy()),
    "numbers": lambda x: x.tolist(),
    "another sequence": lambda x: collections.deque(x),
    "in dicts": lambda x: [{"deep": (row,), "score": 0.5} for row in x],
    "behind a text": lambda x: [["name", row] for row in x],
}


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("executor", [None, TorchExecutor("cpu")], ids=["usual", "torch"])
@pytest.mark.parametrize("listed", LISTED)
def test_what_is_in_a_list_is_cut(listed: str, executor: Any, side: Any) -> None:
    options = {} if executor is None else {"executor": executor}
    f = batched(
        lambda x, mask: LISTED[listed](x), collate=pad(unpad=True, side=side), max_batch_size=2, max_wait=60, **options
    )
    rows: list[Any] = [row["deep"][0] if "dict" in listed else row for row in f.map([[5], [6, 7]])]
    rows = [row[1] if "text" in listed else row for row in rows]
    assert [list(row) for row in rows] == [[5], [6, 7]]
    if hasattr(rows[0], "nbytes"):
        rows[0][:] = 0
        assert list(rows[1]) == [6, 7]


def test_in_a_list_only_what_is_named_is_cut_and_errors_stay() -> None:
    error = KeyError("mine")

    def function(x: torch.Tensor, mask: Any, lengths: Any) -> list[Any]:
        return [error, {"deep": {"a": x[1], "b": x[1]}, "kept": x[1]}, {"deep": {"a": x[2, :2]}, "kept": x[2]}]

    rows = outcomes(started(pad(unpad="deep")), [[1, 2, 3], [4], [5, 6]], function)
    assert rows[0] is error
    assert [each.tolist() for each in rows[1]["deep"].values()] == [[4], [4]]
    assert rows[1]["kept"].tolist() == [4, 0, 0]
    assert rows[2]["deep"]["a"].tolist() == [5, 6]  # so long already


def test_other_dimensions_are_cut_in_a_list_too() -> None:
    items = [torch.ones(2, n) for n in (1, 3)]
    rows = outcomes(started(pad(unpad=True, dim=1)), items, lambda x, mask, lengths: list(x))
    assert [tuple(row.shape) for row in rows] == [(2, 1), (2, 3)]


@pytest.mark.parametrize(
    ("options", "result", "said"),
    [
        ({}, lambda x: [row[:2] for row in x], r"padded length on axis 0 .*: 3; an element has shape \(2,\)"),
        ({}, lambda x: [{"a": row.sum()} for row in x], r"`a` has shape \(\)"),
        ({}, lambda x: [["a", "b"] for _ in x], r"an element has shape \(2,\)"),
        ({"unpad": "deep"}, lambda x: [{"a": row} for row in x], "must name leaves of the result: deep is none of a"),
    ],
)
def test_what_cannot_be_cut_in_a_list_is_refused(options: Any, result: Any, said: str) -> None:
    with pytest.raises(BatchContractError, match=said):
        outcomes(started(pad(**{"unpad": True, **options})), [[1], [1, 2, 3]], lambda x, mask, lengths: result(x))


def test_a_path_stands_for_all_that_is_in_it() -> None:
    collator = started(pad({"deep": 7, "deep.b": 8}, only=("deep", "ids"), unpad="hidden"))
    items = [{"deep": {"a": [1] * n, "b": [1] * n}, "ids": [1] * n, "fixed": [1, 2, 3]} for n in (1, 2)]
    rows = outcomes(collator, items, lambda x, mask, lengths: {"hidden": (x["ids"], x["ids"]), "all": x})
    assert [[layer.tolist() for layer in row["hidden"]] for row in rows] == [[[1], [1]], [[1, 1], [1, 1]]]
    padded = {"deep": {"a": [1, 7], "b": [1, 8]}, "ids": [1, 0], "fixed": [1, 2, 3]}
    assert {
        k: {n: e.tolist() for n, e in v.items()} if k == "deep" else v.tolist() for k, v in rows[0]["all"].items()
    } == padded


@pytest.mark.parametrize("lengths", [[1, 3], (1, 3), torch.tensor([1, 3]), np.array([1, 3])])
def test_unpad_inside_a_function(lengths: Any) -> None:
    padded = torch.arange(6).view(2, 3)
    right, left = unpad(padded, lengths), unpad(padded, lengths, side="left")
    assert [row.tolist() for row in right] == [[0], [3, 4, 5]]
    assert [row.tolist() for row in left] == [[2], [3, 4, 5]]
    assert all(row.untyped_storage().nbytes() == 8 * len(row) for row in right + left)
    deep = np.arange(12).reshape(2, 2, 3)
    assert [row.shape for row in unpad(deep, lengths, dim=1)] == [(2, 1), (2, 3)]
    (lone,) = unpad(padded[1:], [3])
    lone.fill_(0)
    assert padded[1].tolist() == [3, 4, 5]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((torch.zeros(2, 3), [1]), "lengths must be one per row: 2, not 1"),
        ((torch.zeros(2, 3), [1, 4]), "lengths must be from 0 to 3"),
        ((torch.zeros(2, 3), [1, -1]), "lengths must be from 0 to 3"),
        ((torch.zeros(2), [1, 1]), r"more than 0 dimensions, not shape \(2,\)"),
    ],
)
def test_unpad_says_what_is_wrong(arguments: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        unpad(*arguments)
    with pytest.raises(ValueError, match="side must be 'right' or 'left', not 'top'"):
        unpad(*arguments, side="top")  # type: ignore[arg-type]


# Other lengths, for warming up and for checking.


@pytest.mark.parametrize("length", [0, 2, 3, 7])
def test_stretching(length: int) -> None:
    full, empty = np.arange(6).reshape(2, 3), np.zeros((2, 0))
    pair = Pair(torch.from_numpy(full), torch.zeros(2, 3))
    collator, of_pairs = started(pad(dim=1)), started(pad(dim=1, only="left"))
    for item in (full, torch.from_numpy(full), empty, torch.from_numpy(empty), pair):
        chosen = of_pairs if item is pair else collator
        (once,) = chosen.accept((item,)).args
        args = chosen.stretched((once,), length)
        assert chosen.row_length(args) == length
        assert chosen.accept(args).key == chosen.accept((item,)).key
    assert collator.stretched((torch.tensor([[1, 2, 3]]),), 5)[0].tolist() == [[1, 2, 3, 1, 2]]


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"side": "top"}, ValueError, "side must be 'right' or 'left', not 'top'"),
        ({"dim": -1}, ValueError, "dim must be a whole number >= 0"),
        ({"dim": 1.0}, ValueError, "dim must be a whole number >= 0"),
        ({"multiple_of": 0}, ValueError, "multiple_of must be a whole number >= 1"),
        ({"sizes": ()}, ValueError, "sizes must be at least one whole number >= 1"),
        ({"sizes": 8}, TypeError, "sizes must be whole numbers >= 1, or None for any, not 8"),
        ({"sizes": "48"}, TypeError, "sizes must be whole numbers >= 1, or None for any, not '48'"),
        ({"sizes": (0,)}, ValueError, "sizes must be a whole number >= 1"),
        ({"sizes": (8,), "multiple_of": 8}, TypeError, "give sizes= or multiple_of=, not both"),
        ({"value": "0"}, TypeError, "value must be a number or a mapping"),
        ({"value": {"a": None}}, TypeError, "value must be a number or a mapping"),
        ({"mask": None}, TypeError, "mask= must be True, False or the name of a parameter, not None"),
        ({"mask": "no name"}, ValueError, "mask= must be the name of a parameter that nothing else has"),
        ({"mask": "m", "lengths": "m"}, ValueError, "lengths= must be the name of a parameter that nothing else has"),
        ({"only": 3}, TypeError, "only must be a path in a structure"),
        ({"only": (3,)}, TypeError, "only must be a path in a structure"),
        ({"unpad": None}, TypeError, "unpad must be a path in a structure"),
    ],
)
def test_options_that_mean_nothing(options: Any, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        pad(**options)


@pytest.mark.parametrize(
    "lengths",
    [
        torch.tensor([True, True]),
        np.array([True, False]),
        [True, 2],
        [np.True_, 2],
        [1.9, 3],
        [1.0, 3.0],
        torch.tensor([1.0, 2.0]),
        ["1", "2"],
        torch.tensor(2),
        torch.ones(2, 3, dtype=torch.int64),
        3,
    ],
    ids=repr,
)
def test_lengths_that_are_no_whole_numbers_are_not_rounded(lengths: Any) -> None:
    with pytest.raises(TypeError, match="lengths must be a sequence of whole numbers, or a tensor of them, not"):
        unpad(torch.zeros(2, 3), lengths)


def test_unpad_takes_whole_numbers_of_any_kind() -> None:
    for lengths in ([np.int32(1), torch.tensor(3)], (1, 3), np.array([1, 3], np.uint8), {1: 0, 3: 0}):
        assert [len(row) for row in unpad(torch.zeros(2, 3), lengths)] == [1, 3]


@pytest.mark.parametrize("dim", [-1, True, 0.5, "0"])
def test_unpad_counts_dimensions_from_the_first(dim: Any) -> None:
    with pytest.raises(ValueError, match=r"dim must be a whole number >= 0, counted from the first dimension, not"):
        unpad(torch.zeros(2, 3), [1, 1], dim=dim)
