"""Values taken apart and put together: what comes out is what went in, whatever they are nested of."""

import collections
import dataclasses
import functools
import subprocess
import sys
import types
from typing import Any, Generic, TypeVar

import numpy as np
import pytest
import torch
from collating import Page, Pair, collated, same, started
from hypothesis import given
from hypothesis import strategies as st

from batchlib.torch import register_structure, stack
from batchlib.torch.collation._items import open_item
from batchlib.torch.collation._structure import LEAF, flatten, map_leaves, within

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


def skeleton(value: Any) -> Any:
    """What it is beside its leaves; dicts are equal in whatever order their keys are."""
    if isinstance(value, dict):
        return {key: skeleton(held) for key, held in value.items()}
    if isinstance(value, tuple | Page):
        held = vars(value).values() if isinstance(value, Page) else value
        return type(value), [skeleton(each) for each in held]
    return "leaf"


@given(NESTED, NESTED)
def test_structures_are_equal_where_only_leaves_differ(one: Any, two: Any) -> None:
    first, second = flatten(one)[1], flatten(two)[1]
    assert (first == second) == (skeleton(one) == skeleton(two))
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


@pytest.mark.parametrize(
    "plain",
    [
        *([1, 2], ["a", "b"], ("a", "b"), [{"a": 1}, {"a": 2}], torch.Size([2, 3])),
        *(["a", None], [None, None], ("a", None), [None, ("a", None)], [{"a": 1, "b": None}, {"a": 2, "b": None}]),
    ],
)
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


@dataclasses.dataclass
class Halved:
    """Whatever goes through its constructor again is halved again."""

    pixels: Any
    scale: dataclasses.InitVar[float] = 0.5
    size: int = dataclasses.field(init=False)
    label: Any = dataclasses.field(default=None, kw_only=True)

    def __post_init__(self, scale: float) -> None:
        self.pixels, self.size = self.pixels * scale, len(self.pixels)


@dataclasses.dataclass(frozen=True)
class Frozen:
    pixels: Any

    def __post_init__(self) -> None:
        object.__setattr__(self, "pixels", self.pixels / 2)


@dataclasses.dataclass(frozen=True, slots=True)
class FrozenSlotted(Frozen):
    more: Any = 3


@dataclasses.dataclass(slots=True)
class Slotted:
    pixels: Any
    size: int = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        self.pixels = self.pixels / 2


@dataclasses.dataclass(init=False)
class Read:
    pixels: Any

    def __init__(self, path: str, into: Any) -> None:
        self.pixels = into / 2


class Guarded(Halved):
    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value / 2 if name == "pixels" else value)


class Kept(Halved):
    @functools.cached_property
    def total(self) -> Any:
        return self.pixels.sum()


T = TypeVar("T")


@dataclasses.dataclass
class Typed(Generic[T]):
    pixels: Any


class HalvedDict(dict[str, Any]):
    def __init__(self, held: Any, unit: str) -> None:
        super().__init__({key: each / 2 for key, each in held.items()})


class HalvedOrder(collections.OrderedDict[str, Any]):
    def __setitem__(self, key: str, value: Any) -> None:
        super().__setitem__(key, value / 2)


class HalvedDefault(collections.defaultdict[str, Any]):
    def __init__(self, held: Any) -> None:
        super().__init__(int, {key: each / 2 for key, each in held.items()})


class Attributes(dict[str, Any]):
    """What it holds are attributes too."""

    def __init__(self, **held: Any) -> None:
        super().__init__(held)
        vars(self).update(held)


class Doubled(Pair):
    def __new__(cls, left: Any) -> "Doubled":
        return super().__new__(cls, left, left * 2)


class Doubling(tuple[Any, ...]):
    def __new__(cls, pixels: Any) -> "Doubling":
        return super().__new__(cls, (pixels, pixels * 2))


class DoublingList(list[Any]):
    def __init__(self, pixels: Any) -> None:
        super().__init__([pixels, pixels * 2])


PIXELS = torch.tensor([4.0, 8.0])


