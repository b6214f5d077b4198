"""Limits that are changed in several threads at once: every change holds."""

import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from support import VirtualClock

from batchlib import batch_context, batched


@pytest.fixture
def hasty_threads() -> Iterator[None]:
    """Each thread is stopped often, anywhere."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def test_of_two_changes_at_once_none_is_lost(hasty_threads: None) -> None:
    rounds = range(2, 300)
    f: Any = batched(
        lambda items: [context.deadline for context in batch_context()],
        cost=lambda item: item,
        max_batch_cost=1,
        timeout=1,
        clock=VirtualClock(),
    )
    both = threading.Barrier(3)

    def change(limit: str) -> None:
        for number in rounds:
            both.wait()
            f.configure(**{limit: number})
            both.wait()

    threads = [threading.Thread(target=change, args=(limit,)) for limit in ("max_batch_cost", "timeout")]
    for thread in threads:
        thread.start()
    held: list[bool] = []
    for number in rounds:
        both.wait()
        both.wait()
        most = f._live.given.values["max_batch_cost"]
        held.append(most == number and f.call(most) == 100 + number)
    for thread in threads:
        thread.join()
    assert all(held)
