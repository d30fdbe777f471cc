"""Flood a broker: connections pipeline one request without pause, and drop the answers.

In: an address, one request's frame. Out: answers per second. It runs in its own process, so that it
hardly slows a measurement beside it. Only the loopback address is ever its target.
"""

import json
import selectors
import socket
import subprocess
import sys
import time
from types import TracebackType
from typing import Self

BLOB_BYTES = 256 << 10
READ_BYTES = 256 << 10
TIMEOUT_S = 60


class Flood:
    """`with Flood(port, frame, connections=16) as flood: …`; then `flood.answers_per_second`."""

    def __init__(self, port: int, frame: bytes, *, connections: int) -> None:
        """`frame` with its length. Each answer to it must have the same size."""
        self.answers_per_second = 0.0
        self.seconds = 0.0
        self._port, self._frame, self._connections = port, frame, connections

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.fuzz.flood", str(self._port), str(self._connections)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(self._frame.hex() + "\n")
        self._process.stdin.flush()
        assert self._process.stdout.readline() == "flooding\n", "the flood did not begin"
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            printed, _ = self._process.communicate("", TIMEOUT_S)
        finally:
            self._process.kill()
            self._process.wait(TIMEOUT_S)
        if kind is None:
            counts = json.loads(printed)
            self.answers_per_second = counts["answers"] / counts["seconds"]
            self.seconds = counts["seconds"]


def answer_bytes(port: int, frame: bytes) -> int:
    """Return the size of the answer to one request, its length included."""
    with socket.create_connection(("127.0.0.1", port), TIMEOUT_S) as one:
        one.sendall(frame)
        stream = one.makefile("rb")
        size = int.from_bytes(stream.read(4), "big")
        assert len(stream.read(size)) == size
        return 4 + size


def flood(port: int, connections: int, frame: bytes) -> dict[str, float]:
    """Flood until the input ends; return the number of answers and the seconds."""
    size = answer_bytes(port, frame)
    blob = memoryview(frame * (BLOB_BYTES // len(frame) + 1))
    selector = selectors.DefaultSelector()
    sent: dict[socket.socket, int] = {}
    for _ in range(connections):
        one = socket.create_connection(("127.0.0.1", port), TIMEOUT_S)
        one.setblocking(False)
        sent[one] = 0
        selector.register(one, selectors.EVENT_READ | selectors.EVENT_WRITE)
    selector.register(sys.stdin, selectors.EVENT_READ)
    print("flooding", flush=True)
    began, received, scratch = time.monotonic(), 0, bytearray(READ_BYTES)
    while True:
        for key, events in selector.select(TIMEOUT_S):
            one = key.fileobj
            if not isinstance(one, socket.socket):
                return {"answers": received / size, "seconds": time.monotonic() - began}
            if events & selectors.EVENT_READ:
                count = one.recv_into(scratch)
                assert count, "the broker closed a connection"
                received += count
            if events & selectors.EVENT_WRITE:
                sent[one] = (sent[one] + one.send(blob[sent[one] :])) % len(blob)


def main() -> None:
    port, connections = map(int, sys.argv[1:])
    print(json.dumps(flood(port, connections, bytes.fromhex(sys.stdin.readline()))))


if __name__ == "__main__":
    main()
