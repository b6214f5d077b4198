"""Values taken apart and put together: what comes out is what went in, whatever they are nested of."""

import collections
import dataclasses
import pprint
import subprocess
import sys
import types
from typing import Any

import numpy as np
import pytest
import torch
from collating import Page, Pair, same
from hypothesis import given
from hypothesis import strategies as st

from batchlib.torch import register_structure
from batchlib.torch.collation._structure import LEAF, flatten, map_leaves

A, B, C = torch.zeros(1), torch.ones(2), np.ones(3)

LEAVES = st.sampled_from([A, B, C, 1, 2.5, True, None, "text", b"bytes", np.float32(3)])
NESTED = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.sampled_from("abcd"), inner, max_size=3),
        st.dictionaries(st.integers(0, 3), inner, max_size=3),
        st.builds(Pair, inner, inner),
        st.builds(Page, inner, inner),
    ),
    max_leaves=8,
)


@given(NESTED)
def test_rebuilding_undoes_flattening(value: Any) -> None:
    leaves, structure = flatten(value)
    assert len(structure.paths) == len(leaves) == len(set(structure.paths))
    assert same(structure.rebuild(leaves), value)
    again, other = flatten(value)
    assert other == structure
    assert hash(other) == hash(structure)
    assert all(one is two for one, two in zip(leaves, again, strict=True))


@given(NESTED)
def test_as_an_output_too(value: Any) -> None:
    leaves, structure = flatten(value, lists=True)
    assert same(structure.rebuild(leaves), value)


@given(NESTED, NESTED)
def test_structures_are_equal_where_only_leaves_differ(one: Any, two: Any) -> None:
    first, second = flatten(one)[1], flatten(two)[1]
    skeletons = [pprint.pformat(map_leaves(lambda leaf: 0, value)) for value in (one, two)]  # sorts the keys
    assert (first == second) == (skeletons[0] == skeletons[1])
    assert first != second or first.paths == second.paths


@pytest.mark.parametrize(
    ("value", "paths"),
    [
        (A, ("",)),
        ((A, (B, A)), ("[0]", "[1][0]", "[1][1]")),
        ({"logits": A, "deep": {"mask": B}}, ("deep.mask", "logits")),
        (({"mask": A},), ("[0].mask",)),
        (Pair(A, B), ("left", "right")),
        (Page(A, (B,)), ("pixels", "label[0]")),
        ({0: A, (1, 2): B}, ("[0]", "[(1, 2)]")),
        ((), ()),
    ],
)
def test_paths(value: Any, paths: tuple[str, ...]) -> None:
    assert sorted(flatten(value)[1].paths) == sorted(paths)


def test_keys_in_another_order_make_the_same_structure() -> None:
    one, first = flatten({"b": 1, "a": 2})
    two, second = flatten({"a": 2, "b": 1})
    assert (one, first) == (two, second)
    assert list(first.rebuild(one)) == ["b", "a"]
    assert list(second.rebuild(two)) == ["a", "b"]


@pytest.mark.parametrize(
    ("one", "two"),
    [
        ((A, B), Pair(A, B)),
        ((A,), (A, B)),
        ((A, B), ((A, B),)),
        ({"a": A}, {"b": A}),
        ({"a": A}, collections.OrderedDict(a=A)),
        (Page(A), Pair(A, None)),
        (A, (A,)),
    ],
)
def test_what_differs_is_not_equal(one: Any, two: Any) -> None:
    assert flatten(one)[1] != flatten(two)[1]
    assert flatten(one)[1] != "another thing"


def test_a_structure_says_what_it_is() -> None:
    value = (A, {"b": B, "a": Pair(A, [1])})
    assert repr(flatten(value)[1]) == "tuple(leaf, dict(a: Pair(left: leaf, right: leaf), b: leaf))"
    assert repr(flatten(())[1]) == "tuple()"


def test_an_items_list_is_a_leaf_and_a_results_list_is_not() -> None:
    assert flatten([A, B])[1] is LEAF
    leaves, structure = flatten([A, [B]], lists=True)
    assert structure.paths == ("[0]", "[1][0]")
    assert same(structure.rebuild(leaves), [A, [B]])


