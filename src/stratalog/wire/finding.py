"""Find records in record batches: those of some keys, without decoding the batches that have none of them.

In: whole batches, keys. Out: records. It never reads past the batches.

A batch is searched for the bytes of a key before its records are decoded: a search in C passes over a gigabyte a
second, and decoding takes some microseconds a record.
"""

from collections.abc import Collection, Iterator, Sequence

from stratalog.errors import Corrupt
from stratalog.wire.batch import HEADER_SIZE, crc_holds, scan
from stratalog.wire.compression import decompress
from stratalog.wire.records import Record, read_records
from stratalog.wire.transactions import Aborted
from stratalog.wire.varint import encode_signed

__all__ = ["records_in"]


def records_in(
    data: memoryview,
    start: int,
    aborted: Sequence[tuple[int, int]] = (),
    *,
    keys: Collection[bytes] | None = None,
    checked: bool = False,
) -> Iterator[tuple[int, Record | None]]:
    """Yield (next offset, record) for each record from `start` on; the record is None where only the offset moves.

    With `keys` only records with one of them. Records of `aborted` transactions, as a Fetch answer lists them, are
    skipped. `checked`: the caller has checked the bytes. Raises Corrupt for a damaged batch.
    """
    needles = None if keys is None else [(key, _needles(key)) for key in keys]
    hidden = Aborted(aborted)
    for position, header in scan(data):
        if not checked and not crc_holds(data, position, header):
            raise Corrupt(f"the batch at offset {header.base_offset} has a wrong CRC")
        batch = data[position : position + header.size]
        is_hidden = hidden.has(header) or header.is_control
        if not is_hidden and _may_have(batch, header.codec, needles):
            for record in read_records(batch):
                if record.offset >= start and (keys is None or record.key in keys):
                    yield record.offset + 1, record
        yield header.next_offset, None


def _needles(key: bytes) -> tuple[bytes, bytes]:
    """Return the key behind its length; a length that is padded to more bytes than it needs ends with a zero."""
    return encode_signed(len(key)) + key, b"\0" + key


def _may_have(
    batch: memoryview, codec: int, needles: Sequence[tuple[bytes, tuple[bytes, bytes]]] | None
) -> bool:
    """Return whether the batch's records contain one of `needles`, somewhere.

    A search for the bare key comes first: nearly always it is the only one.
    """
    if needles is None:
        return True
    records = decompress(codec, batch[HEADER_SIZE:])
    return any(
        key in records and any(needle in records for needle in behind) for key, behind in needles
    )
