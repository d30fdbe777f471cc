"""Segments that tests generate and archive."""

import uuid

from stratalog.tier.writing.archiver import ClosedSegment
from stratalog.wire.records import Record, build_batch


class CountingEntropy:
    """Consecutive ids, the same in every run."""

    def __init__(self, first=1):
        self.number = first

    def uuid(self):
        self.number += 1
        return uuid.UUID(int=self.number << 64 | 0x4000_0000_0000_0000)

    def uniform(self, low, high):
        return low


def log_bytes(base, counts, *, start_ms=1000, epoch=3, codec="none", value_size=20):
    """Return batches with the given counts of records, one record each millisecond, and the next offset."""
    data = bytearray()
    offset = base
    for count in counts:
        records = [
            Record(n, start_ms + offset + n, b"key %d" % (offset + n), b"v" * value_size, ())
            for n in range(count)
        ]
        data += build_batch(records, base_offset=offset, leader_epoch=epoch, codec=codec)
        offset += count
    return bytes(data), offset


def closed(data, base, next_offset, piece=1000, epochs=((3, 0),), snapshot=b"a snapshot"):
    """Return the segment of these bytes, which is read piece by piece."""
    return ClosedSegment(
        base_offset=base,
        next_offset=next_offset,
        read=lambda: (data[at : at + piece] for at in range(0, len(data), piece)),
        leader_epochs=epochs,
        producer_snapshot=snapshot,
    )
