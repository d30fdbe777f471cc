"""Decide what stays of one batch of a compacted log, and write the batch that is left.

In: batches in order, the keys' last offsets, the time. Out: the batch as it was, a smaller one at the same offsets, or
nothing. It never changes an offset, a sequence, a timestamp or a codec.

A batch that keeps tombstones, or a marker that nothing needs any more, gets a delete horizon in the place of its base
timestamp: from then on they may go (KIP-534). A batch that must stay for its last offset or its producer's last
sequence stays as a header without records. Kafka: `Cleaner.cleanInto`, `MemoryRecords.filterTo`.

A partition may lie in two places, a disk and a bucket, each with its own cleanings. A tombstone that left one place
while the other has an older record of its key would bring the key back. So tombstones and markers stay as they are from
the offset on that the other place has not cleaned (`deletable_end`).
"""

from collections.abc import Mapping
from typing import Final

from crc32c import crc32c
from msgspec import Struct

from stratalog.errors import Corrupt
from stratalog.log.cleaning.transactions import Transactions
from stratalog.log.segment import Segment
from stratalog.ports import Buffer
from stratalog.wire.batch import (
    CODEC_MASK,
    CRC_START,
    DELETE_HORIZON,
    HEADER,
    HEADER_SIZE,
    NO_TIMESTAMP,
    PREFIX_SIZE,
    BatchHeader,
    crc_holds,
)
from stratalog.wire.compression import compress, decompress
from stratalog.wire.sift import KeyOffsets, Sieve, restamp, sift

__all__ = ["NOWHERE_ELSE", "BatchFilter", "Horizons", "Producers", "check_sound"]

NOWHERE_ELSE: Final = (1 << 63) - 1
"""The `deletable_end` of a log that lies in one place."""

Producers = Mapping[int, tuple[int, int]]
"""By producer id: the last offset of its data, -1 where the log has none; its epoch."""
_CRC_AT: Final = CRC_START - 4
_HORIZON_MAX: Final = 1 << 61
"""Timestamps are written relative to the horizon, in 63 bits."""


def check_sound(view: memoryview, header: BatchHeader, segment: Segment) -> None:
    """Raise Corrupt where a batch is not what was written: a cleaned copy must not make damage look sound.

    No CRC covers a batch's base offset. A key at a wrong offset could remove other records of the key.
    """
    if not crc_holds(view, 0, header):
        raise Corrupt(
            f"{segment.path}: the CRC of the batch at offset {header.base_offset} does not hold"
        )
    first, last = header.base_offset, header.last_offset
    if not segment.base_offset <= first <= last < segment.next_offset:
        raise Corrupt(f"{segment.path}: a batch has the offsets {first} to {last}")


class Horizons(Struct, frozen=True):
    """When tombstones and markers may go: `delete_retention_ms` after `wall_ms` where they have no horizon yet.

    `deletable_end`: below it no other place has an older record of a key, or of a transaction, than this place has.
    """

    wall_ms: int
    delete_retention_ms: int
    deletable_end: int = NOWHERE_ELSE

    @property
    def fresh(self) -> int:
        """The horizon of a batch that has none yet, epoch milliseconds."""
        return min(self.wall_ms + self.delete_retention_ms, _HORIZON_MAX)


