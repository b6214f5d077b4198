"""What the tests of beginnings and ends share: callers of every kind, programs of their own, forked children."""

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from support.callers import KINDS, Start, starter
from support.held import LONG


@pytest.fixture(params=KINDS)
def start(request: pytest.FixtureRequest) -> Iterator[Start]:
    """All kinds of callers, one after the other."""
    with ExitStack() as stack:
        yield starter(request.param, stack)


@pytest.fixture
def program() -> Callable[..., subprocess.CompletedProcess[str]]:
    """program(source, *options): what an interpreter of its own makes of it, with warnings as errors."""

    def run(source: str, *options: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-W", "error", *options, "-c", textwrap.dedent(source)]
        return subprocess.run(command, capture_output=True, text=True, timeout=LONG, check=False)

    return run


@pytest.fixture
def in_child() -> Callable[[Callable[[], Any]], str]:
    """in_child(work): the text of what `work` returns, or raises, in a forked child; "" if the child hangs."""

    def run(work: Callable[[], Any]) -> str:
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(LONG)
            try:
                result = str(work())
            except BaseException as error:
                result = repr(error)
            os.write(writing, result.encode())
            os._exit(0)
        os.close(writing)
        with os.fdopen(reading) as pipe:
            text = pipe.read()
        os.waitpid(child, 0)
        return text

    return run
