"""Show the metadata log to its quorum.

In: the log, and the snapshot that it begins with. Out: offsets and epochs. It never changes the log.
"""

from dataclasses import dataclass

from stratalog.log.partition_log import PartitionLog
from stratalog.metadata.snapshot import SnapshotId

__all__ = ["QuorumLog"]


@dataclass(frozen=True, slots=True)
class QuorumLog:
    """`stratalog.quorum.member.LogView` of a log of this node."""

    log: PartitionLog
    snapshot: SnapshotId | None

    @property
    def start_offset(self) -> int:
        return self.log.log_start_offset

    @property
    def start_epoch(self) -> int:
        return 0 if self.snapshot is None else self.snapshot.epoch

    @property
    def end_offset(self) -> int:
        return self.log.next_offset

    @property
    def last_epoch(self) -> int:
        return max(self.log.epochs.latest, self.start_epoch)

    def end_of(self, epoch: int) -> tuple[int, int]:
        return self.log.epochs.end_of(epoch, self.log.next_offset)

    def snapshot_size(self, snapshot: SnapshotId) -> int | None:  # noqa: ARG002 - as the port has it
        return None  # a quorum of one serves no snapshot
