"""Limit the rate of copies of one kind on a broker: uploads to the bucket, moves between log directories.

In: the size of the next copy. Out: its turn. It never cuts a copy short, and delays none where its rate is not set.
"""

import asyncio
from typing import Final, NamedTuple

from stratalog.config import BrokerConfig
from stratalog.config.kinds import LONG_MAX
from stratalog.ports import Clock
from stratalog.quota import ByteQuota

__all__ = ["Pace", "RateNames", "quota_of"]

_WAIT_S: Final = 1.0
"""A copy that waits looks so often for a new rate."""


class RateNames(NamedTuple):
    """The settings of one rate: bytes a second, and the number and length of the samples of its window."""

    rate: str
    samples: str
    sample_s: str


class Pace:
    """Grant turns in the order of requests."""

    def __init__(self, names: RateNames, config: BrokerConfig, clock: Clock) -> None:
        self._names = names
        self._clock = clock
        self._turn = asyncio.Lock()
        self._rate = LONG_MAX
        self._quota: ByteQuota | None = None
        self.configure(config)

    def configure(self, config: BrokerConfig) -> None:
        """Apply the present rate, also to the copy that waits."""
        if config.int(self._names.rate) != self._rate:
            self._rate = config.int(self._names.rate)
            self._quota = quota_of(config, self._names, self._clock)

    @property
    def is_limited(self) -> bool:
        """Whether copies must wait for turns."""
        return self._quota is not None

    async def turn(self, size: int) -> None:
        """Wait until `size` bytes may be copied."""
        async with self._turn:
            while self._quota is not None:
                wait_ms = self._quota.wait_ms(self._clock.steady_ms())
                if not wait_ms:
                    self._quota.spent(size)
                    return
                await asyncio.sleep(min(wait_ms / 1000, _WAIT_S))


def quota_of(config: BrokerConfig, names: RateNames, clock: Clock) -> ByteQuota | None:
    """Return a quota as these settings give it; None where there is no rate. A rate of 0 counts as 1."""
    rate = config.int(names.rate)
    if rate == LONG_MAX:
        return None
    return ByteQuota(
        max(rate, 1),
        config.int(names.samples),
        config.int(names.sample_s) * 1000,
        clock.steady_ms(),
    )
