"""Malformed record batches: wrong counts, offset deltas, sizes, codecs, and bombs, with a valid or a wrong CRC.

In: one source of chance. Out: the records field of a produce request. The same chance gives the same bytes.
"""

from collections.abc import Iterator
from functools import cache
from random import Random

from crc32c import crc32c

from stratalog.wire.batch import CRC_START, HEADER
from stratalog.wire.compression import compress
from stratalog.wire.records import Record, build_batch
from stratalog.wire.varint import encode_signed

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
BOMB_BYTES = 64 << 20
_FIELDS = {
    "base_offset": (0, (-1, 5, 1 << 62, -(1 << 63))),
    "length": (1, (-1, 0, 48, 49, 50, 1 << 20, 0x7FFFFFFF, -(1 << 31))),
    "leader_epoch": (2, (-1, 7, 0x7FFFFFFF)),
    "magic": (3, (0, 1, 3, -1, 127)),
    "attributes": (5, (1, 2, 3, 4, 5, 6, 7, 8, 0x10, 0x20, 0x30, 0x40, 0x7FFF, -1)),
    "last_offset_delta": (6, (-1, 0, 1, 5, 0x7FFFFFFF, -(1 << 31))),
    "base_timestamp": (7, (-1, -2, 0, (1 << 63) - 1, -(1 << 63))),
    "max_timestamp": (8, (-1, -2, 0, (1 << 63) - 1, -(1 << 63))),
    "producer_id": (9, (0, 1, -2, 77, (1 << 63) - 1)),
    "producer_epoch": (10, (0, 1, -2, 0x7FFF)),
    "base_sequence": (11, (0, 1, -2, 0x7FFFFFFF)),
    "record_count": (12, (-1, 0, 1, 2, 5, 0x7FFFFFFF, -(1 << 31))),
}


@cache
def sound(codec: str) -> bytes:
    """Five records."""
    return bytes(
        build_batch(
            [
                Record(n, 1_700_000_000_000 + n, b"k" * n or None, b"v" * 10 * n, (("h", None),))
                for n in range(5)
            ],
            codec=codec,
        )
    )


@cache
def bomb(codec: int) -> bytes:
    """A sound header, and records that are a few KB on the wire and 64 MiB once restored."""
    return with_records(codec, compress(codec, bytes(BOMB_BYTES)))


def with_records(codec: int, payload: bytes, count: int = 5) -> bytes:
    """Put the sound batch's header before another payload; correct its length, count and CRC."""
    fields = list(HEADER.unpack_from(sound("none")))
    fields[1] = HEADER.size - 12 + len(payload)
    fields[5] = codec
    fields[6], fields[12] = count - 1, count
    return sealed(bytearray(HEADER.pack(*fields)) + payload)


def record(
    *,
    length: int | None = None,
    timestamp_delta: int = 0,
    offset_delta: int = 0,
    key: bytes | None = b"k",
    key_length: int | None = None,
    value: bytes | None = b"v",
    value_length: int | None = None,
    headers: bytes = b"\0",
) -> bytes:
    """One record, with its true lengths or the given ones."""
    body = b"\0" + encode_signed(timestamp_delta) + encode_signed(offset_delta)
    for field, claimed in ((key, key_length), (value, value_length)):
        size = -1 if field is None else len(field)
        body += encode_signed(size if claimed is None else claimed) + (field or b"")
    body += headers
    return encode_signed(len(body) if length is None else length) + body


UNSOUND = {
    "a negative length": record(length=-5),
    "no length at all": b"\0" * 7,
    "a length past the end": record(length=50),
    "a length before the record's end": record(length=3),
    "a length that does not end": b"\xff" * 11,
    "bytes behind the last record": record() + b"xx",
    "a wrong offset delta": record(offset_delta=5),
    "a negative offset delta": record(offset_delta=-1),
    "attributes like a long number": record()[:1] + b"\x80" + record()[2:],
    "a key past the end": record(key_length=100),
    "a key that is less than null": record(key=b"", key_length=-2),
    "a value past the end": record(value_length=1000),
    "a value that is less than null": record(value=b"", value_length=-2),
    "headers without end": record(headers=encode_signed(1 << 30)),
    "fewer headers than none": record(headers=encode_signed(-1)),
    "a header without a key": record(headers=encode_signed(1) + encode_signed(-1) + b"\0"),
    "a header's key that is no text": record(headers=b"\2\4\xff\xfe\0"),
    "a header's value less than null": record(headers=b"\2\2h" + encode_signed(-2)),
    "bytes behind the headers": record(headers=b"\0zz"),
    "a second record": record() + record(offset_delta=1),
}
"""Payloads of a batch whose header announces one record."""


