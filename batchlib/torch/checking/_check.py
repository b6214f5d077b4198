"""`check_batching`: whether a function gives an item the same result in every company."""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from ...errors import BatchContractError
from ..executor._modules import Layer, modules_of, norms_over_batch, training_layers
from ..executor._trials import Trials, trials_of
from ._causes import Cause, Causes
from ._companies import Group, Probe
from ._compare import USUAL_ATOL, Tolerance, coarsest, unlike

_SHOWN = 6  # rows in a report: all of a broken function would be pages


@dataclass(frozen=True, slots=True)
class Difference:
    """One result that depends on company.

    row: which of the samples, from 0.
    company: who was in the batch beside it.
    path: where in the result; "" for a result that is one value.
    amount: the largest absolute difference; infinite where it is not one of numbers.
    what: the same in words.

    >>> from batchlib.torch import check_batching
    >>> def rank(values):
    ...     return [float(sorted(values).index(value)) for value in values]
    >>> print(check_batching(rank, [7, 5]).differences[0])
    sample 0, in one batch with others: differs by up to 1
    """

    row: int
    company: str
    path: str
    amount: float
    what: str

    def __str__(self) -> str:
        return f"sample {self.row}, {self.company}: {f'{self.path} ' if self.path else ''}{self.what}"


@dataclass(frozen=True, slots=True)
class Check:
    """What `check_batching` has found; true if every result was the same in all companies.

    function: its name.
    samples, runs: how many there were, and how often the function was run.
    rtol, atol: what counted as equal.
    differences: every result that was another; at most one for each place and company.
    causes: what they are likely to come from, the first to be seen to first.
    unshared: samples with which no other could share a batch, since nothing else was of their shape or group.

    >>> from batchlib.torch import check_batching
    >>> check = check_batching(lambda values: [2 * value for value in values], [1, 2, 3])
    >>> print(check)
    <lambda>: no result depends on company (3 samples, 12 runs, rtol=0.0001, atol=1e-05)
    >>> check.raise_if_different()
    """

    function: str
    samples: int
    runs: int
    rtol: float
    atol: float
    differences: tuple[Difference, ...]
    causes: tuple[Cause, ...]
    unshared: tuple[int, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether no result depended on company."""
        return not self.differences

    def __bool__(self) -> bool:
        return self.ok

    def raise_if_different(self) -> None:
        """Raises BatchContractError, with the report, unless it is ok."""
        if not self.ok:
            raise BatchContractError(str(self))

    def __str__(self) -> str:
        count = len({each.row for each in self.differences})
        found = f"{count} of {self.samples} results depend on company" if count else "no result depends on company"
        lines = [
            f"{self.function}: {found} ({self.samples} samples, {self.runs} runs, "
            f"rtol={self.rtol:.3g}, atol={self.atol:.3g})"
        ]
        worst: dict[int, Difference] = {}
        for each in self.differences:
            if each.row not in worst or each.amount > worst[each.row].amount:
                worst[each.row] = each
        lines += [f"  {difference}" for _, difference in sorted(worst.items())[:_SHOWN]]
        if len(worst) > _SHOWN:
            lines.append(f"  and {len(worst) - _SHOWN} more in `differences`")
        if self.unshared:
            rows = ", ".join(map(str, self.unshared))
            lines.append(f"  not looked at, since no other sample can share a batch with them: {rows}")
        lines += [str(cause) for cause in self.causes]
        return "\n".join(lines)


def check_batching(
    function: Callable[..., Any],
    samples: Sequence[Any],
    *,
    collate: Any = None,
    settings: Mapping[str, Any] | None = None,
    rtol: float | None = None,
    atol: float | None = None,
) -> Check:
    """Runs samples alone and in changing company, and reports the results that depend on it, with the likely cause.

    Each sample runs twice alone, then beside all others in three orders, beside others of its own length, and beside a
    longer one. A sample that fails in every batch is an error, which is raised.

    function: a batched one, which is run in its own executor, with its own collation; its queue and policies are passed
        by. Or a plain one.
    samples: items, of different lengths if it pads or packs; tuples of items for several batched parameters. At least
        two that can share a batch, or one that can be shortened. ValueError otherwise.
    collate: for a plain function: what `batched` would be given. For a batched one: instead of its own. None for lists.
    settings: keyword-only arguments of the calls.
    rtol, atol: results are equal if they are not further apart than `atol + rtol * |alone|`. Without either: 1e-4 and
        1e-5, and where results, items or parameters of the model are in a coarse format, four times its rounding.
        Without atol results that are usually below 0.01 have a thousandth of their usual size instead of 1e-5.

    Batch norm in training mode learns from every run: what it has learned here is forgotten again.

    >>> import torch
    >>> from batchlib.torch import check_batching, pad
    >>> def mean(values, lengths):
    ...     return values.sum(1) / lengths
    >>> def careless_mean(values, lengths):
    ...     return values.mean(1)
    >>> samples = [torch.ones(3), torch.ones(5), torch.ones(9)]
    >>> check_batching(mean, samples, collate=pad()).ok
    True
    >>> [cause.name for cause in check_batching(careless_mean, samples, collate=pad()).causes]
    ['padding']
    """
    trials = trials_of(function, collate, settings or {})
    if trials.max_batch_size < 2:
        raise ValueError("check_batching needs at least two samples in a batch, and max_batch_size is 1: raise it")
    requests = [trials.request(sample) for sample in samples]
    with trials.at_work(), _unlearned(training_layers(modules_of(trials.function, requests))):
        probes = [Probe(index, request, trials.run(request)[0]) for index, request in enumerate(requests)]
        modules = modules_of(trials.function, requests)  # once more: the first run may have loaded some
        layers = training_layers(modules)
        tolerance = Tolerance(
            rtol=1e-4 if rtol is None else rtol,
            atol=atol,
            eps=_eps(trials, modules, probes),
            widened=rtol is None and atol is None,
        )
        for probe in probes:
            probe.again = unlike(probe.alone, trials.run(probe.request)[0], tolerance)
        groups = [Group(trials, each) for each in _by_group(probes)]
        for group in groups:
            for company in group.companies():
                company.run(trials, tolerance)
        _refuse_failures(probes, trials.raised)
        watched = {probe.sample for group in groups for probe in group.all if probe.seen}
        if not watched:
            raise ValueError(
                "check_batching needs at least two samples that can share a batch, or one that can be shortened: no "
                "two of these are of one shape and group"
            )
        causes = Causes(trials, layers, norms_over_batch(modules), tolerance).of(groups)
    return Check(
        function=trials.name,
        samples=len(probes),
        runs=trials.runs,
        rtol=tolerance.relative,
        atol=USUAL_ATOL if atol is None else atol,
        differences=tuple(_differences(groups)),
        causes=tuple(causes),
        unshared=tuple(sorted(set(range(len(probes))) - watched)),
    )


def _by_group(probes: Sequence[Probe]) -> list[list[Probe]]:
    groups: dict[Hashable, list[Probe]] = {}
    for probe in probes:
        groups.setdefault(probe.request.group, []).append(probe)
    return list(groups.values())


def _eps(trials: Trials, modules: Sequence[torch.nn.Module], probes: Sequence[Probe]) -> float:
    """The rounding of the coarsest number format that the function can be seen to compute in."""
    parameters = [parameter for module in modules for parameter in module.parameters()]
    formats = {parameter.dtype for parameter in parameters if parameter.is_floating_point()}
    found = [torch.finfo(dtype).eps for dtype in formats]
    found += [coarsest(value) for probe in probes for value in (probe.alone, *probe.request.args)]
    if trials.autocast is not None:
        found.append(torch.finfo(trials.autocast).eps)
    if any(parameter.device.type != "cpu" for parameter in parameters):
        found.append(2**-10)  # TF32, in which accelerators may multiply what is float32
    return max(found, default=0.0)


@contextmanager
def _unlearned(layers: Sequence[Layer]) -> Generator[None]:
    """Puts running statistics back to what they were: a check must not leave its samples in a model."""
    buffers = [buffer for layer in layers for buffer in layer.module.buffers(recurse=False)]
    before = [buffer.detach().clone() for buffer in buffers]
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, value in zip(buffers, before, strict=True):
                buffer.copy_(value)


def _refuse_failures(probes: Sequence[Probe], raised: Sequence[Exception]) -> None:
    """Raises the error of a sample with which every batch fails: nothing is learned of batching from it."""
    for probe in probes:
        outcomes = [probe.alone, *[seen.outcome for seen in probe.seen]]
        if all([any(outcome is error for error in raised) for outcome in outcomes]):
            probe.alone.add_note(f"check_batching: sample {probe.sample} fails alone and in every company")
            raise probe.alone


def _differences(groups: Sequence[Group]) -> Iterator[Difference]:
    for group in groups:
        for probe in group.all:
            for place in probe.again:
                yield Difference(probe.sample, "alone, a second time", place.path, place.amount, place.what)
            for seen in probe.seen:
                said = f"{probe.made}, {seen.company.said}" if probe.made else seen.company.said
                for place in seen.unlike:
                    yield Difference(probe.sample, said, place.path, place.amount, place.what)
