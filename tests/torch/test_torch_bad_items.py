"""Items that are odd, and items that are wrong: the first work, the second fail their own call and no other."""

import asyncio
import collections
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from collating import Pair, arena, collated, outcomes, same, started

from batchlib import batched
from batchlib.errors import BatchContractError
from batchlib.torch import SimulatedDevice, TorchExecutor, pack, pad, stack
from batchlib.torch.collation._pad import fits
from batchlib.torch.device._device import CpuDevice

COLLATIONS = [stack(), pad(), pad(side="left", dim=1), pack()]
IDS = ["stack", "pad", "pad dim 1", "pack"]
UNTOLD = [
    stack(),
    pad(mask=False, lengths=False),
    pack(positions=False, cumulative_lengths=False, lengths=False, unpack=True),
]


@pytest.mark.parametrize("collation", COLLATIONS, ids=IDS)
@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0), (2, 0, 3)])
@pytest.mark.parametrize("make", [torch.zeros, np.zeros])
@pytest.mark.parametrize("allocate", [None, arena])
def test_empty_ones_work(collation: Any, shape: tuple[int, ...], make: Any, allocate: Any) -> None:
    if collation.pads and len(shape) <= collation.dim:
        shape = (*shape, 0)
    collator = started(collation)
    batch = collated(collator, [make(shape), make(shape)], allocate=allocate)
    told = {name: np.asarray(extra) for name, extra in batch.extras.items()}
    if isinstance(collation, pack):
        assert batch.args[0].shape == (2 * shape[0], *shape[1:])
        assert told["cumulative_lengths"].tolist() == [0, shape[0], 2 * shape[0]]
        assert told["positions"].shape == (2 * shape[0],)
        return
    assert batch.args[0].shape == (2, *shape)
    if collation.pads:
        assert told["lengths"].tolist() == [shape[collation.dim]] * 2
        assert told["mask"].shape == (2, shape[collation.dim])
        assert told["mask"].all()


def test_items_of_no_length_among_others() -> None:
    items = [torch.tensor([1.0, 2]), torch.tensor([])]
    for collation in (pad(unpad=True, multiple_of=8), pad(unpad=True, side="left", sizes=[4]), pack(unpack=True)):
        assert same(outcomes(started(collation), items, lambda x, **_: x), items)
    batch = collated(started(pad()), [[], [5, 6]])
    assert batch.args[0].tolist() == [[0, 0], [5, 6]]
    assert batch.extras["mask"].tolist() == [[False, False], [True, True]]


def test_an_empty_list_is_of_the_examples_kind() -> None:
    collator = started(pad(like=[0.5]))
    assert collator.accept(([],)).key == collator.accept(([1.5],)).key
    nested = started(pad(like={"a": [0.5]}))
    assert nested.accept(({"a": []},)).key == nested.accept(({"a": [1.5]},)).key
    arrays = started(pad(like=(np.zeros(1), [0.5])))
    assert arrays.accept(((np.zeros(0), []),)).key == arrays.accept(((np.zeros(1), [1.5]),)).key


def test_nan_is_kept() -> None:
    items = [torch.tensor([float("nan"), 1]), torch.tensor([float("nan")])]
    assert same(outcomes(started(pad(unpad=True)), items, lambda x, **_: x), items)
    batch = collated(started(pad(float("nan"))), items)
    assert batch.args[0].isnan().tolist() == [[True, False], [True, True]]


def strided(length: int) -> Any:
    return torch.arange(20 * length).view(length, 20)[:, 3:9:2].T  # neither axis is dense


@pytest.mark.parametrize("allocate", [None, arena])
def test_views_that_are_not_contiguous(allocate: Any) -> None:
    items = [strided(4), strided(2)]
    assert not items[0].is_contiguous()
    assert same(outcomes(started(pad(dim=1, unpad=True)), items, lambda x, **_: x, allocate=allocate), items)
    turned = [item.T for item in items]
    assert same(outcomes(started(pack(unpack=True)), turned, lambda x, **_: x, allocate=allocate), turned)
    backwards = [np.arange(6)[::-1], np.arange(6)[::-2]]
    rows = outcomes(started(pad(unpad=True)), backwards, lambda x, **_: x, allocate=allocate)
    assert [row.tolist() for row in rows] == [[5, 4, 3, 2, 1, 0], [5, 3, 1]]


