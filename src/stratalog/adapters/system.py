"""The real world in one value: clock, chance, threads, network, disks, object stores.

In: nothing. Out: `ports.Outside`. It never caches what the system says.
"""

import random
import time
import uuid

from stratalog.adapters.local_disk import LocalDisk
from stratalog.adapters.network import TcpNetwork
from stratalog.adapters.object_store import open_store
from stratalog.adapters.threads import Threads
from stratalog.ports import Outside


class SystemClock:
    """`ports.Clock`: milliseconds since the epoch, from the system's clock."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000


class SystemEntropy:
    """`ports.Entropy` from the system's generator."""

    def uuid(self) -> uuid.UUID:
        return uuid.uuid4()

    def uniform(self, low: float, high: float) -> float:
        return random.uniform(low, high)


def outside() -> Outside:
    """Everything outside a real process."""
    return Outside(
        clock=SystemClock(),
        entropy=SystemEntropy(),
        workers=Threads(),
        network=TcpNetwork(),
        disk=LocalDisk,
        object_store=open_store,
    )
