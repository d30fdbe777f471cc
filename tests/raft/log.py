"""One node's metadata log and disk in memory: written and durable records, and the state after a crash.

In: batches, offsets. Out: `LogView` for a member. A crash takes batches that were never durable, one by one from the
end; what `quorum-state` and a loaded snapshot say is durable at once.
"""

from dataclasses import dataclass
from random import Random

from stratalog.metadata.snapshot import SnapshotId
from stratalog.quorum.saved_state import QuorumState
from stratalog.quorum.voters import VoterSet, voter_set
from stratalog.wire.batch import parse_header, scan
from stratalog.wire.internal.control import decode_control
from stratalog.wire.internal.control_records import VotersRecord
from stratalog.wire.records import read_records


@dataclass(frozen=True, slots=True)
class Batch:
    base: int
    end: int
    epoch: int
    data: bytes


class Log:
    def __init__(self) -> None:
        self.batches: list[Batch] = []
        self.start_offset = 0
        self.start_epoch = 0
        self.durable_offset = 0
        self.generation = 0
        """Counts truncations: a flush that began before a truncation makes no later record durable."""
        self.snapshot: SnapshotId | None = None
        self.snapshot_data = b""
        self.saved = QuorumState()

    @property
    def end_offset(self) -> int:
        return self.batches[-1].end if self.batches else self.start_offset

    @property
    def last_epoch(self) -> int:
        return self.batches[-1].epoch if self.batches else self.start_epoch

    def end_of(self, epoch: int) -> tuple[int, int]:
        for batch in reversed(self.batches):
            if batch.epoch <= epoch:
                return batch.epoch, batch.end
        return min(epoch, self.start_epoch), self.start_offset

    def snapshot_size(self, snapshot: SnapshotId) -> int | None:
        return len(self.snapshot_data) if snapshot == self.snapshot else None

    def append(self, data: bytes) -> list[Batch]:
        added = [
            Batch(h.base_offset, h.next_offset, h.leader_epoch, data[at : at + h.size])
            for at, h in scan(data)
        ]
        self.batches += added
        return added

    def truncate(self, offset: int) -> None:
        self.generation += 1
        self.batches = [batch for batch in self.batches if batch.end <= offset]
        self.durable_offset = min(self.durable_offset, self.end_offset)

    def read(self, offset: int, count: int) -> bytes:
        return b"".join([one.data for one in self.batches if one.base >= offset][:count])

    def between(self, start: int, end: int) -> list[Batch]:
        return [one for one in self.batches if start <= one.base and one.end <= end]

    def voters(self) -> list[tuple[int, VoterSet]]:
        """The voter sets of all records, each with its offset."""
        found = []
        for one in self.batches:
            data = memoryview(one.data)
            for record in read_records(data) if parse_header(data).is_control else ():
                decoded = decode_control(record.key, record.value)
                if isinstance(decoded, VotersRecord):
                    found.append((record.offset, voter_set(decoded)))
        return found

    def begin_at(self, snapshot: SnapshotId, data: bytes) -> None:
        """Load a fetched snapshot: everything else goes."""
        self.generation += 1
        self.batches = []
        self.start_offset = self.durable_offset = snapshot.end_offset
        self.start_epoch = snapshot.epoch
        self.snapshot, self.snapshot_data = snapshot, data

    def take_snapshot(self, snapshot: SnapshotId, data: bytes, keep: int) -> None:
        """Put a snapshot in the place of older records; the last `keep` batches below its end stay."""
        below = [one for one in self.batches if one.end <= snapshot.end_offset]
        dropped = len(below) - keep
        if dropped > 0:
            self.batches = self.batches[dropped:]
            self.start_offset = below[dropped - 1].end
            self.start_epoch = below[dropped - 1].epoch
        self.snapshot, self.snapshot_data = snapshot, data

    def crash(self, chance: Random) -> int:
        """Lose some of the batches that are not durable; return how many."""
        kept = len(self.batches)
        while kept and self.batches[kept - 1].base >= self.durable_offset and chance.random() < 0.7:
            kept -= 1
        lost = len(self.batches) - kept
        del self.batches[kept:]
        if self.snapshot is not None and self.end_offset < self.snapshot.end_offset:
            # The snapshot of a leader may have more than its log: a majority without it committed the records.
            self.batches = []
            self.start_offset = self.snapshot.end_offset
            self.start_epoch = self.snapshot.epoch
        self.durable_offset = self.end_offset
        return lost
