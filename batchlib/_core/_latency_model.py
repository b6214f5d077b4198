"""How long a batch takes, learned from those that ran.

Policies that promise something about deadlines have to know how long a batch of a given size will run, and a guess that
is too short costs far more than one that is too long. So this is a high quantile and not a mean, and nothing that a few
slow batches could bend: medians of what each shape took, a robust line for shapes not seen, and the 90th percentile of
how far real batches are from both. It is told durations and reads no clock.

Shapes are kept in buckets by size and by class of the longest cost (classes are half an octave wide; sizes above 64 are
kept to six bits). A value between two class centres is interpolated, so on noise-free affine data every prediction is
exact. Everything is bounded: buckets, samples in a bucket, and what is remembered between two fits.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ._latency_fit import Line, Point, fit, isotonic

_BUCKETS = 256  # the shapes used least recently are forgotten
_WINDOW = 16  # samples in a bucket
_ENOUGH = 5  # samples before a bucket's own median counts: of fewer, too often half are stragglers
_POOL = 256  # recent samples of all shapes, for the spread
_QUANTILE = 0.9
_SEED = 128  # the spread of fewer samples is filled up with 1: a few slow batches at the start say nothing yet
_REFIT = 32  # samples between two fits at the most; early on, an eighth of the samples so far
_RUN, _SHIFT = 5, 1.5  # so many batches in a row off by more than this factor are a change of pace,
_PAIR, _FAR = 2, 2.5  # and so many that are quicker by more than this
_SETTLED = 16  # samples before a change of pace can be told from learning
_TRIALS = 64  # first calls remembered while nothing better is known
_SHORTEST, _LONGEST = 1e-9, 1e9  # seconds; what lies outside is no measurement
_REMEMBERED = 16_384  # predictions kept between two fits
_LOWEST, _HIGHEST = -40, 80  # length classes; costs beyond them count as these
_CENTRES: list[float] = [2.0 ** (number / 2) for number in range(_LOWEST, _HIGHEST + 1)]


@dataclass(frozen=True, slots=True)
class LatencyEstimate:
    """What a batcher has learned about how long its batches take, in seconds.

    The line `base + per_item x size + per_cost x size x longest cost` is what it assumes for shapes that it has not
    measured. All coefficients are 0 while nothing is known.

    samples: batches learned from so far. The first of each new shape is not among them: it compiles and tunes.
    largest: the largest batch size measured; 0 if none.
    base: the part that every batch takes, whatever is in it.
    per_item: what each further request adds.
    per_cost: what each unit of padded cost (size x longest cost) adds; 0 while all costs are alike.
    spread: the 90th percentile of real over typical time. Predictions are the typical time, times this.
    """

    samples: int
    largest: int
    base: float
    per_item: float
    per_cost: float
    spread: float


@dataclass(slots=True)
class _Sample:
    size: int
    longest: float
    seconds: float  # at the present pace


class _Bucket:
    """The last batches of one shape. `typical` is a real one, the middle by time over expectation, so that on
    noise-free data a line through such samples is exact even where the shapes in a bucket differ a little."""

    __slots__ = ("samples", "typical")

    def __init__(self) -> None:
        self.samples: deque[_Sample] = deque(maxlen=_WINDOW)
        self.typical: _Sample | None = None

    def middle(self, line: Line) -> _Sample:
        if self.typical is None:
            ordered = sorted(self.samples, key=lambda each: each.seconds / (line.at(each.size, each.longest) or 1.0))
            self.typical = ordered[(len(ordered) - 1) // 2]  # of two the quicker: the other may be a straggler
        return self.typical


class LatencyModel:
    """Operations: observe O(1), predict O(1) amortised, about 0.2 µs when asked before; a fit O(buckets), after at most
    32 samples and only when it is needed. Nothing raises, whatever it is told."""

    def __init__(self) -> None:
        self.last_sample = -math.inf
        self.samples = 0
        self.largest = 0
        self._sizes: dict[int, int] = {}  # samples kept, by size
        self._buckets: dict[tuple[int, int], _Bucket] = {}  # by size and length class; least recently used first
        self._pool: deque[_Sample] = deque(maxlen=_POOL)
        self._trials: deque[_Sample] = deque(maxlen=_TRIALS)
        self._recent: deque[tuple[_Sample, float]] = deque(maxlen=_RUN)  # with their ratio of real over typical time
        self._line = Line()
        self._spread = 1.0
        self._unfitted = 0  # samples since the last fit
        self._stale = False
        # Of the present fit: for each size its (length class, time over line, weight); and the classes measured.
        self._factors: dict[int, list[tuple[int, float, int]]] = {}
        self._classes = (0, 0)
        # Remembered until the next fit.
        self._rows: dict[int, tuple[list[int], list[float]]] = {}
        self._nodes: dict[tuple[int, int], float] = {}
        self._typical: dict[tuple[int, float], float] = {}

    # ---- learning

    @property
    def sizes(self) -> Mapping[int, int]:
        """The sizes measured, and how many samples are kept of each."""
        return self._sizes

    def measured(self, size: int) -> int:
        """How many samples are kept of batches of this size."""
        return self._sizes.get(_size_class(size), 0)

    def observe(self, size: int, longest: float, execution_time: float, now: float) -> None:
        """A batch has run. `longest`: the largest cost in it; `now`: the instant at which it ended."""
        if not (size >= 1 and 0 <= longest < math.inf and _SHORTEST <= execution_time <= _LONGEST):
            return  # NaN fails as well
        sample = _Sample(size, _within_classes(longest), execution_time)
        key = _size_class(size), round(2 * math.log2(sample.longest))
        self._trials.append(sample)
        bucket = self._buckets.pop(key, None)
        if bucket is None:
            self._buckets[key] = _Bucket()  # the first call of a new shape compiles and tunes: not a sample
            if len(self._buckets) > _BUCKETS:
                self._evict()
            return
        self._buckets[key] = bucket
        self._watch(sample, key)
        if len(bucket.samples) < _WINDOW:
            self._sizes[key[0]] = self._sizes.get(key[0], 0) + 1
        bucket.samples.append(sample)
        bucket.typical = None
        self._pool.append(sample)
        self.largest = max(self.largest, key[0])
        self.last_sample = now
        self.samples += 1
        self._unfitted += 1
        self._stale = self._unfitted >= min(_REFIT, self.samples // 8)

    def _evict(self) -> None:
        """The stalest shape goes, and with the last one of a size that size."""
        key = next(iter(self._buckets))
        kept = len(self._buckets.pop(key).samples)
        if kept:
            self._sizes[key[0]] -= kept
            if not self._sizes[key[0]]:
                del self._sizes[key[0]]
            self.largest = max(self._sizes, default=0)

    def _watch(self, sample: _Sample, key: tuple[int, int]) -> None:
        """Puts all that is known to a new pace when several batches in a row say so.

        Otherwise a slow spell, and its end, would have to be learned again in each bucket. Only shapes inside the range
        measured count: outside it the line may simply be wrong. In a row, because stragglers come one by one: four
        among seven are common enough to bring a false alarm every few thousand batches, five in a row are not. No
        straggler is much too quick, so for that two are enough: after a slow spell each may be a rare probe.
        """
        if self._stale:
            self._fit()
        low, high = self._classes
        if self.samples < _SETTLED or key[0] > self.largest or not low <= key[1] <= high:
            return
        self._recent.append((sample, sample.seconds / self._at(sample.size, sample.longest)))
        new = list(self._recent)
        if len(new) < _PAIR or any(ratio * _FAR >= 1 for _, ratio in new[-_PAIR:]):
            ratios = [ratio for _, ratio in new]
            if len(new) < _RUN or (min(ratios) <= _SHIFT and max(ratios) * _SHIFT >= 1):
                return
        else:
            new = new[-_PAIR:]
        pace = sorted(ratio for _, ratio in new)[len(new) // 2]
        known = {id(each): each for each in self._everything()}
        for each, _ in new:
            known.pop(id(each), None)  # these were measured at the new pace
        for each in known.values():
            each.seconds *= pace
        self._recent.clear()
        self._fit()

    def _everything(self) -> Iterator[_Sample]:
        for bucket in self._buckets.values():
            yield from bucket.samples
        yield from self._pool
        yield from self._trials

    # ---- fitting

    def _fit(self) -> None:
        self._stale = False
        self._unfitted = 0
        measured = [(key, bucket, bucket.middle(self._line)) for key, bucket in self._buckets.items() if bucket.samples]
        if not measured:
            return  # all have been evicted: what was known is the best guess
        self._rows.clear()
        self._nodes.clear()
        self._typical.clear()
        self._line = line = fit(
            [Point(typical.size, typical.longest, typical.seconds, len(b.samples)) for _, b, typical in measured]
        )
        self._factors = {}
        for (size, length), bucket, typical in sorted(measured, key=lambda each: each[0]):
            if len(bucket.samples) >= _ENOUGH:
                factor = typical.seconds / line.at(typical.size, typical.longest)
                self._factors.setdefault(size, []).append((length, factor, len(bucket.samples)))
        lengths = [length for (_, length), _, _ in measured]
        self._classes = min(lengths), max(lengths)
        self._spread = self._percentile()

    def _percentile(self) -> float:
        """Pooled over all shapes: in one bucket's few samples a share of 5 % stragglers is at times more than a tenth,
        and would make that size look several times as slow as it is. For the same reason it is taken one standard error
        below the rank of the quantile."""
        ratios = [sample.seconds / self._at(sample.size, sample.longest) for sample in self._pool]
        ratios += [1.0] * (_SEED - len(ratios))
        count = len(ratios)
        error = math.sqrt(count * _QUANTILE * (1 - _QUANTILE))
        return sorted(ratios)[math.ceil(_QUANTILE * count - error) - 1]

    # ---- predicting

    def predict(self, size: int, longest: float = 1) -> float:
        """The 90th percentile of the execution time, in seconds; 0 while nothing is known.

        Never falls as `size` or `longest` grows.
        """
        if self._stale:
            self._fit()
        typical = self._typical.get((size, longest))
        return (self._at(size, longest) if typical is None else typical) * self._spread

    def bound(self, size: int, longest: float = 1) -> float:
        """What is known while too few sizes are measured for `predict`: no batch should take longer, for its size and
        its length, than the quickest so far, first calls included. 0 while nothing has run."""
        cost = _within_classes(longest)
        trials = [t.seconds * max(1.0, size / t.size) * max(1.0, cost / t.longest) for t in self._trials]
        return min(trials, default=0.0)

    def estimate(self) -> LatencyEstimate:
        """For `statistics()`."""
        if self._stale:
            self._fit()
        return LatencyEstimate(self.samples, self.largest, *self._line, self._spread)

    def _at(self, size: int, longest: float) -> float:
        """The typical time by the last fit: between the two nearest class centres."""
        known = self._typical.get((size, longest))
        if known is not None:
            return known
        cost = _within_classes(longest)
        below = min(math.floor(2 * math.log2(cost)), _HIGHEST - 1)
        start, end = _CENTRES[below - _LOWEST], _CENTRES[below - _LOWEST + 1]
        value = self._node(below, size)
        if cost > start:
            above = self._node(below + 1, size)
            value = min(above, value + (cost - start) / (end - start) * (above - value))
        if len(self._typical) >= _REMEMBERED:
            self._typical.clear()
            self._nodes.clear()
        self._typical[size, longest] = value
        return value

    def _node(self, length: int, size: int) -> float:
        """The typical time at the centre of a length class.

        A size without enough samples takes the line's value, held between those of its neighbours that have. Classes
        are made monotone by the largest so far; outside the classes measured they are monotone as they are.
        """
        known = self._nodes.get((length, size))
        if known is not None:
            return known
        sizes, values = self._rows.get(length) or self._row(length)
        place = bisect_left(sizes, size)
        if place < len(sizes) and sizes[place] == size:
            value = values[place]
        else:
            value = self._line.at(size, _CENTRES[length - _LOWEST])
            if place < len(sizes):
                value = min(value, values[place])
            if place:
                value = max(value, values[place - 1])
        first, last = self._classes
        if length > first:
            value = max(value, self._node(min(length - 1, last), size))
        self._nodes[length, size] = value
        return value

    def _row(self, length: int) -> tuple[list[int], list[float]]:
        """For each size with enough samples its time at this class, rising; a class without takes its nearest's."""
        values, weights = [], []
        for size, factors in self._factors.items():
            _, factor, weight = min(factors, key=lambda each: abs(each[0] - length))
            values.append(factor * self._line.at(size, _CENTRES[length - _LOWEST]))
            weights.append(weight)
        row = self._rows[length] = list(self._factors), isotonic(values, weights)
        return row


def _size_class(size: int) -> int:
    """Exact up to 64; above, the first six bits: otherwise batches without a limit would hardly ever repeat a shape."""
    shift = max(0, size.bit_length() - 6)
    return size >> shift << shift


def _within_classes(longest: float) -> float:
    return min(max(_CENTRES[0], longest), _CENTRES[-1])  # NaN becomes the least
