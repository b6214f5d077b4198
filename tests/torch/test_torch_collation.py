"""`stack`, and what all collations share: items of several calls become one batch and its result their rows."""

import contextlib
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from collating import Page, Pair, arena, collated, outcomes, ragged_items, same, started
from hypothesis import given
from hypothesis import strategies as st

from batchlib import batched
from batchlib.errors import BatchContractError
from batchlib.torch import pack, pad, stack
from batchlib.torch.collation._structure import flatten

STACK = started(stack())


def identity(value: Any) -> Any:
    return value


@given(st.data(), st.integers(0, 2), st.booleans())
def test_stacked_items_come_back(data: st.DataObject, fillers: int, staged: bool) -> None:
    # One of them repeated: any item at all, and nothing to differ in.
    items = [data.draw(ragged_items(1))[0]] * data.draw(st.integers(1, 4))
    back = outcomes(STACK, items, rows=len(items) + fillers, allocate=arena if staged else None)
    expected = [torch.from_numpy(item) if staged and isinstance(item, np.ndarray) else item for item in items]
    assert same(back, expected)


@given(st.data())
def test_allocated_or_not_a_batch_is_the_same(data: st.DataObject) -> None:
    items = [data.draw(ragged_items(0))[0]] * 3
    for rows in (3, 5):
        here, there = collated(STACK, items, rows), collated(STACK, items, rows, arena)
        own = torch.from_numpy(here.args[0]) if isinstance(here.args[0], np.ndarray) else here.args[0]
        assert same(own, there.args[0])
        assert (here.size, here.rows, here.bucket) == (there.size, there.rows, there.bucket) == (3, rows, here.bucket)


KINDS: list[Any] = [
    torch.zeros(2),
    torch.zeros(2, 1),
    torch.zeros(3, 1),
    torch.zeros(3),
    torch.zeros(2, dtype=torch.float64),
    torch.zeros(2, dtype=torch.int64),
    torch.zeros(2, device="meta"),
    torch.zeros(2, requires_grad=True),
    torch.nn.Parameter(torch.zeros(2)),
    torch.tensor(0.0),
    np.zeros(2),
    np.zeros(2, np.float32),
    np.zeros(2, ">f4"),
    np.zeros((2, 1), np.float32),
    (torch.zeros(2),),
    Pair(torch.zeros(2), 1),
    Page(torch.zeros(2), None),
    Page(torch.zeros(2), 1),
    {"a": torch.zeros(2)},
    {"b": torch.zeros(2)},
    {"a": torch.zeros(2), "b": torch.zeros(2)},
    (torch.zeros(2), torch.zeros(2)),
    None,
]


@pytest.mark.parametrize(
    ("collation", "sharing"),
    [(stack(), 0), (pad(), 2), (pack(), 2), (pad(dim=1), 0)],
    ids=["stack", "pad", "pack", "1"],
)
def test_items_of_different_kinds_never_have_one_key(collation: Any, sharing: int) -> None:
    """Those of 2 and of 3 rows differ only in what padding and packing make equal."""
    collator, keys = started(collation), []
    for kind in KINDS:
        with contextlib.suppress(TypeError):  # it has no length on this dimension
            keys.append(collator.accept((kind,)).key)
    assert len(keys) > 1
    assert len(set(keys)) == len(keys) - sharing


@given(st.data(), st.integers(0, 1), st.sampled_from([stack, pad, pack]))
def test_items_of_one_key_make_one_batch(data: st.DataObject, dim: int, collation: Any) -> None:
    one, other = data.draw(ragged_items(dim)), data.draw(ragged_items(dim))
    collator = started(collation())
    kinds: dict[Any, list[Any]] = {}
    for item in one + other:
        with contextlib.suppress(ValueError):  # its leaves have different lengths on the first dimension
            call = collator.accept((item,))
            kinds.setdefault(call.key, []).append(call.args[0])
    for items in kinds.values():
        batch = collator.collate([items])
        whole = data.draw(st.sampled_from(flatten(batch.args[0])[0]))
        assert batch.size == len(items)
        assert isinstance(whole, torch.Tensor | np.ndarray)


