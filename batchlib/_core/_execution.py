"""The extension points of running a batch: what runs it, and what makes a batch of items and items of a batch again.

Beside `_protocols`, which has those of deciding; both are re-exported as `batchlib.protocols`. The core itself calls
nothing of this.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

from ._request import Request

Copy = Literal["auto"] | bool
"""Whether what a caller gets is a copy: "auto" copies what could be, or keep alive, memory of others."""


class Executor(Protocol):
    """What runs a batch. `is_async` decides which of the two is called.

    `run` is called in a thread that the batcher owns, `run_async` on the event loop of the batch's callers. Both give
    one outcome per request, in order: a result, or an exception instance for that request alone. If they raise, the
    whole batch fails with it. One that raises ExecutorLost is not called again: whoever waits gets that error, and so
    does everybody who comes later. Of its batch those get it who are not in the error's `outcomes`.

    Optional: `healthy`, an attribute that is False once a part of it is gone, and `counts`, a mapping from names to
    numbers of what has happened in it, both for `statistics()`. `stop()`, called when the batcher runs nothing more,
    perhaps by a garbage collection: it must take no lock and must not wait.
    """

    is_async: bool

    def run(self, requests: Sequence[Request]) -> Sequence[Any]: ...

    async def run_async(self, requests: Sequence[Request]) -> Sequence[Any]: ...


class ExecutorFactory(Protocol):
    """How the decorated function itself is run: a description, which may be shared and pickled.

    Optional: `usual_concurrent_batches`, how many batches it wants at once unless `max_concurrent_batches=` says so.
    `idempotent`, False if the function may not run twice with the same items: `on_error="bisect"` is then refused.
    """

    def start(self, function: BatchFunction) -> Executor:
        """A new executor for one batcher; again in the child after a fork. TypeError for a function it cannot run."""
        ...


class BatchFunction(Protocol):
    """The decorated function as an executor sees it: `collate`, `call` and `uncollate` make one run of it.

    All of them may be called in any thread, `call` in the context of the batch.
    """

    name: str
    is_async: bool
    function: Any
    """The function itself, to be looked at; `call` calls it."""
    collator: Collator | None

    def collate(
        self, requests: Sequence[Request], *, rows: int | None = None, allocate: Allocate | None = None
    ) -> Collated:
        """What the function gets for these. Arguments as for `Collator.collate`."""
        ...

    def call(self, requests: Sequence[Request], collated: Collated) -> Any:
        """What the function gives for it: any object, or an awaitable of one."""
        ...

    def uncollate(self, result: Any, collated: Collated, copy: Copy = "auto") -> Sequence[Any]:
        """One outcome per request. BatchContractError for a result that cannot be split."""
        ...


class Allocate(Protocol):
    """Gives memory to collate into: an uninitialised CPU tensor of that shape and dtype (torch's)."""

    def __call__(self, shape: tuple[int, ...], dtype: Any, /) -> Any: ...


class Accepted(NamedTuple):
    """A call's items, checked."""

    args: tuple[Any, ...]
    """What is queued instead of the call's own arguments: one per batched parameter."""
    key: Hashable
    """Joins the group key: only items that can be collated with each other share a batch."""
    length: float
    """What it adds to a batch: the default of `cost=`."""


@dataclass(slots=True)
class Collated:
    """A batch as the function gets it."""

    args: tuple[Any, ...]
    """One per batched parameter."""
    extras: Mapping[str, Any]
    """What the function is given by name: lengths, a mask."""
    size: int
    """Items."""
    rows: int
    """Items and fillers, which are copies of the first item."""
    bucket: Hashable = None
    """What, beside `rows`, the shapes depend on: batches of equal buckets and rows take the same memory and kernels."""
    note: Any = None
    """The collator's own, for `uncollate`."""


class Collation(Protocol):
    """What `collate=` may be instead of a function of a list: a description of how items become a batch and back.

    names: what it can give the function by name, where the function has a parameter of that name. Those are neither
        batched nor settings.
    pads: whether a batch is computed as its size times its longest item. `max_batch_cost` then limits that product,
        and items of near lengths share a batch.
    usual_batch_cost: what `max_batch_cost="auto"` stands for; None where its items have no length.
    """

    @property
    def names(self) -> Sequence[str]: ...

    @property
    def pads(self) -> bool: ...

    @property
    def usual_batch_cost(self) -> float | None: ...

    def start(self, taken: Collection[str], function: str) -> Collator:
        """For one function. taken: those of `names` that it has. TypeError, naming it, if it cannot do with these."""
        ...


class Collator(Protocol):
    """A Collation for one function. Keeps nothing of a batch; its methods are called in any thread.

    Optional: `expect(parameters)`, called at decoration where the number of batched parameters is fixed, raises what
    would otherwise fail every call.
    """

    def accept(self, args: tuple[Any, ...]) -> Accepted:
        """Checks the items of one call, in its caller: what it raises is that caller's alone.

        ItemTooLarge for items that no batch can hold: the call is then refused as one over `max_batch_cost` is, which
        is counted and told to hooks.
        """
        ...

    def collate(
        self, columns: Sequence[list[Any]], *, rows: int | None = None, allocate: Allocate | None = None
    ) -> Collated:
        """One batch.

        columns: a list of accepted items for each batched parameter; all of one key.
        rows: make so many rows, by copies of the first item behind the others; None for as many as there are items.
        allocate: memory for the tensors; None for new ones (and for arrays where the items are arrays).
        """
        ...

    def uncollate(self, result: Any, collated: Collated, copy: Copy) -> Sequence[Any]:
        """One outcome per item. BatchContractError, naming the place inside the result, if it cannot be split."""
        ...
