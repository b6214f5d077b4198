"""A close that comes between a request and the thread that would run it leaves no thread behind."""

import threading
from typing import Any

import pytest
from support.held import LONG
from support.until import until

from batchlib import Closed, batched

pytestmark = pytest.mark.timeout(30)


def plain(items: list[int]) -> list[int]:
    return items


async def asynchronous(items: list[int]) -> list[int]:
    return items


@pytest.mark.parametrize(
    ("function", "place", "ask"), [(plain, "workers", "put"), (asynchronous, "private", "channel")]
)
def test_no_thread_is_left(monkeypatch: pytest.MonkeyPatch, function: Any, place: str, ask: str) -> None:
    f = batched(function, name=f"closed-between-{place}")
    threads = getattr(f._driver, place)
    really = getattr(threads, ask)
    asked, closed = threading.Event(), threading.Event()

    def late(*args: Any) -> Any:
        asked.set()
        assert closed.wait(LONG)
        return really(*args)

    monkeypatch.setattr(threads, ask, late)
    answers: list[Any] = []

    def call() -> None:
        with pytest.raises(Closed) as caught:
            f.call(1)
        answers.append(caught.type)

    caller = threading.Thread(target=call)
    caller.start()
    assert asked.wait(LONG)
    f.close(drain=False)
    closed.set()
    caller.join(LONG)
    assert answers == [Closed]
    until(lambda: not any(f"closed-between-{place}" in thread.name for thread in threading.enumerate()))
