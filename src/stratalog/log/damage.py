"""Distinguish damaged bytes from the torn tail of a crash.

In: a segment's file and the position of its first unreadable batch. Out: programs that look for sound batches after
that position. It never changes a file.

A crash can tear only the end of bytes that were not synced yet; recovery may cut such an end. Bytes that were durable
and cannot be read now are damage: recovery names them and keeps them.
"""

from collections.abc import Sequence
from struct import Struct
from typing import Final, NamedTuple

from stratalog.errors import Corrupt
from stratalog.log.effects import Program, Read
from stratalog.log.segment import Segment
from stratalog.wire.batch import HEADER_SIZE, BatchHeader, crc_holds, parse_header

__all__ = ["Damage", "next_sound", "why_not_torn"]

_CHUNK_BYTES: Final = 1 << 20
_MAGIC: Final = b"\x02"
_MAGIC_AT: Final = 16
_PLACE: Final = Struct(">qi")
_OFFSET_BYTES: Final = 8
_PREFIX_BYTES: Final = 12


class Damage(NamedTuple):
    """A file that lost durable bytes: its path below the log directory, and the reason."""

    path: str
    reason: str


def why_not_torn(
    segment: Segment, file_size: int, synced_to: int, later: Sequence[int]
) -> Program[str | None]:
    """Return the reason why a scanned segment lost more than the torn tail of a crash, or None.

    For a log that syncs every batch before it writes the next one. Such a log had all offsets below `synced_to`. A
    sound batch behind a damaged one, or a later segment (`later` has their base offsets), shows that the damaged one
    was durable, too.
    """
    size, offset = segment.size, segment.next_offset
    what = "the batch there is damaged" if size < file_size else "the file ends there"
    reason = f"{segment.path}: byte {size}, offset {offset}: {what}, and "
    if size < file_size:
        found = yield from next_sound(segment.path, size, file_size, offset)
        if found is not None:
            return f"{reason}a sound one follows at byte {found[0]}"
    if later and later[0] != offset:
        return f"{reason}the next file begins at offset {later[0]}"
    if not later and offset < synced_to:
        return f"{reason}the log was closed at offset {synced_to}"
    return None


def next_sound(
    path: str, start: int, end: int, from_offset: int
) -> Program[tuple[int, BatchHeader] | None]:
    """Return the first sound batch that begins in bytes [start, end) of a segment, with its position, or None.

    A sound batch is whole, its CRC matches, its offsets begin at `from_offset` or later, and behind it the file ends or
    the next offset follows. Bytes inside a record that look like a batch fail the last condition.
    """
    while start + HEADER_SIZE <= end:
        data = yield Read(path, start, min(_CHUNK_BYTES, end - start))
        assert isinstance(data, bytes)
        at = data.find(_MAGIC, _MAGIC_AT)
        while at >= 0:
            position = start + at - _MAGIC_AT
            offset, length = _PLACE.unpack_from(data, at - _MAGIC_AT)
            size = length + _PREFIX_BYTES
            if offset >= from_offset and HEADER_SIZE <= size <= end - position:
                header = yield from _sound(path, position, size, end)
                if header is not None:
                    return position, header
            at = data.find(_MAGIC, at + 1)
        # A header may begin in the last bytes of the piece.
        start += max(len(data) - _MAGIC_AT, 1)
    return None


def _sound(path: str, position: int, size: int, end: int) -> Program[BatchHeader | None]:
    """Return the header of the batch at `position` where that is sound, as `next_sound` describes it."""
    data = yield Read(path, position, size + _OFFSET_BYTES)
    assert isinstance(data, bytes)
    try:
        header = parse_header(data)
    except Corrupt:
        return None
    if header.last_offset_delta < 0 or not crc_holds(data, 0, header):
        return None
    behind = data[size : end - position]
    following = header.next_offset.to_bytes(_OFFSET_BYTES, "big")
    return header if following.startswith(behind) else None
