"""`check_batching`: a function whose results depend on company is found, by its right name; a correct one never is."""

from __future__ import annotations

import asyncio
import itertools
import random
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.utils.rnn import pad_sequence

from batchlib import batch_context, batched
from batchlib.errors import BatchContractError, ExecutorLost, ItemTooLarge
from batchlib.torch import Check, SimulatedDevice, TorchExecutor, check_batching, pack, pad, stack

Function = Callable[..., Any]


def numbers(*lengths: int, seed: int = 0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(length, generator=generator) for length in lengths]


def tokens(*lengths: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(1, 50, (length,), generator=generator) for length in lengths]


def seeded(make: Callable[[], nn.Module]) -> Any:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return make()


RAGGED = numbers(3, 5, 9, 4)
EVEN = numbers(4, 4, 4, 4)
SENTENCES = tokens(3, 5, 9, 4)


def names(check: Check) -> list[str]:
    return [cause.name for cause in check.causes]


# ---- functions that depend on company, and the one that is right


class Counter:
    """Remembers how often it was called."""

    def __init__(self) -> None:
        self.calls = itertools.count()

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return x.sum(1) + next(self.calls)


class CounterOfBatches(Counter):
    """The same, but for a batch of one."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return x.sum(1) if len(x) == 1 else super().__call__(x)


class Encoder(nn.Module):
    """Attention over a padded batch."""

    def __init__(self, attends_to_padding: bool, dropout: float = 0.0) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 8)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=dropout, batch_first=True)
        self.attends_to_padding = attends_to_padding

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        hidden = self.layer(self.embedding(ids), src_key_padding_mask=None if self.attends_to_padding else ~mask)
        return (hidden * mask[..., None]).sum(1) / mask.sum(1)[:, None]


class Packed(nn.Module):
    """Attention over packed items, one after the other, or over all of them at once."""

    def __init__(self, keeps_borders: bool, own_positions: bool = True) -> None:
        super().__init__()
        self.embedding, self.places = nn.Embedding(50, 8), nn.Embedding(100, 8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.keeps_borders, self.own_positions = keeps_borders, own_positions

    def forward(self, ids: torch.Tensor, positions: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        places = positions if self.own_positions else torch.arange(len(ids))
        hidden = self.embedding(ids) + self.places(places)
        parts = hidden.split(lengths.tolist()) if self.keeps_borders else [hidden]
        attended = torch.cat([self.attention(part[None], part[None], part[None])[0][0] for part in parts])
        return torch.stack([part.mean(0) for part in attended.split(lengths.tolist())])


def masked_mean(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return (x * mask).sum(1) / mask.sum(1)


def weighted(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Counts its positions through the row."""
    return (x * mask * torch.arange(x.shape[1])).sum(1)


