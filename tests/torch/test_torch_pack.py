"""`pack`: items end to end, what tells them apart, and how the result is cut into them again."""

import asyncio
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from collating import arena, collated, leaf_at, outcomes, ragged_items, ragged_paths, same, started
from hypothesis import given
from hypothesis import strategies as st

from batchlib import batched
from batchlib.errors import BatchContractError
from batchlib.torch import pack

EVERYTHING = ("positions", "cumulative_lengths", "lengths", "max_length")


def as_tensors(item: Any) -> Any:
    return torch.from_numpy(item) if isinstance(item, np.ndarray) else item


@given(st.data(), st.booleans())
def test_packed_items_come_back(data: st.DataObject, staged: bool) -> None:
    items = data.draw(ragged_items(0))
    collator = started(pack(unpack=ragged_paths(items[0])))
    back = outcomes(collator, items, lambda x, **_: x, allocate=arena if staged else None)
    assert same(back, [as_tensors(item) for item in items] if staged else items)


@given(st.data())
def test_what_the_function_is_given(data: st.DataObject) -> None:
    items = data.draw(ragged_items(0))
    collator = started(pack())
    batch, staged = collated(collator, items), collated(collator, items, len(items), arena)
    assert same(staged.args, tuple(map(as_tensors, batch.args)))
    assert same([*staged.extras.values()], [as_tensors(extra) for extra in batch.extras.values()])
    assert staged.bucket == batch.bucket
    assert tuple(batch.extras) == EVERYTHING
    positions, bounds, lengths, longest = staged.extras.values()
    path = ragged_paths(items[0])[0]
    own = [leaf_at(item, path).shape[0] for item in items]
    assert same(lengths, torch.tensor(own))
    assert same(positions, torch.cat([torch.arange(length) for length in own]))
    assert (bounds.dtype, bounds.shape, longest) == (torch.int32, (len(items) + 1,), max(own))
    whole = leaf_at(staged.args[0], path)
    assert whole.shape[0] == sum(own) == bounds[-1]
    for begin, end, item in zip(bounds[:-1], bounds[1:], items, strict=True):
        assert same(whole[begin:end], as_tensors(leaf_at(item, path)))


