"""What a batcher learns about how long its batches take: exact where the data are, and bent by nothing."""

import math
import random
from collections.abc import Callable, Iterator

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from batchlib._core import _latency_model as latency_model
from batchlib._core._latency_fit import Line, Point, fit, isotonic
from batchlib._core._latency_model import LatencyEstimate, LatencyModel


def affine(size: int, longest: float = 1) -> float:
    return 0.005 + 0.001 * size * longest


def stepped(size: int, longest: float = 1) -> float:
    """Whole waves of eight, as on a device."""
    return 0.004 * math.ceil(size / 8) * longest


def learned(told: Iterator[tuple[int, float]], time: Callable[[int, float], float], model: LatencyModel) -> float:
    now = model.last_sample if model.samples else 0.0
    for size, longest in told:
        seconds = time(size, longest)
        now += seconds
        model.observe(size, longest, seconds, now)
    return now


def sizes(seed: int, count: int, most: int = 32) -> Iterator[tuple[int, float]]:
    source = random.Random(seed)
    return ((source.randint(1, most), 1.0) for _ in range(count))


def shapes(seed: int, count: int) -> Iterator[tuple[int, float]]:
    source = random.Random(seed)
    return ((source.randint(1, 32), source.lognormvariate(4.5, 0.8)) for _ in range(count))


class Noisy:
    """`time`, with warm-up calls, noise, and a share of stragglers."""

    def __init__(self, time: Callable[[int, float], float], seed: int, **kind: float) -> None:
        self.time, self.kind, self.calls = time, kind, 0
        self.random = random.Random(seed)

    def __call__(self, size: int, longest: float) -> float:
        self.calls += 1
        seconds = self.time(size, longest) * math.exp(self.random.gauss(0, self.kind.get("noise", 0)))
        if self.calls <= self.kind.get("warm_up", 0):
            return 100 * seconds
        return seconds * (self.kind["factor"] if self.random.random() < self.kind.get("share", 0) else 1)


# ---- exactness


@settings(deadline=None)
@given(
    base=st.floats(0, 10),
    per_item=st.floats(0.001, 10),
    measured=st.lists(st.integers(1, 40), min_size=2, max_size=12, unique=True),
    asked=st.integers(1, 400),
)
def test_clean_affine_times_are_predicted_exactly(
    base: float, per_item: float, measured: list[int], asked: int
) -> None:
    model = LatencyModel()
    learned(((size, 1.0) for size in measured * 6), lambda size, _: base + per_item * size, model)
    assert model.predict(asked) == pytest.approx(base + per_item * asked, rel=1e-6)
    assert model.estimate().spread == pytest.approx(1)


@given(seed=st.integers(0, 10_000), asked=st.integers(1, 64), longest=st.floats(1, 2_000))
@settings(max_examples=20, deadline=None)
def test_clean_times_are_predicted_exactly_where_lengths_vary(seed: int, asked: int, longest: float) -> None:
    model = LatencyModel()

    def time(size: int, length: float) -> float:
        return 0.005 + 0.001 * size + 0.0001 * size * length

    learned(shapes(seed, 600), time, model)
    assert model.predict(asked, longest) == pytest.approx(time(asked, longest), rel=1e-6)
    estimate = model.estimate()
    assert (estimate.base, estimate.per_item, estimate.per_cost) == pytest.approx((0.005, 0.001, 0.0001), rel=1e-4)


def test_times_that_are_no_line_are_learned_size_by_size() -> None:
    model = LatencyModel()
    learned(sizes(1, 1_000), stepped, model)
    for size in range(1, 33):
        assert model.predict(size) / model.estimate().spread == pytest.approx(stepped(size), rel=1e-6)


def test_one_length_other_than_one_is_as_exact() -> None:
    model = LatencyModel()
    learned(((size, 7.3) for size, _ in sizes(2, 1_000)), stepped, model)
    assert model.predict(20, 7.3) / model.estimate().spread == pytest.approx(stepped(20, 7.3), rel=1e-6)


def test_a_single_size_is_taken_for_all() -> None:
    """Nothing is known of the slope; a constant lets larger batches be tried and measured."""
    model = LatencyModel()
    learned(iter([(4, 1.0)] * 4), affine, model)
    assert model.predict(1) == model.predict(32) == pytest.approx(affine(4))
    assert model.estimate().per_cost == 0


# ---- robustness