def weighted_by_mask(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return (x * mask * (mask.cumsum(1) - 1)).sum(1)


def sorted_by_length(x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    return x[lengths.argsort(stable=True)].sum(1)


def one_by_one(x: torch.Tensor) -> torch.Tensor:
    if len(x) > 1:
        raise RuntimeError("one at a time")
    return x


def averaged(module: nn.Module) -> Function:
    return lambda x: module(x)


def function_of(module: nn.Module) -> Function:
    return lambda ids, mask: module(ids, mask)


def packed_function_of(module: nn.Module) -> Function:
    return lambda ids, positions, lengths: module(ids, positions, lengths)


encoder = function_of(seeded(lambda: Encoder(attends_to_padding=False)).eval())
gru = seeded(lambda: nn.GRU(1, 3, batch_first=True))
conv_norm = seeded(lambda: nn.Sequential(nn.Conv1d(1, 2, 3), nn.BatchNorm1d(2)))
WIDE = [x[None] for x in numbers(8, 8, 8)]

WRONG: dict[str, tuple[Function, Sequence[Any], Any, str]] = {
    "mean over the padding": (lambda x, lengths: x.mean(1), RAGGED, pad(), "padding"),
    "mean by the padded length": (lambda x, mask: (x * mask).mean(1), RAGGED, pad(), "padding"),
    "maximum over the padding": (lambda x, mask: x.amax(1), RAGGED, pad(99.0), "padding"),
    "last position": (lambda x, mask: x[:, -1], RAGGED, pad(), "padding"),
    "first position, padded on the left": (lambda x, mask: x[:, 0], RAGGED, pad(side="left"), "padding"),
    "attention to the padding": (
        function_of(seeded(lambda: Encoder(attends_to_padding=True)).eval()),
        SENTENCES,
        pad(),
        "padding",
    ),
    "recurrent over the padding": (
        lambda x, mask: gru(x[..., None])[1][0],
        RAGGED,
        pad(),
        "padding",
    ),
    "one sample, of one length": (lambda x, lengths: x.mean(1), RAGGED[:1], pad(), "padding"),
    "samples of one length": (lambda x, lengths: x.mean(1), EVEN, pad(), "padding"),
    "second dimension": (lambda x, mask: x.mean((1, 2)), [x.expand(2, -1) for x in RAGGED], pad(dim=1), "padding"),
    "buckets": (lambda x, mask: x.mean(1), RAGGED, pad(sizes=[4, 16]), "padding"),
    "a bucket that no sample reaches": (lambda x, mask: x.mean(1), RAGGED, pad(sizes=[16, 32]), "padding"),
    "padded inside, with labels": (
        lambda pairs: pad_sequence([torch.tensor(ids) for ids, _ in pairs], batch_first=True).amin(1),
        [([1, 2], 0), ([2, 3], 1), ([4, 5, 6], 2)],
        None,
        "padding",
    ),
    "arrays": (lambda x, mask: x.mean(1), [x.numpy() for x in RAGGED], pad(), "padding"),
    "arrays on the left": (lambda x, mask: x.mean(1), [x.numpy() for x in RAGGED], pad(side="left"), "padding"),
    "nested": (lambda x, mask: x["a"].mean(1), [{"a": x, "b": 1} for x in RAGGED], pad(), "padding"),
    "positions from the left": (weighted, RAGGED, pad(side="left"), "positions"),
    "nothing is cut": (lambda x, mask: x * 2, RAGGED, pad(), "uncut"),
    "padded inside": (lambda xs: pad_sequence(xs, batch_first=True).mean(1), [*RAGGED, RAGGED[0] + 1], None, "padding"),
    "padded inside, no two alike": (
        lambda texts: [len(text) / max(map(len, texts)) for text in texts],
        ["a", "bc", "def"],
        None,
        "padding or statistics",
    ),
    "mean over the batch": (lambda x, lengths: x[:, 0] - x[:, 0].mean(), RAGGED, pad(), "statistics"),
    "maximum over the batch": (lambda x: x.amax().expand(len(x)), EVEN, stack(), "statistics"),
    "place in the batch": (lambda x: x.sum(1) + torch.arange(len(x)), EVEN, stack(), "statistics"),
    "size of the batch": (lambda x: x.sum(1) / len(x), EVEN, stack(), "statistics"),
    "longest of the batch": (lambda x, lengths: x[:, 0] * lengths.min(), RAGGED, pad(), "statistics"),
    "lists": (lambda xs: [x - sum(xs) for x in xs], [1, 2, 3], None, "statistics"),
    "batch norm": (averaged(conv_norm), WIDE, stack(), "training mode"),
    "batch norm that cannot run alone": (averaged(nn.BatchNorm1d(4)), EVEN, stack(), "training mode"),
    "dropout": (averaged(nn.Dropout(0.5)), numbers(64, 64, 64), stack(), "training mode"),
    "rare dropout": (averaged(nn.Dropout(0.1)), EVEN, stack(), "training mode"),
    "dropout and padding": (
        function_of(seeded(lambda: Encoder(attends_to_padding=True, dropout=0.5))),
        SENTENCES,
        pad(),
        "training mode",
    ),
    "random numbers": (lambda x: x + torch.rand(()), EVEN, stack(), "chance"),
    "memory": (Counter(), EVEN, stack(), "chance"),
    "memory of batches": (CounterOfBatches(), EVEN, stack(), "chance"),
    "another order": (sorted_by_length, RAGGED, pad(), "order"),
    "squeeze": (lambda x: x[:, :1].squeeze(), EVEN, stack(), "failure"),
    "layers that look like rows": (lambda x: (x, torch.stack([x.sum(1), x.mean(1)])), EVEN[:2], stack(), "failure"),
    "one at a time": (one_by_one, EVEN, stack(), "failure"),
    "packed attention across items": (
        packed_function_of(seeded(lambda: Packed(keeps_borders=False)).eval()),
        SENTENCES,
        pack(),
        "packing",
    ),
    "packed mean over all": (lambda x, lengths: x.mean().expand(len(lengths)), RAGGED, pack(), "packing"),
    "packed running sum": (
        lambda x, cumulative_lengths: x.cumsum(0)[cumulative_lengths[1:] - 1],
        RAGGED,
        pack(),
        "packing",
    ),
    "packed longest": (
        lambda x, cumulative_lengths, max_length: x[cumulative_lengths[:-1].long()] * max_length,
        RAGGED,
        pack(),
        "packing",
    ),
    "packed positions through the batch": (
        packed_function_of(seeded(lambda: Packed(keeps_borders=True, own_positions=False)).eval()),
        SENTENCES,
        pack(),
        "positions",
    ),
}

BY_LITTLE = {
    "a mean over the padding": (lambda x, mask: x + (0.2 * x.mean(1))[:, None], RAGGED, pad(unpad=True), "padding"),
    "a mean over the batch": (lambda x: x + 0.1 * x.mean(0), EVEN, stack(), "statistics"),
    "the place in the batch": (lambda x: x + torch.arange(len(x))[:, None], EVEN, stack(), "statistics"),
    "a softmax over the batch": (lambda x: x.softmax(0), EVEN, stack(), "statistics"),
}

RIGHT: dict[str, tuple[Function, Sequence[Any], Any]] = {
    "masked mean": (masked_mean, RAGGED, pad(99.0)),
    "masked mean on the left": (masked_mean, RAGGED, pad(99.0, side="left")),
    "last position on the left": (lambda x, mask: x[:, -1], RAGGED, pad(side="left")),
    "positions of the mask": (weighted_by_mask, RAGGED, pad(side="left")),
    "positions from the right": (weighted, RAGGED, pad()),
    "sum over zeros": (lambda x, mask: x.sum(1), RAGGED, pad()),
    "attention": (encoder, SENTENCES, pad()),
    "cut": (lambda x, mask: {"twice": x * 2, "sum": (x * mask).sum(1)}, RAGGED, pad(unpad="twice")),
    "buckets": (masked_mean, RAGGED, pad(99.0, sizes=[4, 16])),
    "one sample": (masked_mean, RAGGED[:1], pad(99.0)),
    "stacked": (lambda x: x * 2, EVEN, stack()),
    "numbers": (lambda x: x * 2, [1.0, 2.0, 3.0], stack()),
    "not a number": (lambda x: x * torch.tensor([float("nan"), float("inf"), 0.0, 1.0]), EVEN, stack()),
    "huge fills": (lambda x: torch.where(x > 0, x, torch.finfo(x.dtype).min), EVEN, stack()),
    "labels": (lambda x: [("positive" if each[0] > 0 else "negative", each[0].item()) for each in x], EVEN, stack()),
    "dictionaries": (
        lambda texts: [{"length": len(text), "words": text.split()} for text in texts],
        ["a", "b c"],
        None,
    ),
    "texts": (lambda texts: [f"<{text}>" for text in texts], ["some", "texts"], None),
    "errors of items": (lambda xs: [ValueError("zero") if x == 0 else 1 / x for x in xs], [0, 1, 2], None),
    "nothing": (lambda xs: [None for _ in xs], [0, 1], None),
    "batch norm": (
        averaged(seeded(lambda: nn.Sequential(nn.Conv1d(1, 2, 3), nn.BatchNorm1d(2))).eval()),
        WIDE,
        stack(),
    ),
    "dropout": (averaged(nn.Dropout(0.5).eval()), EVEN, stack()),
    "packed": (packed_function_of(seeded(lambda: Packed(keeps_borders=True)).eval()), SENTENCES, pack()),
    "packed and cut": (lambda x, positions: x * positions, RAGGED, pack(unpack=True)),
    "plain callable": (lambda x: x.sum(1), EVEN, torch.stack),
    "empty items": (lambda x, mask: (x * mask).sum(1), numbers(0, 2, 5), pad()),
}


@pytest.mark.parametrize("name", list(WRONG))
def test_what_depends_on_company_is_found_and_named(name: str) -> None:
    function, samples, collate, cause = WRONG[name]
    check = check_batching(function, samples, collate=collate)
    assert not check.ok
    assert names(check) == [cause], str(check)
    assert f"likely cause: {cause}" in str(check)


@pytest.mark.parametrize("name", list(RIGHT))
def test_a_correct_function_passes(name: str) -> None:
    function, samples, collate = RIGHT[name]
    check = check_batching(function, samples, collate=collate)
    assert check.ok, str(check)
    assert check
    assert check.causes == ()
    assert "no result depends on company" in str(check)
    check.raise_if_different()


@pytest.mark.parametrize("size", [1e-30, 1e-12, 1e-6, 1e12, 1e30])
def test_results_of_any_size_are_compared(size: float) -> None:
    careful = check_batching(lambda x, mask: size * masked_mean(x, mask), RAGGED, collate=pad(9.0))
    assert careful.ok, str(careful)
    assert names(check_batching(lambda x, mask: size * x.mean(1), RAGGED, collate=pad())) == ["padding"]
    assert names(check_batching(lambda x: size * (2 * x - x.mean(0)), EVEN, collate=stack())) == ["statistics"]
    assert check_batching(lambda x, mask: size * x.mean(1), RAGGED, collate=pad(), atol=99 * size).ok


def test_probabilities_of_many_classes_are_compared() -> None:
    embedding, head = seeded(lambda: nn.Embedding(50, 32)), seeded(lambda: nn.Linear(32, 150_000))

    def probabilities(ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return (head(mean_of(embedding(ids), mask)) / 10).softmax(1)

    def without_mask(ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return probabilities(ids, torch.ones_like(mask))

    assert check_batching(probabilities, SENTENCES, collate=pad()).ok
    check = check_batching(without_mask, SENTENCES, collate=pad())
    assert names(check) == ["padding"]
    assert max(difference.amount for difference in check.differences) < 1e-5


def test_noise_around_zero_is_no_difference() -> None:
    def nothing(x: torch.Tensor) -> torch.Tensor:
        return torch.zeros(len(x)) if len(x) == 1 else torch.full((len(x),), 1e-7)

    assert check_batching(nothing, EVEN, collate=stack()).ok


def test_whole_numbers_are_never_rounded() -> None:
    def place(x: torch.Tensor) -> torch.Tensor:
        return 1_000_000 + torch.arange(len(x))

    def length(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return torch.full((len(x),), 1_000_000 + x.shape[1])

    assert names(check_batching(place, EVEN, collate=stack())) == ["statistics"]
    assert names(check_batching(length, RAGGED, collate=pad())) == ["padding"]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", list(BY_LITTLE))
def test_a_coarse_format_does_not_make_rounding_of_what_neighbours_do(name: str, dtype: torch.dtype) -> None:
    function, samples, collate, cause = BY_LITTLE[name]
    check = check_batching(function, [x.to(dtype) for x in samples], collate=collate)
    assert names(check) == [cause], str(check)


def test_what_neighbours_change_by_little_and_by_much_has_one_cause() -> None:
    check = check_batching(lambda x: x.clamp(max=x.quantile(0.9)), numbers(8, 8, 8, 8), collate=stack())
    assert names(check) == ["statistics"]


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("norm", [nn.BatchNorm1d(4, track_running_stats=False), nn.BatchNorm1d(4)])
def test_a_norm_without_running_statistics_depends_on_the_batch_in_either_mode(norm: Any, training: bool) -> None:
    norm.running_mean = norm.running_var = None
    model = nn.Sequential(nn.Linear(4, 4), norm).train(training)
    check = check_batching(lambda x: model(x), EVEN, collate=stack())
    assert names(check) == ["statistics"]
    assert "1 (BatchNorm1d)" in check.causes[0].evidence
    assert "track_running_stats=True" in check.causes[0].remedy


def test_statistics_that_one_item_has_none_of_are_told_from_a_failure() -> None:
    def normed(x: torch.Tensor) -> torch.Tensor:
        return nn.functional.batch_norm(x, None, None, training=True)

    assert names(check_batching(normed, EVEN, collate=stack())) == ["statistics"]
    assert names(check_batching(lambda xs: list(normed(torch.stack(xs))), EVEN)) == ["statistics"]


# ---- random functions


def mean_of(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return (x * mask[..., None]).sum(1) / mask.sum(1)[:, None]


def maximum_of(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return x.masked_fill(~mask[..., None], -torch.inf).amax(1)


def last_of(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    last = (mask.cumsum(1) * mask).argmax(1)
    return x[torch.arange(len(x)), last]


def attended(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    weights = (x @ x.transpose(1, 2)).masked_fill(~mask[:, None], -torch.inf).softmax(-1)
    return weights @ x


POOLINGS = [mean_of, maximum_of, last_of]


@st.composite
def correct_functions(draw: st.DrawFn) -> Function:
    generator = torch.Generator().manual_seed(draw(st.integers(0, 99)))
    embedding = torch.randn(50, 4, generator=generator)
    steps = draw(st.lists(st.sampled_from(["attention", "linear", "tanh"]), max_size=3))
    weights = [torch.randn(4, 4, generator=generator) / 2 for _ in steps]
    pooling = draw(st.sampled_from(POOLINGS))

    def function(ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        x = embedding[ids]
        for step, weight in zip(steps, weights, strict=True):
            x = attended(x, mask) if step == "attention" else x @ weight if step == "linear" else x.tanh()
        return pooling(x, mask)

    return function


@given(
    correct_functions(),
    st.lists(st.lists(st.integers(0, 49), min_size=1, max_size=12), min_size=1, max_size=6),
    st.sampled_from(["left", "right"]),
    st.sampled_from([None, 4]),
)
@settings(deadline=None, max_examples=40)
def test_no_correct_function_is_ever_reported(
    function: Function, samples: list[list[int]], side: Any, multiple_of: int | None
) -> None:
    if len(samples) == len(max(samples, key=len)) == 1:
        samples = [*samples, [1, 2]]  # one item of one token has nobody to be compared with
    check = check_batching(function, samples, collate=pad(7, side=side, multiple_of=multiple_of))
    assert check.ok, str(check)


@given(correct_functions(), st.permutations([1, 3, 4, 7]), st.sampled_from(["left", "right"]))
@settings(deadline=None, max_examples=20)
def test_the_same_function_without_its_mask_always_is(function: Function, lengths: list[int], side: Any) -> None:
    def careless(ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return function(ids, torch.ones_like(mask)).sum(1) + ids.float().mean(1)

    check = check_batching(careless, tokens(*lengths), collate=pad(side=side))
    assert names(check) == ["padding"], str(check)


# ---- real architectures, small and random


def bert() -> Any:
    from transformers import BertConfig, BertModel

    config = BertConfig(vocab_size=50, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32)
    return seeded(lambda: BertModel(config))


def llama() -> Any:
    from transformers import LlamaConfig, LlamaModel

    config = LlamaConfig(
        vocab_size=50, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32
    )
    return seeded(lambda: LlamaModel(config))


def test_a_bert_with_its_mask_passes_and_without_it_does_not() -> None:
    model = bert().eval()

    def embed(ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return mean_of(model(input_ids=ids, attention_mask=mask.long()).last_hidden_state, mask)

    def embed_without_mask(ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return mean_of(model(input_ids=ids).last_hidden_state, mask)

    assert check_batching(embed, SENTENCES, collate=pad()).ok
    assert names(check_batching(embed_without_mask, SENTENCES, collate=pad())) == ["padding"]
    assert names(check_batching(embed, SENTENCES, collate=pad(side="left"))) == ["positions"]
    model.train()
    check = check_batching(embed, SENTENCES, collate=pad())
    assert names(check) == ["training mode"]
    assert "embeddings.dropout (Dropout)" in check.causes[0].evidence


def test_every_output_of_a_model_is_compared() -> None:
    model = bert().eval()

    def embed(ids: torch.Tensor, mask: torch.Tensor) -> Any:
        output = model(input_ids=ids, attention_mask=mask.long())
        output.pooler_output = output.pooler_output - output.pooler_output.mean(0)
        return output

    check = check_batching(embed, SENTENCES, collate=pad(unpad="last_hidden_state"))
    assert {difference.path for difference in check.differences} == {"pooler_output"}
    assert names(check) == ["statistics"]


def test_a_llama_packed_with_a_cache_reads_across_items() -> None:
    model = llama().eval()

    def last(ids: torch.Tensor, positions: torch.Tensor, cumulative_lengths: torch.Tensor, *, cache: bool) -> Any:
        hidden = model(input_ids=ids[None], position_ids=positions[None], use_cache=cache).last_hidden_state[0]
        return hidden[cumulative_lengths[1:].long() - 1]

    assert check_batching(last, SENTENCES, collate=pack(), settings={"cache": False}).ok
    assert names(check_batching(last, SENTENCES, collate=pack(), settings={"cache": True})) == ["packing"]


def test_a_llama_padded_on_the_left_passes_with_its_mask() -> None:
    model = llama().eval()

    def last(ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return model(input_ids=ids, attention_mask=mask.long(), use_cache=False).last_hidden_state[:, -1]

    assert check_batching(last, SENTENCES, collate=pad(side="left")).ok
    assert names(check_batching(last, SENTENCES, collate=pad())) == ["padding"]


# ---- batched functions


def test_a_batched_function_is_run_as_its_callers_batches_are() -> None:
    sizes: list[int] = []

    @batched(max_batch_size=3, collate=pad())
    def mean(x: torch.Tensor, mask: torch.Tensor, *, shift: float = 1.0) -> torch.Tensor:
        assert torch.is_grad_enabled()
        sizes.append(len(batch_context()))
        assert shift == 2.0
        return masked_mean(x, mask) + shift

    with torch.no_grad():  # a mode of this thread: batches of callers know nothing of it
        check = check_batching(mean, RAGGED, settings={"shift": 2.0})
    assert check.ok
    assert check.function.endswith("mean")
    assert (check.samples, check.runs) == (4, len(sizes))
    assert set(sizes) == {1, 2, 3}
    assert mean.statistics().submitted == 0


@pytest.mark.parametrize("device", ["cpu", SimulatedDevice(3)], ids=["cpu", "simulated"])
def test_a_torch_executor_runs_it_in_its_own_mode(device: Any) -> None:
    inference: set[bool] = set()

    @batched(collate=pad(side="left"), executor=TorchExecutor(device, mode="inference"))
    def from_the_left(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        inference.add(torch.is_inference_mode_enabled())
        return weighted(x, mask)

    assert names(check_batching(from_the_left, RAGGED)) == ["positions"]
    assert check_batching(batched(from_the_left.direct, collate=pad(), executor=TorchExecutor(device)), RAGGED).ok
    assert True in inference
    from_the_left.close()


def test_methods_settings_and_several_parameters() -> None:
    class Scorer:
        def __init__(self) -> None:
            self.dropout = nn.Dropout(0.5)

        @batched(collate=pad(side="left"), on_error="bisect")
        def score(self, x: torch.Tensor, y: torch.Tensor, *, mask: Any, scale: float) -> torch.Tensor:
            return masked_mean(x, mask[0]) + scale * weighted(y, mask[1])

        @batched(collate=pad())
        async def wait(self, x: torch.Tensor, y: torch.Tensor, *, mask: Any) -> torch.Tensor:
            await asyncio.sleep(0)
            return masked_mean(x, mask[0]) + y.mean(1)

        @batched(collate=stack())
        def drop(self, x: torch.Tensor) -> torch.Tensor:
            return self.dropout(x)

    pairs = list(zip(numbers(2, 5, 3), numbers(3, 9, 4), strict=True))
    scorer = Scorer()
    assert names(check_batching(scorer.score, pairs, settings={"scale": 2.0})) == ["positions"]
    assert check_batching(scorer.score, pairs, settings={"scale": 0.0}).ok
    assert names(check_batching(scorer.wait, pairs)) == ["padding"]
    assert names(check_batching(scorer.drop, numbers(64, 64))) == ["training mode"]
    even = [(x, x + 1) for x in EVEN]
    assert names(check_batching(scorer.wait, even)) == ["padding"]


def test_a_parameter_that_is_never_padded_is_left_alone() -> None:
    def score(x: torch.Tensor, y: torch.Tensor, lengths: Any) -> torch.Tensor:
        return x.mean(1) * y.mean(1)

    pairs = list(zip(RAGGED, EVEN, strict=True))
    check = check_batching(score, pairs, collate=pad())
    assert names(check) == ["padding"]
    assert "depends on what the padding holds" in check.causes[0].evidence
    half = [x for x, _ in pairs]
    careful = check_batching(lambda x, mask: (x * mask).sum(1) / x.shape[1], half, collate=pad())
    assert "what the padding holds does not" in careful.causes[0].evidence


def test_a_plain_function_may_take_what_is_filled_first_or_last() -> None:
    def mean(mask: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return masked_mean(x, mask[0]) - masked_mean(y, mask[1])

    async def mean_async(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return masked_mean(x, mask)

    def both(*args: torch.Tensor) -> torch.Tensor:
        return args[0] * args[-1]

    pairs = list(zip(numbers(2, 5, 3), numbers(3, 9, 4), strict=True))
    assert check_batching(mean, pairs, collate=pad(9.0)).ok
    assert check_batching(mean_async, RAGGED, collate=pad(9.0)).ok
    assert check_batching(both, [(x, x) for x in EVEN], collate=stack()).ok
    assert check_batching(both, EVEN, collate=stack()).ok


def test_another_collation_can_be_tried_on_a_batched_function() -> None:
    first = batched(lambda x, mask: x[:, 0], collate=pad())
    assert check_batching(first, RAGGED).ok
    assert names(check_batching(first, RAGGED, collate=pad(side="left"))) == ["padding"]


@pytest.mark.parametrize("staged", [False, True])
def test_another_collation_runs_in_the_executor_of_the_function(staged: bool) -> None:
    seen: set[tuple[Any, ...]] = set()
    threads = set(threading.enumerate())

    @batched(
        collate=pad(sizes=[64]),
        max_batch_size=3,
        executor=TorchExecutor(
            SimulatedDevice() if staged else "cpu",
            mode="inference",
            autocast=torch.bfloat16,
            batch_sizes=[1, 2, 3],
            cuda_graphs=True,
        ),
    )
    def total(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        seen.add((torch.is_inference_mode_enabled(), torch.is_autocast_enabled("cpu"), x.shape[1] == 64, len(x) <= 3))
        return (x * mask).sum(1)

    check = check_batching(total, RAGGED, collate=pad())
    assert check.ok
    assert check.rtol == 4 * torch.finfo(torch.bfloat16).eps
    assert seen == {(True, True, False, True)}
    gone = set(threading.enumerate()) - threads
    for thread in gone:
        thread.join(10)
    assert not any(thread.is_alive() for thread in gone)


def test_a_method_has_to_be_bound() -> None:
    class Model:
        @batched(collate=stack())
        def double(self, x: torch.Tensor) -> torch.Tensor:
            return 2 * x

        @staticmethod
        @batched(collate=stack())
        def triple(x: torch.Tensor) -> torch.Tensor:
            return 3 * x

    unbound: Any = Model.double
    for collate in (None, stack()):
        with pytest.raises(TypeError, match=r"Model\.double has a batcher for every instance: give it bound to one"):
            check_batching(unbound, EVEN, collate=collate)
        assert check_batching(Model().double, EVEN, collate=collate).ok
        assert check_batching(Model.triple, EVEN, collate=collate).ok
        assert check_batching(vars(Model)["triple"].__func__, EVEN, collate=collate).ok


def test_only_what_shares_a_batch_is_compared() -> None:
    samples = [*numbers(4, 4), *numbers(2, 2, 3)]
    check = check_batching(lambda x: x.sum(1), samples, collate=stack())
    assert check.ok
    assert check.unshared == (4,)
    assert "not looked at, since no other sample can share a batch with them: 4" in str(check)
    grouped = batched(lambda xs: [x - min(xs) for x in xs], group_by=lambda x: x)
    with pytest.raises(ValueError, match="at least two samples that can share a batch"):
        check_batching(grouped, [1, 2, 3])
    with pytest.raises(ValueError, match="at least two samples"):
        check_batching(batched(lambda xs: xs, max_batch_size=1), [1, 1])
    with pytest.raises(ValueError, match="at least two samples"):
        check_batching(lambda xs: xs, [])


# ---- what a check leaves behind, and what it cannot check


def test_what_cannot_be_checked_says_so() -> None:
    with pytest.raises(TypeError, match=r"did you mean pad\(...\)\?"):
        check_batching(lambda values, mask: values, [[1], [2]], collate=pad)
    with pytest.raises(ValueError, match="max_batch_size is 1: raise it"):
        check_batching(batched(lambda xs: xs, max_batch_size=1), [1, 2])


def test_what_batch_norm_learns_in_a_check_is_forgotten() -> None:
    norm = nn.BatchNorm1d(4)
    before = {name: value.clone() for name, value in norm.state_dict().items()}
    assert not check_batching(lambda x: norm(x), EVEN, collate=stack())
    assert norm.training
    assert all(torch.equal(value, before[name]) for name, value in norm.state_dict().items())


def test_an_error_that_has_nothing_to_do_with_company_is_raised() -> None:
    def fails(x: torch.Tensor) -> torch.Tensor:
        raise ZeroDivisionError("always")

    with pytest.raises(ZeroDivisionError, match="always") as raised:
        check_batching(fails, EVEN, collate=stack())
    assert raised.value.__notes__ == ["check_batching: sample 0 fails alone and in every company"]


def test_samples_are_refused_as_their_calls_would_be() -> None:
    with pytest.raises(ItemTooLarge):
        check_batching(masked_mean, RAGGED, collate=pad(sizes=[4]))
    with pytest.raises(TypeError, match="takes none of the parameters"):
        check_batching(lambda x: x, RAGGED, collate=pad())
    with pytest.raises(TypeError, match="needs a batched function"):
        check_batching(3, RAGGED)  # type: ignore[arg-type]


def test_a_lost_executor_is_not_a_result() -> None:
    class Lost:
        is_async = False

        def run(self, requests: Any) -> Any:
            raise ExecutorLost("gone")

    with pytest.raises(ExecutorLost):
        check_batching(batched(lambda xs: xs, executor=Lost()), [1, 2])


def test_results_without_equality_are_refused() -> None:
    class Box:
        pass

    with pytest.raises(TypeError, match="the result is a Box, which cannot be compared"):
        check_batching(lambda xs: [Box() for _ in xs], [1, 2])
    with pytest.raises(TypeError, match=r"the result at box\[1\] is a Box"):
        check_batching(lambda xs: [{"box": [1, Box()]} for _ in xs], [1, 2])


# ---- tolerances


def with_noise(amount: float, dtype: torch.dtype = torch.float32) -> Function:
    """A batch of several rows is off by so much, relatively, as if its kernel added in another order."""

    def function(x: torch.Tensor) -> torch.Tensor:
        return (x.double() * (1 + amount * (len(x) > 1))).to(dtype)

    return function


def test_small_differences_of_copies_are_rounding() -> None:
    check = check_batching(with_noise(1e-3), EVEN, collate=stack())
    assert names(check) == ["rounding"]
    assert check_batching(with_noise(1e-3), EVEN, collate=stack(), rtol=1e-2).ok
    assert check_batching(with_noise(1e-6), EVEN, collate=stack()).ok
    assert names(check_batching(with_noise(1e-6), EVEN, collate=stack(), rtol=0.0, atol=0.0)) == ["rounding"]


def test_what_is_no_larger_than_rounding_is_called_so_whatever_the_tolerance() -> None:
    def by_length(x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        return x[:, 0] * (1 + 1e-6 * (x.shape[1] > lengths))

    check = check_batching(by_length, RAGGED, collate=pad(), rtol=0.0, atol=0.0)
    assert names(check) == ["rounding"]
    assert "of the size of rounding" in check.causes[0].evidence


def test_coarse_formats_are_allowed_their_rounding() -> None:
    coarse = with_noise(2e-2, torch.bfloat16)
    check = check_batching(coarse, EVEN, collate=stack())
    assert check.ok
    assert check.rtol == 4 * torch.finfo(torch.bfloat16).eps
    assert not check_batching(coarse, EVEN, collate=stack(), rtol=1e-4)
    in_bfloat16 = [x.bfloat16() for x in EVEN]
    assert check_batching(with_noise(2e-2), in_bfloat16, collate=stack()).ok
    model = nn.Linear(4, 4).bfloat16()
    elsewhere = nn.Linear(4, 4, device="meta")  # as if on an accelerator, which may multiply with 10 bits
    noisy = with_noise(2e-3)
    assert not check_batching(noisy, EVEN, collate=stack()).ok
    assert check_batching(lambda x: (noisy(x), elsewhere)[0], EVEN, collate=stack()).ok
    noise = with_noise(2e-2)
    assert check_batching(lambda x: (noise(x), model)[0], EVEN, collate=stack()).ok
    executor = TorchExecutor("cpu", autocast=torch.bfloat16)
    assert check_batching(batched(with_noise(2e-2), collate=stack(), executor=executor), EVEN).ok
    assert not check_batching(with_noise(2e-1), in_bfloat16, collate=stack()).ok


@pytest.mark.parametrize(
    ("alone", "here", "what"),
    [
        (1, 2, "differs by up to 1"),
        (True, False, "differs by up to 1"),
        (1 + 2j, 1 - 2j, "differs by up to 4"),
        (1.0, float("nan"), "differs by up to inf"),
        (float("inf"), -float("inf"), "differs by up to inf"),
        (1.0, "one", "1.0 alone, 'one' here"),
        ("a", "b" * 999, "'a' alone, 'bbb"),
        ([1, 2], [1, 3], "differs by up to 1 in 1 of 2 numbers"),
        ([1, [2, 3]], [1, [2, 4]], "[1] differs by up to 1 in 1 of 2 numbers"),
        ([1], [1, 2], "shape (1,) alone, (2,) here"),
        (["a"], ["a", "b"], "['a'] alone, ['a', 'b'] here"),
        (("a", 1.0), ("a", 2.0), "[1] differs by up to 1"),
        ({"a": 1}, {"b": 1}, "values at a alone, values at b here"),
        ({"a": 1}, 1, "values at a alone, one value here"),
        ({"a": {"b": [{"c": 1}]}}, {"a": {"b": [{"c": 2}]}}, "a.b[0].c differs by up to 1"),
        (torch.zeros(2), torch.zeros(3), "shape (2,) alone, (3,) here"),
        (torch.zeros(2), torch.zeros(2, dtype=torch.float64), "torch.float32 alone, torch.float64 here"),
        (torch.zeros(2), "text", "Tensor of shape (2,) alone, 'text' here"),
        (torch.eye(2).to_sparse(), torch.ones(2, 2).to_sparse(), "differs by up to 1 in 2 of 4 numbers"),
        (np.zeros(2), np.array([0.0, 3.0]), "differs by up to 3 in 1 of 2 numbers"),
        (np.array(["a"]), np.array(["b"]), "ndarray of shape (1,) alone"),
        (ValueError("a"), ValueError("b"), "it raises ValueError: a alone, it raises ValueError: b here"),
        (ValueError("a"), 1, "it raises ValueError: a alone, 1 here"),
    ],
)
def test_differences_of_every_kind_are_said(alone: Any, here: Any, what: str) -> None:
    check = check_batching(lambda xs: [alone if len(xs) == 1 else here for _ in xs], [0, 1, 2])
    assert len({difference.row for difference in check.differences}) == 3
    assert what in f"{check.differences[0].path} {check.differences[0].what}".strip()


@given(st.integers(0, 10_000))
@settings(deadline=None, max_examples=30)
def test_the_worst_of_each_row_is_reported(seed: int) -> None:
    draw = random.Random(seed)
    count = draw.randint(2, 12)
    wrong = set(draw.sample(range(count), draw.randint(0, count)))

    def function(xs: list[int]) -> list[int]:
        return [x + len(xs) - 1 if x in wrong else x for x in xs]

    check = check_batching(function, list(range(count)))
    assert {difference.row for difference in check.differences} == wrong
    report = str(check).splitlines()
    assert sum(line.startswith("  sample") for line in report) == min(len(wrong), 6)
    assert any(line.startswith("  and ") for line in report) == (len(wrong) > 6)
    if wrong:
        with pytest.raises(BatchContractError, match="results depend on company"):
            check.raise_if_different()


def test_a_sample_that_fails_in_every_part_of_a_batch_is_an_error() -> None:
    """The executor cuts batches in pieces of two: what one piece raises is nothing that others depend on."""

    def function(values: list[int]) -> list[int]:
        if 3 in values:
            raise ValueError("three")
        return values

    f: Any = batched(function, executor=TorchExecutor("cpu", batch_sizes=[1, 2]))
    with pytest.raises(ValueError, match="three") as caught:
        check_batching(f, [3, 3, 3, 3])
    assert "sample 0 fails alone" in caught.value.__notes__[0]
