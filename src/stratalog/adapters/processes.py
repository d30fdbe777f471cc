"""Processes beside the broker, for work that would block its event loop.

In: calls that can be pickled. Out: futures that resolve on the loop with the call's result or exception. It never
runs a call twice: a call whose process dies fails with Unavailable, and the next call starts another process.

Each thread of a small pool talks to one process of its own through the process's standard input and output, one call
at a time. A process ends when its input closes, in the middle of a call too. So none outlives a broker that was killed:
a cleaner that went on would write into the files of the next broker's cleaner. The first call that needs a process
starts it.

    python -m stratalog.adapters.processes [--background]      the command of each process
"""

import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from struct import Struct
from typing import IO, Any, Final, NoReturn, TypeVar

from stratalog.adapters.threads import ThreadWorker
from stratalog.errors import Unavailable

T = TypeVar("T")
_LENGTH: Final = Struct(">Q")
_END_S: Final = 5.0
_BACKGROUND: Final = "--background"
_NICE: Final = 5
"""A quarter of a core beside a process of priority 0 that uses it all. At 10, a cleaner on a busy machine starved."""
_AUTOGROUP: Final = "/proc/self/autogroup"


class ProcessWorker:
    """`ports.Worker` over `processes` processes; calls may overtake one another. Create it on the event loop."""

    def __init__(self, name: str, processes: int, *, background: bool = False) -> None:
        """With `background`, the processes run where no other process needs the core."""
        self._name = name
        self._arguments = [_BACKGROUND] if background else []
        self._threads = ThreadWorker(name, processes)
        self._idle: list[subprocess.Popen[bytes]] = []
        self._all: set[subprocess.Popen[bytes]] = set()

    def submit(self, call: "Callable[[], T]") -> Any:
        return self._threads.submit(partial(self._exchange, call))

    async def close(self) -> None:
        """End the processes once all queued calls have run."""
        await self._threads.close()
        for process in self._idle:
            self._end(process)
        self._idle.clear()

    def kill(self) -> None:
        """End the processes at once, whatever they do."""
        for process in list(self._all):
            process.kill()
        while self._idle:
            self._end(self._idle.pop())

    def _exchange(self, call: "Callable[[], T]") -> T:
        process = self._idle.pop() if self._idle else self._start()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            _write(process.stdin, call)
            failed, result = _read(process.stdout)
        except (OSError, EOFError) as error:
            self._end(process)
            raise Unavailable(f"a process of {self._name} died") from error
        self._idle.append(process)
        if failed:
            raise result
        answer: T = result
        return answer

    def _start(self) -> "subprocess.Popen[bytes]":
        # A session of its own: Ctrl-C for the broker must not end a call under way.
        process = subprocess.Popen(  # noqa: S603 - ourselves
            [sys.executable, "-m", __name__, *self._arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        self._all.add(process)
        return process

    def _end(self, process: "subprocess.Popen[bytes]") -> None:
        """End the process: ask it to exit, then kill it."""
        assert process.stdin is not None
        assert process.stdout is not None
        self._all.discard(process)
        with suppress(OSError):  # the process has exited already, with unread input
            process.stdin.close()
        try:
            process.wait(_END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()


def _write(stream: IO[bytes], value: Any) -> None:
    data = pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
    stream.write(_LENGTH.pack(len(data)))
    stream.write(data)
    stream.flush()


def _read(stream: IO[bytes]) -> Any:
    """Return the next value; raises EOFError once the other side has closed."""
    head = stream.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        raise EOFError
    (size,) = _LENGTH.unpack(head)
    data = stream.read(size)
    if len(data) < size:
        raise EOFError
    return pickle.loads(data)  # noqa: S301 - from the process that started us, or that we started


def serve(calls: IO[bytes], answers: IO[bytes]) -> NoReturn:
    """Run call after call. The process ends once there are no more: `calls` is closed, or the broker has died."""
    waiting: SimpleQueue[Any] = SimpleQueue()
    threading.Thread(target=_take, args=(calls, waiting), daemon=True).start()
    while True:
        call = waiting.get()
        try:
            answer = (False, call())
        except Exception as error:  # noqa: BLE001 - carried to the caller in the other process
            answer = (True, error)
        try:
            _write(answers, answer)
        except BrokenPipeError:
            os._exit(0)


def _take(calls: IO[bytes], waiting: "SimpleQueue[Any]") -> None:
    """Pass the calls on; end the process at the end of `calls`, or at one that cannot be read, whatever a call does."""
    try:
        while True:
            waiting.put(_read(calls))
    except EOFError:
        os._exit(0)
    finally:
        os._exit(1)


def _give_way() -> None:
    """Give this process a lower priority than others.

    Linux may schedule sessions (autogroups), and processes only within one. Our session is our own, so it needs the
    priority, too.
    """
    os.nice(_NICE)
    with suppress(OSError), open(_AUTOGROUP, "w", encoding="ascii") as file:
        file.write(str(_NICE))


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if _BACKGROUND in sys.argv:
        _give_way()
    serve(sys.stdin.buffer, sys.stdout.buffer)
