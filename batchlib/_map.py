"""Many calls at once, with results in order and a bounded number of items in flight."""

from __future__ import annotations

import weakref
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Iterable, Iterator
from functools import partial
from typing import Any, Generic, TypeVar

from ._core._request import Request
from .runtimes._calls import refuse_to_block
from .runtimes._driver import Driver
from .runtimes._threads import Inbox

R = TypeVar("R")
_EMPTY: Any = object()
_AT_HAND = (list, tuple, range, str, bytes, dict, set, frozenset)


class Results(Generic[R]):
    """What `map` gives: iterate with `for` in a thread, with `async for` on asyncio or trio.

    Nothing is pulled before the first result is asked for. Leaving early, by `break` or by an error, cancels what
    waits; so does cancelling the task that iterates.
    """

    def __init__(
        self,
        driver: Driver,
        prepare: Callable[[tuple[Any, ...]], Request],
        sources: tuple[Iterable[Any] | AsyncIterable[Any], ...],
        *,
        ordered: bool,
        return_exceptions: bool,
        look_ahead: int,
        result_of: Callable[[Request], Any],
    ) -> None:
        self._driver = driver
        self._prepare = prepare
        self._sources = sources
        self._ordered = ordered
        self._return_exceptions = return_exceptions
        self._look_ahead = look_ahead
        self._result_of = result_of
        self._started: Any = None

    def __iter__(self) -> Iterator[R]:
        refuse_to_block(self._driver, "`for ... in map(...)`", "use `async for`")
        for source in self._sources:
            if not isinstance(source, Iterable):
                raise TypeError(f"`for ... in map(...)` needs iterables, not {type(source).__name__}; use `async for`")
        return self._started or self._iterate()

    def __next__(self) -> R:
        if self._started is None:
            self._started = iter(self)
        try:
            value: R = next(self._started)
            return value
        finally:
            del self  # an error's traceback knows this frame, and so the sources

    def __aiter__(self) -> AsyncIterator[R]:
        return self._started or _Leavable(self._iterate_async())

    async def __anext__(self) -> R:
        if self._started is None:
            self._started = self._iterate_async()
        try:
            value: R = await anext(self._started)
            return value
        finally:
            del self  # likewise

    def _iterate(self) -> Iterator[Any]:
        inbox = Inbox()
        window = _Window(self._ordered, self._return_exceptions)
        rows = _Rows(self._sources)
        # Items that are all there are looked at together. Any other source may be slow, so its items are not held back.
        at_hand = all(type(source) in _AT_HAND for source in self._sources)
        try:
            while True:
                while window.size < self._look_ahead and not (window.size and self._driver.held_back):
                    args = rows.pull()
                    if args is _EMPTY:
                        break
                    self._submit_from_thread(window, inbox, args, more=at_hand)
                    del args
                if at_hand:
                    self._driver.wake()
                if not window.size:
                    return rows.end()
                while not window.ready:
                    window.arrived(inbox.get())
                yield window.take(self._result_of)
        finally:
            window.cancel(self._driver)
            del self, rows, inbox  # an error that is kept knows this frame

    def _submit_from_thread(self, window: _Window, inbox: Inbox, args: tuple[Any, ...], more: bool) -> None:
        index = window.reserve()
        try:
            request = self._prepare(args)
            inbox.attach(request)
            window.enter(request, index)
            self._driver.submit_from_thread(request, more=more)
        except Exception as error:  # this item's own: a wrong call, or a cost function that raises
            window.refused(index, error)

    async def _iterate_async(self) -> AsyncGenerator[Any, None]:
        driver, prepare, look_ahead = self._driver, self._prepare, self._look_ahead
        channel = driver.here()
        news, room = _Bell(channel), _Bell(channel)
        window = _Window(self._ordered, self._return_exceptions)

        def submit(args: tuple[Any, ...]) -> None:
            index = window.reserve()
            try:
                request = prepare(args)
                channel.attach_callback(request, arrived)
                window.enter(request, index)
                driver.submit(request, channel)
            except Exception as error:  # this item's own, as above
                window.refused(index, error)
                news.ring()

        def arrived(request: Request) -> None:
            window.arrived(request)
            news.ring()

        def has_room() -> bool:
            return window.size < look_ahead and not (window.size and driver.held_back)

        rows = pump = stop = None
        feed: _Rows | _Pump
        if all(isinstance(source, Iterable) for source in self._sources):
            feed = rows = _Rows(self._sources)
        else:
            feed = pump = _Pump(self._zipped_async(), has_room, submit, room, news)
            pump.interrupts = channel.interrupts
            stop = channel.spawn(pump.run)
        try:
            while True:
                while rows is not None and has_room() and (args := rows.pull()) is not _EMPTY:
                    submit(args)
                    del args
                if window.ready:
                    yield window.take(self._result_of)
                    room.ring()
                elif window.size or not feed.ended:
                    await news.wait()
                else:
                    feed.end()
                    return
        finally:
            if stop is not None:
                stop()
            window.cancel(driver)
            del self, rows, pump, feed  # likewise

    async def _zipped_async(self) -> AsyncIterator[tuple[Any, ...]]:
        iterators = [aiter(s) if isinstance(s, AsyncIterable) else _as_async(s) for s in self._sources]
        while True:
            row = [await anext(iterator, _EMPTY) for iterator in iterators]
            if all(value is _EMPTY for value in row):
                return
            if any(value is _EMPTY for value in row):
                raise ValueError("map() of several iterables: they must all be equally long")
            yield tuple(row)


