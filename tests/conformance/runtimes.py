"""The places that batched functions are called from, behind one face, so that each test is written once.

A runtime lives in threads of its own and is driven from the test's thread: `start` sends a caller off and gives its
Call. So a test orders what happens in any runtime by plain statements.
"""

import asyncio
import os
import sys
import threading
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import CancelledError, Future
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import partial
from itertools import cycle
from typing import Any, Self

import trio
import uvloop

LONG = 30  # seconds after which a test gives up; never waited for when all is well

Main = Callable[[], Awaitable[Any]]
EAGER_EVERYWHERE = os.environ.get("BATCHLIB_EAGER_TASKS") == "1"


class Left(Exception):
    """What a Call ends with whose caller was cancelled, in its runtime's own way."""


class Call:
    """One caller at work. `leave` makes it go away: a task is cancelled, a future too. `cancel`: the same, for code on
    the caller's own loop."""

    def __init__(self) -> None:
        self.ended: Future[Any] = Future()
        self.leave: Callable[[], Any] = self._cannot_leave
        self.cancel: Callable[[], Any] = self._cannot_leave

    @property
    def done(self) -> bool:
        return self.ended.done()

    def result(self) -> Any:
        return self.ended.result(LONG)

    def error(self) -> BaseException | None:
        return self.ended.exception(LONG)

    def end_as(self, work: Callable[[], Any]) -> None:
        """Ends with what `work` gives or raises."""
        try:
            result = work()
        except CancelledError:
            self.ended.set_exception(Left())
        except BaseException as error:
            self.ended.set_exception(error)
        else:
            self.ended.set_result(result)

    def _cannot_leave(self) -> None:
        raise NotImplementedError("a thread that is blocked in .call cannot be cancelled")


class Runtime:
    """start: one caller calls `function`, inside the context manager `inside`; its Call."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def start(
        self, function: Any, *args: Any, inside: AbstractContextManager[Any] | None = None, **settings: Any
    ) -> Call:
        raise NotImplementedError

    def start_each(self, function: Any, items: Iterable[Any]) -> list[Call]:
        return [self.start(function, item) for item in items]


class LoopRuntime(Runtime):
    """An event loop in a thread. A caller is a task."""

    def __init__(self) -> None:
        self.thread: threading.Thread
        self._soon: Callable[..., Any]
        self._stop: Callable[[], Any]

    def __enter__(self) -> Self:
        ready: Future[tuple[Any, Any]] = Future()
        self.thread = threading.Thread(target=self._serve, args=(ready,))
        self.thread.start()
        self._soon, self._stop = ready.result(LONG)
        return self

    def __exit__(self, *_: object) -> None:
        self._soon(self._stop)
        self.thread.join(LONG)
        assert not self.thread.is_alive()

    def start(
        self, function: Any, *args: Any, inside: AbstractContextManager[Any] | None = None, **settings: Any
    ) -> Call:
        async def call() -> Any:
            with inside or nullcontext():
                return await function(*args, **settings)

        return self.spawn(call)[0]

    def start_each(self, function: Any, items: Iterable[Any]) -> list[Call]:
        """All in one tick."""
        return self.spawn(*[partial(function, item) for item in items])

    def run(self, main: Main) -> Any:
        """What an async function gives, called in a task."""
        return self.spawn(main)[0].result()

    def spawn(self, *mains: Main) -> list[Call]:
        """A task for each, all started in one tick."""
        calls = [Call() for _ in mains]

        def begin() -> None:
            for call, main in zip(calls, mains, strict=True):
                call.cancel = self._begin(call, main)
                call.leave = partial(self.do, call.cancel)

        self.do(begin)
        return calls

    def do(self, work: Callable[[], Any]) -> Any:
        """What a plain function gives, called on the loop's thread."""
        call = Call()
        self._soon(call.end_as, partial(work))
        return call.result()

    def _serve(self, ready: "Future[tuple[Any, Any]]") -> None:
        """Runs the loop until `stop` is called on it: ready.set_result((call soon from any thread, stop))."""
        raise NotImplementedError

    def _begin(self, call: Call, main: Main) -> Callable[[], Any]:
        """Starts a task, on the loop's thread; what it gives cancels it."""
        raise NotImplementedError

    async def gather(self, function: Any, items: Iterable[Any]) -> list[Any]:
        """The runtime's own way to run many at once, inside one of its tasks."""
        raise NotImplementedError


