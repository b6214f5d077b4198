"""First in, first out: the ordering of a batcher whose requests carry neither priority nor tenant."""

from __future__ import annotations

from dataclasses import dataclass

from ..structures._arrivals import Arrivals


@dataclass(frozen=True, slots=True)
class Fifo:
    """Serves requests in the order in which they were admitted.

    >>> from batchlib import batched
    >>> from batchlib.policies import Fifo
    >>> double = batched(lambda xs: [2 * x for x in xs], ordering=Fifo())
    >>> double.call(4)
    8
    """

    def start(self) -> FifoOrdering:
        return FifoOrdering()


class FifoOrdering:
    """Nothing is shared between groups: the order of admission is the rank."""

    def queue(self) -> Arrivals:
        return Arrivals()


FIFO = Fifo()  # what other policies nest unless they are told otherwise
