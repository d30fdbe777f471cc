"""Waiting for something in another thread or process, for a bounded time.

In: a question. Out: nothing, once it is answered yes. AssertionError where it is not in time.
"""

import time
from collections.abc import Callable

TIMEOUT_S = 30


def wait_for(there: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not there():
        assert time.monotonic() < deadline, f"never came: {what}"
        time.sleep(0.05)