@pytest.mark.parametrize(
    ("value", "dtype"),
    [(3, torch.int64), (2.5, torch.float32), (True, torch.bool), (1j, torch.complex64), (np.float16(1), torch.half)],
)
def test_numbers_are_stacked(value: Any, dtype: torch.dtype) -> None:
    (batch,) = collated(STACK, [value, value]).args
    assert (batch.dtype, batch.shape) == (dtype, (2,))
    assert batch.tolist() == [value, value]


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        ([1, 2], torch.int64),
        ([1.5, 2], torch.float32),
        ([True, False], torch.bool),
        ([[1, 2], [3, 4]], torch.int64),
        ([], torch.int64),
        ([[], []], torch.int64),
        ([1j, 2], torch.complex64),
        ([np.float64(1.5)], torch.float64),
        ([0, np.float64(1.5)], torch.float64),
        ([[0.5], [np.float64(1.5)]], torch.float64),
        ([1.5, torch.tensor(0.5, dtype=torch.float64)], torch.float64),
        ([2, np.complex128(1j)], torch.complex128),
        ([np.zeros(2)], torch.float64),
        ([torch.tensor(1), torch.tensor(2)], torch.int64),
    ],
)
def test_lists_of_numbers_become_tensors_at_the_call(value: Any, dtype: torch.dtype) -> None:
    (queued,) = STACK.accept((value,)).args
    assert queued.dtype == dtype
    assert queued.tolist() == [each.tolist() if hasattr(each, "tolist") else each for each in value]


def test_arrays_stay_arrays_and_so_do_numbers_beside_them() -> None:
    image = np.arange(6, dtype=np.uint8).reshape(2, 3)
    (batch,) = collated(STACK, [Page(image, 0.5), Page(image + 1, 1.5)]).args
    assert same(batch, Page(np.stack([image, image + 1]), np.array([0.5, 1.5])))
    assert same(outcomes(STACK, [(image, [1, 2])], identity), [(image, np.array([1, 2]))])
    (mixed,) = collated(STACK, [(image, torch.zeros(1), 3)]).args
    assert same(mixed, (image[None], torch.zeros(1, 1), torch.tensor([3])))


def test_what_is_no_number_is_gathered() -> None:
    thing = object()
    (batch,) = collated(STACK, [(torch.zeros(1), "a", None, thing)] * 2, rows=3).args
    assert same(batch[1:], (["a"] * 3, [None] * 3, [thing] * 3))


def test_several_parameters() -> None:
    call = STACK.accept((torch.zeros(2), 7))
    other = STACK.accept((torch.ones(2), 8))
    assert call.key == other.key != STACK.accept((7, torch.zeros(2))).key
    batch = STACK.collate([list(column) for column in zip(call.args, other.args, strict=True)], rows=3)
    assert same(batch.args, (torch.tensor([[0.0, 0.0], [1, 1], [0, 0]]), torch.tensor([7, 8, 7])))
    assert (batch.size, batch.rows, call.length) == (2, 3, 1)


def test_an_item_may_be_accepted_again() -> None:
    for item in (torch.zeros(2), [1, 2], {"a": [1, 2], "b": 3}):
        once = STACK.accept((item,))
        assert STACK.accept(once.args) == once


def test_stacked_items_have_no_length() -> None:
    assert (stack().names, stack().pads, stack().usual_batch_cost) == ((), False, None)
    (item,) = args = STACK.accept((torch.zeros(3),)).args
    assert STACK.row_length(args) == 1
    assert STACK.stretched(args, 5) == args
    assert STACK.lengths_of_buckets == ()
    assert item.shape == (3,)


@pytest.mark.parametrize("collation", [stack(like=[1]), pad(1, sizes=[8], like=[1]), pack(unpack=True)])
def test_a_description_travels(collation: Any) -> None:
    other = pickle.loads(pickle.dumps(collation))
    assert repr(other) == repr(collation)
    assert same(collated(started(other), [[1, 2]]).args, collated(started(collation), [[1, 2]]).args)


