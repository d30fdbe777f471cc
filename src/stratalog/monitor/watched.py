"""The parts of a node that the monitor reads.

In: the node's parts, as they are created. Out: the same, to read. It changes nothing.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from stratalog.broker.broker import Broker
from stratalog.broker.network.connections import Connections
from stratalog.broker.storage.directory import LogDirectory
from stratalog.broker.storage.timed_disk import TimedDisk
from stratalog.ports import Clock

__all__ = ["Watched"]


@dataclass(frozen=True, slots=True)
class Watched:
    """The node as the monitor sees it. `broker` is None and `directories` is empty until the node creates them."""

    clock: Clock
    broker: Callable[[], Broker | None]
    directories: Callable[[], Sequence[LogDirectory]]
    disks: Callable[[], Sequence[TimedDisk]]
    connections: Callable[[], Connections]
    stopping: Callable[[], bool]
    console_url: Callable[[], str | None] = lambda: None