@pytest.mark.parametrize(
    ("kind", "bound"),
    [
        ({}, 0.02),
        ({"share": 0.05, "factor": 5}, 0.03),
        ({"share": 0.05, "factor": 5, "warm_up": 3}, 0.03),
        ({"share": 0.15, "factor": 3}, 0.06),
    ],
    ids=["clean", "stragglers", "warm-up", "many stragglers"],
)
def test_the_line_stays_within_a_few_percent(kind: dict[str, float], bound: float) -> None:
    """Mean absolute errors at sizes 1, 8 and 32 after 256 batches of random sizes with 5 % noise, over 20 runs."""
    errors: dict[int, list[float]] = {1: [], 8: [], 32: []}
    for seed in range(20):
        model = LatencyModel()
        learned(sizes(seed, 256), Noisy(affine, seed, noise=0.05, **kind), model)
        estimate = model.estimate()
        line = Line(estimate.base, estimate.per_item, estimate.per_cost)
        for size, each in errors.items():
            each.append(abs(line.at(size, 1) / affine(size) - 1))
    for each in errors.values():
        assert sum(each) / len(each) < bound, errors


@pytest.mark.parametrize("seed", range(10))
def test_one_straggler_in_twenty_does_not_stretch_the_predictions(seed: int) -> None:
    model = LatencyModel()
    time = Noisy(affine, seed, share=0.05, factor=5)
    for _ in range(20):
        learned(sizes(seed, 60), time, model)
        assert model.estimate().spread == pytest.approx(1)
        assert model.predict(16) == pytest.approx(affine(16))


@pytest.mark.parametrize("noise", [0.05, 0.2, 0.4])
def test_nine_batches_in_ten_take_no_longer_than_predicted(noise: float) -> None:
    model = LatencyModel()
    time = Noisy(affine, 3, noise=noise)
    learned(sizes(3, 1_000), time, model)
    within = 0
    for size, longest in sizes(4, 2_000):
        predicted, seconds = model.predict(size), time(size, longest)
        within += seconds <= predicted
        model.observe(size, longest, seconds, 0.0)
    assert 0.84 < within / 2_000 < 0.94


def test_the_first_call_of_a_new_shape_is_no_sample() -> None:
    model = LatencyModel()
    model.observe(4, 1, 100.0, now=1.0)
    assert (model.samples, model.largest, dict(model.sizes), model.last_sample) == (0, 0, {}, -math.inf)
    assert model.predict(4) == 0
    model.observe(4, 1, 1.0, now=2.0)
    model.observe(4, 50, 100.0, now=3.0)  # another length is another shape
    assert (model.samples, model.largest, dict(model.sizes), model.last_sample) == (1, 4, {4: 1}, 2.0)
    assert model.measured(4) == 1
    assert model.measured(5) == 0
    assert model.predict(4) == pytest.approx(1)


def test_a_guess_before_anything_is_measured_goes_by_the_quickest() -> None:
    model = LatencyModel()
    assert model.bound(4) == 0
    model.observe(8, 2, 1.0, now=1.0)
    assert [model.bound(size, 2) for size in (1, 8, 16)] == [1, 1, 2]
    assert model.bound(8, 6) == 3
    model.observe(1, 2, 0.1, now=1.0)
    assert [model.bound(size, 2) for size in (1, 2, 16)] == pytest.approx([0.1, 0.2, 1.6])
    assert model.bound(1, 0) == 0.1


# ---- monotone, whatever it is told

durations = st.floats(1e-6, 1e3)
lengths = st.sampled_from([1.0, 1.0, 1.0, 0.0, 0.3, 3.0, 20.0, 21.0, 400.0, 1e9]) | st.floats(0, 1e15)
observations = st.tuples(st.integers(1, 200) | st.integers(1, 4), lengths, durations)


@given(st.lists(observations, max_size=120), st.integers(1, 3), st.randoms(use_true_random=False))
@settings(max_examples=40, deadline=None)
def test_predictions_never_fall_as_size_or_length_grows(
    told: list[tuple[int, float, float]], times: int, source: random.Random
) -> None:
    model = LatencyModel()
    for size, longest, seconds in told * (2 * times):
        model.observe(size, longest, seconds, 0.0)
    lengths = [0.0, 1.0, 2.0**0.5, 17.0]
    asked = [(source.randint(1, 300), source.choice([*lengths, 2.0 ** source.uniform(-25, 50)])) for _ in range(60)]
    for size, longest in asked:
        seconds = model.predict(size, longest)
        assert 0 <= seconds < math.inf
        assert seconds <= model.predict(size + source.randint(0, 80), longest)
        assert seconds <= model.predict(size, longest * source.uniform(1, 3))
        assert seconds <= model.predict(size + 1, longest * 2)


