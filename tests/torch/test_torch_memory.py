"""Memory: what is out of memory, what keeps tensors alive, what is tried next and what is remembered of it."""

import asyncio
import gc
import random
import subprocess
import sys
import threading
import traceback
import weakref
from collections import Counter
from concurrent.futures import Future
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from batchlib import BatchFailed, batched
from batchlib.torch import SimulatedDevice, TorchExecutor, pad, stack
from batchlib.torch.collation._structure import flatten
from batchlib.torch.executor._memory import RowLimits, attempt, is_fatal, is_out_of_memory, scrub

# ---- telling errors apart


class Own(Exception):
    pass


class Unprintable(RuntimeError):
    def __str__(self) -> str:
        raise ValueError("no text")


def accelerator_error(text: str) -> BaseException:
    return torch.AcceleratorError(f"CUDA error: {text}")


NO_MEMORY = [
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
    MemoryError("Unable to allocate 8.00 PiB"),
    RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 4503599627370496 bytes"),
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    RuntimeError(
        "cuDNN error: CUDNN_STATUS_NOT_SUPPORTED. This error may appear if you passed in a non-contiguous input."
    ),
    RuntimeError("MPS backend out of memory (MPS allocated: 5 GB)"),
    accelerator_error("out of memory"),
]
LOST = [
    accelerator_error("device-side assert triggered"),
    accelerator_error("an illegal memory access was encountered"),
    accelerator_error("some other that is new"),
    RuntimeError("CUDA error: device-side assert triggered"),  # before torch had a class for it
]
NEITHER = [
    ValueError("out of memory of it"),
    RuntimeError("The size of tensor a (3) must match the size of tensor b (4)"),
    accelerator_error("invalid configuration argument"),
    Unprintable(),
    KeyError("device-side assert"),
]


@pytest.mark.parametrize("error", NO_MEMORY, ids=str)
def test_out_of_memory_is_known_and_never_fatal(error: BaseException) -> None:
    assert is_out_of_memory(error)
    assert not is_fatal(error)


@pytest.mark.parametrize("error", LOST, ids=str)
def test_a_lost_device_is_known(error: BaseException) -> None:
    assert is_fatal(error)
    assert not is_out_of_memory(error)


@pytest.mark.parametrize("error", NEITHER, ids=type)
def test_other_errors_are_neither(error: BaseException) -> None:
    assert not is_fatal(error)
    assert not is_out_of_memory(error)


def test_classes_of_the_users_own() -> None:
    assert is_out_of_memory(Own(), (Own,))
    assert is_fatal(Own(), (Own,))


def raised(function: Any) -> BaseException:
    try:
        function()
    except BaseException as error:
        return error
    raise AssertionError("nothing was raised")


def test_an_error_is_what_it_came_from() -> None:
    def cause() -> None:
        try:
            raise MemoryError
        except MemoryError as error:
            raise Own from error

    def context() -> None:
        try:
            raise MemoryError
        except MemoryError:
            raise Own  # noqa: B904 (what happens in the field)

    def nothing() -> None:
        try:
            raise MemoryError
        except MemoryError:
            raise Own from None

    assert is_out_of_memory(raised(cause))
    assert is_out_of_memory(raised(context))
    assert not is_out_of_memory(raised(nothing))
    assert is_out_of_memory(ExceptionGroup("several", [Own(), MemoryError()]))


def test_a_circle_of_causes_has_an_end() -> None:
    first, second = Own(), Own()
    first.__cause__, second.__cause__ = second, first
    assert not is_fatal(first)
    scrub(first)


# ---- letting go


class Big:
    """Stands for a tensor."""


def failing(kept: "list[weakref.ref[Big]]", error: BaseException) -> None:
    big = Big()
    kept.append(weakref.ref(big))
    try:
        inner(kept)
    except KeyError:
        raise error  # noqa: B904 (its context is the subject)


def inner(kept: "list[weakref.ref[Big]]") -> None:
    big = Big()
    kept.append(weakref.ref(big))
    raise KeyError("inner")


def test_a_scrubbed_error_keeps_nothing_alive_and_still_prints() -> None:
    kept: list[weakref.ref[Big]] = []
    _, error = attempt(failing, kept, Own("outer"))
    assert [each() for each in kept] == [None, None]
    assert error is not None
    text = "".join(traceback.format_exception(error))
    assert "in failing" in text
    assert "in inner" in text
    assert "attempt" not in text