def test_arrays_that_cannot_be_written_to() -> None:
    item = np.arange(3.0)
    item.setflags(write=False)
    for collation in (stack(), pad(), pack()):
        for allocate in (None, arena):
            (batch,) = collated(started(collation), [item, item], allocate=allocate).args
            batch[...] = 0
    assert item.tolist() == [0, 1, 2]


@pytest.mark.parametrize("collation", COLLATIONS, ids=IDS)
def test_tensors_of_another_device_have_batches_of_their_own(collation: Any) -> None:
    collator = started(collation)
    far, near = torch.zeros(2, 3, device="meta"), torch.zeros(2, 3)
    assert collator.accept((far,)).key != collator.accept((near,)).key
    batch = collated(collator, [far, far[:, :3]], allocate=arena)
    assert batch.args[0].device.type == "meta"  # is made where they are
    here = collated(collator, [far, far])
    assert all(extra.device.type == "meta" for extra in here.extras.values() if isinstance(extra, torch.Tensor))


async def test_what_is_ragged_beyond_the_padded_dimension_harms_nobody() -> None:
    sizes: list[int] = []

    @batched(max_batch_size=4, max_wait=0, collate=pad(unpad=True))
    def same_again(x: Any, mask: Any) -> Any:
        sizes.append(len(x))
        return x

    items = [torch.ones(n, width) for n, width in ((1, 2), (2, 3), (3, 2), (4, 3))]
    async with same_again:
        back = await asyncio.gather(*(same_again(item) for item in items))
    assert same(list(back), items)
    assert sorted(sizes) == [2, 2]


def nested(layout: torch.layout) -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a prototype, says torch
        return torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=layout)


class StagedCpu(CpuDevice):
    staged = True


class Foreign:
    pass


