"""Write snapshots of the metadata log, and delete the records and files that each snapshot replaces.

In: the image of committed records. Out: `.checkpoint` files beside the log, and a log that begins at the newest. It
never changes the image.
"""

import asyncio
import math
from typing import Final

import structlog

from stratalog.broker.coordination.cluster_image import ClusterImage
from stratalog.broker.coordination.metadata_quorum import MetadataQuorum
from stratalog.broker.storage.directory import Failure
from stratalog.broker.storage.survey import METADATA_DIRECTORY
from stratalog.config import BrokerConfig
from stratalog.log.effects import ListDirectory, Program, Unlink, WriteFile
from stratalog.metadata.image import Image
from stratalog.metadata.snapshot import SnapshotId, parse_file_name, snapshot_batches, snapshot_id
from stratalog.ports import Clock
from stratalog.quorum.voters import voters_control

__all__ = ["MetadataSnapshots"]

_LIMIT: Final = "metadata.log.max.record.bytes.between.snapshots"
_INTERVAL: Final = "metadata.log.max.snapshot.interval.ms"


class MetadataSnapshots:
    """The snapshots of one node's copy of the log."""

    def __init__(
        self, config: BrokerConfig, clock: Clock, quorum: MetadataQuorum, image: ClusterImage
    ) -> None:
        self._limit_bytes = config.int(_LIMIT)
        self._interval_ms = config.int(_INTERVAL) or math.inf
        self._clock = clock
        self._written_ms = clock.steady_ms()
        self._quorum = quorum
        self._metadata_log = quorum.log
        self._image = image
        self._writing: asyncio.Task[None] | None = None
        self._log = structlog.get_logger()
        self._looking: asyncio.Handle | None = None
        self._is_wanted = False
        """Whether the log or its newest snapshot is damaged: the next snapshot replaces both."""
        quorum.on_damaged_log = self._replace
        image.on_published.append(self._look)

    def close(self) -> None:
        """Abandon the snapshot in progress."""
        for one in (self._writing, self._looking):
            if one is not None:
                one.cancel()

    def _replace(self) -> None:
        """Write a snapshot as soon as possible: the image in memory has all that is committed, the disk has not."""
        self._is_wanted = True
        self._look()

    def _look(self) -> None:
        """Write a snapshot once the log has `metadata.log.max.record.bytes.between.snapshots`, and with the first
        change after `metadata.log.max.snapshot.interval.ms`. Kafka: SnapshotGenerator.

        The controller publishes the decisions of a batch one after another. A snapshot must not end between them:
        the leader's next records begin with a whole batch. So the snapshot is of the image at the turn's end.
        """
        is_late = self._clock.steady_ms() - self._written_ms >= self._interval_ms
        is_due = is_late or self._is_wanted or self._metadata_log.log.size >= self._limit_bytes
        if is_due and self._writing is None and self._looking is None:
            self._looking = asyncio.get_running_loop().call_soon(self._write_if_possible)

    def _write_if_possible(self) -> None:
        """Write a snapshot of the committed image.

        Records ahead of it may share the segment that is closed here; that segment goes with a later snapshot.
        """
        self._looking = None
        log = self._metadata_log
        if self._image.image.offset >= log.log.log_end_offset:
            return  # the other voters have committed what this node's disk still lacks
        if self._image.image.open_transaction is not None:
            return  # a snapshot cannot hold half of a transaction
        if log.directory.failure is not None or any(hold() for hold in self._image.holds):
            return
        self._written_ms = self._clock.steady_ms()
        self._is_wanted = False
        work = self._write(self._image.image)
        self._writing = asyncio.get_running_loop().create_task(work)

    async def _write(self, image: Image) -> None:
        """Encode the image batch by batch, each in a turn of its own, and put it in the place of older records."""
        directory = self._metadata_log.directory
        clock = self._clock
        wall_ms = clock.now_ms()
        identity = snapshot_id(image)
        data = bytearray()
        control = voters_control(self._quorum.voters_until(image.offset))
        for batch in snapshot_batches(image, wall_ms, wall_ms, control):
            data += batch
            await asyncio.sleep(0)
        path = f"{METADATA_DIRECTORY}/{identity.file_name()}"

        def written(error: Failure) -> None:
            self._writing = None
            replaced = self._metadata_log.take_snapshot
            if error is None and directory.failure is None and replaced(identity, len(data)):
                log, now_ms = self._metadata_log.log, clock.steady_ms()
                due = log.due(now_ms, wall_ms=clock.now_ms())
                directory.perform([*log.removable(now_ms), *due], self._report)
                dropped = directory.run(_drop_older(identity))
                dropped.add_done_callback(lambda dropped: self._report(dropped.exception()))
            self._report(error)

        roll = self._metadata_log.log.roll(clock.steady_ms())
        directory.perform([*roll, WriteFile(path, data)], written)

    def _report(self, error: Failure) -> None:
        if error is not None:
            self._log.error("metadata snapshot", reason=str(error))


def _drop_older(kept: SnapshotId) -> Program[None]:
    entries = yield ListDirectory(METADATA_DIRECTORY)
    assert isinstance(entries, list)
    for entry in entries:
        found = parse_file_name(entry.name)
        if found is not None and found != kept:
            yield Unlink(f"{METADATA_DIRECTORY}/{entry.name}")
