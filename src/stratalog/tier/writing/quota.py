"""Bytes a second, as KIP-956 has them for what goes to the bucket and what comes from it.

In: bytes that went, the time. Out: how long to wait before more may go. It never waits and never reads a clock.

A quota lets through what a window of `samples` times `sample_ms` may hold in one go, and `bytes_per_second` on average
(Kafka: RLMQuotaManager over a Rate of as many samples). What has begun is never cut short: one transfer may overdraw
it, and the next ones wait until that is made good.
"""

from collections import deque

__all__ = ["ByteQuota"]


class ByteQuota:
    """`spent` may be called from any thread, the rest from one."""

    def __init__(self, bytes_per_second: int, samples: int, sample_ms: int, now_ms: int) -> None:
        self._rate = bytes_per_second / 1000
        self._room_max = self._rate * samples * sample_ms
        self._room = self._room_max
        self._at_ms = now_ms
        self._spent: deque[int] = deque()

    def spent(self, size: int) -> None:
        """So many bytes went."""
        self._spent.append(size)

    def wait_ms(self, now_ms: int) -> int:
        """Milliseconds until the next transfer may begin; 0: now."""
        elapsed = max(now_ms - self._at_ms, 0)
        self._at_ms = now_ms
        self._room = min(self._room + elapsed * self._rate, self._room_max)
        while self._spent:
            self._room -= self._spent.popleft()
        return 0 if self._room > 0 else int(-self._room / self._rate) + 1
