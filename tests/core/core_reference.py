"""What the core must do, written down as plainly as possible: lists, no heaps, everything looked at every time.

It knows Fifo with Greedy or SizeOrWait, CostLimit, MaxWaiting and nothing else, and it shares no code with the core.
"""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Rules:
    max_batch_size: int = 4
    max_concurrent_batches: int = 1
    max_cost: float | None = None
    oversize_alone: bool = False
    max_wait: float | None = None  # None: greedy
    max_waiting: int | None = None
    reject: bool = False


@dataclass(eq=False)
class Call:
    number: int
    group: str
    cost: float
    arrival: float
    deadline: float | None
    state: str = "waiting"


@dataclass
class Step:
    """What one event brings about."""

    ended: dict[int, str] = field(default_factory=dict)  # call -> state, of those whose callers must be told
    batches: list[tuple[list[int], str]] = field(default_factory=list)  # calls and reason, in order of dispatch
    abandoned: list[int] = field(default_factory=list)  # numbers of batches


class Reference:
    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.calls: list[Call] = []
        self.batches: list[list[Call]] = []
        self.running: list[int] = []  # indices of batches
        self.closed = False
        self.release = ""  # why nobody is held back
        self.held: set[str] = set()  # groups that are

    @property
    def waiting(self) -> list[Call]:
        return [call for call in self.calls if call.state == "waiting"]

    @property
    def full(self) -> bool:
        return self.rules.max_waiting is not None and len(self.waiting) >= self.rules.max_waiting

    @property
    def held_back(self) -> bool:
        return self.full and not self.rules.reject

    # ---- events

    def submit(self, group: str, cost: float, now: float, deadline: float | None) -> Step:
        full = self.rules.reject and self.full
        never = self.rules.max_cost is not None and cost > self.rules.max_cost and not self.rules.oversize_alone
        call = Call(len(self.calls), group, cost, now, deadline)
        self.calls.append(call)
        step = Step()
        if self.closed or never or full:
            self.end(call, "rejected", step)
        else:
            self.held.discard(group)
        return step

    def cancel(self, number: int) -> Step:
        step = Step()
        call = self.calls[number]
        if call.state in ("waiting", "running"):
            self.end(call, "cancelled", step)
            del step.ended[number]  # its caller has gone and is told nothing
        return step

    def wake(self, now: float, step: Step | None = None) -> Step:
        step = step or Step()
        self.expire(now, step)
        self.dispatch(now, step)
        return step

    def unwatched(self, now: float, step: Step) -> None:
        """A wake-up that the event asked for cannot be had: it goes on."""
        self.expire(now, step)
        if self.held & {call.group for call in self.waiting}:
            release, self.release = self.release, self.release or "no_clock"
            self.dispatch(now, step)
            self.release = release

    def expire(self, now: float, step: Step) -> None:
        for call in self.calls:
            if call.state in ("waiting", "running") and call.deadline is not None and call.deadline <= now:
                self.end(call, "expired", step)

    def dispatch(self, now: float, step: Step) -> None:
        while len(self.running) < self.rules.max_concurrent_batches and self.waiting:
            batch, reason = self.next_batch(now)
            if not batch:
                break
            for call in batch:
                call.state = "running"
            self.running.append(len(self.batches))
            self.batches.append(batch)
            step.batches.append(([call.number for call in batch], reason))

    def finish(self, batch: int, failed: list[bool], now: float) -> Step:
        step = Step()
        self.running.remove(batch)
        for call, fails in zip(self.batches[batch], failed, strict=True):
            if call.state == "running":
                self.end(call, "failed" if fails else "completed", step)
        return self.wake(now, step)

    def close(self, drain: bool, running: bool, now: float) -> Step:
        step = Step()
        self.closed = True
        self.release = "drain" if drain else self.release
        for call in self.calls:
            if (call.state == "waiting" and not drain) or (call.state == "running" and running):
                self.end(call, "rejected", step)
        return self.wake(now, step)

    def configure(self, rules: Rules, now: float) -> Step:
        self.rules = rules
        step = Step()
        for call in self.waiting:
            if rules.max_cost is not None and call.cost > rules.max_cost and not rules.oversize_alone:
                self.end(call, "rejected", step)
        return self.wake(now, step)

    # ---- rules

    def end(self, call: Call, state: str, step: Step) -> None:
        was_running = call.state == "running"
        call.state = state
        step.ended[call.number] = state
        if was_running:
            for index in self.running:
                batch = self.batches[index]
                if call in batch and all(other.state not in ("waiting", "running") for other in batch):
                    step.abandoned.append(index + 1)

    def next_batch(self, now: float) -> tuple[list[Call], str]:
        """Of the groups that are ready, the one with the first call in order."""
        asked = set()
        for first in self.waiting:
            if first.group not in asked:
                asked.add(first.group)
                group = [call for call in self.waiting if call.group == first.group]
                batch, full, oversize = self.fill(group)
                waited = self.rules.max_wait is None or now >= first.arrival + self.rules.max_wait
                if self.release or full or waited:
                    self.held.discard(first.group)
                    return batch, self.reason(full, oversize)
                self.held.add(first.group)
        return [], ""

    def reason(self, full: bool, oversize: bool) -> str:
        if oversize:
            return "oversize"
        if self.release:
            return self.release
        if full:
            return "full"
        return "executor_free" if self.rules.max_wait is None else "max_wait"

    def fill(self, group: list[Call]) -> tuple[list[Call], bool, bool]:
        """The first in order that fit, closed at the first that does not; whether it is full; whether oversize."""
        allowed = float("inf") if self.rules.max_cost is None else self.rules.max_cost
        batch: list[Call] = []
        for call in group:
            if sum(other.cost for other in batch) + call.cost > allowed:
                return batch or [call], True, not batch
            batch.append(call)
            if len(batch) == self.rules.max_batch_size or sum(other.cost for other in batch) == allowed:
                return batch, True, False
        return batch, False, False
