"""Archive manifests: the oldest entries of a long manifest, as columns, in a separate immutable object.

In: live entries in the order of offsets. Out: the same as columns, their bytes, and back. It never reads or writes
the bucket. Only a manifest says which archives count, and which of their entries (`tier/formats/manifest.py`).

Neighbouring segments differ little. So a column holds the differences of its values, grouped by byte significance,
and compressed. Ids and checksums remain, which do not compress. `docs/formats.md` has the bytes.
"""

from array import array
from base64 import urlsafe_b64encode
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, chain
from operator import sub
from struct import Struct
from sys import byteorder
from typing import Final
from uuid import UUID

from crc32c import crc32c

from stratalog.errors import Corrupt
from stratalog.tier.formats.manifest import ArchivedManifest, Entry, SegmentState
from stratalog.wire.compression import ZSTD, compress, decompress
from stratalog.wire.ids import topic_id_parse

__all__ = ["Archive", "decode_archive", "encode_archive"]

_MAGIC: Final = b"STRATARC"
_VERSION: Final = 1
_VERSION_WITH_FILTERS: Final = 2
"""Has the last column; written where some segment has a key filter."""
_HEADER: Final = Struct(">8sHHi16sII")
_CRC: Final = Struct(">I")
_COLUMNS: Final = (
    "base_offset",
    "last_offset",
    "leader_epoch",
    "size",
    "data_size",
    "records",
    "min_timestamp",
    "max_timestamp",
    "min_timestamp_exact",
    "data_crc",
    "footer_crc",
    "state_ms",
    "key_pages",
)
_WORD: Final = 1 << 64


class Archive:
    """Live entries in the order of offsets, as columns; never changed.

    `epochs` holds the entries' leader epochs as flat (epoch, first offset) pairs; entry `n` has those from
    `epoch_starts[n]` to before `epoch_starts[n + 1]`.
    """

    __slots__ = ("columns", "epoch_starts", "epochs", "ids", "last_offsets")

    def __init__(
        self,
        ids: bytes,
        columns: "Sequence[array[int]]",
        epoch_starts: "array[int]",
        epochs: "tuple[array[int], array[int]]",
    ) -> None:
        self.ids = ids
        self.columns = tuple(columns)
        self.epoch_starts = epoch_starts
        self.epochs = epochs
        self.last_offsets = self.columns[_COLUMNS.index("last_offset")]

    @classmethod
    def of(cls, entries: Iterable[Entry]) -> "Archive":
        """Return the archive of these entries, all of them live."""
        entries = tuple(entries)
        assert all(one.state is SegmentState.COPY_FINISHED for one in entries), "only live ones"
        pairs = [pair for one in entries for pair in one.leader_epochs]
        return cls(
            b"".join(topic_id_parse(one.id).bytes for one in entries),
            [array("q", [int(getattr(one, name)) for one in entries]) for name in _COLUMNS],
            array("q", accumulate((len(one.leader_epochs) for one in entries), initial=0)),
            (array("q", [epoch for epoch, _ in pairs]), array("q", [at for _, at in pairs])),
        )

    def __len__(self) -> int:
        return len(self.last_offsets)

    @property
    def memory_bytes(self) -> int:
        """About the memory of this object."""
        return len(self) * (8 * (len(_COLUMNS) + 1) + 16) + 16 * len(self.epochs[0])

    def entry(self, at: int) -> Entry:
        """Return the entry at a position."""
        first, stop = self.epoch_starts[at], self.epoch_starts[at + 1]
        epochs, offsets = self.epochs
        values = [column[at] for column in self.columns]
        base, last, epoch, size, data_size, records = values[:6]
        oldest, newest, exact, data, footer, since, key_pages = values[6:]
        return Entry(
            id=urlsafe_b64encode(self.ids[16 * at : 16 * at + 16])[:22].decode(),
            base_offset=base,
            last_offset=last,
            leader_epoch=epoch,
            size=size,
            data_size=data_size,
            records=records,
            min_timestamp=oldest,
            max_timestamp=newest,
            min_timestamp_exact=bool(exact),
            data_crc=data,
            footer_crc=footer,
            leader_epochs=tuple(zip(epochs[first:stop], offsets[first:stop], strict=True)),
            state=SegmentState.COPY_FINISHED,
            state_ms=since,
            key_pages=key_pages,
        )

    def span(self, first_offset: int, last_offset: int) -> tuple[int, int]:
        """Return positions of the entries that end in these offsets (both included): the first, and the one after the
        last.
        """
        first = bisect_left(self.last_offsets, first_offset)
        return first, max(first, bisect_right(self.last_offsets, last_offset))

    def span_of(self, named: ArchivedManifest) -> tuple[int, int]:
        """Return positions of the entries that a manifest names."""
        return self.span(named.base_offset, named.last_offset)

    def younger(self, first: int, stop: int, since_ms: int) -> Iterator[int]:
        """Return those of these positions whose segments have a record of `since_ms` or later."""
        newest = self.columns[_COLUMNS.index("max_timestamp")]
        return (at for at in range(first, stop) if newest[at] >= since_ms)

    def cut(self, first: int, stop: int) -> "Archive":
        """Return the entries of these positions alone."""
        begin, end = self.epoch_starts[first], self.epoch_starts[stop]
        starts = array("q", [at - begin for at in self.epoch_starts[first : stop + 1]])
        epochs, offsets = self.epochs
        columns = [column[first:stop] for column in self.columns]
        ids = self.ids[16 * first : 16 * stop]
        return Archive(ids, columns, starts, (epochs[begin:end], offsets[begin:end]))

    def extended(self, other: "Archive") -> "Archive":
        """Return these entries, followed by those of `other`."""
        pairs = len(self.epochs[0])
        starts = array("q", [pairs + at for at in other.epoch_starts[1:]])
        return Archive(
            self.ids + other.ids,
            [one + more for one, more in zip(self.columns, other.columns, strict=True)],
            self.epoch_starts + starts,
            (self.epochs[0] + other.epochs[0], self.epochs[1] + other.epochs[1]),
        )

    def named(self, first: int, stop: int, like: ArchivedManifest) -> ArchivedManifest:
        """Return a manifest's entry for the entries at these positions (at least one), in the object of `like`."""
        bases, lasts, _, sizes, data_sizes, records, oldest, newest, exact, *_ = [
            column[first:stop] for column in self.columns
        ]
        return ArchivedManifest(
            id=like.id,
            size=like.size,
            crc=like.crc,
            base_offset=bases[0],
            last_offset=lasts[-1],
            segments=stop - first,
            segments_size=sum(sizes),
            data_size=sum(data_sizes),
            records=sum(records),
            min_timestamp=min(oldest),
            max_timestamp=max(newest),
            min_timestamp_exact=all(exact),
            state=like.state,
            state_ms=like.state_ms,
        )