class BatchFilter:
    """What stays of each batch. `last_noted` is the last offset whose key `keys` has."""

    def __init__(
        self,
        keys: KeyOffsets,
        last_noted: int,
        transactions: Transactions,
        producers: Producers,
        horizons: Horizons,
    ) -> None:
        self._keys = keys
        self._last_noted = last_noted
        self._transactions = transactions
        self._producers = producers
        self._horizons = horizons
        self._sieve = Sieve(
            keys,
            last_noted,
            horizons.wall_ms,
            horizons.fresh,
            horizons.deletable_end,
            {last_offset for last_offset, _epoch in producers.values()},
        )

    def keep_run(
        self,
        data: bytes,
        position: int,
        stop: int,
        segment: Segment,
        out: list[bytes],
        kept: list[tuple[int, int, int]],
    ) -> tuple[int, bool]:
        """As `Sieve.sift`: what stays of plain batches, as `keep` decides for each of them, in one call."""
        bounds = segment.base_offset, segment.next_offset
        return self._sieve.sift(data, position, stop, bounds, out, kept)

    def keep(self, view: memoryview, header: BatchHeader, *, is_last: bool) -> Buffer | None:
        """The batch that stays, None for none. `is_last`: of its segment, so that its last offset must stay.

        Raises Corrupt for records that cannot be read.
        """
        horizon = header.delete_horizon_ms
        may_be_deleted = header.last_offset < self._horizons.deletable_end
        has_expired = may_be_deleted and horizon is not None and horizon <= self._horizons.wall_ms
        if header.is_control:
            is_idle = self._transactions.may_go(view, header) and may_be_deleted
            if not (is_idle and has_expired) and header.record_count:
                if is_idle and horizon is None:
                    body = decompress(header.codec, view[HEADER_SIZE : header.size])
                    return self._with_horizon(
                        header, body, header.record_count, header.max_timestamp
                    )
                return view
        elif not self._transactions.is_aborted(header) and header.record_count:
            kept = self._sift(view, header, keeps_tombstones=not has_expired)
            if kept is not None:
                return kept
        if is_last or self._is_last_of_producer(header):
            return _empty(header)
        return None

    def _sift(
        self, view: memoryview, header: BatchHeader, *, keeps_tombstones: bool
    ) -> Buffer | None:
        body = decompress(header.codec, view[HEADER_SIZE : header.size])
        pieces: list[bytes] = []
        count, delta, tombstones = sift(
            body,
            header.record_count,
            header.base_offset,
            self._last_noted,
            keeps_tombstones,
            self._keys,
            pieces,
        )
        if count < 0:
            raise Corrupt(f"a record of the batch at offset {header.base_offset} is unsound")
        if not count:
            return None
        may_be_deleted = header.last_offset < self._horizons.deletable_end
        needs_horizon = tombstones > 0 and may_be_deleted and header.delete_horizon_ms is None
        if count == header.record_count and not needs_horizon:
            return view
        largest = (
            header.max_timestamp
            if header.is_log_append_time
            else max(header.base_timestamp + delta, NO_TIMESTAMP)
        )
        kept = b"".join(pieces)
        if needs_horizon:
            return self._with_horizon(header, kept, count, largest)
        return _build(header, compress(header.codec, kept), count, largest)

    def _with_horizon(
        self, header: BatchHeader, records: bytes, count: int, largest: int
    ) -> Buffer:
        """The batch with these records, restored, and its delete horizon."""
        horizon = self._horizons.fresh
        if not header.is_log_append_time:  # else the records' own times do not matter
            records = restamp(records, count, header.base_timestamp - horizon)
        body = compress(header.codec, records)
        stamped = header._replace(
            attributes=header.attributes | DELETE_HORIZON, base_timestamp=horizon
        )
        return _build(stamped, body, count, largest)

    def _is_last_of_producer(self, header: BatchHeader) -> bool:
        found = self._producers.get(header.producer_id) if header.producer_id >= 0 else None
        if found is None:
            return False
        last_offset, epoch = found
        if last_offset >= 0:
            return header.last_offset == last_offset
        return header.is_control and header.producer_epoch == epoch


def _empty(header: BatchHeader) -> bytearray:
    """A header without records: neither codec nor horizon (Kafka: `DefaultRecordBatch.writeEmptyHeader`)."""
    attributes = header.attributes & ~(CODEC_MASK | DELETE_HORIZON)
    bare = header._replace(attributes=attributes, base_timestamp=NO_TIMESTAMP)
    return _build(bare, b"", 0, header.max_timestamp)


def _build(header: BatchHeader, body: bytes, count: int, max_timestamp: int) -> bytearray:
    """A batch with `count` records in `body`, as compressed as the header says, and with its CRC."""
    batch = bytearray(HEADER_SIZE)
    batch += body
    fields = header._replace(
        size=len(batch) - PREFIX_SIZE, record_count=count, max_timestamp=max_timestamp
    )
    HEADER.pack_into(batch, 0, *fields)
    with memoryview(batch) as view, view[CRC_START:] as covered:
        crc = crc32c(covered)
    batch[_CRC_AT:CRC_START] = crc.to_bytes(4, "big")
    return batch