@pytest.mark.parametrize(
    ("item", "error", "said"),
    [
        ([1, [2]], ValueError, "same number of elements at each depth: the item has not"),
        ([[1, 2], [3]], ValueError, "same number of elements at each depth: the item has not"),
        (["a", "b"], TypeError, "a list must hold numbers: the item holds 'a'; tokenize texts in their caller"),
        ([None], TypeError, "a list must hold numbers"),
        ([2**70], TypeError, "the item holds numbers of more than 64 bits"),
        ([2**63, -1], TypeError, "whole numbers in a list must fit 64 bits: those of the item do not"),
        ([[2**63]], TypeError, "whole numbers in a list must fit 64 bits"),
        ([[1, [None]]], ValueError, "same number of elements at each depth"),
        ([[1, 2], [3, None]], TypeError, "the item holds None"),
        ([{"a": 1}], TypeError, "a list must hold numbers"),
        ({"ids": [1, "a"]}, TypeError, "a list must hold numbers: `ids` holds 'a'"),
        ((torch.zeros(2), 2**70), TypeError, r"`\[1\]` holds numbers of more than 64 bits"),
        (np.array(["a"]), TypeError, "only arrays of numbers can be collated: the item has dtype <U1"),
        ((1, np.array([None])), TypeError, r"`\[1\]` has dtype object"),
        (torch.zeros(2).to_sparse(), TypeError, r"only dense tensors can be collated: the item is torch.sparse_coo"),
        ({"a": torch.eye(2).to_sparse()}, TypeError, r"`a` is torch.sparse_coo; call .to_dense\(\) on it"),
        (nested(torch.strided), TypeError, r"only dense tensors .*: the item is nested; .unbind\(\) gives its parts"),
        (
            (1, nested(torch.jagged)),
            TypeError,
            r"only dense tensors .*: `\[1\]` is nested; .unbind\(\) gives its parts",
        ),
        (
            [torch.ones(2, device="meta")],
            TypeError,
            "NumPy can make nothing of the item, a list: .* like torch.stack's",
        ),
        ({"a": [torch.ones(2, requires_grad=True)]}, TypeError, "nothing of `a`, a list: .*; pass one tensor"),
        ([torch.ones(2, dtype=torch.bfloat16)], TypeError, "nothing of the item, a list: .*; pass one tensor"),
        (torch.empty(2, dtype=torch.uint4), TypeError, "cannot even copy a torch.uint4: the item is one; pass it in"),
        ({"a": torch.empty(2, dtype=torch.int3)}, TypeError, "cannot even copy a torch.int3: `a` is one"),
        (np.ma.array([1, 2], mask=[0, 1]), TypeError, r"lose the mask of a masked array: the item is one"),
    ],
)
@pytest.mark.parametrize("collation", COLLATIONS, ids=IDS)
def test_items_that_nothing_can_be_made_of(collation: Any, item: Any, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        started(collation).accept((item,))


@pytest.mark.parametrize("item", [1, torch.tensor(1), np.float32(2), None, "text", Foreign(), (), {}, {"a": (1, None)}])
def test_items_without_a_length(item: Any) -> None:
    for collation, said in ((pad(), r"pad\(dim=0\) needs a tensor,"), (pack(), r"pack\(\) needs a tensor,")):
        with pytest.raises(TypeError, match=said):
            started(collation).accept((item,))
    assert started(stack()).accept((item,)).length == 1
    with pytest.raises(TypeError, match=r"`a`: a torch.float32 tensor of 2 dimensions; `b`: .*; stack\(\) takes"):
        started(pad(dim=2)).accept(({"a": torch.zeros(2, 2), "b": 1},))


def test_leaves_of_one_item_with_different_lengths() -> None:
    item = {"ids": [1, 2, 3], "mask": [1, 1]}
    for collation in (pad(), pack()):
        with pytest.raises(ValueError, match="on dimension 0, `ids` has 3 and `mask` has 2"):
            started(collation).accept((item,))
    assert started(pad(only="ids")).accept((item,)).length == 3


def test_leaves_to_be_padded_must_be_there() -> None:
    collator = started(pad(only=("ids", "typo")))
    with pytest.raises(TypeError, match=r"must name leaves of the call: 'typo' is none\. The call has `ids`: a torch"):
        collator.accept(({"ids": [1, 2]},))
    assert started(pad(only="ids")).accept((torch.zeros(3), {"ids": [1, 2]})).length == 2


@pytest.mark.parametrize(
    ("value", "item"),
    [
        (0.5, torch.tensor([1])),
        (float("nan"), [1, 2]),
        (-1, torch.tensor([1], dtype=torch.uint8)),
        (300, np.array([1], np.uint8)),
        (0.5, np.array([1])),
        (2, torch.tensor([True])),
        (1j, torch.tensor([1.0])),
        (2**70, [1]),
        (1e300, torch.tensor([1.0])),
        (1e300, np.array([1], np.float16)),
        (1e6, torch.tensor([1.0], dtype=torch.float16)),
    ],
)
def test_padding_that_a_dtype_cannot_hold(value: Any, item: Any) -> None:
    with pytest.raises(TypeError, match=r"pad\(value=.*\) cannot be held by .*, as the item is"):
        started(pad(value)).accept((item,))


@pytest.mark.parametrize(
    ("value", "item"),
    [
        (-100, torch.tensor([1])),
        (-9999.0, [1, 2]),
        (0.1, torch.tensor([1.0], dtype=torch.bfloat16)),
        (float("-inf"), [1.5]),
        (True, torch.tensor([True])),
        (255, np.array([1], np.uint8)),
        (0.1, np.array([1], np.float16)),
    ],
)
def test_padding_that_a_dtype_can_hold(value: Any, item: Any) -> None:
    assert started(pad(value)).accept((item,)).length == len(item)


# An example of the items.


@pytest.mark.parametrize(
    ("like", "item", "said"),
    [
        (
            [1],
            [1.5],
            r"the item must be a torch.int64 tensor of 1 dimensions, like like=; it is a torch.float32 tensor",
        ),
        ([1], [[1]], r"the item must be a torch.int64 tensor of 1 dimensions, like like=; it is .* of 2 dimensions"),
        ((), [], r"the item must be a tuple\(\), like like=; it is a leaf"),
        ([1], np.array([1]), r"it is a int64 array of 1 dimensions"),
        ([1], {"ids": [1]}, r"the item must be a leaf, like like=; it is a dict\(ids: leaf\)"),
        ({"a": [1]}, {"b": [1]}, r"must be a dict\(a: leaf\), like like=; it is a dict\(b: leaf\)"),
        (
            (torch.zeros(1), 1),
            Pair(torch.zeros(1), 1),
            r"must be a tuple\(leaf, leaf\), .* is a Pair\(left: leaf, right: leaf\)",
        ),
        ({"a": [1], "b": 1}, {"a": [1], "b": None}, r"`b` must be a torch.int64 tensor of 0 dimensions.* a NoneType"),
        ({"a": [1], "b": "x"}, {"a": [1], "b": None}, r"`b` must be a str, like like=; it is a NoneType"),
    ],
)
@pytest.mark.parametrize("collation", [stack, pad, pack])
def test_what_is_not_like_the_example(collation: Any, like: Any, item: Any, said: str) -> None:
    collator = started(collation(like=like))
    if like:
        assert collator.accept((like,)).key == started(collation()).accept((like,)).key
    with pytest.raises(TypeError, match=said):
        collator.accept((item,))


def test_several_examples_for_several_parameters() -> None:
    collator = started(pad(like=([1], 0.5)))
    assert collator.accept(([1, 2], 2.5)).length == 2
    with pytest.raises(TypeError, match=r"the item must be a torch\.float32 tensor"):
        collator.accept(([1], 2))
    with pytest.raises(TypeError, match="like= must be a tuple of 3 items, one per batched parameter"):
        collator.accept(([1], 0.5, 3))
    with pytest.raises(TypeError, match="like= must be a tuple of 2 items"):
        started(stack(like=torch.zeros(2))).accept((1, 2))


async def test_a_wrong_item_fails_its_own_call_alone() -> None:
    sizes: list[int] = []

    @batched(max_batch_size=2, max_wait=30, collate=pad(like=[1]))
    def total(ids: Any, mask: Any) -> Any:
        sizes.append(len(ids))
        return ids.sum(1)

    async def called(item: Any) -> Any:
        return await total(item)

    async with total:
        calls = [called(item) for item in ([1, 2], ["a"], [1.5], [[1]], [3])]
        first, *wrong, last = await asyncio.gather(*calls, return_exceptions=True)
    assert (first, last) == (3, 3)
    assert [type(error) for error in wrong] == [TypeError] * 3
    assert sizes == [2]


def test_what_is_changed_after_the_call_is_not_seen() -> None:
    collator = started(pad())
    item: Any = collections.OrderedDict(ids=[1, 2], k=3)
    (queued,) = collator.accept((item,)).args
    item["ids"].append(9)
    del item["k"]
    (batch,) = collator.collate([[queued]]).args
    assert type(batch) is collections.OrderedDict
    assert (batch["ids"].tolist(), batch["k"].tolist()) == ([[1, 2]], [3])


@pytest.mark.filterwarnings("ignore:.*quantize_per_tensor.*deprecated")
@pytest.mark.parametrize("collation", COLLATIONS, ids=IDS)
def test_quantized_tensors_are_not_pressed_into_one_scale(collation: Any) -> None:
    quantized = torch.quantize_per_tensor(torch.ones(2, 2), 0.1, 0, torch.quint8)
    for item in (quantized, {"a": quantized}):
        with pytest.raises(TypeError, match=r"its own scale: .* is one; call .dequantize\(\) on it"):
            started(collation).accept((item,))


class Touchy(torch.Tensor):
    """A tensor whose owner forbids everything that is not asked of it alone."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.stack, torch.cat):
            raise PermissionError(func.__name__)
        return super().__torch_function__(func, types, args, kwargs or {})


@pytest.mark.parametrize("collation", UNTOLD, ids=["stack", "pad", "pack"])
async def test_what_a_type_of_ones_own_refuses_harms_nobody(collation: Any) -> None:
    calls = batched(lambda batch: batch, collate=collation)
    item = torch.ones(2)
    one, refused, other = await asyncio.gather(
        calls(item), calls(torch.ones(2).as_subclass(Touchy)), calls(item), return_exceptions=True
    )
    assert isinstance(refused, PermissionError)
    assert same([one, other], [item, item])


@pytest.mark.parametrize("collation", UNTOLD, ids=["stack", "pad", "pack"])
async def test_an_item_that_requires_gradients_puts_no_neighbour_into_a_graph(collation: Any) -> None:
    """Its function fails for what is in a graph, as everything does that works in place or outside of torch."""
    calls = batched(lambda batch: torch.from_numpy(batch.numpy() + 1), collate=collation)
    plain, in_graph = await asyncio.gather(
        calls(torch.ones(2)), calls(torch.ones(2, requires_grad=True)), return_exceptions=True
    )
    assert same(plain, torch.full((2,), 2.0))
    assert isinstance(in_graph, RuntimeError)


def test_too_few_rows() -> None:
    with pytest.raises(ValueError, match="rows must be at least the number of items: 2, not 1"):
        collated(started(stack()), [1, 2], 1)


@pytest.mark.parametrize("allocate", [None, arena])
@pytest.mark.parametrize("make", [lambda: stack(), lambda: pad(1, unpad=True), lambda: pack(unpack=True)])
def test_arrays_of_another_byte_order_become_the_machines(make: Any, allocate: Any) -> None:
    """Of numbers that are the same: a tensor can be made of nothing else."""
    items = [np.array([1.5, -2], ">f4"), np.array([3, 4], ">f4")]
    rows = outcomes(started(make()), items, lambda batch, **_: torch.as_tensor(batch), allocate=allocate)
    assert [row.dtype for row in rows] == [torch.float32] * 2
    assert [row.tolist() for row in rows] == [[1.5, -2], [3, 4]]


@pytest.mark.parametrize("collation", COLLATIONS, ids=IDS)
@pytest.mark.parametrize(("dtype", "usual"), [("g", "float64"), ("G", "complex128")])
def test_arrays_that_torch_lacks_stay_arrays_or_say_where_they_are(collation: Any, dtype: str, usual: str) -> None:
    item = {"a": torch.zeros(2, 2), "deep": (np.ones((2, 2), dtype),)}
    (batch,) = collated(started(collation), [item, item]).args
    assert batch["deep"][0].dtype == np.dtype(dtype)
    said = rf"torch has no .*, which `deep\[0\]` is an array of: convert it .*\.astype\('{usual}'\)"
    with pytest.raises(TypeError, match=said):
        collated(started(collation), [item, item], allocate=arena)


@pytest.mark.parametrize("dtype", [">f4", ">i8", "g"])
async def test_arrays_that_cannot_be_tensors_harm_nobody(dtype: str) -> None:
    """On a device with memory of its own, where all arrays become tensors."""
    calls = batched(lambda rows: rows * 2, collate=stack(), executor=TorchExecutor(SimulatedDevice()), max_batch_size=8)
    plain = np.ones(2, "f4")
    one, odd, other = await asyncio.gather(calls(plain), calls(np.ones(2, dtype)), calls(plain), return_exceptions=True)
    assert same([one, other], [torch.full((2,), 2.0)] * 2)
    if dtype == "g":
        assert isinstance(odd, TypeError)
        assert "torch has no " in str(odd)
    else:
        assert odd.tolist() == [2, 2]


def test_padding_is_refused_where_a_dtype_cannot_be_filled() -> None:
    with pytest.raises(TypeError, match=r"pad\(value=0\) cannot be held by torch.bits8, as `a` is"):
        started(pad()).accept(({"a": torch.empty(2, dtype=torch.bits8)},))
    assert started(stack()).accept((torch.empty(2, dtype=torch.bits8),)).args[0].dtype is torch.bits8


@pytest.mark.parametrize("collation", COLLATIONS[:2], ids=IDS[:2])
def test_a_default_device_of_the_users_changes_nothing(collation: Any) -> None:
    fits.cache_clear()
    with torch.device("meta"):
        rows = outcomes(started(pad(-100)), [[1], [1, 2]], lambda x, mask, lengths: x)
        again = collated(started(collation), [[1, 2], [3, 4]])
    assert [row.tolist() for row in rows] == [[1, -100], [1, 2]]
    assert again.args[0].tolist() == [[1, 2], [3, 4]]
    assert started(pad(-100)).accept(([1, 2],)).args[0].tolist() == [1, 2]


@pytest.mark.parametrize("device", [SimulatedDevice, StagedCpu, lambda: "cpu"], ids=["simulated", "staged", "cpu"])
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
def test_results_that_are_nested_say_so_on_every_device(device: Any, layout: torch.layout) -> None:
    given = nested(layout)
    f = batched(lambda batch: {"a": given}, collate=stack(), executor=TorchExecutor(device()))
    with pytest.raises(BatchContractError, match=r"taken apart into rows: `a` is nested; .unbind\(\) gives its parts"):
        f.call(1)
    listed = batched(lambda batch: [given], collate=stack(), executor=TorchExecutor(device()))
    assert [part.tolist() for part in listed.call(1).unbind()] == [[1, 1], [1, 1, 1]]


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor", "ignore:torch.jit")
@pytest.mark.parametrize("device", [SimulatedDevice, StagedCpu, lambda: "cpu"], ids=["simulated", "staged", "cpu"])
def test_results_that_are_quantized_keep_their_scale_on_every_device(device: Any) -> None:
    given = torch.quantize_per_tensor(torch.tensor([[1.0, 2.0]]), 0.5, 0, torch.quint8)
    f = batched(lambda batch: given, collate=stack(), executor=TorchExecutor(device()))
    assert f.call(1).dequantize().tolist() == [1.0, 2.0]
    no_arrays = batched(lambda batch: given, collate=stack(), executor=TorchExecutor(device(), results="numpy"))
    with pytest.raises(TypeError, match="a result that is sparse, nested or quantized has no NumPy array"):
        no_arrays.call(1)