class _Leavable(AsyncIterator[R]):
    """Ends its generator when it is dropped, so that `break` is enough: a loop does so later, and trio warns."""

    def __init__(self, generator: AsyncGenerator[R, None]) -> None:
        self._generator = generator
        self.aclose = generator.aclose
        weakref.finalize(self, _end, generator).atexit = False

    async def __anext__(self) -> R:
        return await anext(self._generator)


def _end(generator: AsyncGenerator[Any, None]) -> None:
    try:
        generator.aclose().send(None)  # its clean-up never waits: one step is all of it
    except (StopIteration, RuntimeError):  # ended; or it is being awaited, and ends with the task that does so
        pass


async def _as_async(source: Iterable[Any]) -> AsyncIterator[Any]:
    for item in source:
        yield item


class _Window:
    """The items in flight: pulled from the source and not yet given out."""

    def __init__(self, ordered: bool, return_exceptions: bool) -> None:
        self._ordered = ordered
        self._return_exceptions = return_exceptions
        self._running: dict[Request, int] = {}
        self._arrived: dict[int, Request | Exception] = {}
        self._entered = 0
        self._next = 0

    @property
    def size(self) -> int:
        return len(self._running) + len(self._arrived)

    @property
    def ready(self) -> bool:
        return self._next in self._arrived if self._ordered else bool(self._arrived)

    def reserve(self) -> int:
        """The place of the item that was just pulled."""
        self._entered += 1
        return self._entered - 1

    def enter(self, request: Request, index: int) -> None:
        self._running[request] = index

    def refused(self, index: int, error: Exception) -> None:
        """The item at `index` has failed on its own, perhaps after it was entered."""
        self._running = {request: place for request, place in self._running.items() if place != index}
        self._arrived[index] = error

    def arrived(self, request: Request) -> None:
        index = self._running.pop(request, None)
        if index is not None:
            self._arrived[index] = request

    def take(self, result: Callable[[Request], Any]) -> Any:
        """The next outcome; raises it if it is an error, unless errors are wanted as values."""
        index = self._next if self._ordered else next(iter(self._arrived))
        arrived = self._arrived.pop(index)
        self._next += 1
        try:
            if isinstance(arrived, Exception):
                raise arrived
            value = result(arrived)
        except Exception as error:
            if not self._return_exceptions:
                raise
            value = error
        finally:
            del arrived
        try:
            return value if self._ordered else (index, value)
        finally:
            del value  # if it is an error, its traceback knows this frame

    def cancel(self, driver: Driver) -> None:
        for request in self._running:
            driver.put_off.call(partial(driver.cancel, request))
        self._running.clear()
        self._arrived.clear()


class _Bell:
    """An event that can ring again and again, for one who waits: a second one could sleep through a ring."""

    def __init__(self, channel: Any) -> None:
        self._channel = channel
        self._event = channel.event()

    def ring(self) -> None:
        self._event.set()

    async def wait(self) -> None:
        await self._event.wait()
        self._event = self._channel.event()


class _Feed:
    """Rows of arguments. What their source raises is kept: its place is after the results of what it gave before."""

    ended = False
    error: BaseException | None = None

    def end(self) -> None:
        """The results of all rows have been given out."""
        if self.error is not None:
            raise self.error


class _Rows(_Feed):
    """Rows of plain sources, pulled by the consumer itself."""

    def __init__(self, sources: Any) -> None:
        self._rows = zip(*sources, strict=True)

    def pull(self) -> tuple[Any, ...]:
        """The next row, or _EMPTY."""
        if not self.ended:
            try:
                return next(self._rows)
            except StopIteration:
                pass
            except Exception as error:
                self.error = error
            self.ended = True
        return _EMPTY  # type: ignore[no-any-return]


class _Pump(_Feed):
    """Pulls an async source beside the consumer, so that a slow source never holds back results that are there."""

    interrupts: tuple[type[BaseException], ...] = ()  # what its task must let out

    def __init__(
        self,
        source: AsyncIterator[tuple[Any, ...]],
        has_room: Callable[[], bool],
        submit: Callable[[tuple[Any, ...]], None],
        room: _Bell,
        news: _Bell,
    ) -> None:
        self._source = source
        self._has_room = has_room
        self._submit = submit
        self._room = room
        self._news = news

    async def run(self) -> None:
        try:
            async for args in self._source:
                self._submit(args)
                while not self._has_room():
                    await self._room.wait()
        except BaseException as error:  # the consumer's, who asked for the item: a task that raised could end a loop
            self.error = error
            if isinstance(error, self.interrupts):
                raise
        finally:
            self.ended = True
            self._news.ring()