@pytest.mark.parametrize(
    "value",
    [
        Halved(PIXELS),
        Halved(PIXELS, 0.25, label=1),
        Frozen(PIXELS),
        FrozenSlotted(PIXELS),
        Slotted(PIXELS),
        Read("there", PIXELS),
        Guarded(PIXELS),
        HalvedDict({"b": PIXELS, "a": PIXELS}, "px"),
        HalvedOrder(b=PIXELS, a=PIXELS),
        HalvedDefault({"a": PIXELS}),
        Attributes(b=PIXELS, a=1),
        Doubled(PIXELS),
        Doubling(PIXELS),
        DoublingList(PIXELS),
        torch.nn.utils.rnn.PackedSequence(PIXELS, torch.tensor([1, 1])),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_a_constructor_makes_of_things_is_made_once(value: Any) -> None:
    again = map_leaves(lambda leaf: leaf, value, lists=True)
    assert type(again) is type(value)
    assert again is not value
    assert parts(again) == parts(value)
    doubled = map_leaves(lambda leaf: leaf * 2 if leaf is held_pixels(value) else leaf, value, lists=True)
    assert torch.equal(held_pixels(doubled), held_pixels(value) * 2)


def parts(value: Any) -> list[Any]:
    """All that it holds, as a mapping, as a tuple and in attributes: the very same objects."""
    state: Any = object.__getstate__(value)  # type: ignore[attr-defined]
    attributes = {**(state[0] or {}), **state[1]} if isinstance(state, tuple) else state or {}
    items = list(value.items()) if isinstance(value, dict) else list(value) if isinstance(value, tuple | list) else []
    return [
        repr(items),
        [id(each) for each in items if isinstance(each, torch.Tensor)],
        *sorted(attributes.items(), key=str),
    ]


def held_pixels(value: Any) -> Any:
    if isinstance(value, dict):
        return dict.__getitem__(value, "a") if not isinstance(value, Attributes) else value["b"]
    return value[0] if isinstance(value, tuple | list) else value.pixels


def test_fields_that_are_not_set_stay_so_and_make_another_structure() -> None:
    one, other = Slotted(PIXELS), Slotted(PIXELS)
    other.size = 2
    assert flatten(one)[1].paths == ("pixels",)
    assert flatten(other)[1].paths == ("pixels", "size")
    assert flatten(one)[1] != flatten(other)[1]
    assert not hasattr(map_leaves(lambda leaf: leaf, one), "size")


def test_what_is_computed_from_the_fields_and_kept_is_computed_anew() -> None:
    value = Kept(PIXELS)
    assert value.total == 6
    assert map_leaves(lambda leaf: leaf * 2 if leaf is value.pixels else leaf, value).total == 12


def test_generic_dataclasses_are_opened() -> None:
    assert flatten(Typed[int](PIXELS))[1].paths == ("pixels",)


def test_nothing_that_can_change_is_shared_by_copies() -> None:
    value = Attributes(a=PIXELS, deep={"x": [1, 2]})
    rows = [map_leaves(lambda leaf: leaf, value) for _ in range(2)]
    rows[0].deep["x"] = 3
    assert rows[0]["deep"] == {"x": 3}
    assert rows[1].deep == value.deep == {"x": [1, 2]}


class Remembering(Halved):
    def __init__(self, pixels: Any) -> None:
        self.pixels, self._seen = pixels, [1]


class Interned(Page):
    def __new__(cls, pixels: Any) -> "Interned":
        return super().__new__(cls)


@dataclasses.dataclass
class Failure(Exception):
    pixels: Any


class Named(dict[str, Any]):
    def __init__(self, name: str, held: Any) -> None:
        super().__init__(held)
        self.name = name


class Noted(Pair):
    pass


class Slots(Page):
    __slots__ = ("more",)


def with_more(value: Any) -> Any:
    value.more = 1
    return value


class Unfit(collections.UserDict[str, Any]):
    def __init__(self, name: str, held: Any) -> None:
        super().__init__(held)


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (Remembering(PIXELS), "holds _seen besides"),
        (with_more(Page(PIXELS)), "holds more besides"),
        (with_more(Slots(PIXELS)), "holds more besides"),
        (with_more(Noted(PIXELS, 1)), "holds more besides"),
        (with_more(Doubling(PIXELS)), "holds more besides"),
        (Named("n", {"a": A}), "holds name besides"),
        (Interned(PIXELS), "has a __new__ of its own"),
        (Failure(PIXELS), "has a __new__ of its own"),
        (Unfit("n", {"a": A}), "has a constructor that takes no mapping, or more than that"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_cannot_be_made_again_is_a_leaf_and_no_item(value: Any, why: str) -> None:
    """What it holds besides would be lost, or be that of one caller for all."""
    assert flatten(value)[1] is LEAF
    assert flatten([value], lists=True)[0] == [[value]]
    with pytest.raises(TypeError, match=rf"like a {type(value).__name__} that {why}, as `deep` is: teach register_str"):
        open_item({"deep": value})


def test_a_list_of_results_that_holds_something_besides_is_a_list_like_others() -> None:
    """As a leaf its tensors would stay on the device."""
    again = map_leaves(lambda leaf: leaf, with_more(DoublingList(PIXELS)), lists=True)
    assert type(again) is list
    assert again[0] is PIXELS


def test_a_size_in_an_item_becomes_a_tuple() -> None:
    assert type(map_leaves(lambda leaf: leaf, torch.Size([2]))) is tuple


class Scaling(collections.UserDict[str, Any]):
    def __init__(self, held: Any) -> None:
        super().__init__({key: each / 2 for key, each in held.items()})


class Losing(collections.UserDict[str, Any]):
    def __init__(self, held: Any) -> None:
        super().__init__({key: each for key, each in held.items() if key != "b"})


class Adding(collections.UserDict[str, Any]):
    def __init__(self, held: Any) -> None:
        super().__init__({**held, "b": 1})


@pytest.mark.parametrize("kind", [Scaling, Losing, Adding])
def test_a_mapping_whose_constructor_changes_things_is_not_made_of_others(kind: Any) -> None:
    value = kind({"a": PIXELS})
    value.data["b"] = PIXELS
    if kind is Adding:
        del value.data["b"]
    with pytest.raises(TypeError, match=f"the constructor of {kind.__name__} changes what it is given") as raised:
        map_leaves(lambda leaf: leaf, value)
    assert "register_structure can say another way" in raised.value.__notes__[0]


def test_what_a_constructor_has_against_a_batch_says_whose_it_is() -> None:
    class Image(collections.UserDict[str, Any]):
        def __init__(self, held: Any) -> None:
            super().__init__(held)
            if self["pixels"].ndim != 2:
                raise ValueError("an image has two dimensions")

    collator = started(stack())
    with pytest.raises(ValueError, match="an image has two dimensions") as raised:
        collated(collator, [Image({"pixels": torch.zeros(2, 2)})])
    assert raised.value.__notes__ == [
        "while a batch or a row was made a Image(pixels: leaf); register_structure can say another way to make it"
    ]


@pytest.mark.parametrize("lists", [False, True])
def test_what_is_nested_in_itself_says_so(lists: bool) -> None:
    value: dict[str, Any] = {"a": A}
    value["self"] = value
    with pytest.raises(ValueError, match="a dict that is nested in itself, or too deeply, has no leaves"):
        flatten(value, lists=lists)
    endless: list[Any] = [A]
    endless.append(endless)
    with pytest.raises(ValueError, match="a list that is nested in itself" if lists else "elements at each depth"):
        flatten(endless, lists=True) if lists else open_item(endless)


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ({"deep"}, {"deep[0].mask", "deep[1]"}),
        ({"deep[0]", "ids"}, {"deep[0].mask", "ids"}),
        ({"dee", "deep[0].m", ""}, set()),
        ({"deep[1]"}, {"deep[1]"}),
    ],
)
def test_a_place_stands_for_all_that_is_in_it(wanted: set[str], found: set[str]) -> None:
    where = flatten({"deep": ({"mask": A}, B), "ids": C, "deeper": A})[1].paths
    assert within(where, frozenset(wanted)) == found


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


def test_both_views_of_a_models_output_agree() -> None:
    from transformers.modeling_outputs import BaseModelOutputWithPooling as Output

    output: Any = Output(last_hidden_state=A, hidden_states=(A, B), pooler_output=C)
    output.pooler_output = None  # transformers leaves it in the mapping
    output["more"] = B
    shifted: Any = map_leaves(lambda leaf: leaf + 1, output)
    assert list(shifted) == ["last_hidden_state", "hidden_states", "more"]
    assert all(getattr(shifted, key) is each for key, each in shifted.items())
    assert (shifted.pooler_output, shifted.attentions) == (None, None)
    assert shifted.to_tuple()[2] is shifted.more
    shifted.attentions = A
    assert shifted["attentions"] is A


def test_a_models_output_that_computes_what_it_is_given_does_so_once() -> None:
    from transformers.utils.generic import ModelOutput

    @dataclasses.dataclass
    class Scores(ModelOutput):
        logits: Any = None

        def __post_init__(self) -> None:
            self.logits = self.logits / 2
            super().__post_init__()

    again: Any = map_leaves(lambda leaf: leaf, Scores(logits=PIXELS))
    assert again.logits.tolist() == again["logits"].tolist() == again[0].tolist() == [2.0, 4.0]


def test_no_model_library_is_imported() -> None:
    script = "import sys, batchlib.torch; print('transformers' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "False"
