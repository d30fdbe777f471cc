"""Waiting for something in another thread or process, for a bounded time.

In: a condition. Out: nothing, once the condition holds. AssertionError if it does not hold in time.
"""

import time
from collections.abc import Callable

TIMEOUT_S = 30


def wait_for(there: Callable[[], object], what: str, timeout_s: float = TIMEOUT_S) -> None:
    deadline = time.monotonic() + timeout_s
    while not there():
        assert time.monotonic() < deadline, f"never came: {what}"
        time.sleep(0.01)
