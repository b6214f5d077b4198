"""Where the present code runs: on which loop, in which run, under which cancel scope.

asyncio, trio and anyio are looked at only where somebody else has imported them, so that none of them is paid for by
those who do not use it.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any

_modules = sys.modules


def in_trio() -> bool:
    """Whether the present code runs in a trio task; first, because trio can be a guest of an asyncio loop."""
    return "trio" in _modules and bool(_modules["trio"].lowlevel.in_trio_task())


def current_loop() -> Any:
    """The asyncio loop or trio token that the present code runs on. RuntimeError outside both."""
    if "trio" in _modules and in_trio():
        return _modules["trio"].lowlevel.current_trio_token()
    if "asyncio" not in _modules:
        raise RuntimeError("no event loop runs here: await the call on asyncio or trio, or use .call in a thread")
    return _modules["asyncio"].get_running_loop()


def on_loop() -> bool:
    """Whether the present code runs on an event loop's thread, where nothing may block."""
    try:
        current_loop()
    except RuntimeError:
        return False
    return True


def scope_deadline(now: Callable[[], float]) -> float | None:
    """When the present task's cancel scope ends, on the clock `now`; None if it does not or there is no scope.

    anyio sees trio's scopes as well; without anyio trio is asked itself.
    """
    scopes = _modules.get("anyio") or _modules.get("trio")
    if scopes is None:
        return None
    try:
        deadline = scopes.current_effective_deadline()
        return None if deadline == math.inf else now() + deadline - scopes.current_time()
    except (RuntimeError, AttributeError, TypeError):  # not in a task of theirs, or a module that is being imported
        return None