def test_the_first_items_order_of_keys_is_kept() -> None:
    one, two = {"b": torch.tensor(1), "a": torch.tensor(2)}, {"a": torch.tensor(3), "b": torch.tensor(4)}
    (batch,) = collated(STACK, [one, two]).args
    assert same(batch, {"b": torch.tensor([1, 4]), "a": torch.tensor([2, 3])})


def test_a_batch_of_one_is_a_copy_of_its_item() -> None:
    item = torch.zeros(3)
    for collation in (stack(), pad(), pack()):
        (batch,) = collated(started(collation), [item]).args
        batch.fill_(7)
        assert item.sum() == 0


def test_gradients_flow_from_rows_to_items() -> None:
    items = [torch.ones(n, requires_grad=True) for n in (2, 3)]
    rows = outcomes(started(pad(unpad=True)), items, lambda x, mask, lengths: x * 3)
    (rows[0].sum() + 2 * rows[1].sum()).backward()
    assert [item.grad.tolist() for item in items if item.grad is not None] == [[3, 3], [6, 6, 6]]


@pytest.mark.parametrize("collation", [stack(), pad(), pack()], ids=["stack", "pad", "pack"])
def test_memory_for_the_device_is_no_part_of_a_graph(collation: Any) -> None:
    staged = collated(started(collation), [torch.ones(2, requires_grad=True)] * 2, allocate=arena)
    assert not staged.args[0].requires_grad
    assert staged.args[0].sum() == 4


# What a function may give back.


def four(function: Any, copy: Any = "auto", rows: int | None = None) -> list[Any]:
    return outcomes(STACK, [torch.full((2,), float(n)) for n in range(4)], function, copy=copy, rows=rows)


@pytest.mark.parametrize("rows", [None, 7])
def test_a_list_is_one_outcome_per_item(rows: int | None) -> None:
    error = ValueError("mine")
    results = four(lambda batch: [error if n == 1 else {"n": n} for n in range(len(batch))], rows=rows)
    assert results == [{"n": 0}, error, {"n": 2}, {"n": 3}]


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_a_structure_is_split_by_its_tensors_at_every_size(size: int) -> None:
    """As many keys, or elements of a tuple, as there are items mislead nobody."""
    items = [torch.full((2,), float(n)) for n in range(size)]
    for n, row in enumerate(outcomes(STACK, items, lambda x: {"cat": x[:, 0], "dog": x})):
        assert same(row, {"cat": torch.tensor(float(n)), "dog": items[n]})
    for n, row in enumerate(outcomes(STACK, items, lambda x: (x, x.numpy() + 1))):
        assert same(row, (items[n], items[n].numpy() + 1))


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize(
    ("result", "said"),
    [
        (lambda x: {"cat": [0.1] * len(x), "dog": [0.9] * len(x)}, "a dict without a tensor or array in it"),
        (lambda x: {"cat": ["a"] * len(x), "score": x}, "a list cannot be split into rows: `cat` must be"),
        (lambda x: (x, ("a",) * len(x)), r"a tuple cannot be split into rows: `\[1\]` must be"),
        (lambda x: (x, [{"n": n} for n in range(len(x))]), r"a list cannot be split into rows: `\[1\]` must be"),
        (lambda x: ("a",) * len(x), "a tuple without a tensor or array in it"),
        (lambda x: {"a": 1, "b": 2}, "a dict without a tensor or array in it"),
        (lambda x: {}, "a dict without a tensor or array in it"),
        (lambda x: (), "a tuple without a tensor or array in it"),
        (lambda x: "a" * len(x), "it gave a str"),
        (lambda x: b"a" * len(x), "it gave a bytes"),
        (lambda x: set(range(len(x))), "it gave a set"),
        (lambda x: (row for row in x), "it gave a generator"),
        (lambda x: None, "it gave a NoneType"),
        (lambda x: 3, "it gave a int"),
        (lambda x: object(), "it gave a object"),
        (lambda x: Page(x, object()), "a object cannot be split into rows: `label` must be"),
        (lambda x: [x, *x], "it gave a list of"),
        (lambda x: list(x)[:-1], "it gave a list of"),
        (lambda x: x[:-1], r"one row per item on axis 0, \d here; it has shape"),
        (lambda x: torch.cat([x, x]), r"one row per item on axis 0, \d here; it has shape \(\d, 2\)"),
        (lambda x: x.sum(), r"it has shape \(\)"),
        (lambda x: {"deep": (x, x.sum())}, r"`deep\[1\]` has shape \(\)"),
        (lambda x: {"logits": x, "loss": x.mean().numpy()}, r"`loss` has shape \(\)"),
        (lambda x: x.to_sparse(), r"only dense tensors .*: the result is torch.sparse_coo; call .to_dense\(\) on it"),
        (lambda x: {"a": x, "b": (x.to_sparse(),)}, r"only dense tensors .*: `b\[0\]` is torch.sparse_coo"),
        (lambda x: torch.nested.nested_tensor(list(x), layout=torch.jagged), r"is nested; .unbind\(\) gives its parts"),
        (lambda x: {"score": x, "error": [None] * len(x)}, r"a list cannot be split into rows: `error` must be"),
        (lambda x: {"score": x, "error": [None, *["text"] * len(x)]}, r"a list cannot be split into rows: `error`"),
        (lambda x: (x, (None, *["text"] * len(x))), r"a tuple cannot be split into rows: `\[1\]` must be"),
        (lambda x: {"p": x, "q": [{"a": 1.5, "b": None} for _ in x]}, r"a list cannot be split into rows: `q` must be"),
        (lambda x: Page(x, x.T.repeat(4, 1)), r"one row per item on axis 0, \d here; `label` has shape \(8, \d\)"),
    ],
)
def test_what_cannot_be_split_is_refused_at_every_size(result: Any, said: str, size: int) -> None:
    with pytest.raises(BatchContractError, match=said):
        outcomes(STACK, [torch.zeros(2)] * size, result)


