"""The errors that the core hands to callers, with their numbers: what was needed, what was allowed, what to do."""

from __future__ import annotations

from collections.abc import Callable

from ..errors import (
    BatchFailed,
    BatchlibError,
    Closed,
    DeadlineExceeded,
    ExecutorLost,
    ItemTooLarge,
    Overloaded,
    Shed,
)
from ._request import Request
from ._transitions import State


def closed_for_new(waiting: int, lost: ExecutorLost | None) -> BatchlibError:
    if lost is not None:
        return of_lost(lost)
    return Closed(
        f"the batcher is closed and takes no more requests ({waiting} still waiting); it cannot be opened again: "
        "decorate the function anew"
    )


def no_room(request: Request, waiting: int) -> Overloaded:
    return Overloaded(
        f"{waiting} requests wait, which is all that may (tenant={request.tenant!r}), and submit cannot pause an event "
        "loop: await the call, submit from a thread, or raise max_waiting"
    )


def closed_while(lost: ExecutorLost | None) -> Callable[[Request], BatchlibError]:
    """Makes the error of each request that has not ended."""

    def error(request: Request) -> BatchlibError:
        if lost is not None:
            return of_lost(lost)
        if request.state is State.WAITING:
            return Closed("the batcher was closed while the request waited: it never ran and can be sent elsewhere")
        return Closed("the batcher was closed while the request's batch ran: it may have had effects")

    return error


def of_lost(lost: ExecutorLost) -> ExecutorLost:
    """An error object of its own for one more caller. The cause is shared: nobody raises that one again."""
    own = ExecutorLost()
    own.args = lost.args  # of a subclass, perhaps, with arguments of its own
    own.__cause__ = lost.__cause__
    return own


def too_large(needed: float, allowed: float) -> ItemTooLarge:
    return ItemTooLarge(
        f"the item needs {needed:g} and a batch may hold {allowed:g}: split it, raise the limit, "
        'or let it run by itself with oversize="alone"'
    )


def expired(request: Request, waiting: int, now: float) -> DeadlineExceeded:
    assert request.deadline is not None
    where = "while it waited" if request.state is State.WAITING else "while its batch ran"
    granted = request.deadline - request.arrival
    given = f"{granted:.3g} s were granted" if granted > 0 else "no time was left when it was queued"
    return DeadlineExceeded(
        f"the deadline passed {where}: {given}, {now - request.arrival:.3g} s have gone by "
        f"({waiting} waiting, tenant={request.tenant!r}): grant more time, lower the load or add capacity"
    )


def shed(waiting: int) -> Callable[[Request], Shed]:
    """Makes the error of each request that is given up when so many wait."""
    return lambda _: Shed(f"given up by policy before it ran ({waiting} waiting): send it later or elsewhere")


def policy_fault(policy: object, problem: str, cause: BaseException | None) -> BatchFailed:
    fault = BatchFailed(f"{type(policy).__name__} {problem}: this is a fault of the policy")
    fault.__cause__ = cause
    return fault


def copies(fault: BatchFailed) -> Callable[[Request], BatchFailed]:
    """Makes each request an error object of its own."""

    def copy(_: Request) -> BatchFailed:
        own = BatchFailed(*fault.args)
        own.__cause__ = fault.__cause__
        return own

    return copy


def deliverable(error: object, by: object) -> Exception:
    """What a policy refused or failed with: itself, unless it is nothing that a future can be given."""
    if isinstance(error, Exception) and not isinstance(error, StopIteration | StopAsyncIteration):
        return error
    cause = error if isinstance(error, BaseException) else None
    return policy_fault(by, f"refused with {error!r}, which no caller can be given", cause)