@given(st.lists(observations, max_size=40), st.sampled_from([0.5, 2.0, 8.0]))
@settings(max_examples=40, deadline=None)
def test_only_the_unit_of_time_changes_when_all_is_slower(told: list[tuple[int, float, float]], factor: float) -> None:
    plain, slower = LatencyModel(), LatencyModel()
    for size, longest, seconds in told * 3:
        plain.observe(size, longest, seconds, 0.0)
        slower.observe(size, longest, seconds * factor, 0.0)
    for size, longest in [(1, 1.0), (7, 1.0), (32, 20.0), (100, 3.0)]:
        assert slower.predict(size, longest) == pytest.approx(factor * plain.predict(size, longest), rel=1e-9)


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(
            st.integers(-3, 10**6),
            st.floats(allow_nan=True, allow_infinity=True),
            st.floats(allow_nan=True, allow_infinity=True) | st.sampled_from([0.0, -1.0, 1e-9, 1e9]),
        )
    )
)
@example([(1, 5e-324, 1.0)])
@example([(0, 1.0, 1.0), (1, -1.0, 1.0), (1, 1.0, 0.0), (1, 1.0, math.nan), (1, math.nan, 1.0), (1, 1.0, math.inf)])
def test_it_never_raises_and_ignores_what_is_no_measurement(told: list[tuple[int, float, float]]) -> None:
    model = LatencyModel()
    for size, longest, seconds in told * 2:
        before = model.samples
        model.observe(size, longest, seconds, 0.0)
        if not (size >= 1 and 0 <= longest < math.inf and 0 < seconds < math.inf):
            assert model.samples == before
    for size, longest in [(0, math.nan), (1, -1.0), (10**9, math.inf), (3, 1.0)]:
        assert 0 <= model.predict(size, longest) < math.inf
        assert 0 <= model.bound(size, 1.0) < math.inf
    assert model.estimate().spread > 0


# ---- change of pace


@pytest.mark.parametrize("factor", [3.0, 10.0, 1 / 3])
@pytest.mark.parametrize("share", [0.0, 0.05])
def test_a_slow_spell_and_its_end_are_learned_in_a_handful_of_batches(factor: float, share: float) -> None:
    model = LatencyModel()
    time = Noisy(affine, 5, share=share, factor=1.2)
    learned(sizes(5, 400), time, model)
    assert model.predict(32) == pytest.approx(affine(32), rel=0.01)
    learned(iter([(4, 1.0), (5, 1.0)] * 3), lambda size, longest: factor * time(size, longest), model)
    assert model.predict(32) == pytest.approx(factor * affine(32), rel=0.25)
    assert model.predict(1) == pytest.approx(factor * affine(1), rel=0.25)
    learned(iter([(4, 1.0)] * 6), time, model)
    assert model.predict(32) == pytest.approx(affine(32), rel=0.25)


def test_what_was_measured_at_the_new_pace_stays_as_it_is() -> None:
    model = LatencyModel()
    learned(iter([(1, 1.0), (6, 1.0), (6, 1.0), (9, 1.0)]), affine, model)
    learned(iter([(1, 1.0), (9, 1.0)] * 20), affine, model)
    learned(iter([(6, 1.0)] * 5), lambda size, _: 10 * affine(size), model)
    for size in (1, 6, 9):
        assert model.predict(size) == pytest.approx(10 * affine(size))


def test_a_few_stragglers_among_others_are_no_change_of_pace() -> None:
    model = LatencyModel()
    learned(sizes(6, 400), affine, model)
    for factor in (5.0, 5.0, 5.0, 5.0, 1.0):
        learned(iter([(8, 1.0)]), lambda size, longest, factor=factor: factor * affine(size), model)  # type: ignore[misc]
    assert model.predict(32) == pytest.approx(affine(32))


def test_batches_outside_the_range_measured_are_no_change_of_pace() -> None:
    model = LatencyModel()
    learned(iter([(2, 1.0), (3, 1.0)] * 20), affine, model)
    learned(iter([(3, 500.0)] * 8), affine, model)  # the line knew nothing of lengths
    assert model.predict(2) == pytest.approx(affine(2), rel=0.01)
    learned(iter([(32, 1.0)] * 8), affine, model)
    assert model.predict(2) == pytest.approx(affine(2), rel=0.01)


# ---- bounded


