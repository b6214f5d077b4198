"""Waiting for what another thread brings about."""

import time
from collections.abc import Callable


def until(happened: Callable[[], object]) -> None:
    """Lets other threads run until it has happened; a hang is ended by the suite's own timeout."""
    while not happened():
        time.sleep(0)
