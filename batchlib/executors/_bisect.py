"""Finds the requests that make a batch fail, by running halves of it again.

A plan is a generator: it yields a range of requests to run and is sent the parts of it that failed, in order: the range
itself, unless the executor ran it in several parts. So the same plan drives a plain and an async function.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence

Range = tuple[int, int]
Plan = Generator[Range, Sequence[Range], None]


def bisect(size: int) -> Plan:
    """Runs a whole batch of that size, then halves of what failed until the culprits are alone.

    Needs at most 2·k·⌈log2 n⌉ runs after the first for k culprits among n. It stops after 8·⌈log2 n⌉ of them: an outage
    must not become 2n calls.
    """
    allowed = 8 * (size - 1).bit_length()
    suspects = list((yield 0, size))[::-1]
    while suspects and allowed:
        low, high = suspects.pop()
        if high - low == 1:
            continue
        middle = (low + high) // 2
        failed: list[Range] = []
        for half in ((low, middle), (middle, high)):
            allowed -= 1
            failed += yield half
        suspects += failed[::-1]  # the earlier half first: requests keep their order
