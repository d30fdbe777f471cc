"""Repeat a call while a block runs.

In: a call and its interval. Out: the call runs on a thread of its own until the block ends, whatever the block waits
for. The thread is a daemon: it keeps no process from ending, and never outlives the block.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def repeating(call: Callable[[], None], first_s: float, every_s: float) -> Iterator[None]:
    """Run `call` after `first_s`, then each `every_s`, until the block ends. An error of `call` ends the repetition."""
    ended = threading.Event()

    def run() -> None:
        wait_s = first_s
        while not ended.wait(wait_s):
            call()
            wait_s = every_s

    thread = threading.Thread(target=run, name="repeating", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