async def test_a_packed_batch_through_a_batched_function() -> None:
    sizes: list[int] = []

    @batched(max_batch_size=3, max_wait=30, collate=pack(unpack="doubled"))
    def both(tokens: Any, lengths: Any, cumulative_lengths: Any) -> Any:
        sizes.append(len(lengths))
        sums = [tokens[a:b].sum() for a, b in pairwise(cumulative_lengths)]
        return {"doubled": tokens * 2, "sum": torch.stack(sums)}

    async with both:
        rows = await asyncio.gather(*(both(list(range(n))) for n in (1, 3, 18)))
    assert sizes == [3]
    for n, row in zip((1, 3, 18), rows, strict=True):
        assert same(row, {"doubled": torch.arange(n) * 2, "sum": torch.tensor(n * (n - 1) // 2)})


def test_numbers_beside_the_packed_leaves_are_stacked() -> None:
    items = [{"ids": [1] * n, "image": torch.ones(n, 2, 3), "k": n} for n in (2, 1)]
    (batch,) = collated(started(pack()), items).args
    assert {key: tuple(value.shape) for key, value in batch.items()} == {"ids": (3,), "image": (3, 2, 3), "k": (2,)}


def test_several_parameters_are_packed_each_by_its_own_lengths() -> None:
    collator = started(pack(unpack=True))
    calls = [collator.accept((torch.ones(n), torch.ones(2 * n), n)) for n in (1, 3)]
    assert [call.length for call in calls] == [3, 9] == [collator.row_length(call.args) for call in calls]
    batch = collator.collate([list(column) for column in zip(*[call.args for call in calls], strict=True)])
    assert [tuple(arg.shape) for arg in batch.args] == [(4,), (8,), (2,)]
    assert batch.extras["max_length"] == (3, 6, None)
    assert [each if each is None else each.tolist() for each in batch.extras["lengths"]] == [[1, 3], [2, 6], None]
    assert [len(row) for row in collator.uncollate(batch.args[0], batch, "auto")] == [1, 3]
    with pytest.raises(BatchContractError, match=r"end to end on axis 0: 4; the result has shape \(8,\)"):
        collator.uncollate(batch.args[1], batch, "auto")


def test_without_unpacking_there_is_a_row_per_item() -> None:
    items = [torch.ones(n) for n in (1, 3)]
    assert [row.item() for row in outcomes(started(pack()), items, lambda x, lengths, **_: lengths)] == [1, 3]
    with pytest.raises(BatchContractError, match=r"one row per item on axis 0, 2 here; it has shape \(4,\)"):
        outcomes(started(pack()), items, lambda x, **_: x)


@pytest.mark.parametrize(
    ("result", "said"),
    [
        (lambda x: x[:1], r"end to end on axis 0: 4; the result has shape \(1,\)"),
        (lambda x: (x, x.sum()), r"`\[1\]` has shape \(\)"),
    ],
)
def test_what_is_not_end_to_end_is_refused(result: Any, said: str) -> None:
    with pytest.raises(BatchContractError, match=said):
        outcomes(started(pack(unpack=True)), [torch.ones(n) for n in (1, 3)], lambda x, **_: result(x))


def test_a_packed_batch_has_no_fillers() -> None:
    collator = started(pack())
    assert collated(collator, [[1], [2]], 2).rows == 2
    with pytest.raises(TypeError, match="a packed batch has no rows to fill: its 2 items cannot be made 4"):
        collated(collator, [[1], [2]], 4)


@pytest.mark.parametrize(("total", "rounded"), [(0, 1), (1, 1), (2, 2), (3, 4), (4, 4), (5, 8)])
def test_buckets_are_powers_of_two(total: int, rounded: int) -> None:
    collator = started(pack())
    same_bucket = collated(collator, [torch.zeros(rounded)]).bucket
    assert collated(collator, [torch.zeros(total)]).bucket == same_bucket
    assert collated(collator, [torch.zeros(2 * rounded)]).bucket != same_bucket


def test_a_function_that_cannot_tell_items_apart_is_refused() -> None:
    with pytest.raises(TypeError, match=r"f takes none of the parameters positions, cumulative_lengths, lengths, "):
        pack().start(["max_length"], "f")
    for taken in EVERYTHING[:3]:
        assert list(collated(pack().start([taken], "f"), [[1]]).extras) == [taken]
    off = pack(positions=False, cumulative_lengths=False, lengths=False)
    assert off.names == ("max_length",)
    assert collated(off.start([], "f"), [[1]]).extras == {}
    named = pack(positions="position_ids", cumulative_lengths="cu_seq_lens_q", max_length="max_length_q")
    assert named.names == ("position_ids", "cu_seq_lens_q", "lengths", "max_length_q")
    assert collated(started(named), [[1, 1]]).extras["position_ids"].tolist() == [0, 1]


def test_what_a_batcher_asks_of_it() -> None:
    assert not pack().pads
    assert pack().usual_batch_cost == 1024
    assert started(pack()).lengths_of_buckets == ()


def test_stretching() -> None:
    collator = started(pack())
    (args,) = [collator.accept(({"ids": [1, 2, 3], "k": 5},)).args]
    assert collator.row_length(args) == 3
    longer = collator.stretched(args, 7)
    assert collator.row_length(longer) == 7
    (batch,) = collator.collate([[longer[0]]]).args
    assert batch["ids"].tolist() == [1, 2, 3, 1, 2, 3, 1]
    assert batch["k"].tolist() == [5]


@pytest.mark.parametrize(
    ("options", "error"),
    [({"positions": None}, TypeError), ({"lengths": "positions"}, ValueError), ({"unpack": 3}, TypeError)],
)
def test_options_that_mean_nothing(options: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=r"(positions|lengths|unpack)=? must be"):
        pack(**options)
