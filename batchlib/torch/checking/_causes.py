"""What makes results depend on company: from what differed, and a few runs more, to a likely cause."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ...errors import BatchContractError
from ..collation._pack import pack
from ..executor._modules import Layer
from ..executor._trials import Trials
from ._companies import Group, Probe, Seen
from ._compare import Tolerance, Unlike, unlike
from ._refilled import Refilled

Name = Literal[
    "chance",
    "training mode",
    "failure",
    "order",
    "uncut",
    "padding",
    "positions",
    "packing",
    "statistics",
    "padding or statistics",
    "rounding",
]

_LOOKED_INTO = 4  # probes that differ: the causes of one function show in a few of them
_TRIES = 16
_GRAINS = 256  # times the rounding of one number, and never more than an eighth of it: so little is nothing else
_ROUNDING = 100  # times the tolerance, with the same bound: may be rounding, if copies of the sample differ as well


@dataclass(frozen=True, slots=True)
class Cause:
    """A likely cause of results that depend on company.

    name: one of a few words, for programs.
    evidence: what was seen that speaks for it.
    remedy: what to do.

    >>> from batchlib.torch import check_batching
    >>> def rest(values):
    ...     return [value - sum(values) / len(values) for value in values]
    >>> check_batching(rest, [1.0, 2.0, 4.0]).causes[0].name
    'statistics'
    """

    name: Name
    evidence: str
    remedy: str

    def __str__(self) -> str:
        return f"likely cause: {self.name}. {self.evidence}\n  {self.remedy}"


class Causes:
    """Looks into the differences of a function.

    layers: those of its modules that are in training mode and act otherwise than in evaluation.
    norms: those that take statistics over the batch even in evaluation.
    """

    def __init__(self, trials: Trials, layers: Sequence[Layer], norms: Sequence[Layer], tolerance: Tolerance) -> None:
        self._trials = trials
        self._layers = layers
        self._norms = norms
        self._tolerance = tolerance
        self._pads = bool(getattr(trials.collation, "pads", False))
        self._packs = isinstance(trials.collation, pack)
        self._left = getattr(trials.collation, "side", "right") == "left"
        self._dim = getattr(trials.collation, "dim", 0)
        self._grains = min(_GRAINS, 0.125 / max(tolerance.eps, 1e-9))
        self._rounding = min(_ROUNDING, 0.125 / max(tolerance.relative, 1e-9))

    def of(self, groups: Sequence[Group]) -> list[Cause]:
        found: dict[str, Cause] = {}
        for group in groups:
            for cause in self._of_group(group):
                found.setdefault(cause.name, cause)
        if self._packs and "packing" in found:
            found.pop("positions", None)  # neighbours of equal sums look as if what they hold did not count
        return list(found.values())

    def _of_group(self, group: Group) -> Iterator[Cause]:
        differing = [probe for probe in group.all if probe.again or probe.differing()]
        differing.sort(key=lambda probe: group.length(probe.request))
        # What the mere presence of neighbours changes has to be mended first: it hides what their length changes.
        probes = [probe for probe in differing if probe.differing("own length")] or differing
        probes = probes[:_LOOKED_INTO]
        if any(probe.again for probe in differing) or any(self._is_unsteady(probe) for probe in probes):
            yield self._chance()  # what else there is cannot be told apart from it
        else:
            yield from [self._of_probe(group, probe) for probe in probes]

    def _of_probe(self, group: Group, probe: Probe) -> Cause:
        failed = [seen for seen in probe.differing() if seen.unlike[0].kind == "error"]
        if failed:
            return self._failure(group, probe, failed[0])
        if any(_permuted(seen, self._tolerance) for seen in probe.differing("all")):
            return _ORDER
        if all(place.kind in ("shape", "type") for seen in probe.differing() for place in seen.unlike):
            return _uncut(probe)
        small = all(place.grains <= self._grains for seen in probe.differing() for place in seen.unlike)
        if small and not self._by_content(group, probe):
            return _rounding(max(probe.differing(), key=_over), "What differs is of the size of rounding")
        if probe.differing("own length"):
            return self._of_neighbours(probe)
        return self._of_length(group, probe)

    def _like(self, one: Any, another: Any) -> bool:
        return not unlike(one, another, self._tolerance)

    def _is_unsteady(self, probe: Probe) -> bool:
        """Whether the same run gives something else now: chance that did not show at first."""
        worst = max(probe.differing(), key=_over)
        if not self._like(worst.outcome, self._trials.run(*worst.company.requests)[worst.place]):
            return True
        drawing = any(layer.effect != "statistics" for layer in self._layers)
        tries = _TRIES if drawing else 1  # where dropout may be at work it must not be missed by luck
        return any(not self._like(probe.alone, self._trials.run(probe.request)[0]) for _ in range(tries))

    def _chance(self) -> Cause:
        return self._training("chance", "other") or _CHANCE

    def _training(self, *effects: str) -> Cause | None:
        """Where a layer in training mode has one of these effects."""
        if not any(layer.effect in effects for layer in self._layers):
            return None
        certain = [layer for layer in self._layers if layer.effect != "other"] or self._layers
        return Cause(
            "training mode",
            f"These layers are in training mode: {_named(certain)}.",
            "Call `.eval()` on the model before it serves: batch norm then uses what it has learned, nothing is drawn.",
        )

    def _statistics(self) -> Cause:
        if not self._norms:
            return _STATISTICS
        return Cause(
            "statistics",
            f"These layers keep no running statistics, and take those of the batch in evaluation, too: "
            f"{_named(self._norms)}.",
            "Train them with `track_running_stats=True`, or take a norm over each item: layer, group or instance norm.",
        )

    def _by_content(self, group: Group, probe: Probe) -> bool:
        """Whether other values, in neighbours or padding, change it in a batch of the same shape: rounding does not."""
        seen = max(probe.differing(), key=_over)
        if self._by_neighbours(group, probe, seen):
            return True
        return self._pads and bool(probe.differing("longer")) and self._padding_counts(group, probe)

    def _by_neighbours(self, group: Group, probe: Probe, seen: Seen) -> bool:
        others = group.without_others(probe, seen.company)
        return others is not None and self._moved(seen.unlike, seen.outcome, self._trials.run(*others)[seen.place])

    def _moved(self, places: Sequence[Unlike], here: Any, there: Any) -> bool:
        """Whether what batches of the same shape gave is apart by a good part of the difference that is looked into."""
        amount = max([place.amount for place in places], default=math.inf)
        finer = Tolerance(0.0, amount / 4, widened=False) if amount < math.inf else self._tolerance
        return bool(unlike(here, there, finer))

    def _failure(self, group: Group, probe: Probe, seen: Seen) -> Cause:
        alone = isinstance(probe.alone, BaseException)
        training = self._training("statistics") if alone else None
        if training is not None:
            return training
        unsplit = isinstance(probe.alone if alone else seen.outcome, BatchContractError)
        if alone and not unsplit and self._by_neighbours(group, probe, seen):
            return self._statistics()  # of one item there is none
        return Cause(
            "failure",
            f"It fails for a batch of {'one' if alone else f'{len(seen.outcomes)}, and not of one'}: "
            f"{seen.unlike[0].what}.",
            _BATCH_FIRST if unsplit else _NOT_OF_ONE if alone else _NOT_OF_SEVERAL,
        )

    def _of_neighbours(self, probe: Probe) -> Cause:
        """A result that neighbours of the same length change: by what they hold, by their number, or by its place."""
        seen = max(probe.differing("own length"), key=_over)
        training = self._training("statistics")
        if training is not None:
            return training
        copies = self._trials.run(*[probe.request] * len(seen.outcomes))[seen.place]
        by_content = self._moved(seen.unlike, seen.outcome, copies)
        alike = self._like(copies, probe.alone)
        if not alike and not by_content and _over(seen) <= self._rounding:
            return _rounding(seen, "Copies of one sample differ from the sample alone as well, by little")
        if self._packs:
            return _POSITIONS_PACKED if not by_content and not alike else _PACKING
        return self._statistics()

    def _of_length(self, group: Group, probe: Probe) -> Cause:
        """A result that neighbours of its own length leave alone, where there were any."""
        if self._packs:
            return _PACKING
        if self._trials.collator is None:
            known = any(seen.company.kind == "own length" for each in group.probes for seen in each.seen)
            return _PADDING_INSIDE if known else _PADDING_OR_STATISTICS
        if not self._pads or not probe.differing("longer"):
            return self._statistics()  # nothing was padded, or padding made no difference
        if self._padding_counts(group, probe):
            return _PADDING
        return _POSITIONS_LEFT if self._left else _PADDED_LENGTH

    def _padding_counts(self, group: Group, probe: Probe) -> bool:
        """Whether a result is another when the padding beside the item holds other values: those of the item again."""
        requests = probe.request, group.longest
        filled = self._trials.run(*requests)[0]
        collator: Any = Refilled(self._trials.collator, self._left, self._dim)
        refilled = self._trials.run_collated(collator, *requests)[0]
        differing = unlike(probe.alone, filled, self._tolerance)
        return not self._like(filled, refilled) or self._moved(differing, filled, refilled)


def _named(layers: Sequence[Layer]) -> str:
    return ", ".join(map(str, layers[:3])) + (" and others" if len(layers) > 3 else "")


def _over(seen: Seen) -> float:
    return max(place.over for place in seen.unlike)


def _permuted(seen: Seen, tolerance: Tolerance) -> bool:
    """Whether those whose results differ in a batch have got each other's."""
    watched = dict(seen.company.watched)
    moved = [place for place, probe in watched.items() if unlike(probe.alone, seen.outcomes[place], tolerance)]
    owners: list[int] = []
    for place in moved:
        found = [other for other in moved if not unlike(watched[other].alone, seen.outcomes[place], tolerance)]
        owners += [other for other in found if other not in owners][:1]
    return len(owners) == len(moved)