def encode_archive(archive: Archive, topic_id: UUID, partition: int) -> bytes:
    """Return the bytes to store."""
    pairs = archive.epochs[0]
    counts = array("q", map(sub, archive.epoch_starts[1:], archive.epoch_starts))
    *fixed, key_pages = archive.columns
    version, held = (
        (_VERSION_WITH_FILTERS, archive.columns) if any(key_pages) else (_VERSION, tuple(fixed))
    )
    columns = (*held, counts, *archive.epochs)
    raw = b"".join((*map(_planes, columns), archive.ids))
    header = _HEADER.pack(_MAGIC, version, 0, partition, topic_id.bytes, len(archive), len(pairs))
    data = header + compress(ZSTD, raw)
    return data + _CRC.pack(crc32c(data))


def decode_archive(data: bytes, topic_id: UUID, partition: int, path: str) -> Archive:
    """Return the archive in stored bytes.

    Raises Corrupt naming `path` for altered bytes, another version or partition.
    """
    body, trailer = data[: -_CRC.size], data[-_CRC.size :]
    if len(data) < _HEADER.size + _CRC.size or _CRC.pack(crc32c(body)) != trailer:
        raise Corrupt(f"{path}: the checksum does not match its {len(data)} bytes")
    magic, version, _, of_partition, of_topic, count, pairs = _HEADER.unpack_from(body)
    if magic != _MAGIC or version not in (_VERSION, _VERSION_WITH_FILTERS):
        raise Corrupt(f"{path}: an archive manifest of version {version}, not 1 or 2")
    if (of_topic, of_partition) != (topic_id.bytes, partition):
        raise Corrupt(f"{path}: an archive manifest of another partition")
    held = len(_COLUMNS) if version == _VERSION_WITH_FILTERS else len(_COLUMNS) - 1
    columns_size = 8 * count * (held + 1)
    size = columns_size + 16 * pairs + 16 * count
    raw = decompress(ZSTD, memoryview(body)[_HEADER.size :], max_bytes=size)
    if len(raw) != size:
        raise Corrupt(f"{path}: {len(raw)} bytes of columns instead of {size}")
    *columns, counts = [
        _column(raw[8 * count * number : 8 * count * (number + 1)]) for number in range(held + 1)
    ]
    columns += [array("q", bytes(8 * count))] * (len(_COLUMNS) - held)
    starts = array("q", accumulate(counts, initial=0))
    epochs, offsets = (
        _column(raw[at : at + 8 * pairs]) for at in (columns_size, columns_size + 8 * pairs)
    )
    return Archive(raw[columns_size + 16 * pairs :], columns, starts, (epochs, offsets))


def _planes(column: "array[int]") -> bytes:
    """Return a column's bytes: of the differences first all the highest bytes, then all the next ones."""
    steps = _words(map(sub, column, chain((0,), column)))
    if byteorder == "little":
        steps.byteswap()
    data = steps.tobytes()
    return b"".join(data[plane::8] for plane in range(8))


def _column(planes: bytes) -> "array[int]":
    count = len(planes) // 8
    data = bytearray(len(planes))
    for plane in range(8):
        data[plane::8] = planes[plane * count : (plane + 1) * count]
    steps = array("q", bytes(data))
    if byteorder == "little":
        steps.byteswap()
    return _words(accumulate(steps))


def _words(values: Iterable[int]) -> "array[int]":
    """Return the values in 64 bits; larger ones wrap around."""
    listed = list(values)
    try:
        return array("q", listed)
    except OverflowError:
        half = _WORD // 2
        return array("q", [(value + half) % _WORD - half for value in listed])