def test_memory_is_bounded_whatever_the_shapes() -> None:
    model = LatencyModel()
    for round_ in range(3):
        for size in range(1, 2_000, 7):
            for longest in (1.0, 40.0, 3_000.0):
                model.observe(size, longest, affine(size, longest), 0.0)
                model.observe(size, longest, affine(size, longest), 0.0)
        assert len(model._buckets) <= latency_model._BUCKETS
        assert len(model._pool) <= latency_model._POOL
        assert sum(model.sizes.values()) == sum(len(bucket.samples) for bucket in model._buckets.values())
        assert model.largest == max(model.sizes) >= 1_000, round_
    assert model.predict(500, 40) == pytest.approx(affine(500, 40), rel=1e-3)
    for size in range(1, 40_000):
        model.predict(size)
    assert len(model._typical) <= latency_model._REMEMBERED
    assert len(model._nodes) <= latency_model._REMEMBERED + 1


def test_a_shape_that_has_gone_is_learned_anew() -> None:
    model = LatencyModel()
    for _ in range(2):
        model.observe(64, 1, 1.0, 0.0)
    assert model.predict(64) == pytest.approx(1.0)
    for number in range(latency_model._BUCKETS):
        model.observe(1 + number % 60, 2.0 ** (number // 60), 1.0, 0.0)  # never twice: nothing is measured
    assert (model.largest, dict(model.sizes)) == (0, {})
    assert model.predict(64) == pytest.approx(1.0)  # the best guess there is
    for _ in range(2):
        model.observe(32, 2.0**5, 2.0, 0.0)
    assert (model.largest, model.predict(64)) == (32, pytest.approx(2.0))


def test_nothing_is_known_where_all_went_before_anybody_asked() -> None:
    model = LatencyModel()
    for _ in range(2):
        model.observe(64, 1, 1.0, 0.0)
    for number in range(latency_model._BUCKETS):
        model.observe(1 + number % 60, 2.0 ** (number // 60), 1.0, 0.0)
    assert model.predict(64) == 0


def test_large_sizes_are_told_apart_by_their_first_six_bits() -> None:
    model = LatencyModel()
    model.observe(10_000, 1, 1.0, 0.0)
    model.observe(10_050, 1, 1.0, 0.0)
    assert model.measured(10_001) == 1
    assert model.largest <= 10_050 <= 1.04 * model.largest


# ---- the pieces


def test_the_estimate_says_what_is_known() -> None:
    model = LatencyModel()
    assert model.estimate() == LatencyEstimate(0, 0, 0.0, 0.0, 0.0, 1.0)
    learned(iter([(1, 1.0), (2, 1.0)] * 8), affine, model)
    estimate = model.estimate()
    assert (estimate.samples, estimate.largest) == (14, 2)
    assert (estimate.base, estimate.per_item, estimate.spread) == pytest.approx((0.005, 0.001, 1.0))


def test_no_coefficient_is_ever_negative() -> None:
    falling = [Point(1, 1.0, 2.0, 1), Point(10, 1.0, 1.0, 1), Point(20, 30.0, 1.0, 1)]
    assert fit(falling)[0] > 0
    assert fit(falling)[1:] == (0, 0)
    convex = [Point(size, 1.0, float(size * size), 1) for size in (1, 2, 3, 4)]
    assert min(fit(convex)) >= 0
    assert fit([]) == (0, 0, 0)


def test_costs_of_nothing_leave_a_line_over_sizes() -> None:
    assert fit([Point(size, 0.0, 1.0 + size, 1) for size in (1, 2, 3)]) == pytest.approx((1, 1, 0))


@given(st.lists(st.tuples(st.floats(0, 100), st.floats(0.1, 10)), max_size=8), st.lists(st.floats(0, 5), max_size=8))
def test_isotonic_values_rise_and_keep_order_between_each_other(
    pairs: list[tuple[float, float]], more: list[float]
) -> None:
    values, weights = [value for value, _ in pairs], [weight for _, weight in pairs]
    risen = isotonic(values, weights)
    assert risen == sorted(risen)
    assert sum(r * w for r, w in zip(risen, weights, strict=True)) == pytest.approx(
        sum(v * w for v, w in zip(values, weights, strict=True))
    )
    if values == sorted(values):
        assert risen == values
    higher = isotonic([v + m for v, m in zip(values, more + [0.0] * 8, strict=False)], weights)
    assert all(low <= high + 1e-9 for low, high in zip(risen, higher, strict=True))