def _rounding(seen: Seen, evidence: str) -> Cause:
    amount = max(place.amount for place in seen.unlike)
    return Cause(
        "rounding",
        f"{evidence} (up to {amount:.2g}): kernels add in another order in a batch of another shape.",
        "Compute in a finer format, or give `rtol` and `atol` that your use can bear.",
    )


def _uncut(probe: Probe) -> Cause:
    what = probe.differing()[0].unlike[0].what
    return Cause(
        "uncut",
        f"Results have another shape in company: {what}.",
        "Have results for each position cut to the item's own length: `pad(unpad=True)`, or `unpad` in the function.",
    )


_BATCH_FIRST = (
    "Keep the batch first in every tensor of the result, at every size: a `squeeze()` without a dimension takes it "
    "away, and a model's state often has its layers there, which look like rows if they are as many."
)
_NOT_OF_ONE = "It has to take a batch of one; a size taken from the batch may be meant for one item."
_NOT_OF_SEVERAL = "It has to take several items at once; a model that cannot needs a loop over them."
_CHANCE = Cause(
    "chance",
    "The same sample alone gave two results.",
    "It draws random numbers, or remembers earlier batches: draw from a generator for each item, and keep no state. "
    "Until then nobody can tell what else its results depend on.",
)
_ORDER = Cause(
    "order",
    "Items got each other's results.",
    "Give back one outcome per item in the order in which they came: undo a sort by length, say.",
)
_PADDING = Cause(
    "padding",
    "Neighbours of the same length leave the result alone, longer ones do not, and it depends on what the padding "
    "holds: padding is taken for part of the item.",
    "Hand `mask` or `lengths` on to the model, and leave padding out of every mean, maximum, convolution and last "
    "position; for a model that takes no mask use `stack()`, which never pads.",
)
_PADDED_LENGTH = Cause(
    "padding",
    "The length to which an item is padded changes the result; what the padding holds does not.",
    "Divide by `lengths` instead of the padded length, and count positions from the first.",
)
_PADDING_INSIDE = Cause(
    "padding",
    "Neighbours of other lengths change the result, those of the same length do not: the function pads, and the "
    "padding reaches it.",
    "Give the model the mask of what the function pads, or leave the padding to `collate=pad()`.",
)
_PADDING_OR_STATISTICS = Cause(
    "padding or statistics",
    "Neighbours change the result, and which of their properties does so cannot be told from these samples.",
    "If the function pads, give the model the mask; if not, look for a mean, maximum or norm over the batch dimension. "
    "With `collate=pad()` or samples of known lengths the check can tell the two apart.",
)
_POSITIONS_LEFT = Cause(
    "positions",
    "Padding on the left changes the result, whatever it holds: the positions of the item are moved.",
    "Count positions from the mask (`mask.cumsum(1) - 1`, at least 0) and give them to the model, or pad on the right.",
)
_POSITIONS_PACKED = Cause(
    "positions",
    "What neighbours hold does not change the result, but that something stands before it does.",
    "Use the `positions` that `pack()` gives, which begin at 0 for each item, instead of counting through the batch.",
)
_PACKING = Cause(
    "packing",
    "Packed neighbours change the result: the function reads across the borders of items.",
    "Keep items apart by `cumulative_lengths` or `lengths`, in attention and in pooling. A Hugging Face model does so "
    "only with an attention implementation for it, without attention mask, and with `use_cache=False`.",
)
_STATISTICS = Cause(
    "statistics",
    "Neighbours change the result, and not by their lengths.",
    "Look for a mean, maximum, norm or softmax over the batch dimension, batch norm without running statistics, or a "
    "result that depends on the size of the batch or the place in it.",
)
