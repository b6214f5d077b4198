"""The life of a request as a table: the only place that says which event leads where.

What runs for every request or batch uses states that were looked up once, at import: on Python 3.11 an enum's member
costs as much as two calls. Every rare path asks `after`. The diagram in the docs is drawn from TRANSITIONS
(`python -m batchlib._core`), and the tests walk all of it.
"""

from __future__ import annotations

import enum


class State(enum.Enum):
    """Where a request is. All but NEW, WAITING and RUNNING are final."""

    NEW = "new"
    WAITING = "waiting"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    SHED = "shed"
    REJECTED = "rejected"

    __hash__ = object.__hash__  # members are singletons; Enum's own hash is a Python call on the path of each batch


class Event(enum.Enum):
    """What can happen to a request."""

    ADMIT = "admit"
    REFUSE = "refuse"
    DISPATCH = "dispatch"
    COMPLETE = "complete"
    FAIL = "fail"
    CANCEL = "cancel"
    EXPIRE = "expire"
    SHED = "shed"
    CLOSE = "close"

    __hash__ = object.__hash__


TRANSITIONS: dict[tuple[State, Event], State] = {
    (State.NEW, Event.ADMIT): State.WAITING,
    (State.NEW, Event.REFUSE): State.REJECTED,
    (State.WAITING, Event.DISPATCH): State.RUNNING,
    (State.WAITING, Event.FAIL): State.FAILED,  # a policy failed on it: it must not wait for ever
    (State.WAITING, Event.CANCEL): State.CANCELLED,
    (State.WAITING, Event.EXPIRE): State.EXPIRED,
    (State.WAITING, Event.SHED): State.SHED,
    (State.WAITING, Event.REFUSE): State.REJECTED,  # a lowered limit left no batch that could hold it
    (State.WAITING, Event.CLOSE): State.REJECTED,
    (State.RUNNING, Event.COMPLETE): State.COMPLETED,
    (State.RUNNING, Event.FAIL): State.FAILED,
    (State.RUNNING, Event.CANCEL): State.CANCELLED,  # the caller left; its batch goes on
    (State.RUNNING, Event.EXPIRE): State.EXPIRED,  # likewise
    (State.RUNNING, Event.CLOSE): State.REJECTED,  # likewise
}

FINAL = frozenset(State) - {State.NEW, State.WAITING, State.RUNNING}


def after(state: State, event: Event) -> State:
    """The state that `event` leads to; a KeyError here is a bug of batchlib, never of a caller."""
    return TRANSITIONS[state, event]


def diagram() -> str:
    """The table as a Mermaid state diagram."""
    lines = ["stateDiagram-v2", "    [*] --> new"]
    lines += [
        f"    {source.value} --> {target.value}: {event.value}" for (source, event), target in TRANSITIONS.items()
    ]
    lines += [f"    {state.value} --> [*]" for state in State if state in FINAL]
    return "\n".join(lines)