@pytest.mark.parametrize("plain", [[1, 2], ["a", "b"], ("a", "b"), [{"a": 1}, {"a": 2}], torch.Size([2, 3])])
def test_what_holds_no_tensor_is_one_leaf_of_a_result(plain: Any) -> None:
    leaves, structure = flatten({"x": A, "y": plain}, lists=True)
    assert structure.paths == ("x", "y")
    assert leaves[1] is plain
    assert flatten(plain, lists=True)[1] is LEAF


def test_what_is_left_out_of_a_result_is_a_place_of_its_own() -> None:
    assert flatten((A, (None, None)), lists=True)[1].paths == ("[0]", "[1][0]", "[1][1]")
    assert flatten([A, []], lists=True)[1].paths == ("[0]",)


@pytest.mark.parametrize(
    "value", [collections.OrderedDict(b=A, a=B), collections.UserDict(b=A, a=B), collections.Counter(a=1)]
)
def test_mappings_stay_what_they_are(value: Any) -> None:
    leaves, structure = flatten(value)
    again = structure.rebuild(leaves)
    assert type(again) is type(value)
    assert list(again.items()) == list(value.items())


def test_mappings_that_cannot_be_made_of_items_become_dicts() -> None:
    value = collections.defaultdict(list, a=A)
    assert same(map_leaves(lambda leaf: leaf, value), {"a": A})
    assert map_leaves(str, types.MappingProxyType({"a": 1})) == {"a": "1"}


def test_keys_that_cannot_be_sorted_keep_their_order() -> None:
    value = {"a": A, 1: B}
    assert same(map_leaves(lambda leaf: leaf, value), value)


def test_torchs_own_tuples() -> None:
    largest = torch.max(torch.tensor([[1, 3], [4, 2]]), dim=1)
    again = map_leaves(lambda leaf: leaf + 1, largest)
    assert type(again) is type(largest)
    assert again.values.tolist() == [4, 5]


def test_dataclasses_are_made_by_their_constructor() -> None:
    @dataclasses.dataclass(frozen=True)
    class Square:
        side: Any
        area: Any = dataclasses.field(init=False)

        def __post_init__(self) -> None:
            object.__setattr__(self, "area", self.side * self.side)

    assert flatten(Square(3))[1].paths == ("side",)
    assert map_leaves(lambda leaf: leaf + 1, Square(3)) == Square(4)
    assert flatten(Square)[1] is LEAF  # the class itself is no container


def test_types_of_ones_own() -> None:
    class Boxes:
        def __init__(self, corners: Any, format: str) -> None:
            self.corners, self.format = corners, format

    assert flatten(Boxes(A, "xyxy"))[1] is LEAF
    register_structure(Boxes, lambda boxes: ([boxes.corners], boxes.format), lambda how, held: Boxes(held[0], how))
    (leaf,), structure = flatten(Boxes(A, "xyxy"))
    assert leaf is A
    assert structure.paths == ("[0]",)
    assert structure == flatten(Boxes(B, "xyxy"))[1]
    assert structure != flatten(Boxes(B, "cxcywh"))[1]
    again = structure.rebuild([B])
    assert again.corners is B
    assert again.format == "xyxy"
    with pytest.raises(TypeError, match="needs a class, not"):
        register_structure("Boxes", lambda value: ([], None), lambda how, held: held)  # type: ignore[arg-type]


def test_what_hugging_face_models_take_and_give() -> None:
    from transformers import BatchEncoding
    from transformers.modeling_outputs import BaseModelOutputWithPooling

    encoding = BatchEncoding({"input_ids": A, "attention_mask": B})
    assert flatten(encoding)[1].paths == ("attention_mask", "input_ids")
    again = map_leaves(lambda leaf: leaf + 1, encoding)
    assert type(again) is BatchEncoding
    assert list(again) == ["input_ids", "attention_mask"]
    assert torch.equal(again["input_ids"], A + 1)

    output = BaseModelOutputWithPooling(last_hidden_state=A, hidden_states=(A, B))
    assert flatten(output)[1].paths == ("hidden_states[0]", "hidden_states[1]", "last_hidden_state")
    shifted = map_leaves(lambda leaf: leaf + 1, output)
    assert type(shifted) is BaseModelOutputWithPooling
    assert shifted.pooler_output is None
    assert torch.equal(shifted.hidden_states[1], B + 1)
    assert torch.equal(shifted[0], A + 1)


def test_no_model_library_is_imported() -> None:
    script = "import sys, batchlib.torch; print('transformers' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "False"
