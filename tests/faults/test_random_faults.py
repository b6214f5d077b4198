"""Everything at once and at random: whatever happens, each request ends exactly once, and the books add up.

Threads, asyncio loops and a trio run share one batched object. They submit, leave, let deadlines pass, raise and change
the limits; at some moment somebody closes it. Each request carries its own number as its tenant, so that what its
caller got, what the hooks were told and what the function ran can be laid side by side.

Threads take turns as often as they can, so that what goes wrong between two statements does so in most runs.

BATCHLIB_FAULT_OPERATIONS sets the operations per caller, BATCHLIB_FAULT_SEEDS how many seeds are tried.
"""

import asyncio
import os
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError as FutureCancelled
from random import Random
from typing import Any

import anyio
import pytest
import trio
from support.until import until

from batchlib import (
    BatchContractError,
    Batched,
    BatchFailed,
    Closed,
    DeadlineExceeded,
    ItemTooLarge,
    Overloaded,
    RequestEnded,
    batch_context,
    batched,
)

OPERATIONS = int(os.environ.get("BATCHLIB_FAULT_OPERATIONS", "60"))
SEEDS = range(int(os.environ.get("BATCHLIB_FAULT_SEEDS", "3")))
CALLERS = ["thread", "thread", "thread", "asyncio", "asyncio", "trio"]


class Boom(Exception):
    """What the function raises."""


class End(BaseException):
    """What should end whatever runs it."""


LEFT = "left"
# What a caller may see for each way in which the books let its request end. One who leaves may do so in any state.
SEEN = {
    "completed": {"value"},
    "failed": {"Boom", "BatchFailed", "BatchContractError"},
    "cancelled": {LEFT},
    "expired": {"DeadlineExceeded"},
    "rejected": {"Closed", "Overloaded", "ItemTooLarge"},
}


