"""Free the event loop regularly during long work.

In: the time. Out: a pause, whenever the work has used its share. Most calls cost next to nothing.
"""

import asyncio
from collections.abc import Callable
from typing import Final

_SHARE_NS: Final = 2_000_000
"""Longest work between two pauses."""


class Pause:
    """`await pause()` after every few steps."""

    def __init__(self, elapsed_ns: Callable[[], int]) -> None:
        self._elapsed_ns = elapsed_ns
        self._since_ns = elapsed_ns()

    async def __call__(self) -> None:
        if self._elapsed_ns() - self._since_ns >= _SHARE_NS:
            await asyncio.sleep(0)
            self._since_ns = self._elapsed_ns()