def test_what_has_no_such_attribute_is_let_go() -> None:
    class Hidden(AttributeError):
        obj = property()  # type: ignore[assignment]

    def ask() -> None:
        big = Big()
        kept.append(weakref.ref(big))
        big.tensor  # type: ignore[attr-defined] # noqa: B018

    kept: list[weakref.ref[Big]] = []
    _, error = attempt(ask)
    assert isinstance(error, AttributeError)
    assert kept[0]() is None
    scrub(Hidden("a class of its own"))


def test_an_attempt_that_succeeds_gives_its_result() -> None:
    assert attempt(divmod, 7, 2) == ((3, 1), None)


# ---- remembering


class World:
    """So many rows fit; a model of what an executor does with the limits, and a count of what fails."""

    def __init__(self, fits: int) -> None:
        self.limits = RowLimits()
        self.fits = fits
        self.failures = 0
        self.runs: list[int] = []

    def batch(self, size: int) -> None:
        parts = [size]
        while parts:
            part = parts.pop()
            most = self.limits.allowed("bucket")
            if part > most:
                parts += [min(most, part - begin) for begin in range(0, part, most)][::-1]
                continue
            if part <= self.fits:
                self.limits.succeeded("bucket", part)
                self.runs.append(part)
                continue
            self.failures += 1
            self.limits.failed("bucket", part)
            assert part > 1
            parts += [min(part // 2, part - begin) for begin in range(0, part, part // 2)][::-1]


@settings(deadline=None)
@given(st.integers(1, 64), st.lists(st.integers(1, 64), min_size=1, max_size=200))
def test_all_are_served_and_failures_are_rare_in_a_world_that_stays(fits: int, sizes: list[int]) -> None:
    world = World(fits)
    for size in sizes:
        world.batch(size)
    assert sum(world.runs) == sum(sizes)
    halvings = 6
    trials = len(world.runs) / 16
    assert world.failures <= halvings * (1 + trials)


@pytest.mark.parametrize("fits", [1, 2, 3, 5, 8, 20, 31])
def test_a_constant_world_is_tried_ever_less_often(fits: int) -> None:
    world = World(fits)
    failed: list[int] = []
    for _ in range(2000):
        before = world.failures
        world.batch(32)
        failed.append(world.failures - before)
    late = len(failed) // 2
    assert sum(failed[:100]) > 0
    assert sum(failed[late:]) <= 1 + 32 * late / 512  # one for each trial, by now after 512 runs or more
    assert max(world.runs) <= fits < 2 * max(world.runs)


@settings(deadline=None)
@given(st.integers(1, 31), st.lists(st.sampled_from([1, 2, 3, 5, 8, 13, 31]), max_size=5))
def test_the_limit_is_forgotten_once_the_memory_is_back(fits: int, worlds: list[int]) -> None:
    world = World(fits)
    for world.fits in [fits, *worlds]:
        for _ in range(random.Random(world.fits).randrange(1, 60)):
            world.batch(32)
    world.fits = 32
    for _ in range(20_000):
        if not world.limits:
            break
        world.batch(32)
    assert world.limits.allowed("bucket") == sys.maxsize
    failures = world.failures
    world.batch(32)
    assert (world.runs[-1], world.failures) == (32, failures)


def test_a_world_that_has_changed_is_trusted_as_a_new_one() -> None:
    world = World(16)
    for _ in range(200):
        world.batch(64)
    world.fits = 64
    world.runs.clear()
    while world.limits:
        world.batch(64)
    tried = Counter(world.runs)
    assert tried[32] > 100  # after so many trials in vain
    assert tried[64] == 16  # as for the first one


def test_limits_belong_to_buckets() -> None:
    limits = RowLimits()
    limits.failed("long", 16)
    assert (limits.allowed("long"), limits.allowed("short")) == (8, sys.maxsize)
    limits.succeeded("short", 16)
    limits.failed("long", 1)  # one that does not fit by itself tells nothing of others
    assert len(limits) == 0


def test_limits_are_kept_for_a_bounded_number_of_buckets() -> None:
    limits = RowLimits()
    for bucket in range(1000):
        limits.failed(bucket, 8)
    assert len(limits) == 256
    assert (limits.allowed(0), limits.allowed(999)) == (sys.maxsize, 4)


# ---- in an executor


class OOM(MemoryError):
    pass


def scarce(sizes: list[int], fits: list[int]) -> Any:
    """A model that has room for `fits[0]` items, and asserts that nothing of an earlier attempt is alive."""
    live: weakref.WeakSet[Big] = weakref.WeakSet()

    def model(items: list[Any]) -> list[Any]:
        assert len(live) == 0, "the previous attempt is still alive"
        sizes.append(len(items))
        hold = [Big() for _ in items]
        live.update(hold)
        if len(items) > fits[0]:
            raise OOM(f"no room for {len(items)}")
        return list(items)

    return model


def together(f: Any, items: list[Any]) -> list[Any]:
    """What callers get whose calls make one batch."""

    async def main() -> list[Any]:
        return await asyncio.gather(*(f(item) for item in items), return_exceptions=True)

    return asyncio.run(main())


def on_cpu(function: Any, size: int = 16, **options: Any) -> Any:
    decorated = {name: options.pop(name) for name in ("collate", "on_error") if name in options}
    executor = TorchExecutor("cpu", oom=(OOM,), **options)
    return batched(function, max_batch_size=size, max_wait=60, executor=executor, **decorated)


def test_a_batch_is_halved_in_order_and_what_fits_is_remembered() -> None:
    sizes: list[int] = []
    f = on_cpu(scarce(sizes, [4]))
    assert together(f, list(range(16))) == list(range(16))
    assert sizes == [16, 8, 4, 4, 4, 4]  # the second half is not tried at 8 again
    sizes.clear()
    assert together(f, list(range(16))) == list(range(16))
    assert sizes == [4, 4, 4, 4]


def test_the_limit_relaxes_when_the_memory_is_back() -> None:
    sizes: list[int] = []
    fits = [4]
    f = on_cpu(scarce(sizes, fits))
    together(f, list(range(16)))
    fits[0] = 16
    for _ in range(20):
        assert together(f, list(range(16))) == list(range(16))
    assert sizes[-1] == 16
    assert sorted(set(sizes[6:])) == [4, 8, 16]


def test_an_odd_batch_is_cut_into_pieces_that_fit() -> None:
    sizes: list[int] = []
    f = on_cpu(scarce(sizes, [2]), size=7)
    assert together(f, list(range(7))) == list(range(7))
    assert sizes[:3] == [7, 3, 1]
    assert max(sizes[2:]) <= 2


def test_fillers_are_left_out_where_they_do_not_fit() -> None:
    sizes: list[int] = []
    f = on_cpu(scarce(sizes, [4]), batch_sizes=(16,))
    assert together(f, list(range(16))) == list(range(16))
    assert sizes == [16, 8, 4, 4, 4, 4]
    sizes.clear()
    assert together(f, list(range(16))) == list(range(16))
    assert sizes == [4, 4, 4, 4]


def test_a_batch_that_does_not_fit_with_its_fillers_runs_without_them() -> None:
    sizes: list[int] = []
    f = on_cpu(scarce(sizes, [5]), size=3, batch_sizes=(8,))
    assert together(f, [1, 2, 3]) == [1, 2, 3]
    assert together(f, [4, 5, 6]) == [4, 5, 6]
    assert sizes == [8, 3, 3]


def test_a_lone_item_that_cannot_fit_fails_alone() -> None:
    def model(items: list[int]) -> list[int]:
        if 5 in items:
            raise OOM("the large one")
        return items

    f = on_cpu(model, size=8)
    outcomes = together(f, list(range(8)))
    assert [type(outcome) for outcome in outcomes] == [int] * 5 + [OOM] + [int] * 2
    assert together(f, [0, 1, 2, 3, 4, 6, 7, 8]) == [0, 1, 2, 3, 4, 6, 7, 8]


def test_what_may_not_run_twice_fails_and_teaches_all_the_same() -> None:
    sizes: list[int] = []
    f = on_cpu(scarce(sizes, [8]), idempotent=False)
    outcomes = together(f, list(range(16)))
    assert [type(outcome) for outcome in outcomes] == [OOM] * 16
    assert together(f, list(range(16))) == list(range(16))
    assert sizes == [16, 8, 8]


def test_limits_of_one_length_do_not_touch_others() -> None:
    sizes: list[tuple[int, int]] = []

    def model(batch: torch.Tensor, *, mask: torch.Tensor) -> torch.Tensor:
        sizes.append((batch.shape[0], batch.shape[1]))
        if batch.numel() > 64:
            raise OOM
        return batch.sum(1)

    f = on_cpu(model, size=8, collate=pad())
    long, short = [torch.ones(16)] * 8, [torch.ones(4)] * 8
    assert together(f, long) == [16.0] * 8
    assert together(f, short) == [4.0] * 8
    assert together(f, long) == [16.0] * 8
    assert sizes == [(8, 16), (4, 16), (4, 16), (8, 4), (4, 16), (4, 16)]


def test_limits_of_one_setting_do_not_touch_others() -> None:
    sizes: list[tuple[int, bool]] = []

    def model(items: list[int], *, wide: bool) -> list[int]:
        sizes.append((len(items), wide))
        if wide and len(items) > 4:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return items

    f = on_cpu(model, size=8)
    for wide in (True, False, True):
        assert together(partial(f, wide=wide), list(range(8))) == list(range(8))
    assert sizes == [(8, True), (4, True), (4, True), (8, False), (4, True), (4, True)]


def test_out_of_memory_while_collating_or_splitting_is_out_of_memory_too() -> None:
    class Greedy(torch.Tensor):
        """A result of which more than two rows cannot be made."""

        def unbind(self, dim: int = 0) -> Any:
            if self.shape[0] > 2:
                raise OOM
            return super().unbind(dim)

    f = on_cpu(lambda batch: batch.as_subclass(Greedy), size=4, collate=stack())
    outcomes = together(f, [torch.full((3,), float(item)) for item in range(4)])
    assert [outcome.tolist() for outcome in outcomes] == [[float(item)] * 3 for item in range(4)]


class Lends(SimulatedDevice):
    """Knows what has become of the host memory that it gave."""

    def __init__(self, seed: int = 0) -> None:
        self.lent: list[weakref.ref[torch.Tensor]] = []
        super().__init__(seed)

    def host_buffer(self, nbytes: int) -> torch.Tensor:
        made = super().host_buffer(nbytes)
        self.lent.append(weakref.ref(made))
        return made


def test_buffers_of_a_batch_that_did_not_fit_are_given_back_before_its_halves_run() -> None:
    device = Lends(1)
    lent: list[int] = []

    def model(batch: torch.Tensor) -> torch.Tensor:
        lent.append(sum([buffer.nbytes for ref in device.lent if (buffer := ref()) is not None]))
        if len(batch) > 4:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return batch.sum(1)

    executor = TorchExecutor(device, in_flight=1)
    f = batched(model, max_batch_size=8, max_wait=60, collate=stack(), executor=executor)
    assert together(f, [torch.ones(1 << 14)] * 8) == [1 << 14] * 8
    assert lent[:2] == [8 << 16, 4 << 16]


def test_a_culprit_is_found_by_bisecting_after_memory_ran_out() -> None:
    sizes: list[int] = []
    room = scarce(sizes, [4])

    def model(items: list[int]) -> list[int]:
        if len(items) <= 4 and 3 in items:
            raise ValueError("the culprit")
        return room(items)  # type: ignore[no-any-return]

    f = on_cpu(model, size=8, on_error="bisect")
    outcomes = together(f, list(range(8)))
    assert [outcome for outcome in outcomes if isinstance(outcome, int)] == [0, 1, 2, 4, 5, 6, 7]
    assert isinstance(outcomes[3], ValueError)


def failing_part(ran: list[list[int]], culprit: int = 3) -> Any:
    """A model that has room for two items, and fails with one of them."""

    def model(items: list[int]) -> list[int]:
        ran.append(list(items))
        if len(items) > 2:
            raise OOM("no room")
        if culprit in items:
            raise ValueError("the culprit")
        return items

    return model


def test_the_error_of_one_part_touches_no_other() -> None:
    ran: list[list[int]] = []
    f = on_cpu(failing_part(ran), size=8)
    for _ in range(2):  # cut because it failed, then before it fails
        outcomes = together(f, list(range(8)))
        assert [type(outcome) for outcome in outcomes] == [int, int, ValueError, ValueError, int, int, int, int]
        assert len({id(outcome) for outcome in outcomes}) == 8
        assert ran[-4:] == [[0, 1], [2, 3], [4, 5], [6, 7]]


def test_culprits_are_searched_for_in_the_part_that_failed_and_nowhere_else() -> None:
    ran: list[list[int]] = []
    f = on_cpu(failing_part(ran), size=6, batch_sizes=[1, 2], on_error="bisect")
    outcomes = together(f, list(range(6)))
    assert [type(outcome) for outcome in outcomes] == [int, int, int, ValueError, int, int]
    assert ran == [[0, 1], [2, 3], [4, 5], [2], [3]]


@pytest.mark.parametrize("end", [SystemExit, KeyboardInterrupt])
def test_a_part_that_wants_the_program_to_end_is_not_run_again(end: type[BaseException]) -> None:
    ran: list[list[int]] = []

    def model(items: list[int]) -> list[int]:
        ran.append(list(items))
        if 3 in items:
            raise end
        return items

    f = on_cpu(model, size=6, batch_sizes=[2], on_error="bisect")
    outcomes = together(f, list(range(6)))
    assert [type(outcome) for outcome in outcomes] == [int, int, BatchFailed, BatchFailed, int, int]
    assert ran == [[0, 1], [2, 3], [4, 5]]


def test_of_what_may_not_run_twice_only_the_part_fails_that_found_no_memory() -> None:
    ran: list[list[int]] = []

    def model(items: list[int]) -> list[int]:
        ran.append(list(items))
        if 3 in items:
            raise OOM("no room")
        return items

    f = on_cpu(model, size=6, batch_sizes=[2], idempotent=False)
    outcomes = together(f, list(range(6)))
    assert [type(outcome) for outcome in outcomes] == [int, int, OOM, OOM, int, int]
    assert [item for part in ran for item in part] == list(range(6))


def test_what_may_not_run_twice_is_not_bisected() -> None:
    with pytest.raises(TypeError, match=r'on_error="bisect" runs .* again, .* idempotent=False'):
        on_cpu(lambda items: items, idempotent=False, on_error="bisect")


@pytest.mark.parametrize("on_error", ["fail", "bisect"])
def test_errors_keep_neither_the_models_tensors_nor_the_neighbours_inputs(on_error: str) -> None:
    kept: list[weakref.ref[Any]] = []

    def model(batch: torch.Tensor) -> torch.Tensor:
        activations = batch * 2
        kept.extend([weakref.ref(batch), weakref.ref(activations)])
        raise ValueError("a bug")

    def call() -> list[Any]:
        items = [torch.ones(3) for _ in range(4)]
        kept.extend([weakref.ref(item) for item in items])
        futures = [f.submit(item) for item in items]  # unlike a coroutine's, their errors know no frame of a caller
        return [future.exception() for future in futures]

    f = on_cpu(model, size=4, collate=stack(), on_error=on_error)
    errors = call()
    f.close()
    assert [type(error) for error in errors] == [ValueError] * 4
    assert "in model" in "".join(traceback.format_exception(errors[0]))
    assert len(kept) >= 6
    assert {each() for each in kept} == {None}


def test_the_error_of_one_item_keeps_nothing_of_its_batch() -> None:
    kept: list[weakref.ref[Any]] = []

    def model(batch: torch.Tensor) -> list[Any]:
        outcomes: list[Any] = []
        kept.append(weakref.ref(batch))
        for row in batch:
            try:
                if row[0] == 0:
                    raise ValueError("a bad item")
                outcomes.append(row * 2)
            except ValueError as error:  # knows this frame, and all that it was called by
                outcomes.append(error)
        return outcomes

    def call() -> Any:
        items = [torch.full((3,), float(value)) for value in range(3)]
        kept.extend([weakref.ref(item) for item in items])
        futures = [f.submit(item) for item in items]
        errors = [future.exception(30) for future in futures]
        return errors[0]

    f = on_cpu(model, size=3, collate=stack())
    error = call()
    f.close()
    assert isinstance(error, ValueError)
    gc.collect()  # the function's own circle: a frame that holds the error which knows it
    assert [each() for each in kept] == [None] * 4


def test_what_may_still_go_on_is_not_scrubbed() -> None:
    """An error that a function caught knows the frames below it, a generator's among them."""

    def numbers() -> Any:
        for number in range(3):
            yield caught(number)

    def caught(number: int) -> Exception:
        try:
            raise ValueError(number)
        except ValueError as error:
            return error

    going = numbers()
    scrub(next(going))
    assert [str(error) for error in going] == ["1", "2"]


def test_a_generator_that_caught_an_error_goes_on_after_it_was_scrubbed() -> None:
    def echo() -> Any:
        received = []
        while True:
            try:
                received.append((yield list(received)))
                if received[-1] == "bad":
                    raise ValueError(received.pop())
            except ValueError as error:
                caught.append(error)

    caught: list[ValueError] = []
    going = echo()
    next(going)
    going.send("first")
    going.send("bad")
    going.throw(ValueError("thrown at the place where it pauses"))
    for error in caught:
        scrub(error)
    assert len(caught) == 2
    assert going.send("last") == ["first", "last"]


async def test_a_coroutine_whose_error_was_given_to_somebody_goes_on_after_it_was_scrubbed() -> None:
    """As a server does that answers with `set_exception` what the function raises on."""
    asked: asyncio.Queue[Any] = asyncio.Queue()

    async def server() -> None:
        while True:
            answer = await asked.get()
            try:
                raise ValueError("cannot be answered")
            except ValueError as error:
                answer.set_exception(error)

    task = asyncio.create_task(server())
    for _ in range(2):
        answer = asyncio.get_running_loop().create_future()
        await asked.put(answer)
        with pytest.raises(ValueError, match="cannot be answered") as caught:
            await asyncio.wait_for(answer, 30)
        scrub(caught.value)
    assert not task.done()
    task.cancel()


@pytest.mark.parametrize("thrown", [False, True], ids=["raised", "thrown in"])
def test_a_generator_that_an_error_has_ended_keeps_nothing_alive(thrown: bool) -> None:
    def ends() -> Any:
        big = Big()
        kept.append(weakref.ref(big))
        yield
        raise ValueError

    kept: list[weakref.ref[Big]] = []
    going = ends()
    next(going)
    error = raised(lambda: going.throw(ValueError()) if thrown else next(going))
    scrub(error)
    assert kept[0]() is None


def test_the_error_of_a_collation_keeps_no_items() -> None:
    kept: list[weakref.ref[Any]] = []

    def collate(items: list[torch.Tensor]) -> torch.Tensor:
        kept.extend([weakref.ref(item) for item in items])
        raise ValueError("cannot be collated")

    f = on_cpu(lambda batch: batch, size=1, collate=collate)
    error = f.submit(torch.ones(3)).exception(30)
    f.close()
    assert isinstance(error, ValueError)
    assert [each() for each in kept] == [None]


def test_the_error_of_a_batch_of_one_keeps_nothing_either() -> None:
    kept: list[weakref.ref[Any]] = []

    def model(items: list[torch.Tensor]) -> list[torch.Tensor]:
        activations = items[0] * 2
        kept.append(weakref.ref(activations))
        raise torch.OutOfMemoryError("CUDA out of memory")

    f = on_cpu(model)
    item = torch.ones(3)
    kept.append(weakref.ref(item))
    future: Future[Any] = f.options(timeout=60).submit(item)
    del item
    f.close()
    error = future.exception()
    assert isinstance(error, torch.OutOfMemoryError)
    del future
    gc.collect()  # the batcher's own threads may still be at the end of their work
    assert [each() for each in kept] == [None] * 3  # it was tried twice


LIMITED = """
import resource, torch
from batchlib import batched
from batchlib.torch import TorchExecutor, stack

torch.set_num_threads(1)
sizes = []

def model(batch):
    sizes.append(len(batch))
    work = torch.ones(len(batch), 64, 1 << 20, dtype=torch.uint8)  # 64 MiB an item
    return batch + work[:, 0, :1]

f = batched(model, max_batch_size=16, max_wait=60, collate=stack(), executor=TorchExecutor("cpu"))
f.submit(torch.zeros(1)).cancel()
with open("/proc/self/statm") as statm:
    used = int(statm.read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (480 << 20), used + (480 << 20)))
futures = [f.submit(torch.full((1,), float(item))) for item in range(16)]
print([int(future.result().item()) for future in futures], sizes)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs RLIMIT_AS that counts, and /proc")
def test_memory_that_really_runs_out() -> None:
    run = subprocess.run([sys.executable, "-c", LIMITED], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    results, sizes = run.stdout.strip().split("] ")
    assert results == str(list(range(1, 17)))[:-1]
    assert sizes.startswith("[16, 8, 4")
    assert sizes == "[16, 8, 4, 4, 4, 4]"


# ---- garbage


class Cycle:
    """Stands for a tensor that nobody can reach, and that only the collector finds."""

    def __init__(self) -> None:
        self.me = self


@pytest.fixture
def collections() -> Any:
    """The generations that are searched for garbage inside the test, by nobody but the executor."""
    generations: list[int] = []

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            generations.append(info["generation"])

    gc.collect()
    gc.disable()
    gc.callbacks.append(note)
    try:
        yield generations
    finally:
        gc.callbacks.remove(note)
        gc.enable()


def old_garbage() -> "weakref.ref[Cycle]":
    cycle = Cycle()
    gc.collect()  # what survives is old
    return weakref.ref(cycle)


def littered(sizes: list[int], garbage: "weakref.ref[Cycle]", fits: int, fits_beside_garbage: int) -> Any:
    def model(items: list[int]) -> list[int]:
        sizes.append(len(items))
        if len(items) > (fits if garbage() is None else fits_beside_garbage):
            raise OOM("no room")
        return items

    return model


def test_what_a_failed_run_left_in_cycles_is_gone_before_its_halves_run(collections: list[int]) -> None:
    left: list[weakref.ref[Cycle]] = []
    sizes: list[int] = []

    def model(items: list[int]) -> list[int]:
        assert all(each() is None for each in left)
        sizes.append(len(items))
        if len(items) > 8:
            left.append(weakref.ref(Cycle()))
            raise OOM("no room")
        return items

    f = on_cpu(model)
    assert together(f, list(range(16))) == list(range(16))
    assert sizes == [16, 8, 8]


def test_memory_that_ran_out_once_does_not_cost_a_search_of_everything(collections: list[int]) -> None:
    sizes: list[int] = []
    f = on_cpu(scarce(sizes, [8]))
    assert together(f, list(range(16))) == list(range(16))
    assert sizes == [16, 8, 8]
    assert collections == [1]


def test_old_garbage_is_looked_for_once_a_half_finds_no_memory_either(collections: list[int]) -> None:
    sizes: list[int] = []
    garbage = old_garbage()
    collections.clear()
    f = on_cpu(littered(sizes, garbage, 4, 2))
    assert together(f, list(range(16))) == list(range(16))
    assert sizes == [16, 8, 4, 4, 4, 4]
    assert collections == [1, 2]


def test_in_a_batch_that_is_halved_often_everything_is_searched_once(collections: list[int]) -> None:
    f = on_cpu(scarce([], [1]), size=16)
    assert together(f, list(range(16))) == list(range(16))
    assert collections == [1, 2, 1, 1]


@pytest.mark.parametrize("device", [lambda: "cpu", lambda: SimulatedDevice(1)], ids=["cpu", "simulated"])
def test_a_lone_item_fails_only_after_old_garbage_was_looked_for(device: Any, collections: list[int]) -> None:
    sizes: list[int] = []
    garbage = old_garbage()
    f = batched(littered(sizes, garbage, 1, 0), executor=TorchExecutor(device(), oom=(OOM,)))
    assert f.call(7) == 7
    assert sizes == [1, 1]


def test_old_garbage_is_looked_for_when_a_larger_limit_was_tried_in_vain(collections: list[int]) -> None:
    """Otherwise a model that was replaced, and is in a cycle, could halve all batches for as long as nobody looks."""
    sizes: list[int] = []
    garbage = old_garbage()
    f = on_cpu(littered(sizes, garbage, 16, 8))
    while garbage() is not None:
        assert together(f, list(range(16))) == list(range(16))
        assert len(sizes) < 100
    while sizes[-1] < 16:
        assert together(f, list(range(16))) == list(range(16))
        assert len(sizes) < 200


def test_what_may_not_run_twice_leaves_no_old_garbage_to_the_next(collections: list[int]) -> None:
    sizes: list[int] = []
    garbage = old_garbage()
    f = on_cpu(littered(sizes, garbage, 1, 0), size=1, idempotent=False)
    with pytest.raises(OOM):
        f.call(1)
    assert f.call(2) == 2


def test_who_is_tried_alone_stays_alone_until_the_end() -> None:
    takes_another: list[bool] = []

    def model(batch: torch.Tensor) -> torch.Tensor:
        (lane,) = f._live.driver.executor.lanes
        takes_another.append(lane.free)
        if len(takes_another) == 1:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return batch + 1

    executor = TorchExecutor(SimulatedDevice(1), in_flight=2)
    f: Any = batched(model, max_batch_size=1, collate=stack(), executor=executor)
    assert [f.call(torch.zeros(1)).item() for _ in range(2)] == [1, 1]
    assert takes_another == [True, False, True]


def test_a_lone_item_is_not_tried_alone_while_it_still_has_fillers() -> None:
    sizes: list[int] = []
    f = on_cpu(scarce(sizes, [1]), size=1, batch_sizes=[4])
    assert together(f, [1]) == [1]
    assert sizes == [4, 1]


# ---- counted


def counts(f: Any) -> tuple[int, int]:
    """Runs that did not fit, and batches that were cut."""
    counted = f.statistics().executor
    return counted["out_of_memory"], counted["cut"]


@pytest.mark.parametrize("on_error", ["fail", "bisect"])
def test_statistics_tell_of_memory_that_runs_out(on_error: Any) -> None:
    f = on_cpu(scarce([], [4]), on_error=on_error)
    assert counts(f) == (0, 0)
    together(f, list(range(16)))  # 16, 8, 4, 4, 4, 4
    assert counts(f) == (2, 1)
    together(f, list(range(16)))  # cut before it fails
    assert counts(f) == (2, 2)
    f.configure(max_batch_size=4)
    together(f, list(range(4)))
    assert counts(f) == (2, 2)
    assert f.statistics().batches == 3


def test_a_batch_that_is_halved_once_counts_as_cut() -> None:
    f = on_cpu(scarce([], [1]), size=2)
    together(f, [1, 2])
    assert counts(f) == (1, 1)


def test_a_batch_that_only_its_sizes_cut_is_not_counted() -> None:
    f = on_cpu(scarce([], [4]), batch_sizes=[2, 4])
    together(f, list(range(16)))
    assert counts(f) == (0, 0)


def test_a_batch_that_runs_without_its_fillers_did_not_fit_and_is_not_cut() -> None:
    f = on_cpu(scarce([], [3]), size=2, batch_sizes=[4])
    together(f, list(range(2)))
    assert counts(f) == (1, 0)


def test_every_run_of_a_lone_item_counts() -> None:
    f = on_cpu(scarce([], [0]), size=1)
    assert [type(outcome) for outcome in together(f, [1])] == [OOM]
    assert counts(f) == (2, 0)  # once more when nothing else was on the device


# ---- rows


def test_a_row_owns_its_storage() -> None:
    f = batched(lambda batch: batch + 1, max_batch_size=8, max_wait=60, collate=stack(), executor=TorchExecutor("cpu"))
    rows = together(f, [torch.zeros(1000) for _ in range(8)])
    assert [row.untyped_storage().nbytes() for row in rows] == [4000] * 8
    rows[0].fill_(7)
    assert rows[1].sum() == 1000


def test_a_row_of_an_array_owns_its_memory() -> None:
    executor = TorchExecutor("cpu", results="numpy")
    f = batched(lambda batch: batch + 1, max_batch_size=8, max_wait=60, collate=stack(), executor=executor)
    rows = together(f, [np.zeros(1000, np.float32) for _ in range(8)])
    assert [(type(row), row.base, row.nbytes) for row in rows] == [(np.ndarray, None, 4000)] * 8
    rows[0].fill(7)
    assert rows[1].sum() == 1000


@pytest.mark.parametrize(
    "give",
    [
        list,
        lambda batch: [row.clone() for row in batch],
        lambda batch: [{"row": row} for row in batch],
        lambda batch: [["name", 0.5, {"row": row}] for row in batch],
        lambda batch: [[{"row": row}, "name"] for row in batch],
    ],
    ids=["tensors", "clones", "dicts", "numbers first", "numbers last"],
)
@pytest.mark.parametrize("mode", ["no_grad", "inference"])
def test_rows_given_in_a_list_own_their_storage_as_well(give: Any, mode: Any) -> None:
    executor = TorchExecutor("cpu", mode=mode)
    f = batched(lambda batch: give(batch + 1), max_batch_size=4, max_wait=60, collate=stack(), executor=executor)
    rows = [flatten(row, lists=True)[0] for row in together(f, [torch.zeros(1000)] * 4)]
    rows = [leaf for leaves in rows for leaf in leaves if isinstance(leaf, torch.Tensor)]
    assert [row.untyped_storage().nbytes() for row in rows] == [4000] * 4
    for row in rows:
        row += 1
    assert torch.stack(rows).sum() == 8000


def test_views_for_those_who_ask() -> None:
    executor = TorchExecutor("cpu", copy=False)
    f = batched(lambda batch: batch + 1, max_batch_size=2, max_wait=60, collate=stack(), executor=executor)
    first, second = together(f, [torch.zeros(10), torch.ones(10)])
    assert first.untyped_storage().data_ptr() == second.untyped_storage().data_ptr()


def test_inputs_of_a_finished_batch_are_dropped() -> None:
    kept: list[weakref.ref[Any]] = []
    done = threading.Event()

    def model(batch: torch.Tensor) -> torch.Tensor:
        kept.append(weakref.ref(batch))
        return batch.sum(1)

    f = on_cpu(model, size=4, collate=stack())

    def call() -> list[Any]:
        items = [torch.ones(3) for _ in range(4)]
        kept.extend([weakref.ref(item) for item in items])
        return together(f, items)

    results = call()
    f.close()
    done.set()
    assert [result.item() for result in results] == [3.0] * 4
    assert [each() for each in kept] == [None] * 5