class Trial:
    """One batched object, and everything that is known of its requests."""

    def __init__(self, seed: int, asynchronous: bool) -> None:
        self.seed = seed
        self.operations = 0
        self.lock = threading.Lock()
        self.ran: Counter[int] = Counter()
        self.seen: dict[int, str] = {}
        self.ended: dict[int, list[RequestEnded]] = {}
        self.close_at = Random(f"{seed} close").randint(len(CALLERS) * OPERATIONS // 2, len(CALLERS) * OPERATIONS)
        random = Random(f"{seed} options")
        self.bisects = random.random() < 0.5
        self.f: Batched[Any, Any] = batched(
            self.run_async if asynchronous else self.run,
            max_batch_size=random.choice([1, 3, 8]),
            max_wait=random.choice([0.0, 0.001]),
            cost=lambda kind: {"large": 99, "huge": -1}.get(kind, 1),
            max_batch_cost=20,
            group_by=len,
            max_waiting=random.choice([4, 1000]),
            max_concurrent_batches=random.choice([1, 3]),
            on_error="bisect" if self.bisects else "fail",
            hooks=[self.hook],
        )

    def run(self, kinds: list[str]) -> Any:
        with self.lock:
            self.ran.update(item.tenant for item in batch_context())
        if "boom" in kinds:
            raise Boom("the whole batch")
        if "ends" in kinds:
            raise End("not an Exception")
        if "few" in kinds:
            return kinds[1:]
        return [Boom("this item") if kind == "slot" else kind for kind in kinds]

    async def run_async(self, kinds: list[str]) -> Any:
        await anyio.sleep(0)
        return self.run(kinds)

    def hook(self, event: Any) -> None:
        if isinstance(event, RequestEnded):
            with self.lock:
                assert isinstance(event.tenant, int)
                self.ended.setdefault(event.tenant, []).append(event)

    def number(self) -> int:
        with self.lock:
            self.operations += 1
            return self.operations

    def saw(self, number: int, what: str) -> None:
        with self.lock:
            assert number not in self.seen, "one caller, two outcomes"
            self.seen[number] = what

    def outcome(self, number: int, kind: str, get: Callable[[], Any]) -> None:
        """Notes what a caller got."""
        try:
            assert get() == kind
        except (Boom, BatchFailed, BatchContractError, DeadlineExceeded, Closed, Overloaded, ItemTooLarge) as error:
            self.saw(number, type(error).__name__)
        except ValueError:
            self.saw(number, "refused")  # its cost is nonsense: it never became a request
        else:
            self.saw(number, "value")

    def options(self, random: Random, number: int) -> Any:
        timeout = random.choice([None, None, None, 0.0, 0.0005, 0.01])
        return self.f.options(tenant=number, timeout=timeout)

    def disturb(self, random: Random, *, may_block: bool = False) -> None:
        """Now and then changes the limits, or closes for good."""
        if self.operations >= self.close_at:
            with self.lock:
                mine, self.close_at = self.operations >= self.close_at, len(CALLERS) * OPERATIONS * 2
            if mine:
                self.f.close(drain=may_block and random.random() < 0.5, timeout=random.choice([None, 0.0]))
        elif random.random() < 0.05:
            self.f.configure(max_batch_size=random.randint(1, 9), max_batch_cost=random.choice([5, 20]))


def kind_of(random: Random) -> str:
    return random.choice(["a", "b", "c", "longer", "longest"] * 3 + ["slot", "boom", "ends", "few", "large", "huge"])


def thread_caller(trial: Trial, random: Random) -> None:
    for _ in range(OPERATIONS):
        trial.disturb(random, may_block=True)
        number, kind = trial.number(), kind_of(random)
        f = trial.options(random, number)
        if random.random() < 0.4:
            trial.outcome(number, kind, lambda f=f, kind=kind: f.call(kind))
            continue
        try:
            future = f.submit(kind)
        except ValueError:
            trial.saw(number, "refused")
            continue
        if random.random() < 0.5:
            future.cancel()
        try:
            trial.outcome(number, kind, future.result)
        except FutureCancelled:
            trial.saw(number, LEFT)


def asyncio_caller(trial: Trial, random: Random) -> None:
    async def call(number: int, kind: str) -> None:
        try:
            value = await trial.options(random, number)(kind)
        except asyncio.CancelledError:
            trial.saw(number, LEFT)
            raise
        except Exception as error:
            trial.outcome(number, kind, lambda error=error: raises(error))
        else:
            trial.outcome(number, kind, lambda: value)

    async def main() -> None:
        tasks: list[asyncio.Task[None]] = []
        for _ in range(OPERATIONS):
            trial.disturb(random)
            tasks.append(asyncio.create_task(call(trial.number(), kind_of(random))))
            for _ in range(random.choice([0, 1, 1, 5])):
                await asyncio.sleep(0)
            if random.random() < 0.2:
                random.choice(tasks).cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(main())


def trio_caller(trial: Trial, random: Random) -> None:
    async def call(number: int, kind: str, scope: trio.CancelScope) -> None:
        with scope:
            try:
                value = await trial.options(random, number)(kind)
            except trio.Cancelled:
                trial.saw(number, LEFT)
                raise
            except Exception as error:
                trial.outcome(number, kind, lambda error=error: raises(error))
            else:
                trial.outcome(number, kind, lambda: value)

    async def main() -> None:
        scopes: list[trio.CancelScope] = []
        async with trio.open_nursery() as nursery:
            for _ in range(OPERATIONS):
                trial.disturb(random)
                scopes.append(trio.CancelScope())
                nursery.start_soon(call, trial.number(), kind_of(random), scopes[-1])
                for _ in range(random.choice([0, 1, 1, 5])):
                    await trio.sleep(0)
                if random.random() < 0.2:
                    random.choice(scopes).cancel()

    trio.run(main)


def raises(error: Exception) -> Any:
    raise error


RUN: dict[str, Callable[[Trial, Random], None]] = {
    "thread": thread_caller,
    "asyncio": asyncio_caller,
    "trio": trio_caller,
}


def run_all(trial: Trial) -> None:
    """All callers at the same time; what any of them raises is raised here."""
    errors: list[BaseException] = []

    def run(kind: str, place: int) -> None:
        try:
            RUN[kind](trial, Random(f"{trial.seed} {place}"))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(kind, place)) for place, kind in enumerate(CALLERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


@pytest.fixture(autouse=True)
def _short_turns() -> Iterator[None]:
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(usual)


@pytest.mark.parametrize("asynchronous", [False, True], ids=["plain", "async"])
@pytest.mark.parametrize("seed", SEEDS)
def test_every_request_ends_exactly_once_and_the_books_add_up(seed: int, asynchronous: bool) -> None:
    print(f"seed {seed}, {OPERATIONS} operations for each of {len(CALLERS)} callers")
    trial = Trial(seed, asynchronous)
    run_all(trial)
    trial.f.close()
    until(lambda: trial.f.statistics().running_batches == 0)  # a batch that a drain gave up goes on to its end
    books = trial.f.statistics()

    assert books.waiting == books.running == books.groups == 0
    assert all(len(events) == 1 for events in trial.ended.values())
    states = Counter(events[0].state.value for events in trial.ended.values())
    for state in ("completed", "failed", "cancelled", "expired", "shed", "rejected"):
        assert getattr(books, state) == states[state], state
    assert books.submitted == sum(states.values())

    # A task that was cancelled before it began has never called.
    refused = {number for number, what in trial.seen.items() if what == "refused"}
    requests = {number for number in trial.seen if number not in refused and number in trial.ended}
    unheard = trial.seen.keys() - refused - requests
    assert all(trial.seen[number] == LEFT for number in unheard), "an outcome without a request"
    assert trial.ended.keys() == requests, "a request without an outcome"
    for number in requests:
        (event,) = trial.ended[number]
        assert trial.seen[number] in SEEN[event.state.value] | {LEFT}, event
        assert number in trial.ran or event.batch is None or event.state.value in {"cancelled", "rejected", "expired"}
        assert number not in trial.ran or event.batch is not None, "it ran, and the books do not know"
        assert event.state.value != "completed" or number in trial.ran
    if not trial.bisects:
        assert set(trial.ran.values()) <= {1}, "an item that ran twice"