@pytest.mark.parametrize("constant", [None, "text", 3, 2.5, True, b"bytes", torch.float16, np.float32(1)])
def test_constants_are_everybodys(constant: Any) -> None:
    for n, row in enumerate(four(lambda x: Page(x, {"of": constant}))):
        assert same(row, Page(torch.full((2,), float(n)), {"of": constant}))


def test_tensors_in_a_list_in_a_structure_are_split() -> None:
    for n, row in enumerate(four(lambda x: {"layers": [x, x + 1], "no": ()})):
        assert same(row, {"layers": [torch.full((2,), float(n)), torch.full((2,), n + 1.0)], "no": ()})


def test_any_other_sequence_is_one_outcome_per_item() -> None:
    assert four(lambda x: range(4)) == [0, 1, 2, 3]


def test_a_models_output_is_split() -> None:
    from transformers.cache_utils import DynamicCache
    from transformers.modeling_outputs import BaseModelOutput

    rows = four(lambda x: BaseModelOutput(last_hidden_state=x, hidden_states=(x, x + 1)))
    assert [type(row) for row in rows] == [BaseModelOutput] * 4
    assert [row.last_hidden_state.tolist() for row in rows] == [[n, n] for n in range(4)]
    assert [row.hidden_states[1].tolist() for row in rows] == [[n + 1, n + 1] for n in range(4)]
    assert rows[0].attentions is None
    with pytest.raises(BatchContractError, match=r"a DynamicCache cannot be split into rows: `hidden_states\[1\]`"):
        four(lambda x: BaseModelOutput(last_hidden_state=x, hidden_states=(x, DynamicCache())))


# Rows own their storage.


def memory(row: Any) -> int:
    if isinstance(row, np.ndarray):
        return (row if row.base is None else row.base).nbytes
    return row.untyped_storage().nbytes()


@pytest.mark.parametrize("rows", [8, 16])
@pytest.mark.parametrize("array", [False, True])
def test_rows_own_their_storage(array: bool, rows: int) -> None:
    items: list[Any] = [np.zeros(1000, np.float32) if array else torch.zeros(1000)] * 8
    back = outcomes(STACK, items, lambda x: (x, x + 1), rows=rows)
    assert all(memory(row) == 4000 for pair in back for row in pair)
    back[0][0][:] = 7
    assert back[1][0].sum() == 0


