"""A program ends when it wants to: with requests waiting, batches running, even with a function that hangs."""

import select
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable

import pytest

Program = Callable[..., "subprocess.CompletedProcess[str]"]

HEAD = """
    import asyncio, sys, threading
    from batchlib import batched
    started = threading.Event()
    def same(items): return items
    async def for_ever(items):
        started.set()
        await asyncio.Event().wait()
    def briefly(items):
        started.set()
        ended.wait(0.2)
        return items
    ended = threading.Event()
"""

ENDS = {
    "unused": "f = batched(same)",
    "idle": "f = batched(same); f.call(1)",
    "idle async": """
    f = batched(for_ever, timeout=0.01)
    try: f.call(1)
    except TimeoutError: pass
    """,
    "closed": "f = batched(same); f.call(1); f.close()",
    "waiting": "f = batched(same, max_batch_size=2, max_wait=60); f.submit(1)",
    "waiting with a deadline": "f = batched(same, max_batch_size=2, max_wait=60, timeout=50); f.submit(1)",
    "waiting behind a batch": "f = batched(briefly, max_batch_size=1); f.submit(1); f.submit(2); started.wait()",
    "running": "f = batched(briefly); f.submit(1); started.wait()",
    "running async": "f = batched(for_ever); f.submit(1); started.wait()",
    "blocked daemon": """
    f = batched(same, max_batch_size=2, max_wait=60)
    def call():
        try: f.call(1)
        except Exception: pass
    threading.Thread(target=call, daemon=True).start()
    while not f.statistics().waiting: pass
    """,
    "left by asyncio": """
    f = batched(same, max_batch_size=2, max_wait=60)
    async def main():
        task = asyncio.ensure_future(f(1))
        while not f.statistics().waiting: await asyncio.sleep(0)
    asyncio.run(main())
    """,
    "left by trio": """
    import trio
    f = batched(same, max_batch_size=2, max_wait=60)
    async def main():
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(f, 1)
                while not f.statistics().waiting: await trio.sleep(0)
                scope.cancel()
    trio.run(main)
    """,
    "left inside map": "f = batched(same, max_batch_size=2); results = iter(f.map(range(100))); next(results)",
    "instances": """
    class Model:
        @batched(max_batch_size=2, max_wait=60)
        def run(self, items): return items
    models = [Model() for _ in range(20)]
    for model in models: model.run.submit(1)
    """,
}


@pytest.mark.parametrize("end", list(ENDS))
def test_a_program_ends_without_a_word(program: Program, end: str) -> None:
    done = program(textwrap.dedent(HEAD) + textwrap.dedent(ENDS[end]))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_program_ends_though_a_function_hangs(program: Program) -> None:
    """Its thread cannot be stopped, so the exit waits for it as long as it waits for any, and then goes on."""
    done = program(
        """
        import threading
        from batchlib import batched
        started = threading.Event()
        def hangs(items):
            started.set()
            threading.Event().wait()
        f = batched(hangs)
        f.submit(1)
        started.wait()
        """
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_an_error_of_the_program_is_all_that_is_said(program: Program) -> None:
    done = program(
        """
        from batchlib import batched
        f = batched(lambda items: items, max_batch_size=2, max_wait=60)
        f.submit(1)
        raise SystemExit("enough")
        """
    )
    assert (done.returncode, done.stderr) == (1, "enough\n")


@pytest.mark.parametrize("how", ["f.call(1)", "f.submit(1).result()", "list(f.map([1]))", "asyncio.run(main())"])
def test_an_interrupt_reaches_whoever_waits(how: str) -> None:
    """And the program can end after it, though nothing else ever happens to the request."""
    source = f"""
        import asyncio, threading, sys
        from batchlib import batched
        f = batched(lambda items: items, max_batch_size=2, max_wait=60)
        async def main(): await f(1)
        def ready():
            while not f.statistics().waiting: pass
            print("ready", flush=True)
        threading.Thread(target=ready).start()
        try:
            {how}
        except KeyboardInterrupt:
            print("interrupted")
    """
    command = [sys.executable, "-W", "error", "-c", textwrap.dedent(source)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        # A signal that comes in the moment before a thread goes to sleep wakes nobody, whatever the program: ask again.
        process.send_signal(signal.SIGINT)
        while not select.select([process.stdout], [], [], 1)[0]:
            process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=30)
    assert (process.returncode, output, errors) == (0, "interrupted\n", "")


def test_what_runs_at_exit_may_still_ask_and_is_told(program: Program) -> None:
    """Functions registered before batchlib was imported run after its batchers have been closed."""
    done = program(
        """
        import atexit
        def late():
            try: f.call(2)
            except Exception as error: print(type(error).__name__)
        atexit.register(late)
        from batchlib import batched
        f = batched(lambda items: items)
        print(f.call(1))
        """
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "1\nClosed\n", "")


@pytest.mark.parametrize("used", [True, False])
@pytest.mark.parametrize("options", ["", "timeout=60", "max_wait=0.001"])
def test_a_thread_that_outlives_the_main_one_is_served_or_told(program: Program, used: bool, options: str) -> None:
    """From Python 3.12 on no thread can be started any more; those that exist go on."""
    done = program(
        f"""
        import threading
        from batchlib import batched
        f = batched(lambda items: items, {options})
        if {used}: f.call(0)
        def late():
            threading.main_thread().join()
            try: print(f.call(1))
            except Exception as error: print(type(error).__name__)
        threading.Thread(target=late).start()
        """
    )
    told = {"1\n"} if used else {"1\n", "RuntimeError\n", "Closed\n"}
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout in told
