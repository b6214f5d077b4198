"""A line through what batches took that a few slow ones cannot bend, and values put into rising order.

Plain least squares is of no use for deadlines: one batch in twenty that takes five times as long moves it by a fifth.
Here errors are relative, so that short batches count as much as long ones and a huge outlier cannot outweigh the rest,
and whatever lies off the line by much more than is usual loses weight (Huber's rule, by repeated least squares).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

_ROUNDS = 8  # of repeated least squares; more change little
_HUBER = 1.345 * 1.4826  # times the median error: from there on a point loses weight
_EXACT = 1e-9  # a median error below this is rounding
_COLLINEAR = 1e-6  # of a feature's square must be left when the others are taken out of it
_TIE = 1e-12
_NOTHING = 1e-15  # of the longest time: the least that a line gives, so that whoever divides by it can

# Which coefficients may differ from 0, in order of preference where the data cannot tell: a single size says nothing
# about the slope, and a constant is what lets larger batches be tried and measured.
_SUPPORTS = ((0, 1, 2), (0, 1), (0, 2), (1, 2), (0,), (1,), (2,))


class Point(NamedTuple):
    """A batch of typical duration, and how many it stands for."""

    size: int
    longest: float
    seconds: float  # above 0
    weight: float


class Line(NamedTuple):
    """seconds = base + per_item x size + per_cost x size x longest; no coefficient is negative."""

    base: float = 0.0
    per_item: float = 0.0
    per_cost: float = 0.0

    def at(self, size: int, longest: float) -> float:
        return self.base + size * (self.per_item + self.per_cost * longest)


Row = tuple[float, float, float]  # size, padded cost, seconds: each in a unit that makes it about 1


def fit(points: Sequence[Point]) -> Line:
    """The line; it goes through all points exactly if one does. O(points) per round."""
    if not points:
        return Line()
    unit = max(point.seconds for point in points)
    item = sum(point.size for point in points) / len(points)
    cost = sum(point.size * point.longest for point in points) / len(points) or 1.0
    rows = [(point.size / item, point.size * point.longest / cost, point.seconds / unit) for point in points]
    expected = [seconds for _, _, seconds in rows]
    weights = [point.weight for point in points]
    base = per_item = per_cost = 0.0
    for _ in range(_ROUNDS):
        base, per_item, per_cost = _least_squares(rows, [w / (e * e) for w, e in zip(weights, expected, strict=True)])
        expected = [max(base + per_item * size + per_cost * padded, _EXACT) for size, padded, _ in rows]
        errors = [abs(row[2] - e) / e for row, e in zip(rows, expected, strict=True)]
        bound = _HUBER * sorted(errors)[len(errors) // 2]
        if bound < _EXACT:
            break
        weights = [
            point.weight * (1.0 if error <= bound else bound / error)
            for point, error in zip(points, errors, strict=True)
        ]
    return Line(max(base, _NOTHING) * unit, per_item * unit / item, per_cost * unit / cost)


def _least_squares(rows: Sequence[Row], weights: Sequence[float]) -> tuple[float, float, float]:
    """Coefficients of 1, size and padded cost, none negative.

    If the unbounded solution is legal it is the one; otherwise it lies where some coefficients are 0, and with three
    of them trying every such place is exact and quick.
    """
    n = s = p = y = ss = sp = pp = sy = py = yy = 0.0
    for (size, padded, seconds), weight in zip(rows, weights, strict=True):
        ws, wp, wy = weight * size, weight * padded, weight * seconds
        n, s, p, y = n + weight, s + ws, p + wp, y + wy
        ss, sp, sy = ss + ws * size, sp + ws * padded, sy + ws * seconds
        pp, py, yy = pp + wp * padded, py + wp * seconds, yy + wy * seconds
    products, targets = ((n, s, p), (s, ss, sp), (p, sp, pp)), (y, sy, py)
    best, least = [0.0, 0.0, 0.0], yy
    for support in _SUPPORTS:
        solution = _solve([[products[i][j] for j in support] + [targets[i]] for i in support])
        if solution is None or min(solution) < 0:
            continue
        error = yy - sum(value * targets[i] for i, value in zip(support, solution, strict=True))
        if error < least - _TIE * yy:
            least, best = error, [0.0, 0.0, 0.0]
            for i, value in zip(support, solution, strict=True):
                best[i] = value
        if len(support) == len(products):
            break
    return best[0], best[1], best[2]


def _solve(rows: list[list[float]]) -> list[float] | None:
    """Of a symmetric system with its right side as last column; None if the features cannot be told apart."""
    count = len(rows)
    for i in range(count):
        whole = rows[i][i]
        for j in range(i):
            share = rows[i][j] / rows[j][j]
            rows[i] = [mine - share * above for mine, above in zip(rows[i], rows[j], strict=True)]
        if rows[i][i] <= _COLLINEAR * whole:
            return None
    solution = [0.0] * count
    for i in reversed(range(count)):
        known = sum(rows[i][j] * solution[j] for j in range(i + 1, count))
        solution[i] = (rows[i][count] - known) / rows[i][i]
    return solution


def isotonic(values: Sequence[float], weights: Sequence[float]) -> list[float]:
    """The nearest values that never fall: neighbours in the wrong order share their mean. O(n).

    It keeps order between its arguments too: where no value is smaller, no result is.
    """
    pools: list[tuple[float, float, int]] = []  # mean, weight, how many
    for value, weight in zip(values, weights, strict=True):
        count = 1
        while pools and pools[-1][0] >= value:
            mean, heavy, several = pools.pop()
            value = mean if mean == value else (mean * heavy + value * weight) / (heavy + weight)
            weight, count = weight + heavy, count + several
        pools.append((value, weight, count))
    return [mean for mean, _, count in pools for _ in range(count)]
