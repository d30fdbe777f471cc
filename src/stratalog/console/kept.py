"""Keep a fact about the cluster for a moment, so that many pages cost the brokers one request.

In: how to fetch the fact. Out: the fact, at most a few seconds old. It never fetches before a page asks.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, Generic, TypeVar

from stratalog.errors import again
from stratalog.ports import Clock

__all__ = ["Kept"]

T = TypeVar("T")

_SHARE: Final = 20
"""A fact that took a second is kept for twenty: the console asks for it in a twentieth of the time at most."""


class Kept(Generic[T]):
    """One fact. Its requests run one at a time; the pages that wait for one share its answer."""

    def __init__(self, fetch: Callable[[], Awaitable[T]], clock: Clock, age_ms: int) -> None:
        self._fetch = fetch
        self._clock = clock
        self._age_ms = age_ms
        self._lock = asyncio.Lock()
        self._value: tuple[T] | None = None
        self._until_ms = 0
        self._tries = 0
        self._failure: Exception | None = None
        """Of the last try, if it failed."""

    async def get(self) -> T:
        """Return the fact. Raises what the fetch raises, to each page that waited for it; the next page tries again."""
        tries = self._tries
        async with self._lock:
            if self._failure is not None and tries < self._tries:
                raise again(self._failure)
            began_ms = self._clock.steady_ms()
            if self._value is None or began_ms >= self._until_ms:
                self._value = None
                value = await self._try()
                ended_ms = self._clock.steady_ms()
                self._until_ms = ended_ms + max(self._age_ms, _SHARE * (ended_ms - began_ms))
                self._value = (value,)
            return self._value[0]

    async def _try(self) -> T:
        self._failure = None
        try:
            return await self._fetch()
        except Exception as error:  # the pages that wait for this try get it too
            self._failure = error
            raise
        finally:
            self._tries += 1

    def forget(self) -> None:
        """Fetch again for the next page: something was changed."""
        self._until_ms = 0
