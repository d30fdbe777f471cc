"""Quotas: of transfers to and from the bucket (KIP-956), of replication (KIP-73), of clients (KIP-13, KIP-599).

In: amounts, the time. Out: how long to wait. It never waits and never reads a clock.

A `ByteQuota` permits the bytes of a window of `samples` times `sample_ms` at once, and `bytes_per_second` on average
(Kafka: RLMQuotaManager over a Rate of as many samples). A transfer that has begun is never cut short: it may overdraw
the quota, and the next ones wait until that is repaid.
"""

from collections import deque

__all__ = ["ByteQuota", "SampledRate", "TokenBucket"]


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


class SampledRate:
    """The amount a second over the latest `samples` samples of `sample_ms` each, as Kafka's clients' quotas measure it.

    Kafka: Rate, SampledStat, `QuotaUtils.throttleTime`.
    """

    __slots__ = ("_sample_ms", "_samples", "_samples_max")

    def __init__(self, samples: int, sample_ms: int) -> None:
        self._sample_ms = sample_ms
        self._samples_max = samples
        # Kafka keeps one sample more, which overlaps the begin of the window. A sample: begin, latest amount, sum.
        self._samples: deque[tuple[int, int, float]] = deque(maxlen=samples + 1)

    def record(self, amount: float, now_ms: int) -> None:
        """Count an amount; a negative one takes back what was counted."""
        samples = self._samples
        if samples and now_ms - samples[-1][0] < self._sample_ms:
            began_ms, _, total = samples[-1]
            samples[-1] = (began_ms, now_ms, total + amount)
        else:
            samples.append((now_ms, now_ms, amount))

    def wait_ms(self, bound: float, now_ms: int) -> int:
        """Return milliseconds until the rate is down at `bound` a second, if nothing is counted meanwhile."""
        samples, sample_ms = self._samples, self._sample_ms
        self._forget(now_ms)
        if not samples:
            return 0
        window_ms = now_ms - samples[0][0]
        # A window that has just begun counts as long as all samples but the present one.
        missing = self._samples_max - 1 - window_ms // sample_ms
        window_ms = max(window_ms + max(missing, 0) * sample_ms, 1)
        rate = sum(total for _, _, total in samples) * 1000 / window_ms
        return int((rate - bound) / bound * window_ms + 0.5) if rate > bound else 0

    def is_over(self, now_ms: int) -> bool:
        """Return whether nothing that was counted lies in the window."""
        self._forget(now_ms)
        return not self._samples

    def _forget(self, now_ms: int) -> None:
        samples, expired_ms = self._samples, self._samples_max * self._sample_ms
        while samples and now_ms - samples[0][1] >= expired_ms:
            samples.popleft()


class TokenBucket:
    """Tokens that come at a rate, `window_s` seconds' worth at most. It may be overdrawn (KIP-599).

    Kafka: TokenBucket.
    """

    __slots__ = ("_at_ms", "_tokens", "_window_s")

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._tokens = 0.0
        self._at_ms: int | None = None

    def take(self, tokens: float, rate: float, now_ms: int) -> None:
        """Take tokens, whether they are there or not."""
        self._fill(rate, now_ms)
        self._tokens -= tokens

    def wait_ms(self, rate: float, now_ms: int) -> int:
        """Return milliseconds until the bucket is no longer overdrawn; 0: now."""
        self._fill(rate, now_ms)
        return int(-self._tokens / rate * 1000 + 0.5) if self._tokens < 0 else 0

    def is_over(self, now_ms: int) -> bool:
        """Return whether the bucket has been full for some time, if its rate did not change."""
        return self._at_ms is None or (
            self._tokens >= 0 and now_ms - self._at_ms > self._window_s * 1000
        )

    def _fill(self, rate: float, now_ms: int) -> None:
        most = rate * self._window_s
        if self._at_ms is None:
            self._tokens = most
        else:
            self._tokens = min(most, self._tokens + rate * max(now_ms - self._at_ms, 0) / 1000)
        self._at_ms = now_ms
