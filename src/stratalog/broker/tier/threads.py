"""The threads that work on the bucket: uploads for each log directory, and one pool for all other calls.

In: settings. Out: workers. It does not know their calls.

Uploads have threads for each log directory, so that a stalled drive delays its own uploads only.
"""

from typing import Final

from stratalog.broker.partitions.partition import HostedPartition
from stratalog.config import BrokerConfig
from stratalog.ports import Worker, Workers

_COPIERS: Final = "remote.log.manager.copier.thread.pool.size"
_EXPIRERS: Final = "remote.log.manager.expiration.thread.pool.size"


class TierThreads:
    """The threads of one broker. `expirer` deletes objects, reads manifests and claims the bucket."""

    def __init__(self, config: BrokerConfig, workers: Workers) -> None:
        self._workers = workers
        self._sizes = _sizes(config)
        self._copiers: dict[str, Worker] = {}
        self.expirer = self._start_expirer()

    def copier(self, hosted: HostedPartition) -> Worker:
        """Return the threads that upload from this partition's directory."""
        path = hosted.directory.path
        if path not in self._copiers:
            self._copiers[path] = self._workers.start(
                f"tier-copy {path}", self._sizes[_COPIERS], background=True
            )
        return self._copiers[path]

    def configure(self, config: BrokerConfig) -> list[Worker]:
        """Apply changed settings. Return the replaced workers, which the caller closes."""
        before, self._sizes = self._sizes, _sizes(config)
        replaced: list[Worker] = []
        if self._sizes[_EXPIRERS] != before[_EXPIRERS]:
            replaced.append(self.expirer)
            self.expirer = self._start_expirer()
        if self._sizes[_COPIERS] != before[_COPIERS]:
            replaced += self._copiers.values()
            self._copiers.clear()
        return replaced

    def all(self) -> tuple[Worker, ...]:
        """Return every worker, to be closed at the end."""
        return (*self._copiers.values(), self.expirer)

    def _start_expirer(self) -> Worker:
        return self._workers.start("tier-expire", self._sizes[_EXPIRERS], background=True)


def _sizes(config: BrokerConfig) -> dict[str, int]:
    return {name: config.int(name) for name in (_COPIERS, _EXPIRERS)}