@pytest.mark.parametrize("collation", [pad(unpad=True, side="left"), pack(unpack=True)], ids=["pad", "pack"])
@pytest.mark.parametrize("array", [False, True])
def test_what_is_cut_off_is_not_kept_either(collation: Any, array: bool) -> None:
    lengths = (3, 100, 1000)
    items: list[Any] = [np.zeros(n, np.float32) if array else torch.zeros(n) for n in lengths]
    collator = started(collation)
    for some in (items, items[:1]):
        back = outcomes(collator, some, lambda x, **_: x)
        assert [memory(row) for row in back] == [4 * n for n in lengths[: len(some)]]


def test_an_array_that_is_a_part_of_a_tensor_does_not_keep_the_tensor() -> None:
    (row,) = outcomes(STACK, [torch.ones(2)], lambda x: torch.zeros(100, 2)[:1].numpy())
    assert row.base is None


def test_two_rows_never_share_a_storage() -> None:
    for function in (identity, lambda x: x.expand_as(x), lambda x: torch.ones(1, 2).expand(2, 2)):
        one, two = outcomes(STACK, [torch.ones(2)] * 2, function)
        assert one.untyped_storage().data_ptr() != two.untyped_storage().data_ptr()
    one, two = outcomes(started(pad(unpad=True)), [torch.ones(2)] * 2, lambda x, **_: x)
    assert one.untyped_storage().data_ptr() != two.untyped_storage().data_ptr()


def test_views_where_they_are_asked_for_and_copies_too() -> None:
    batch = torch.zeros(2, 2)
    views = outcomes(STACK, [torch.ones(2)] * 2, lambda x: batch, copy=False)
    assert all(view._base is batch for view in views)
    single = torch.zeros(1, 2)
    for copy in (True, "auto"):  # the function may use its memory again
        for collator in (STACK, started(pad(unpad=True)), started(pack(lengths=False, unpack=True))):
            result = single if not hasattr(collator, "_unpack") else single[0]
            (row,) = outcomes(collator, [torch.ones(2)], lambda x, result=result, **_: result, copy=copy)
            assert row.tolist() == [0.0, 0.0]
            assert row._base is None


def test_rows_made_in_inference_mode_are_normal_tensors() -> None:
    with torch.inference_mode():
        made = torch.zeros(1, 2)
    (row,) = outcomes(STACK, [torch.ones(2)], lambda x: made)
    assert not row.is_inference()
    (item,) = outcomes(STACK, [made[0]], identity)  # such items may be batched, too
    assert not item.is_inference()


@pytest.mark.parametrize("collation", [stack, pad, pack])
def test_an_example_that_no_call_could_be_like_is_refused_at_decoration(collation: Any) -> None:
    def two(a: Any, b: Any, *, lengths: Any = None) -> Any:
        return a

    class Service:
        @batched(collate=collation(like=([1], [1])))
        def both(self, a: Any, b: Any, *, lengths: Any = None) -> Any:
            return a

    for like in (torch.ones(2), ([1], [1], [1]), [1]):
        with pytest.raises(TypeError, match="like= must be a tuple of 2 items, one per batched parameter, not"):
            batched(two, collate=collation(like=like))
    with pytest.raises(ValueError, match="same number of elements at each depth"):
        batched(two, collate=collation(like=([1, [2]], [1])))
    with pytest.raises(TypeError, match="a list must hold numbers"):
        batched(lambda a, *, lengths=None: a, collate=collation(like=["a"]))
    batched(lambda *each, lengths=None: each[0], collate=collation(like=([1], [1])))  # any number of them
    with pytest.raises((TypeError, RuntimeError)) as raised:  # Python 3.11 puts its own error around it

        class Other:
            @batched(collate=collation(like=[1]))
            def both(self, a: Any, b: Any, *, lengths: Any = None) -> Any:
                return a

    assert "like= must be a tuple of 2 items" in str(raised.value.__cause__ or raised.value)
