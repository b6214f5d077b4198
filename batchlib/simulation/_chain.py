"""One executor, Poisson arrivals, batches in 'base + per_item * size' seconds: solved as a Markov decision process.

The state is how many wait whenever the executor is free. What is decided there is how many to serve, or 0 to wait for
one arrival more (which, since arrivals have no memory, is as good as waiting for any other time). The long-run mean of
the number in the system follows from the policy's linear equations; Little's law makes it the mean latency.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Policy = NDArray[np.int_]  # how many to serve in each state

_PRECISION = 1e-9  # relative; twice as many states must change the answer by less
_MOST_STATES = 4096  # a linear system of twice the size would take half a minute and a gigabyte


def mean_latency(rate: float, base: float, per_item: float, max_batch_size: int | None, *, optimal: bool) -> float:
    """Of greedy service, or with `optimal` of the best policy there is; with enough states to be exact."""
    states, before = 32 + 4 * (max_batch_size or 8), math.nan
    while states <= _MOST_STATES:
        now = Chain(rate, base, per_item, max_batch_size or states, states).mean_latency(optimal)
        if abs(now - before) <= _PRECISION * now:
            return now
        states, before = 2 * states, now
    raise ValueError(
        f"a rate of {rate:g} is too close to the capacity, or max_batch_size={max_batch_size} too large, for an exact "
        f"solution with {_MOST_STATES} states"
    )


class Chain:
    """The process with at most `states` waiting: further arrivals are lost, so there must be enough states.

    Operations: value O(states³), improve O(states² * max_batch_size).
    """

    def __init__(self, rate: float, base: float, per_item: float, max_batch_size: int, states: int) -> None:
        self.rate = rate
        self.states = states
        self.sizes = range(1, max_batch_size + 1)
        self.seconds = [base + per_item * size for size in self.sizes]
        self.arrivals = [
            _poisson(rate * seconds, states) for seconds in self.seconds
        ]  # while a batch of each size runs
        self.waiting = np.arange(states + 1)
        self.greedy: Policy = np.minimum(self.waiting, max_batch_size)

    def mean_latency(self, optimal: bool) -> float:
        policy = self.greedy
        mean, value = self.value(policy)
        while optimal:  # policy iteration: each turn is better, and there are finitely many policies
            better = self.improve(policy, mean, value)
            if np.array_equal(better, policy):
                break
            policy = better
            mean, value = self.value(policy)
        return mean / self.rate

    def value(self, policy: Policy) -> tuple[float, Floats]:
        """The mean number in the system, and what it costs in the long run to start in each state, relative to 0."""
        equations = np.eye(self.states + 1)
        cost = np.empty(self.states + 1)
        for state, size in enumerate(policy.tolist()):
            if size:
                equations[state] -= self._after(state - size, size)
                cost[state], time = self._cost(state, size)
            else:
                equations[state, min(state + 1, self.states)] -= 1
                cost[state], time = state / self.rate, 1 / self.rate
            equations[state, 0] = time  # the value of 0 is 0, so its column is free for the unknown mean
        solution: Floats = np.linalg.solve(equations, cost).astype(np.float64, copy=False)
        mean = float(solution[0])
        solution[0] = 0
        return mean, solution

    def improve(self, policy: Policy, mean: float, value: Floats) -> Policy:
        """The best decision in each state if the values stay what they are; the old one unless another is better."""
        further = np.append(value[1:], value[-1])
        best: Floats = (self.waiting - mean) / self.rate + further  # waiting for one more
        chosen: Policy = np.zeros_like(policy)
        kept = np.where(policy == 0, best, math.inf)
        for size in self.sizes:
            left = self.waiting[: self.states + 1 - size]
            expected = np.convolve(self.arrivals[size - 1][::-1], np.append(value, np.full(self.states, value[-1])))
            served = np.full(self.states + 1, math.inf)
            cost, time = self._cost(self.waiting[size:], size)
            served[size:] = cost - mean * time + expected[self.states + left]
            kept = np.where(policy == size, served, kept)
            chosen = np.where(served < best, size, chosen)
            best = np.minimum(best, served)
        return np.where(best < kept - 1e-9 * np.abs(kept), chosen, policy)

    def _cost(self, state: Any, size: int) -> tuple[Any, float]:
        """The number in the system added up over a batch's time, and that time. Arrivals come evenly spread over it.

        state: one or an array of them, which is what the first of the two becomes then.
        """
        seconds = self.seconds[size - 1]
        return state * seconds + self.rate * seconds**2 / 2, seconds

    def _after(self, left: int, size: int) -> Floats:
        """Probabilities of the state after a batch; what is beyond the last state counts as the last."""
        row = np.zeros(self.states + 1)
        row[left:] = self.arrivals[size - 1][: self.states + 1 - left]
        row[-1] += max(0.0, 1 - row.sum())
        return row


def _poisson(mean: float, most: int) -> Floats:
    """Probabilities of 0, 1, ..., most."""
    counts = np.arange(most + 1)
    logs = np.concatenate(([0.0], np.cumsum(np.log(counts[1:]))))
    probabilities: Floats = np.exp(counts * math.log(mean) - mean - logs)
    return probabilities
