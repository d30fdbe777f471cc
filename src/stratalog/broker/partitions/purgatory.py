"""Hold fetches that wait for more bytes; decide when to answer each, and which ones to serve together.

In: fetches as they begin to wait, the growth of the partitions that they watch. Out: a call to each fetch whose wait
is over. It reads no log and knows no request.

A hundred consumers at one partition's tail wait for the same append. So a wait has no task and no timer of its own. The
broker serves all fetches that one turn of the loop wakes together, without other work in between. A fetch equal to an
earlier one of them reuses its result.

Kafka: `DelayedOperationPurgatory`, `DelayedFetch`.
"""

import asyncio
from collections.abc import Callable, Hashable, Iterator, Sequence
from heapq import heappop, heappush
from typing import Any, Final, Protocol

from stratalog.broker.network.answers import Awaited
from stratalog.replication.session_changes import Changes
from stratalog.wire.ids import TopicIdPartition

_TICK_S: Final = 0.005
"""Longest delay beyond a fetch's own limit: fetches whose wait ends within one tick share a timer."""

_EMPTY_TICKS_MAX: Final = 1000

Shared = dict[Hashable, Any]
"""Results of the fetches that are served together, by request."""


class Watched(Protocol):
    """A partition for which fetches wait."""

    @property
    def watching(self) -> "dict[FetchWait, None]":
        """The fetches that watch the partition, in the order of arrival."""


class Waiting:
    """The followers' fetches that wait for appends to one partition: consumers' wait for the high watermark.

    A fetch in a session waits there for all its partitions at once (`Changes.watching`).
    """

    __slots__ = ("sessions", "watching")

    def __init__(self) -> None:
        self.watching: dict[FetchWait, None] = {}
        self.sessions: dict[Changes, None] = {}

    def track(self, changes: Changes) -> None:
        """Mark the partition's changes in a session from now on."""
        if changes not in self.sessions:
            self.sessions = {one: None for one in self.sessions if not one.is_over}
            self.sessions[changes] = None

    def mark(self, key: TopicIdPartition) -> None:
        """Note a change that the next answer of each session has, and for which none is given early."""
        for changes in [one for one in self.sessions if not one.mark(key)]:
            del self.sessions[changes]

    def quiet(self, key: TopicIdPartition) -> Iterator[tuple[int, int]]:
        """Yield each follower whose session has the partition, and when it fetched last."""
        for changes in self.sessions:
            if changes.has(key):
                yield changes.identity[0], changes.fetched_ms

    def grown(self, key: TopicIdPartition, size: int) -> None:
        """Note `size` more bytes of log."""
        self.mark(key)
        for changes in self.sessions:
            changes.events += 1
            for wait in changes.watching:
                wait.grown(size)
        for wait in self.watching:
            wait.grown(size)

    def wake(self, key: TopicIdPartition) -> None:
        """Let each fetch look again without new bytes."""
        self.mark(key)
        for changes in self.sessions:
            changes.events += 1
            for wait in changes.watching:
                wait.wake()
        for wait in self.watching:
            wait.wake()


class FetchWait(Awaited):
    """The answer to a waiting fetch. Cancelled once its client is gone."""

    __slots__ = ("_purgatory", "_watched", "is_woken", "missing_bytes", "serve", "tick", "times")

    def __init__(
        self,
        purgatory: "Purgatory",
        missing_bytes: int,
        watched: Sequence[Watched],
        serve: Callable[["FetchWait", Shared], None],
    ) -> None:
        """The purgatory calls `serve` once: when `missing_bytes` were committed, or for another reason to look
        again.
        """
        super().__init__(loop=purgatory.loop)
        self.missing_bytes = missing_bytes
        self.serve = serve
        self.tick = 0
        self.times = 1
        """How many equal requests wait here (`SmallFetches`)."""
        self.is_woken = False
        self._purgatory = purgatory
        self._watched = watched
        for one in watched:
            one.watching[self] = None

    def grown(self, size: int) -> None:
        """Count `size` more bytes that a watched partition committed."""
        self.missing_bytes -= size
        if self.missing_bytes <= 0:
            self.wake()

    def wake(self) -> None:
        """Look again soon without new bytes: the partition was deleted or changed leader, or the wait is over."""
        if not self.is_woken:
            self.is_woken = True
            self._purgatory.woken(self)

    def leave(self) -> None:
        """Stop waiting."""
        self._purgatory.forget(self)
        for one in self._watched:
            one.watching.pop(self, None)
        self._watched = ()

    def cancel(self, msg: Any | None = None) -> bool:
        self.leave()
        return super().cancel(msg)


class Purgatory:
    """All waiting fetches of a broker. Create and use it on one event loop."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._woken: list[FetchWait] = []
        self._ending: dict[
            int, dict[FetchWait, None]
        ] = {}  # by the tick in which their time is over
        self._ticks: list[int] = []  # a heap of those keys, and of some old ones
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return sum(map(len, self._ending.values()))

    def tick_in(self, wait_ms_max: int) -> int:
        """Return the tick that ends a wait of this length which begins now."""
        return int((self.loop.time() + wait_ms_max / 1000) / _TICK_S) + 1

    def left_ms(self, tick: int) -> int:
        """Return the time until a tick, which is negative once it is over."""
        return round((tick * _TICK_S - self.loop.time()) * 1000)

    def hold(self, wait: FetchWait, wait_ms_max: int) -> None:
        """Wake `wait` in `wait_ms_max` at the latest."""
        wait.tick = tick = self.tick_in(wait_ms_max)
        ending = self._ending.get(tick)
        if ending is None:
            ending = self._ending[tick] = {}
            heappush(self._ticks, tick)
            if self._ticks[0] == tick:
                self._set_timer()
        ending[wait] = None

    def forget(self, wait: FetchWait) -> None:
        """Drop a fetch that no longer waits."""
        ending = self._ending.get(wait.tick)
        if ending is None:
            return
        ending.pop(wait, None)
        if ending:
            return
        del self._ending[wait.tick]
        if len(self._ticks) > 2 * len(self._ending) + _EMPTY_TICKS_MAX:
            self._ticks = sorted(self._ending)  # a disconnected client must leave nothing behind

    def woken(self, wait: FetchWait) -> None:
        """Serve a fetch at the end of this turn of the loop."""
        if not self._woken:
            self.loop.call_soon(self._serve)
        self._woken.append(wait)

    def _serve(self) -> None:
        woken, self._woken = self._woken, []
        shared: Shared = {}
        for wait in woken:
            if wait.done():
                continue  # cancelled
            wait.leave()
            try:
                wait.serve(wait, shared)
            except Exception as error:  # noqa: BLE001 - carried to the connection, which logs the error and closes
                wait.set_exception(error)

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        ticks = self._ticks
        while ticks and ticks[0] not in self._ending:
            heappop(ticks)  # its fetches were served: a follower's hardly ever wait to the end
        if ticks:
            self._timer = self.loop.call_at(ticks[0] * _TICK_S, self._end)

    def _end(self) -> None:
        """Wake the fetches whose wait is over."""
        self._timer = None
        now = self.loop.time()
        while self._ticks and self._ticks[0] * _TICK_S <= now:
            for wait in self._ending.pop(heappop(self._ticks), ()):
                wait.wake()
        self._set_timer()
