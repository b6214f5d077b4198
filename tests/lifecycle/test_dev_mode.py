"""Python's development mode, with every warning an error, finds nothing to say about a program that uses it all."""

import subprocess
from collections.abc import Callable

import pytest

Program = Callable[..., "subprocess.CompletedProcess[str]"]

PROGRAM = """
import asyncio, gc, threading
from contextlib import aclosing
import trio
from batchlib import batched, request_options

@batched(max_batch_size=8)
def plain(items):
    return [ValueError(item) if item == 13 else item for item in items]

@batched(max_batch_size=8, max_wait=0.001)
async def asynchronous(items):
    return items

class Model:
    @batched
    def run(self, items, *, factor=2):
        return [factor * item for item in items]

def threads():
    for f in (plain, asynchronous):
        assert f.call(1) == 1
        assert [future.result() for future in [f.submit(n) for n in range(10)]] == list(range(10))
        assert list(f.map(range(30), look_ahead=4, return_exceptions=True))[:12] == list(range(12))
        for _ in f.map(range(30)):
            break
        with request_options(timeout=0.0):
            try: f.call(1)
            except TimeoutError: pass
    try: plain.call(13)
    except ValueError: pass

async def main():
    asyncio.get_running_loop().slow_callback_duration = 60  # a busy machine is not the subject
    for f in (plain, asynchronous):
        assert await asyncio.gather(*(f(n) for n in range(10))) == list(range(10))
        task = asyncio.create_task(f(1))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        async with aclosing(aiter(f.map(range(30)))) as results:
            assert await anext(results) == 0
    assert await Model().run(4, factor=3) == 12

async def nursery():
    for f in (plain, asynchronous):
        async with trio.open_nursery() as tasks:
            for n in range(10):
                tasks.start_soon(f, n)
        with trio.move_on_after(0):
            await f(1)

threads()
worker = threading.Thread(target=threads)
worker.start()
worker.join()
for _ in range(3):
    asyncio.run(main())
    trio.run(nursery)
gc.collect()
plain.close()
{end}
print("fine")
"""


@pytest.mark.parametrize("end", ["asynchronous.close()", "asynchronous.submit(1)", "del asynchronous"])
def test_development_mode_finds_nothing(program: Program, end: str) -> None:
    done = program(PROGRAM.replace("{end}", end), "-X", "dev")
    assert (done.returncode, done.stdout, done.stderr) == (0, "fine\n", "")


@pytest.mark.parametrize("kind", ["plain", "asynchronous"])
def test_a_fork_leaves_nothing_open(program: Program, kind: str) -> None:
    """The child ends like any program; what it inherited is closed without a warning."""
    done = program(
        f"""
        import os, sys, warnings
        warnings.filterwarnings("ignore", ".*fork.*", DeprecationWarning)
        from batchlib import batched
        def plain(items): return items
        async def asynchronous(items): return items
        f = batched({kind})
        assert f.call(1) == 1
        child = os.fork()
        assert f.call(2) == 2
        if child:
            assert os.waitpid(child, 0)[1] == 0
        """,
        "-X",
        "dev",
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
