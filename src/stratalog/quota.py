"""A quota in bytes a second: of transfers to and from the bucket (KIP-956), of replication (KIP-73).

In: bytes transferred, the time. Out: how long to wait before the next transfer. It never waits and never reads a
clock.

A quota permits the bytes of a window of `samples` times `sample_ms` at once, and `bytes_per_second` on average
(Kafka: RLMQuotaManager over a Rate of as many samples). A transfer that has begun is never cut short: it may overdraw
the quota, and the next ones wait until that is repaid.
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
        """Count bytes transferred."""
        self._spent.append(size)

    def wait_ms(self, now_ms: int) -> int:
        """Return milliseconds until the next transfer may begin; 0: now."""
        elapsed = max(now_ms - self._at_ms, 0)
        self._at_ms = now_ms
        self._room = min(self._room + elapsed * self._rate, self._room_max)
        while self._spent:
            self._room -= self._spent.popleft()
        return 0 if self._room > 0 else int(-self._room / self._rate) + 1