ODD = {
    "nothing": record(key=None, value=None),
    "one header twice": record(headers=b"\4" + b"\2h\0" * 2),
    "a header without a name": record(headers=b"\2\0\1"),
    "a header of another alphabet": record(headers=b"\2\6\xe2\x82\xac\0"),
    "a time before all times": record(timestamp_delta=-(1 << 42)),
    "attributes of no meaning": record()[:1] + b"\x7f" + record()[2:],
    "numbers longer than they need be": b"\x1c\0\x80\0\x80\x80\0\x82\0k\x82\0v\x80\0",
}
"""Unusual single records that every reader must accept."""


def with_fields(batch: bytes, changes: dict[int, int]) -> bytes:
    """Return the batch with changed header fields (by position) and a valid CRC."""
    fields = list(HEADER.unpack_from(batch))
    for place, value in changes.items():
        fields[place] = value
    return sealed(bytearray(HEADER.pack(*fields)) + batch[HEADER.size :])


def sealed(batch: bytearray) -> bytes:
    """Return the batch with a CRC that is valid for its bytes."""
    batch[17:21] = crc32c(bytes(batch[CRC_START:])).to_bytes(4, "big")
    return bytes(batch)


def lying_header(chance: Random) -> bytes:
    """Change one or two fields of a header; correct the CRC."""
    places = (chance.choice(tuple(_FIELDS.values())) for _ in range(chance.choice((1, 1, 2, 3))))
    changes = {place: chance.choice(values) for place, values in places}
    return with_fields(sound(chance.choice(CODECS)), changes)


def lying_records(chance: Random) -> bytes:
    """Damage the records and correct the CRC: only a reader of records can find this."""
    batch = bytearray(sound(chance.choice(CODECS)))
    for _ in range(chance.choice((1, 1, 2))):
        at = chance.randrange(HEADER.size, len(batch))
        batch[at] = chance.choice((0, 1, 2, 0x7F, 0x80, 0xFF, chance.randrange(256)))
    if chance.random() < 0.2:
        del batch[chance.randrange(HEADER.size, len(batch)) :]
        batch[8:12] = (len(batch) - 12).to_bytes(4, "big")
    return sealed(batch)


def poisonings(chance: Random) -> Iterator[bytes]:
    """Return every kind of poison in every codec, and random ones; some are unusual but legal."""
    for codec in range(len(CODECS)):
        for payload in (*UNSOUND.values(), *ODD.values()):
            yield with_records(codec, compress(codec, payload), 1)
        yield with_records(codec, compress(codec, record() + record(offset_delta=1)), 5)
        if codec:
            yield with_records(codec, b"nothing of the kind", 1)
            yield bomb(codec)
    for _ in range(100):
        yield lying_records(chance)
        yield lying_header(chance)


def records(chance: Random) -> memoryview | None:
    """Return a records field: sound, malformed, torn, of several batches, or empty."""
    match chance.randrange(12):
        case 0 | 1:
            data = sound(chance.choice(CODECS))
        case 2:
            data = sound(chance.choice(CODECS)) * chance.choice((2, 3))
        case 3 | 4 | 5:
            data = lying_header(chance)
        case 6 | 7 | 8:
            data = lying_records(chance)
        case 9:
            data = bomb(chance.choice((1, 2, 3, 4))) if chance.random() < 0.02 else b""
        case 10:
            data = sound("none") + lying_header(chance)
        case _:
            if chance.random() < 0.3:
                return None
            data = chance.randbytes(chance.choice((1, 16, 17, 60, 61, 200)))
    return memoryview(data)
