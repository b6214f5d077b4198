"""A batcher at work: the core behind a lock, and the runtimes that perform what it says.

Every event is handled the same way: take the lock, tell the core the time and what happened, release the lock,
perform the actions. Nothing is performed under the lock, so hooks, futures' callbacks and loops are free to call
back. `submit` and `_settle` are the hot path; README.md in `_core` has the order of events.
"""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Callable, Sequence
from contextvars import Context
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from .._context import AMBIENT, enter, inside
from .._core._actions import SOON, Abandon, Action, Dispatch, Report, Resolve, WakeAt
from .._core._batch import Batch
from .._core._batcher import Batcher
from .._core._policies import Policies
from .._core._protocols import Clock, Executor, Hook
from .._core._request import Request
from .._core._statistics import Statistics
from .._core._transitions import FINAL, State
from ..errors import BatchContractError, BlockingCallError, Overloaded, ReentrantCallError
from ..executors._errors import failures, in_slots
from . import _lifecycle
from ._clock import SystemClock
from ._observers import Observers
from ._places import current_loop, in_trio, on_loop, scope_deadline
from ._threads import THREADS, PrivateLoop, RequestFuture, Workers, outcome_of

if TYPE_CHECKING:
    from ._asyncio import LoopChannel
    from ._trio import TrioChannel

    Channel = LoopChannel | TrioChannel

