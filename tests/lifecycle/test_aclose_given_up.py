"""Whoever gives up on `aclose` while a batch hangs has left: neither the loop's end nor the program's waits for it."""

import asyncio
import subprocess
import textwrap
import threading
from collections.abc import Callable

import pytest
from support import Held
from support.held import LONG
from support.until import until

from batchlib import batched

pytestmark = pytest.mark.timeout(60)

Program = Callable[..., "subprocess.CompletedProcess[str]"]

HEAD = """
    import asyncio, threading
    import trio
    from batchlib import batched
    class Hanging:
        def __init__(self):
            self.gate = threading.Event()
            self.f = batched(self.run)
            self.f.submit(1)
        def run(self, items):
            self.gate.wait()
            return items
    async def on_asyncio(hanging):
        closing = asyncio.ensure_future(hanging.f.aclose())
        while not hanging.f.statistics().closed: await asyncio.sleep(0)
        closing.cancel()
        try: await closing
        except asyncio.CancelledError: print("given up")
    async def on_trio(hanging):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(hanging.f.aclose)
            while not hanging.f.statistics().closed: await trio.sleep(0)
            nursery.cancel_scope.cancel()
        print("given up")
"""
RUNS = {"asyncio": "asyncio.run(on_asyncio(hanging))", "trio": "trio.run(on_trio, hanging)"}


@pytest.mark.parametrize("kind", list(RUNS))
def test_the_loop_ends_before_the_batch_does(program: Program, kind: str) -> None:
    source = f"hanging = Hanging(); {RUNS[kind]}; print('ended'); hanging.gate.set()"
    done = program(textwrap.dedent(HEAD) + source)
    assert (done.returncode, done.stdout, done.stderr) == (0, "given up\nended\n", "")


def test_the_program_ends_though_the_batches_never_do(program: Program) -> None:
    """It waits for them as long as for any thread that hangs, and then goes on."""
    source = "".join(f"hanging = Hanging(); {run}\n" for run in RUNS.values())
    done = program(textwrap.dedent(HEAD) + source)
    assert (done.returncode, done.stdout, done.stderr) == (0, "given up\n" * 2, "")


def test_the_closing_goes_on_without_its_caller() -> None:
    held = Held()
    f = batched(held, max_batch_size=1, name="given-up")
    running, waiting = f.submit(1), f.submit(2)
    assert held.started.wait(LONG)

    async def main() -> None:
        closing = asyncio.create_task(f.aclose())
        while not f.statistics().closed:
            await asyncio.sleep(0)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing

    asyncio.run(main())
    assert not running.done()
    held.gate.set()
    assert (running.result(LONG), waiting.result(LONG)) == (1, 2)  # a drain finishes what was accepted
    until(lambda: not any(thread.name == "batchlib-given-up" for thread in threading.enumerate()))
