"""Read the records of a batch one by one, and build new batches.

In: a view of one whole batch, or keys, values and timestamps. Out: `Record` values, or a batch as a bytearray. It
never reads a clock: the caller passes timestamps.

A record: length varint, attributes i8, timestamp delta varlong, offset delta varint, key and value (varint length, -1
for none), header count and headers. Kafka: `DefaultRecord`. This module is for control batches, tests, tools and
small producers; consumers of large volumes use `kernels`.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from crc32c import crc32c

from stratalog.errors import Corrupt
from stratalog.ports import Buffer
from stratalog.wire.batch import (
    CONTROL,
    CRC_START,
    HEADER,
    HEADER_SIZE,
    PREFIX_SIZE,
    TRANSACTIONAL,
    parse_header,
)
from stratalog.wire.compression import CODECS, MAX_BYTES, NONE, compress, decompress
from stratalog.wire.varint import encode_signed, read_signed

__all__ = ["BatchBuilder", "Header", "Record", "build_batch", "read_records"]

Header = tuple[str, bytes | None]

_CRC_PLACE: Final = slice(CRC_START - 4, CRC_START)


class Record(NamedTuple):
    """One record. `timestamp` is epoch milliseconds, -1 for none."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...] = ()


def read_records(batch_view: Buffer, *, max_bytes: int = MAX_BYTES) -> Iterator[Record]:
    """Yield every record of the batch at the start of `batch_view`, decompressed if need be.

    Raises Corrupt (from the iterator) unless the batch has exactly the header's number of records. It never reads past
    the batch, and never decompresses more than `max_bytes`. It does not check the CRC: `batch.crc_holds` does.
    """
    with memoryview(batch_view) as view:
        header = parse_header(view)
        if header.size > len(view):
            raise Corrupt(f"a batch of {header.size} bytes in {len(view)}")
        codec = header.codec
        body = decompress(codec, view[HEADER_SIZE : header.size], max_bytes=max_bytes)
    append_time = header.max_timestamp if header.is_log_append_time else None
    position = 0
    end = len(body)
    for _ in range(header.record_count):
        length, position = read_signed(body, position)
        stop = position + length
        if length < 0 or stop > end:
            raise Corrupt(f"a record of {length} bytes with {end - position} left")
        record = _record(body, position, stop, header.base_offset, header.base_timestamp)
        yield record if append_time is None else record._replace(timestamp=append_time)
        position = stop
    if position != end:
        raise Corrupt(f"{end - position} bytes after the last record")


def _record(body: bytes, position: int, stop: int, base_offset: int, base_timestamp: int) -> Record:
    timestamp_delta, position = read_signed(body, position + 1, 64)
    offset_delta, position = read_signed(body, position)
    key, position = _nullable(body, position, stop)
    value, position = _nullable(body, position, stop)
    count, position = read_signed(body, position)
    headers: tuple[Header, ...] = ()
    if count:
        headers, position = _headers(body, position, stop, count)
    if position != stop:
        raise Corrupt("a record's fields do not fill its length")
    return Record(base_offset + offset_delta, base_timestamp + timestamp_delta, key, value, headers)


def _headers(body: bytes, position: int, stop: int, count: int) -> tuple[tuple[Header, ...], int]:
    if count < 0 or count > stop - position:
        raise Corrupt(f"{count} record headers in {stop - position} bytes")
    headers = []
    for _ in range(count):
        name, position = _nullable(body, position, stop)
        if name is None:
            raise Corrupt("a record header without a key")
        value, position = _nullable(body, position, stop)
        try:
            headers.append((name.decode("utf-8"), value))
        except UnicodeDecodeError as error:
            raise Corrupt("a record header's key is not UTF-8") from error
    return tuple(headers), position


def _nullable(body: bytes, position: int, stop: int) -> tuple[bytes | None, int]:
    length, position = read_signed(body, position)
    if length < 0:
        if length != -1:
            raise Corrupt(f"a field of {length} bytes")
        return None, position
    end = position + length
    if end > stop:
        raise Corrupt(f"a field of {length} bytes with {stop - position} left in its record")
    return body[position:end], end


# Small varints by value: nearly every length and delta of a small record is one of these.
_SIGNED: Final = [encode_signed(value) for value in range(8192)]
_SMALL: Final = len(_SIGNED)


def _signed(value: int) -> bytes:
    return _SIGNED[value] if 0 <= value < _SMALL else encode_signed(value)