class AsyncioRuntime(LoopRuntime):
    def __init__(self, new_loop: Callable[[], Any] = asyncio.new_event_loop, *, eager: bool = False) -> None:
        super().__init__()
        self._new_loop = new_loop
        # uvloop gives task factories an argument that those of Python 3.13's first releases do not take.
        self._eager = eager or (EAGER_EVERYWHERE and new_loop is asyncio.new_event_loop)
        self._tasks: set[asyncio.Task[None]] = set()

    def _serve(self, ready: "Future[tuple[Any, Any]]") -> None:
        async def main() -> None:
            loop, stop = asyncio.get_running_loop(), asyncio.Event()
            if self._eager:
                loop.set_task_factory(asyncio.eager_task_factory)  # type: ignore[attr-defined]
            ready.set_result((loop.call_soon_threadsafe, stop.set))
            await stop.wait()

        with asyncio.Runner(loop_factory=self._new_loop) as runner:
            runner.run(main())

    def _begin(self, call: Call, main: Main) -> Callable[[], Any]:
        async def live() -> None:
            try:
                result = await main()
            except asyncio.CancelledError:
                call.ended.set_exception(Left())
            except BaseException as error:
                call.ended.set_exception(error)
            else:
                call.ended.set_result(result)

        task = asyncio.get_running_loop().create_task(live())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task.cancel

    async def gather(self, function: Any, items: Iterable[Any]) -> list[Any]:
        return await asyncio.gather(*[function(item) for item in items])


class TrioRuntime(LoopRuntime):
    def _serve(self, ready: "Future[tuple[Any, Any]]") -> None:
        async def main() -> None:
            async with trio.open_nursery() as self._nursery:
                ready.set_result((trio.lowlevel.current_trio_token().run_sync_soon, self._nursery.cancel_scope.cancel))
                await trio.sleep_forever()

        trio.run(main)

    def _begin(self, call: Call, main: Main) -> Callable[[], Any]:
        scope = trio.CancelScope()

        async def live() -> None:
            with scope:
                try:
                    result = await main()
                except trio.Cancelled:
                    raise
                except BaseException as error:
                    call.ended.set_exception(error)
                else:
                    call.ended.set_result(result)
            if not call.done:
                call.ended.set_exception(Left())

        self._nursery.start_soon(live)
        return scope.cancel

    async def gather(self, function: Any, items: Iterable[Any]) -> list[Any]:
        results: dict[int, Any] = {}

        async def one(place: int, item: Any) -> None:
            results[place] = await function(item)

        async with trio.open_nursery() as nursery:
            for place, item in enumerate(items):
                nursery.start_soon(one, place, item)
        return [results[place] for place in range(len(results))]


class ThreadsRuntime(Runtime):
    """A caller is a thread, blocked in `.call`."""

    def start(
        self, function: Any, *args: Any, inside: AbstractContextManager[Any] | None = None, **settings: Any
    ) -> Call:
        def work() -> Any:
            with inside or nullcontext():
                return function.call(*args, **settings)

        call = Call()
        threading.Thread(target=call.end_as, args=(work,), daemon=True).start()
        return call


class FuturesRuntime(Runtime):
    """A caller is a future from `.submit`, called in the test's thread."""

    def start(
        self, function: Any, *args: Any, inside: AbstractContextManager[Any] | None = None, **settings: Any
    ) -> Call:
        call = Call()
        try:
            with inside or nullcontext():
                future = function.submit(*args, **settings)
        except Exception as error:
            call.ended.set_exception(error)
        else:
            call.leave = future.cancel
            future.add_done_callback(lambda done: call.end_as(done.result))
        return call


class MixedRuntime(Runtime):
    """Several runtimes at once; callers are sent off in one after the other."""

    def __init__(self, *kinds: str) -> None:
        self.parts = [RUNTIMES[kind]() for kind in kinds]
        self._turns = cycle(self.parts)

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            for part in self.parts:
                stack.enter_context(part)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: Any) -> None:
        self._stack.__exit__(*error)

    def start(
        self, function: Any, *args: Any, inside: AbstractContextManager[Any] | None = None, **settings: Any
    ) -> Call:
        return next(self._turns).start(function, *args, inside=inside, **settings)


RUNTIMES: dict[str, Callable[[], Runtime]] = {
    "asyncio": AsyncioRuntime,
    "uvloop": partial(AsyncioRuntime, uvloop.new_event_loop),
    "trio": TrioRuntime,
    "threads": ThreadsRuntime,
    "futures": FuturesRuntime,
    "mixed": partial(MixedRuntime, "asyncio", "threads", "trio", "asyncio", "futures", "uvloop"),
    "mixed loops": partial(MixedRuntime, "asyncio", "trio", "asyncio", "uvloop", "trio"),
}
LOOPS = ["asyncio", "uvloop", "trio"]
if sys.version_info >= (3, 12):
    RUNTIMES["eager"] = partial(AsyncioRuntime, eager=True)
    LOOPS.append("eager")
EVERYWHERE = [*LOOPS, "threads", "futures", "mixed"]
LEAVING = [*LOOPS, "futures", "mixed loops"]
LEAVING_A_BATCH = [
    *LOOPS,
    "mixed loops",
]  # a running batch's future is not cancelled: that is the standard library's rule
