"""A batcher at work: the core behind a lock, and the runtimes that perform what it says.

Every event is handled the same way: take the lock, tell the core the time and what happened, release the lock,
perform the actions. Nothing is performed under the lock, so hooks, futures' callbacks and loops are free to call
back. Callers come in through `_calls`; `_core/README.md` has the order of events.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from .._context import AMBIENT
from .._core._actions import SOON, Abandon, Action, Dispatch, Resolve, WakeAt
from .._core._batch import Batch
from .._core._batcher import Batcher
from .._core._execution import Executor
from .._core._policies import Policies
from .._core._protocols import Clock, Hook
from .._core._request import Request
from .._core._splitting import SplittingBatcher
from .._core._statistics import Statistics
from .._core._transitions import FINAL, State
from ..errors import ReentrantCallError
from ..executors._errors import in_slots, one_each
from . import _lifecycle, _running
from ._calls import refuse_to_block
from ._channels import Channels
from ._clock import SystemClock
from ._gate import Gate
from ._observers import Observers
from ._places import on_loop
from ._put_off import PutOff
from ._threads import THREADS, PrivateLoop, Workers

if TYPE_CHECKING:
    from ._channels import Channel

_JOIN = 5.0  # seconds that idle threads get to end; they need microseconds
WORKER = object()  # the place that a thread of the batcher is
_INSTEAD = "call the undecorated function (`.direct`), or another batched function"


@dataclass(frozen=True, slots=True)
class DriverOptions:
    """What a driver needs beside policies and an executor."""

    name: str
    version: str | None = None
    clock: Clock | None = None
    hooks: tuple[Hook, ...] = ()
    max_execution_time: float | None = None


class Driver:
    """One queue of requests, shared at once by any number of asyncio loops, trio runs and threads."""

    def __init__(self, policies: Policies, executor: Callable[[], Executor], options: DriverOptions) -> None:
        self._policies = policies
        self._new_executor = executor
        self._options = options
        self._observers = Observers(options.name, options.version, options.hooks)
        self._hooked = bool(options.hooks)
        self._resources = _lifecycle.Resources()
        self.closing = False  # `close` has been called
        self.start()
        _lifecycle.register(self, self._resources)

    def start(self) -> None:
        """Begins with an empty queue and nothing running; again in the child after a fork, where threads are gone."""
        clock: Clock = self._options.clock or SystemClock()
        self.executor, self.lost = self._new_executor(), False  # lost: it is gone for good
        self.per_loop = self.executor.is_async  # a batch of an async function never mixes loops
        self._clock = clock
        self.now = clock.now  # looked up once: every request needs it
        self.lock = threading.Lock()
        self.core = (SplittingBatcher if self._policies.oversize_split else Batcher)(self._policies)
        if self.closing:
            self.core.close(self.now(), drain=False)
        self.gate = Gate(self.lock, self.core, clock, _lifecycle.Notify(self))
        self.channels = Channels()
        self.put_off = PutOff(self.lock, clock, _lifecycle.Wake(self))
        self._asked = False  # a worker has been asked to look, and has not yet done so
        self.nested = False  # some request came from inside a batch; most batchers never see one
        self.workers = Workers(self._options.name)
        self.private = PrivateLoop(self._options.name)
        self._resources.hold(self.workers, self.private, clock, getattr(self.executor, "stop", None))

    # ---- requests

    def submit_from_thread(self, request: Request, *, more: bool = False) -> None:
        """A thread's arrival; its waiter has been attached. `more`: others follow at once, and then `wake`."""
        if request.chain:
            self.refuse_reentry(request.chain)
        if self.per_loop:
            self._keep_apart(request, self.private)
        with self.lock:
            now = request.arrival = self.now()
            actions = self.core.submit(request, now)
        if actions is not SOON:
            self.perform(actions, None)
        if actions and actions[-1] is SOON[0] and not more:
            self._ask()
        elif self.per_loop and not actions:
            _running.reap(self)

    def _ask(self) -> None:
        """Has whoever will run the batch take it: it closes when a place gets to it, and more may have come by then."""
        if self._asked:
            return
        self._asked = True
        try:
            if self.per_loop:
                self.private.channel().call(self._look)
            else:
                self.workers.put(self, None, self.core.max_concurrent_batches)
        except Exception:  # no thread or no loop to be had: dispatching will say so to the callers
            self._look()

    def _look(self) -> None:
        self._asked = False  # before the look: whoever comes after it asks again
        self.wake()

    def submit(self, request: Request, channel: Channel, *, ahead: bool = False) -> None:
        """An arrival on the loop of `channel`; its waiter has been attached. `ahead`: nobody waits for its outcome."""
        if request.chain:
            self.refuse_reentry(request.chain)
        if self.per_loop:
            self._keep_apart(request, channel if request.channel is not THREADS else self.private)
        with self.lock:
            now = request.arrival = self.now()
            actions = self.core.submit(request, now, ahead=ahead)
        if actions is SOON:
            channel.soon(self)
        elif actions:
            self.perform(actions, channel)
        elif self.channels.several:
            _running.reap(self)

    def _keep_apart(self, request: Request, place: object) -> None:
        request.group = place if request.group is None else (place, request.group)

    def refuse_reentry(self, chain: Sequence[Batch], instead: str = _INSTEAD) -> None:
        self.nested = True
        for batch in chain:
            if batch.batcher is self and not batch.done:
                raise ReentrantCallError(
                    f"{self._options.name} was called from inside its own batch {batch.number}, which would wait for "
                    f"itself: {instead}"
                )

    def cancel(self, request: Request, *, only_waiting: bool = False) -> bool:
        """The caller has left: a waiting request is taken out, the batch of a running one goes on without it.

        only_waiting: leave one that runs alone. Says whether the request was cancelled by this.
        """
        with self.lock:
            begun = any(each.state is not State.WAITING for each in request.portions)
            if request.state in FINAL or (only_waiting and begun):
                return False
            actions = self.core.cancel(request, self.now())
            self.gate.notify()
        self.perform(actions, None)
        if self._hooked:
            self._observers.ended([each for each in request.portions if each.state is State.CANCELLED], self.now)
        return True

    # ---- running batches

    def take(self) -> Batch | None:
        """For a free worker: looks at what waits, and gives it the batch to run."""
        self._asked = False  # before the look: whoever comes after it asks again
        if self.put_off.calls:
            self.put_off.catch_up()
        with self.lock:
            actions = self.core.wake(self.now())
        return self.perform(actions, None, keep=WORKER)

    def finish(self, batch: Batch, outcomes: Sequence[Any], *, worker: bool = False) -> Batch | None:
        """A batch has ended. `worker`: the caller sees to the next batch itself, and gets it, if there is one."""
        outcomes = one_each(outcomes, batch.size)
        own = in_slots(outcomes)
        if self.put_off.calls:
            self.put_off.catch_up()
        with self.lock:
            if batch.done:
                return None  # given up before, and the hooks were told then
            now = self.now()
            actions = self.core.finish(batch, own, now, clean=own is outcomes)
        batch.handle = None
        if self._hooked:
            self._observers.batch_ended(batch, outcomes, now)
        following = self.perform(actions, None, keep=WORKER if worker else None)
        if self.closing and self.core.idle:
            self._resources.stop()
        return following

    # ---- actions

    def tick(self, channel: Channel) -> None:
        """The arrivals of this tick are in."""
        channel.ticking = False
        self.wake()

    def wake(self) -> None:
        """Lets the core look at what waits, now."""
        if self.put_off.calls:
            self.put_off.catch_up()
        with self.lock:
            actions = self.core.wake(self.now())
        self.perform(actions, None)

    def perform(self, actions: Sequence[Action], channel: Channel | None, *, keep: object = None) -> Batch | None:
        """Performs actions in order, outside the lock.

        channel: where a wake-up at the end of the tick is served; None in a thread.
        keep: a free place to run a batch, a channel or WORKER: the first one that can run there is given back instead
            of being started.
        """
        kept: Batch | None = None
        for action in actions:
            if isinstance(action, Resolve):
                self._resolve(action.requests)
            elif isinstance(action, Dispatch):
                batch = action.batch
                if self._hooked:
                    self._observers.batch_started(batch)
                batch.batcher = self  # from here on whatever thread sees its last caller leave ends it
                if self.per_loop and batch.abandoned:
                    _running.stop(self, batch)
                    continue
                requests = batch.requests  # once: a batch that has ended has none
                if keep is not None and kept is None and (keep is WORKER or (requests and requests[0].channel is keep)):
                    kept = batch
                else:
                    _running.start(self, batch)
            elif isinstance(action, WakeAt):
                if action.instant > -math.inf:
                    kept = self._wake_at(action.instant, keep if kept is None else None) or kept
                elif channel is not None:
                    channel.soon(self)
            elif isinstance(action, Abandon):
                _running.stop(self, action.batch)
            else:
                self._observers.report("a policy raised where no caller could be told", action.error)
        if self.gate.watchers:
            self.notify()
        return kept

    def _wake_at(self, instant: float, keep: object) -> Batch | None:
        try:
            self._clock.call_at(instant, _lifecycle.Wake(self))
            return None
        except RuntimeError:  # no thread to be had, as when the program is ending: who waits would wait for ever
            with self.lock:
                actions = self.core.unwatched(self.now())
            return self.perform(actions, None, keep=keep)

    def _resolve(self, requests: Sequence[Request]) -> None:
        if self._hooked:
            self._observers.ended(requests, self.now)
        channel = requests[0].channel
        for request in requests:
            if request.channel is not channel:
                break
        else:
            channel.deliver(requests)
            return
        by_channel: dict[Any, list[Request]] = {}
        for request in requests:
            by_channel.setdefault(request.channel, []).append(request)
        for channel, those in by_channel.items():
            channel.deliver(those)

    # ---- places

    def here(self) -> Channel:
        """The channel of the loop or run that the present code is in."""
        channel, new = self.channels.here()
        if new:
            _running.reap(self)
        return channel

    # ---- end and evidence

    @property
    def max_batch_size(self) -> int:
        return self.core.max_batch_size

    @property
    def held_back(self) -> bool:
        """Whether those who run ahead of their results should pause."""
        with self.lock:
            return self.core.held_back

    def notify(self) -> None:
        """Lets waiting threads look again."""
        with self.lock:
            self.gate.notify()

    def close(self, drain: bool, timeout: float | None) -> None:
        """Takes no more requests and ends; see the decorator's `close`. A second call does nothing."""
        if drain:
            ambient = AMBIENT.get()
            if ambient is not None:
                self.refuse_reentry(ambient.chain, "close with drain=False")
            refuse_to_block(self, "close(drain=True)", "await aclose(...)")
        with self.lock:
            if self.closing:
                return
            self.closing = True
            actions = self.core.close(self.now(), drain=drain)
            self.gate.notify()
        self.perform(actions, None)
        if drain:
            self.gate.wait_for_end(timeout)
            with self.lock:  # whoever still waits or runs gets Closed
                actions = () if self.core.idle else self.core.close(self.now(), drain=False, running=True)
            self.perform(actions, None)
            self._resources.stop()
        if self.core.idle:  # otherwise the batch that still runs ends the threads
            self._resources.stop()
            if not on_loop():
                self._resources.join(_JOIN)

    def stop(self) -> None:
        """Ends the threads; an async batch in one of them is cancelled."""
        self._resources.stop()

    def join(self, timeout: float) -> None:
        self._resources.join(timeout)

    def statistics(self) -> Statistics:
        with self.lock:
            snapshot = self.core.statistics(self.now(), self._options.max_execution_time)
        healthy = snapshot.healthy and not self.lost and getattr(self.executor, "healthy", True)
        return replace(snapshot, healthy=healthy, executor=dict(getattr(self.executor, "counts", ())))

    def configure(self, policies: Policies, max_execution_time: float | None) -> Sequence[Action]:
        """To be called under the lock; what it gives is to be performed after it."""
        actions = self.core.configure(policies, self.now())
        self._policies = policies
        self._options = replace(self._options, max_execution_time=max_execution_time)
        self.gate.notify()
        return actions
