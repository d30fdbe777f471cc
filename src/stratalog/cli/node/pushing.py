"""Send what monitors show to a receiver of OpenTSDB's protocols, round after round.

In: monitors, a receiver. Out: points in the receiver, and counts of those that are not. It keeps points in memory only,
and no more than its bound: the oldest go first.
"""

import asyncio
import gzip
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from stratalog.adapters.http_request import ask
from stratalog.adapters.opentsdb import Receiver
from stratalog.adapters.system import SystemClock, on_stop_signal
from stratalog.cli.shared.terminal import note
from stratalog.errors import Unavailable
from stratalog.monitor.opentsdb import Points

__all__ = ["Monitor", "Push", "until_interrupted"]

BATCH_POINTS: Final = 1_000
SCRAPE_BYTES_MAX: Final = 256 << 20
TIMEOUT_S: Final = 10.0
SEND_S_MIN: Final = 1.0
"""Time for sending in a round whose scrapes took all of it: a silent monitor must not hold up the others' points."""
LAST_S: Final = 5.0
"""Time after an interrupt to send what still waits."""


@dataclass(frozen=True, slots=True)
class Monitor:
    """A node's monitor, and what makes its points."""

    url: str
    points: Points


class Push:
    """Scrapes, queues, sends. `queue_bytes_max` bounds the batches that wait."""

    def __init__(
        self,
        monitors: Sequence[Monitor],
        receiver: Receiver,
        own: Points,
        *,
        as_json: bool,
        queue_bytes_max: int,
    ) -> None:
        self._monitors = monitors
        self._receiver = receiver
        self._own = own
        self._as_json = as_json
        self._queue_bytes_max = queue_bytes_max
        self._waiting: deque[tuple[bytes, int]] = deque()
        self._waiting_bytes = 0
        self._trouble: dict[str, str] = {}
        self._clock = SystemClock()
        self.sent = self.dropped = self.refused = 0
        self.refusal = ""
        """What the receiver said of the first points that it refused."""

    @property
    def trouble(self) -> str:
        """What is wrong now, or was refused; empty where nothing is."""
        return "; ".join(filter(None, [*self._trouble.values(), self.refusal]))

    @property
    def waiting(self) -> int:
        """Points that wait for the receiver."""
        return sum(points for _, points in self._waiting)

    def scrape(self) -> None:
        """Queue the points of all monitors, and this command's own counts."""
        points: list[str] = []
        for monitor in self._monitors:
            now_s = self._clock.now_ms() // 1000
            try:
                answer = ask(monitor.url, timeout_s=TIMEOUT_S, bytes_max=SCRAPE_BYTES_MAX)
            except Unavailable as error:
                self._say(monitor.url, str(error))
                continue
            if answer.status != 200:
                self._say(monitor.url, f"{monitor.url}: status {answer.status}: no metrics")
                continue
            self._say(monitor.url, "")
            points += monitor.points.of(answer.body.decode().split("\n"), now_s)
        counts = {"sent": self.sent, "dropped": self.dropped, "refused": self.refused}
        lines = [f"stratalog_push_points_{name}_total {count}" for name, count in counts.items()]
        self._put(points + self._own.of(lines, self._clock.now_ms() // 1000))

    def send(self, for_s: float) -> None:
        """Send what waits, until the receiver is away or time is up."""
        end_ms = self._clock.steady_ms() + for_s * 1000
        while self._waiting and (left_ms := end_ms - self._clock.steady_ms()) > 0:
            batch, points = self._waiting[0]
            try:
                found = self._receiver.send(batch, points, min(TIMEOUT_S, left_ms / 1000))
            except Unavailable as error:
                self._say("receiver", f"{error}; points wait, and beyond --queue they are dropped")
                return
            self._waiting.popleft()
            self._waiting_bytes -= len(batch)
            self.sent += points - found.points
            self.refused += found.points
            self._say("receiver", "")
            if found.points and not self.refusal:
                self.refusal = found.why
                note(f"refused, as others that come may be: {found.why}")

    def _put(self, points: Sequence[str]) -> None:
        for start in range(0, len(points), BATCH_POINTS):
            part = points[start : start + BATCH_POINTS]
            batch = (
                gzip.compress(f"[{','.join(part)}]".encode(), 1)
                if self._as_json
                else "".join(part).encode()
            )
            self._waiting.append((batch, len(part)))
            self._waiting_bytes += len(batch)
        while self._waiting_bytes > self._queue_bytes_max:
            batch, count = self._waiting.popleft()
            self._waiting_bytes -= len(batch)
            if not self.dropped:
                note("the queue is full: the oldest points are dropped and counted")
            self.dropped += count

    def _say(self, place: str, trouble: str) -> None:
        """Note a trouble once, and its end."""
        before = self._trouble.get(place, "")
        if bool(trouble) != bool(before):
            note(trouble or f"{place}: answers again")
        self._trouble[place] = trouble


async def until_interrupted(push: Push, every_s: float) -> None:
    """Scrape and send every `every_s`, until SIGTERM, SIGINT or SIGHUP."""
    ended = asyncio.Event()
    on_stop_signal(ended.set)
    loop = asyncio.get_running_loop()
    due = loop.time()
    while not ended.is_set():
        push.scrape()
        due = max(due + every_s, loop.time())  # a late round is not made up for
        push.send(max(due - loop.time(), SEND_S_MIN))
        with suppress(TimeoutError):
            async with asyncio.timeout_at(due):
                await ended.wait()
    push.send(LAST_S)
