"""Finds the requests that make a batch fail, by running halves of it again.

A plan is a generator: it yields a range of requests to run and is sent the exception that the run raised, or None.
So the same plan drives a plain and an async function.
"""

from __future__ import annotations

from collections.abc import Generator

Range = tuple[int, int]
Plan = Generator[Range, BaseException | None, dict[Range, BaseException]]


def bisect(size: int, error: BaseException) -> Plan:
    """Halves a failed batch until the culprits are alone.

    size: of the batch whose run raised `error`, at least 2. Returns {range: error} for what failed for good.

    Needs at most 2·k·⌈log2 n⌉ runs for k culprits among n. It stops after 8·⌈log2 n⌉ runs, when what is left fails
    with the last error seen for it: an outage must not become 2n calls.
    """
    allowed = 8 * (size - 1).bit_length()
    failed: dict[Range, BaseException] = {}
    suspects: list[tuple[Range, BaseException]] = [((0, size), error)]
    while suspects:
        (low, high), error = suspects.pop()
        if high - low == 1 or not allowed:
            failed[low, high] = error
            continue
        middle = (low + high) // 2
        halves: list[tuple[Range, BaseException]] = []
        allowed -= 2
        for half in ((low, middle), (middle, high)):
            raised = yield half
            if raised is not None:
                halves.append((half, raised))
        suspects.extend(reversed(halves))  # the earlier half first: requests keep their order
    return failed