class BatchBuilder:
    """Collects records into one batch.

    `size` is the batch's size in bytes if its codec does not compress at all, so that a caller that stops at a limit
    stays below it (a codec may add a few bytes to incompressible data). Offsets are consecutive.
    """

    __slots__ = ("_base_timestamp", "_codec", "_max_timestamp", "_parts", "count", "size")

    def __init__(self, codec: str = "none") -> None:
        """`codec` is one of `compression.CODECS`; KeyError for another."""
        self._codec = CODECS[codec]
        self._parts: list[bytes] = []
        self._base_timestamp = -1
        self._max_timestamp = -1
        self.count = 0
        self.size = HEADER_SIZE

    def add(
        self,
        key: bytes | None,
        value: bytes | None,
        timestamp: int,
        headers: Sequence[Header] = (),
    ) -> None:
        """Append one record; `timestamp` is epoch milliseconds."""
        count = self.count
        if count == 0:
            self._base_timestamp = self._max_timestamp = timestamp
        elif timestamp > self._max_timestamp:
            self._max_timestamp = timestamp
        delta = timestamp - self._base_timestamp
        small = _SIGNED
        body = b"".join(
            (
                b"\0",
                small[delta] if 0 <= delta < _SMALL else encode_signed(delta),
                small[count] if count < _SMALL else encode_signed(count),
                b"\x01" if key is None else _signed(len(key)),
                key or b"",
                b"\x01" if value is None else _signed(len(value)),
                value or b"",
                _encode_headers(headers) if headers else b"\0",
            )
        )
        length = len(body)
        prefix = small[length] if length < _SMALL else encode_signed(length)
        self._parts.append(prefix)
        self._parts.append(body)
        self.count = count + 1
        self.size += len(prefix) + length

    def extend(
        self,
        values: Sequence[bytes],
        timestamp: int,
        keys: Sequence[bytes | None] | None = None,
    ) -> None:
        """Append a record without headers for each value; several times as fast as `add`.

        `keys` are as many as `values`, or ValueError; without them no record has a key.
        """
        if not values:
            return
        if self.count == 0:
            self._base_timestamp = self._max_timestamp = timestamp
        elif timestamp > self._max_timestamp:
            self._max_timestamp = timestamp
        # A record is its length, these few bytes, its place in the batch, key and value behind their lengths, a zero.
        begin = b"\0" + _signed(timestamp - self._base_timestamp)
        if keys is None:
            self._extend_plain(values, begin)
        else:
            self._extend_keyed(values, keys, begin)

    def _extend_plain(self, values: Sequence[bytes], begin: bytes) -> None:
        heads: dict[int, tuple[bytes, bytes, int]] = {}
        parts, count, size = self._parts, self.count, self.size
        for value in values:
            place = _SIGNED[count] if count < _SMALL else encode_signed(count)
            form = len(value) << 3 | len(place)
            head = heads.get(form)
            if head is None:
                middle = b"\x01" + _signed(len(value))
                length = len(begin) + len(place) + len(middle) + len(value) + 1
                prefix = _signed(length)
                head = heads[form] = (prefix + begin, middle, len(prefix) + length)
            first, middle, whole = head
            parts += (first, place, middle, value, b"\0")
            size += whole
            count += 1
        self.count, self.size = count, size

    def _extend_keyed(
        self, values: Sequence[bytes], keys: Sequence[bytes | None], begin: bytes
    ) -> None:
        heads: dict[tuple[int, int, int], tuple[bytes, bytes, bytes, int]] = {}
        parts, count, size = self._parts, self.count, self.size
        for key, value in zip(keys, values, strict=True):
            place = _SIGNED[count] if count < _SMALL else encode_signed(count)
            form = (-1 if key is None else len(key), len(value), len(place))
            head = heads.get(form)
            if head is None:
                before, between = _signed(form[0]), _signed(len(value))
                length = len(begin) + len(place) + len(before) + len(key or b"")
                length += len(between) + len(value) + 1
                prefix = _signed(length)
                head = heads[form] = (prefix + begin, before, between, len(prefix) + length)
            first, before, between, whole = head
            parts += (first, place, before, key or b"", between, value, b"\0")
            size += whole
            count += 1
        self.count, self.size = count, size

    def build(  # noqa: PLR0913 - a batch header has these fields
        self,
        base_offset: int = 0,
        leader_epoch: int = -1,
        producer_id: int = -1,
        producer_epoch: int = -1,
        base_sequence: int = -1,
        *,
        transactional: bool = False,
        control: bool = False,
    ) -> bytearray:
        """Return the batch, whole and with its CRC.

        At least one record must have been added. The builder is unchanged.
        """
        assert self.count > 0, "a batch has at least one record"
        attributes = self._codec
        if transactional:
            attributes |= TRANSACTIONAL
        if control:
            attributes |= CONTROL
        body = b"".join(self._parts)
        if self._codec != NONE:
            body = compress(self._codec, body)
        batch = bytearray(HEADER_SIZE)
        batch += body
        HEADER.pack_into(
            batch,
            0,
            base_offset,
            len(batch) - PREFIX_SIZE,
            leader_epoch,
            2,
            0,
            attributes,
            self.count - 1,
            self._base_timestamp,
            self._max_timestamp,
            producer_id,
            producer_epoch,
            base_sequence,
            self.count,
        )
        with memoryview(batch) as view, view[CRC_START:] as covered:
            batch[_CRC_PLACE] = crc32c(covered).to_bytes(4, "big")
        return batch


def _encode_headers(headers: Sequence[Header]) -> bytes:
    parts = [encode_signed(len(headers))]
    for name, value in headers:
        encoded = name.encode("utf-8")
        parts.append(encode_signed(len(encoded)))
        parts.append(encoded)
        parts.append(b"\x01" if value is None else encode_signed(len(value)))
        parts.append(value or b"")
    return b"".join(parts)


def build_batch(  # noqa: PLR0913 - a batch header has these fields
    records: Iterable[Record],
    *,
    codec: str = "none",
    base_offset: int = 0,
    leader_epoch: int = -1,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    transactional: bool = False,
    control: bool = False,
) -> bytearray:
    """Return one batch of `records`, whose own offsets are ignored: they follow `base_offset` one by one."""
    builder = BatchBuilder(codec)
    for record in records:
        builder.add(record.key, record.value, record.timestamp, record.headers)
    return builder.build(
        base_offset,
        leader_epoch,
        producer_id,
        producer_epoch,
        base_sequence,
        transactional=transactional,
        control=control,
    )