_modules = sys.modules
_JOIN = 5.0  # seconds that idle threads get to end; they need microseconds
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

    def __init__(self, policies: Policies, executor: Executor, options: DriverOptions) -> None:
        self._policies = policies
        self._executor = executor
        self._options = options
        self._per_loop = executor.is_async  # a batch of an async function never mixes loops
        self._observers = Observers(options.name, options.version, options.hooks)
        self._hooked = bool(options.hooks)
        self._resources = _lifecycle.Resources()
        self._closing = False
        self.start()
        _lifecycle.register(self, self._resources)

    def start(self) -> None:
        """Begins with an empty queue and nothing running; again in the child after a fork, where threads are gone."""
        clock: Clock = self._options.clock or SystemClock()
        self._clock = clock
        self._now = clock.now  # read once: this is called for every request
        self._core = Batcher(self._policies)
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._watchers = 0  # threads that wait for `_changed`: for room, or for the end of all work
        if self._closing:
            self._core.close(self._now(), drain=False)
        self._channels: dict[Any, Channel] = {}
        self._latest: Channel | None = None
        self._running_loop: Callable[[], object] = _no_loop
        self._nested = False  # some request came from inside a batch; most batchers never see one
        self._workers = Workers(self._options.name)
        self._private = PrivateLoop(self._options.name)
        self._resources.hold(self._workers, self._private, clock)

    # ---- callers

    async def call(self, request: Request) -> Any:
        """Submits and waits, on asyncio or trio. Cancelling it takes a waiting request out before it runs."""
        # The fast path, for futures of one asyncio loop: `here`, `attach` and `submit_from_loop` written out. Every
        # line is paid for by every request; what they add up to is the first row of benchmarks/overhead.py.
        channel = self._latest
        if "trio" in _modules or "anyio" in _modules:
            request.hint = scope_deadline(self._now)
            channel = self.here()
        elif channel is None or channel.loop is not self._running_loop():
            channel = self.here()
        if not channel.has_futures:
            channel.attach(request)
            self.submit_from_loop(request, channel)
            return await channel.wait(self, request)
        request.channel = channel
        waiter = request.waiter = channel.future()
        if request.chain:
            self._refuse_reentry(request.chain)
        if self._per_loop:
            request.group = channel if request.group is None else (channel, request.group)
        with self._lock:
            request.arrival = now = self._now()
            actions = self._core.submit(request, now)
        if actions is SOON:
            if not channel.ticking:
                channel.soon(self)
        elif actions:
            self._perform(actions, channel)
        try:
            return await waiter
        except BaseException:  # the caller leaves, or gets its error, whose traceback must not know the error again
            self.cancel(request)
            del request, waiter
            raise

    def call_blocking(self, request: Request) -> Any:
        """Submits and waits in a plain thread."""
        self._refuse_on_loop("call(...)", "await the function itself")
        request.waiter = lock = threading.Lock()
        lock.acquire()
        request.channel = THREADS
        self.submit_from_thread(request)
        try:
            lock.acquire()
        except BaseException:  # an interrupt: this caller leaves
            self.cancel(request)
            raise
        try:
            return outcome_of(request)
        finally:
            del request

    def submit(self, request: Request) -> RequestFuture:
        """Submits and gives a future. In a thread it blocks while there is no room; on a loop it raises Overloaded."""
        future = RequestFuture(self, request)
        request.waiter = future
        request.channel = THREADS
        channel = self.here() if on_loop() else None
        if channel is not None:
            if self.held_back:
                waiting = self.statistics().waiting
                raise Overloaded(
                    f"{waiting} requests wait: await the call instead, or submit from a thread, which blocks"
                )
            self.submit_from_loop(request, channel)
        else:
            if request.chain:  # before it waits for room that its own batch keeps taken
                self._refuse_reentry(request.chain)
            self._wait_for_room(request)
            self.submit_from_thread(request)
        return future

    def submit_from_thread(self, request: Request, *, gather: bool = False) -> None:
        """A thread's arrival is looked at straight away, or with `gather` when `flush` is called."""
        if request.chain:
            self._refuse_reentry(request.chain)
        if self._per_loop:
            self._keep_apart(request, self._private)
        with self._lock:
            now = request.arrival = self._now()
            actions = self._core.submit(request, now)
            if actions and actions[-1] is SOON[0]:
                actions = actions[:-1] if gather else (*actions[:-1], *self._core.wake(now))
        if actions:
            self._perform(actions, None)
        elif self._per_loop:
            self._reap()

    def submit_from_loop(self, request: Request, channel: Channel) -> None:
        """An arrival on the loop of `channel`; its waiter has been attached."""
        if request.chain:
            self._refuse_reentry(request.chain)
        if self._per_loop:
            self._keep_apart(request, channel if request.channel is not THREADS else self._private)
        with self._lock:
            now = request.arrival = self._now()
            actions = self._core.submit(request, now)
        if actions is SOON:
            channel.soon(self)
        elif actions:
            self._perform(actions, channel)

    def _keep_apart(self, request: Request, place: object) -> None:
        request.group = place if request.group is None else (place, request.group)

    def _refuse_reentry(self, chain: Sequence[Batch], instead: str = _INSTEAD) -> None:
        self._nested = True
        for batch in chain:
            if batch.batcher is self and not batch.done:
                raise ReentrantCallError(
                    f"{self._options.name} was called from inside its own batch {batch.number}, which would wait for "
                    f"itself: {instead}"
                )

    def cancel(self, request: Request) -> None:
        """The caller has left: a waiting request is taken out, the batch of a running one goes on without it."""
        with self._lock:
            ended = request.state in FINAL
            actions = self._core.cancel(request, self._now())
            self._notify()
        self._perform(actions, None)
        if self._hooked and not ended:
            self._observers.ended((request,), self._now)

    def cancel_waiting(self, request: Request) -> bool:
        """Takes a waiting request out; False if it is past that."""
        with self._lock:
            if request.state is not State.WAITING:
                return False
            actions = self._core.cancel(request, self._now())
            self._notify()
        self._perform(actions, None)
        if self._hooked:
            self._observers.ended((request,), self._now)
        return True

    # ---- running batches

    def run(self, batch: Batch, released: Any) -> None:
        """Runs a plain batch in the present thread."""
        try:
            outcomes = self.context(batch).run(self._executor.run, batch.requests)
        except BaseException as error:
            outcomes = failures(error, batch.size)
        released()
        self._finish(batch, outcomes)

    @property
    def per_loop(self) -> bool:
        """Whether batches run on their callers' loops."""
        return self._per_loop

    def context(self, batch: Batch) -> Context:
        """A neutral context for running a batch."""
        return inside(batch, self._nested)

    async def run_async(self, batch: Batch) -> None:
        """Runs an async batch in the present task, whose context is the batch's."""
        interrupts = self._home(batch).interrupts
        try:
            outcomes = await self._executor.run_async(batch.requests)
        except BaseException as error:
            self._finish(batch, failures(error, batch.size))
            if isinstance(error, interrupts):  # for the loop as well; the callers have their errors
                raise
        else:
            self._finish(batch, outcomes)

    def _finish(self, batch: Batch, outcomes: Sequence[Any]) -> None:
        if len(outcomes) != batch.size:
            message = f"the executor must give one outcome per request: {batch.size}, not {len(outcomes)}"
            outcomes = failures(BatchContractError(message), batch.size)
        own = in_slots(outcomes)
        with self._lock:
            now = self._now()
            actions = self._core.finish(batch, own, now, clean=own is outcomes)
        batch.handle = None
        if self._hooked:
            self._observers.batch_ended(batch, outcomes, now)
        self._perform(actions, None)
        if self._closing and self._core.idle:
            self._resources.stop()

    # ---- actions

    def tick(self, channel: Channel) -> None:
        """The arrivals of this tick are in."""
        channel.ticking = False
        self.wake()

    async def tick_and_run(self, channel: LoopChannel) -> None:
        """The same, in a new task with an empty context, which then runs the batch itself: a lone caller is spared a turn of the loop."""
        channel.ticked()
        with self._lock:
            actions = self._core.wake(self._now())
        mine: Batch | None = None
        for action in actions:
            if type(action) is Dispatch and mine is None and action.batch.requests[0].channel is channel:
                mine = action.batch
            else:
                self._perform((action,), None)
        if mine is not None:
            mine.batcher = self
            if self._hooked:
                self._observers.batch_started(mine)
            channel.adopt(mine)
            enter(mine, self._nested)
            await self.run_async(mine)

    def wake(self) -> None:
        """Lets the core look at what waits, now."""
        with self._lock:
            actions = self._core.wake(self._now())
        self._perform(actions, None)

    def _perform(self, actions: Sequence[Action], channel: Channel | None) -> None:
        """Performs actions in order, outside the lock. `channel`: where a wake-up at the end of the tick is served."""
        for action in actions:
            kind = type(action)
            if kind is Resolve:
                self._resolve(action.requests)
            elif kind is Dispatch:
                self._start_batch(action.batch)
            elif kind is WakeAt:
                if action.instant > -math.inf:
                    self._clock.call_at(action.instant, _lifecycle.Wake(self))
                elif channel is not None:
                    channel.soon(self)
            elif kind is Abandon:
                self._stop_batch(action.batch)
            elif kind is Report:
                self._observers.report("a policy raised where no caller could be told", action.error)
        if self._watchers:
            with self._lock:
                self._notify()

    def _resolve(self, requests: Sequence[Request]) -> None:
        if self._hooked:
            self._observers.ended(requests, self._now)
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

    def _start_batch(self, batch: Batch) -> None:
        batch.batcher = self
        if self._hooked:
            self._observers.batch_started(batch)
        try:
            if self._per_loop:
                self._home(batch).start(self, batch)
            else:
                self._workers.put(self, batch)
        except RuntimeError as error:  # no thread to be had, or the loop has been closed
            self._finish(batch, failures(error, batch.size))

    def _stop_batch(self, batch: Batch) -> None:
        if self._per_loop:
            self._home(batch).stop(batch)

    def _home(self, batch: Batch) -> Channel:
        """Where an async batch runs: its callers' loop, or the batcher's own for those in threads."""
        channel = batch.requests[0].channel
        return channel if channel.runs_batches else self._private.channel()

    def _notify(self) -> None:
        if self._watchers:
            self._changed.notify_all()

    # ---- places

    def here(self) -> Channel:
        """The channel of the loop or run that the present code is in."""
        loop = current_loop()
        latest = self._latest
        if latest is not None and latest.loop is loop:
            return latest
        channel = self._channels.get(loop)
        if channel is None:
            channel = self._open_channel(loop)
        self._latest = channel
        return channel

    def _open_channel(self, loop: Any) -> Channel:
        for known in [known for known in list(self._channels.values()) if known.closed]:
            self._channels.pop(known.loop, None)
        self._reap()
        if in_trio():
            from ._trio import TrioChannel

            channel: Channel = TrioChannel(loop)
        else:
            from ._asyncio import LoopChannel, get_running_loop

            channel = LoopChannel(loop)
            self._running_loop = get_running_loop
        return self._channels.setdefault(loop, channel)

    def _reap(self) -> None:
        """Ends batches whose loop was closed under them: nobody else will, and they would keep their slot for ever."""
        if not self._per_loop:
            return
        with self._lock:
            lost = [
                batch for batch in self._core.running_batches if batch.requests and batch.requests[0].channel.closed
            ]
        for batch in lost:
            self._finish(batch, failures(RuntimeError("the event loop was closed while the batch ran"), batch.size))

    def _refuse_on_loop(self, what: str, instead: str) -> None:
        if on_loop():
            raise BlockingCallError(f"{what} would block this event loop: {instead}")

    # ---- room, end, evidence

    @property
    def max_batch_size(self) -> int:
        return self._core.max_batch_size

    def now(self) -> float:
        """The batcher's clock."""
        return self._now()

    @property
    def held_back(self) -> bool:
        """Whether those who run ahead of their results should pause."""
        with self._lock:
            return self._core.held_back

    def _wait_for_room(self, request: Request) -> None:
        with self._lock:
            if not self._core.held_back:
                return
            if request.deadline is not None:
                self._clock.call_at(request.deadline, _lifecycle.Notify(self))
            self._watchers += 1
            try:
                while self._core.held_back and not self._closing:
                    if request.deadline is not None and self._now() >= request.deadline:
                        break  # the core will expire it
                    self._changed.wait()
            finally:
                self._watchers -= 1

    def notify(self) -> None:
        with self._lock:
            self._notify()

    def close(self, drain: bool, timeout: float | None) -> None:
        """Takes no more requests and ends; see the decorator's `close`. A second call does nothing."""
        if drain:
            self._refuse_on_loop("close(drain=True)", "await aclose(...)")
            ambient = AMBIENT.get()
            if ambient is not None:
                self._refuse_reentry(ambient.chain, "close with drain=False")
        with self._lock:
            if self._closing:
                return
            self._closing = True
            actions = self._core.close(self._now(), drain=drain)
            self._notify()
        self._perform(actions, None)
        if drain:
            self._drain(timeout)
            self._resources.stop()
        if self._core.idle:  # otherwise the batch that still runs ends the threads
            self._resources.stop()
            if not on_loop():
                self._resources.join(_JOIN)

    async def aclose(self, drain: bool, timeout: float | None) -> None:
        """`close` in a thread that nobody has to wait for: cancelled, the closing goes on."""
        if in_trio():
            trio = _modules["trio"]
            await trio.to_thread.run_sync(self.close, drain, timeout, abandon_on_cancel=True)
        else:
            await _modules["asyncio"].to_thread(self.close, drain, timeout)

    def join(self, timeout: float) -> None:
        self._resources.join(timeout)

    def _drain(self, timeout: float | None) -> None:
        """Waits for the end of all work, at most `timeout` seconds; who then still waits or runs gets Closed."""
        end = math.inf if timeout is None else self._now() + timeout
        if timeout is not None:
            self._clock.call_at(end, _lifecycle.Notify(self))
        with self._lock:
            self._watchers += 1
            try:
                while not self._core.idle and self._now() < end:
                    self._changed.wait()
            finally:
                self._watchers -= 1
            actions = () if self._core.idle else self._core.close(self._now(), drain=False, running=True)
        self._perform(actions, None)

    def statistics(self) -> Statistics:
        with self._lock:
            return self._core.statistics(self._now(), self._options.max_execution_time)

    def configure(self, policies: Policies, max_execution_time: float | None) -> None:
        self._options = replace(self._options, max_execution_time=max_execution_time)
        with self._lock:
            self._policies = policies
            actions = self._core.configure(policies, self._now())
            self._notify()
        self._perform(actions, None)


def _no_loop() -> None:
    return None
