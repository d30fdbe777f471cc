"""Maintain log directories: retention, checkpoints, syncs of closed segments, idle files.

In: hosted partitions, settings. Out: repeated work in separate tasks for each directory, so that a stalled drive delays
no other directory. This module decides nothing: each partition returns its due effects.
"""

import asyncio
from contextlib import suppress
from typing import Final

import structlog

from stratalog.broker.background import Background
from stratalog.broker.partitions.cleaning import Cleaners
from stratalog.broker.partitions.hosting import Hosting
from stratalog.broker.partitions.partition import HostedPartition
from stratalog.broker.storage.directory import LogDirectory
from stratalog.config import BrokerConfig
from stratalog.errors import Rejected

_PARTITIONS_A_TURN: Final = 1000
_IDLE_FILES_S: Final = 60.0


class Upkeep:
    """The upkeep of one broker's directories. It syncs closed segments at once; `start` it for the rest."""

    def __init__(self, hosting: Hosting, config: BrokerConfig, background: Background) -> None:
        self._hosting = hosting
        self._retention_s = config.int("log.retention.check.interval.ms") / 1000
        self._checkpoint_s = config.int("log.flush.offset.checkpoint.interval.ms") / 1000
        self._high_watermarks_s = config.int("replica.high.watermark.checkpoint.interval.ms") / 1000
        self._background = background
        self._log = structlog.get_logger()
        hosting.on_rolled.append(lambda hosted: background.spawn(self._sync_closed(hosted)))

    def start(self, cleaners: Cleaners) -> None:
        """Begin to maintain every directory, and to clean logs."""
        for directory in self._hosting.directories:
            self._start(directory)
        cleaners.start(self._background.spawn)

    def _start(self, directory: LogDirectory) -> None:
        repeat = self._background.repeat
        repeat(lambda: self._keep_retention(directory), self._retention_s)
        repeat(lambda: self._checkpoint(directory), self._checkpoint_s)
        repeat(lambda: self._checkpoint_replicated(directory), self._high_watermarks_s)
        repeat(lambda: self._close_idle(directory), _IDLE_FILES_S)

    async def _sync_closed(self, hosted: HostedPartition) -> None:
        """Sync a segment that was just closed."""
        # A directory that failed has a log line of its own, and a deleted partition needs none.
        with suppress(Rejected):
            await hosted.sync_closed()

    async def _keep_retention(self, directory: LogDirectory) -> None:
        for count, hosted in enumerate(self._hosting.all()):
            if count % _PARTITIONS_A_TURN == 0:
                await asyncio.sleep(0)  # a partition without work ends no turn
            if hosted.directory is not directory:
                continue
            try:
                await hosted.keep_retention()
            except Rejected as error:
                self._log.warning("retention", partition=str(hosted.name), reason=error.message)

    async def _checkpoint(self, directory: LogDirectory) -> None:
        if directory.failure is None:
            try:
                await self._hosting.checkpoints.write(directory)
            except Rejected as error:
                self._log.warning("checkpoint", path=directory.path, reason=error.message)

    async def _checkpoint_replicated(self, directory: LogDirectory) -> None:
        """Write high watermarks down more often where there are followers: alone, the high watermark is the log end."""
        for count, hosted in enumerate(self._hosting.all()):
            if hosted.directory is directory and len(hosted.replica.replicas) > 1:
                await self._checkpoint(directory)
                return
            if count % _PARTITIONS_A_TURN == 0:
                await asyncio.sleep(0)

    async def _close_idle(self, directory: LogDirectory) -> None:
        directory.close_idle()
