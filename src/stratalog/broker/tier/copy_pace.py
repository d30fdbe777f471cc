"""Limit the rate of uploads of closed segments, over all partitions of a broker.

In: the size of the next upload. Out: its turn. It never cuts an upload short, and delays none where
`remote.log.manager.copy.max.bytes.per.second` is not set.
"""

import asyncio

from stratalog.config import BrokerConfig
from stratalog.config.kinds import LONG_MAX
from stratalog.ports import Clock
from stratalog.tier.writing.quota import ByteQuota


class CopyPace:
    """Grant upload turns in the order of requests."""

    def __init__(self, config: BrokerConfig, clock: Clock) -> None:
        self._clock = clock
        self._turn = asyncio.Lock()
        self.configure(config)

    def configure(self, config: BrokerConfig) -> None:
        """Apply the present rate, from the next turn on."""
        self._quota = quota_of(
            config.int("remote.log.manager.copy.max.bytes.per.second"),
            config.int("remote.log.manager.copy.quota.window.num"),
            config.int("remote.log.manager.copy.quota.window.size.seconds"),
            self._clock,
        )

    @property
    def is_limited(self) -> bool:
        """Whether uploads must wait for turns."""
        return self._quota is not None

    async def turn(self, size: int) -> None:
        """Wait until `size` bytes may be copied."""
        async with self._turn:
            quota = self._quota
            if quota is None:
                return
            if wait_ms := quota.wait_ms(self._clock.steady_ms()):
                await asyncio.sleep(wait_ms / 1000)
            quota.spent(size)


def quota_of(bytes_per_second: int, samples: int, sample_s: int, clock: Clock) -> ByteQuota | None:
    """Return a quota as KIP-956's settings give it; None where there is none."""
    if bytes_per_second == LONG_MAX:
        return None
    return ByteQuota(bytes_per_second, samples, sample_s * 1000, clock.steady_ms())
