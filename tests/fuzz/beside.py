"""Measure another client's latencies during an attack, and the cost of the attack for the broker.

In: a broker's port and, for its memory and CPU, its process. Out: latencies, memory, the CPU time that the broker's
first thread (our event loop) took for each answer. It never attacks.
"""

import socket
import threading
import time
from pathlib import Path
from statistics import quantiles
from struct import pack
from typing import BinaryIO, Self

ASK = pack(">ihhih", 10, 18, 0, 7, -1)
"""ApiVersions, the smallest request."""
PAUSE_S = 0.002
TIMEOUT_S = 300
FREED_S = 60.0
_MIB = 1 << 10  # of /proc's KiB


def anonymous_mib(pid: int) -> float:
    """Return the memory that a process allocated and that is resident, in MiB."""
    text = Path(f"/proc/{pid}/status").read_text()
    return int(text.partition("RssAnon:")[2].split()[0]) / _MIB


def mib_once_freed(pid: int, at_most: float) -> float:
    """Return the process's memory once it is at most that many MiB, or as it is after a minute."""
    deadline = time.monotonic() + FREED_S
    while (now := anonymous_mib(pid)) > at_most and time.monotonic() < deadline:
        time.sleep(0.1)
    return now


def loop_ns(pid: int) -> int:
    """Return the CPU time that the first thread of a process has taken."""
    return int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[0])


class Beside:
    """`with Beside(port, pid) as beside: …`: a client that asks for one thing, waits for the answer, and pauses."""

    def __init__(self, port: int, pid: int) -> None:
        self.latencies_ms: list[float] = []
        self.longest_turn_ms = 0.0
        """The most CPU time that the broker's first thread took between a request and its answer, divided by the steps
        of the attack that fell into it: on a busy machine many come before this client runs again.
        """
        self.steps = 0
        """Steps of the attack that have begun, one after another; left at 0 where they are not counted."""
        self.most_mib = 0.0
        self._port, self._pid = port, pid
        self._ending = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._thread.join()
        assert self._failure is None, f"the other client was not served: {self._failure!r}"

    def percentile_ms(self, percent: int) -> float:
        """Return a percentile of the latencies."""
        return quantiles(self.latencies_ms, n=100, method="inclusive")[percent - 1]

    def percentiles(self) -> str:
        """Return p50, p99 and the longest of the latencies."""
        p50, p99 = self.percentile_ms(50), self.percentile_ms(99)
        return f"{p50:8.2f} {p99:8.2f} {max(self.latencies_ms):8.2f}"

    def _run(self) -> None:
        try:
            with socket.create_connection(("127.0.0.1", self._port), TIMEOUT_S) as one:
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                stream = one.makefile("rb")
                while not self._ending.is_set() or len(self.latencies_ms) < 2:
                    self._ask(one, stream)
                    time.sleep(PAUSE_S)
        except (OSError, AssertionError) as failure:
            self._failure = failure

    def _ask(self, one: socket.socket, stream: BinaryIO) -> None:
        steps = self.steps
        before_ns, began = loop_ns(self._pid), time.perf_counter()
        one.sendall(ASK)
        size = int.from_bytes(stream.read(4), "big")
        assert size, "the broker closed the connection"
        assert len(stream.read(size)) == size, "the broker closed the connection"
        self.latencies_ms.append((time.perf_counter() - began) * 1000)
        turn_ms = (loop_ns(self._pid) - before_ns) / 1e6 / (1 + self.steps - steps)
        self.longest_turn_ms = max(self.longest_turn_ms, turn_ms)
        self.most_mib = max(self.most_mib, anonymous_mib(self._pid))
