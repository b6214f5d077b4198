"""In whose company a sample is run, so that its result can tell what it depends on."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch

from ..._core._request import Request
from ..collation._structure import flatten
from ..executor._trials import Trials, replaced
from ._compare import Tolerance, Unlike, unlike

Kind = Literal["all", "own length", "longer"]

_NEIGHBOURS = 2  # one before and one behind: packed attention that looks back reads only what stands before
_SHORTENED = 3  # samples of one length only: so many are shortened


@dataclass(eq=False, slots=True)
class Probe:
    """A sample, perhaps brought to another length, and what came of it."""

    sample: int
    request: Request
    alone: Any
    made: str = ""
    """How it was brought to its length."""
    again: list[Unlike] = field(default_factory=list)
    """Where its result differed when it ran alone a second time."""
    seen: list[Seen] = field(default_factory=list)

    def differing(self, *kinds: Kind) -> list[Seen]:
        """The companies in which its result was another."""
        return [seen for seen in self.seen if seen.unlike and (not kinds or seen.company.kind in kinds)]


@dataclass(eq=False, slots=True)
class Company:
    """One batch: what is in it, and whose results are looked at."""

    kind: Kind
    said: str
    requests: Sequence[Request]
    watched: Sequence[tuple[int, Probe]]
    """The place of each in the batch."""

    def run(self, trials: Trials, tolerance: Tolerance) -> None:
        outcomes = trials.run(*self.requests)
        for place, probe in self.watched:
            probe.seen.append(Seen(self, place, outcomes, unlike(probe.alone, outcomes[place], tolerance)))


@dataclass(eq=False, slots=True)
class Seen:
    """What a probe got in a company."""

    company: Company
    place: int
    outcomes: Sequence[Any]
    unlike: list[Unlike]

    @property
    def outcome(self) -> Any:
        return self.outcomes[self.place]


class Group:
    """Samples that may share a batch."""

    def __init__(self, trials: Trials, probes: list[Probe]) -> None:
        self._trials = trials
        self._collator = trials.collator if hasattr(trials.collator, "stretched") else None
        self._most = trials.max_batch_size
        self.probes = probes
        self.made: list[Probe] = []
        self.longest = max(probes, key=lambda probe: self.length(probe.request)).request

    @property
    def all(self) -> list[Probe]:
        return self.probes + self.made

    def length(self, request: Request) -> int:
        """How long its row is; 0 where that is not known."""
        return self._collator.row_length(request.args) if self._collator is not None else 0

    def stretched(self, request: Request, length: int) -> Request:
        assert self._collator is not None
        return replaced(request, self._collator.stretched(request.args, length))

    def companies(self) -> Iterator[Company]:
        yield from self._all_together()
        for probe in self.probes:
            yield from self._of_its_own_length(probe)
        yield from self._longer()

    def without_others(self, probe: Probe, company: Company) -> list[Request] | None:
        """A batch of the same shape with nothing of the others: the sample, as long as they are. None if not known."""
        if self._collator is not None and len(probe.request.args) == 1:
            return [
                each if each is probe.request else self.stretched(probe.request, self.length(each))
                for each in company.requests
            ]
        size = measured(probe.request)
        alike = size is not None and all(measured(each) == size for each in company.requests)
        return [probe.request] * len(company.requests) if alike else None

    def _all_together(self) -> Iterator[Company]:
        count = len(self.probes)
        orders = {tuple(range(count)): "in one batch with others", tuple(reversed(range(count))): "in reverse order"}
        orders.setdefault(tuple(random.Random(0).sample(range(count), count)), "in another order")
        for order, said in orders.items():
            batches = -(-count // self._most)
            for batch in range(batches):
                members = [self.probes[index] for index in order[batch::batches]]
                if len(members) > 1:
                    yield Company("all", said, [each.request for each in members], list(enumerate(members)))

    def _of_its_own_length(self, probe: Probe) -> Iterator[Company]:
        """Nothing is padded here, so only the neighbours themselves can change a result."""
        others = [other for other in self.probes if other is not probe]
        others = others[probe.sample % len(others) :] + others[: probe.sample % len(others)] if others else []
        if self._collator is None:
            size = measured(probe.request)
            neighbours = [other.request for other in others if size is not None and measured(other.request) == size]
        else:
            length = self.length(probe.request)
            if len(probe.request.args) > 1 and others:  # several parameters have no one length between them
                length = max(1, length // len(probe.request.args))
                probe = self._brought_to(probe, length)
            neighbours = [self.stretched(other.request, length) for other in others]
        if neighbours:
            before, *behind = neighbours[: min(_NEIGHBOURS, self._most - 1)]
            yield Company("own length", "beside others of its length", [before, probe.request, *behind], [(1, probe)])

    def _longer(self) -> Iterator[Company]:
        """A row that nobody has asked to be longer than a sample is: a model may have no more positions."""
        if self._collator is None:
            return
        longest, most = self.longest, max([self.length(self.longest), *self._collator.lengths_of_buckets])
        if most > self.length(longest):
            longest = self.stretched(longest, most)
        shorter = [probe for probe in self.probes if self.length(probe.request) < most]
        if not shorter and most > 1:
            length = -(-most // (2 * len(longest.args)))
            shorter = [self._brought_to(probe, length) for probe in self.probes[:_SHORTENED]]
            shorter = [probe for probe in shorter if not isinstance(probe.alone, Exception)]  # too short for the model
        for probe in shorter:
            yield Company("longer", "behind a longer one", [longest, probe.request], [(1, probe)])

    def _brought_to(self, probe: Probe, length: int) -> Probe:
        request = self.stretched(probe.request, length)
        made = Probe(probe.sample, request, self._trials.run(request)[0], f"made {length} long")
        self.made.append(made)
        return made


def measured(request: Request) -> tuple[Any, ...] | None:
    """The lengths of what a function gets as it is: requests of equal ones need no padding. None if not known."""
    sizes: list[Any] = []
    for arg in request.args:
        for leaf in flatten(arg)[0]:
            if isinstance(leaf, torch.Tensor | np.ndarray):
                sizes.append(tuple(leaf.shape))
            elif isinstance(leaf, list | tuple):
                sizes.append(len(leaf))
            elif leaf is None or isinstance(leaf, bool | int | float | complex | np.generic):
                sizes.append(())
            else:  # a text has a length, and its tokens another
                return None
    return tuple(sizes)
