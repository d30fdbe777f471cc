"""Record batches that lie: counts, offset deltas, sizes, codecs, bombs; with a CRC that holds, or does not.

In: one source of chance. Out: the records field of a produce request. The same chance gives the same bytes.
"""

from functools import cache
from random import Random

from crc32c import crc32c

from stratalog.wire.batch import CRC_START, HEADER
from stratalog.wire.compression import compress
from stratalog.wire.records import Record, build_batch

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


def with_records(codec: int, payload: bytes) -> bytes:
    """The sound batch's header before another payload, its length and CRC made to hold."""
    fields = list(HEADER.unpack_from(sound("none")))
    fields[1] = HEADER.size - 12 + len(payload)
    fields[5] = codec
    return sealed(bytearray(HEADER.pack(*fields)) + payload)


def with_fields(batch: bytes, changes: dict[int, int]) -> bytes:
    """The batch with header fields (by place) changed, and a CRC that holds."""
    fields = list(HEADER.unpack_from(batch))
    for place, value in changes.items():
        fields[place] = value
    return sealed(bytearray(HEADER.pack(*fields)) + batch[HEADER.size :])


def sealed(batch: bytearray) -> bytes:
    """The batch with a CRC that holds over all that is there."""
    batch[17:21] = crc32c(bytes(batch[CRC_START:])).to_bytes(4, "big")
    return bytes(batch)


def lying_header(chance: Random) -> bytes:
    """One or two fields of a header changed, the CRC mended."""
    places = (chance.choice(tuple(_FIELDS.values())) for _ in range(chance.choice((1, 1, 2, 3))))
    changes = {place: chance.choice(values) for place, values in places}
    return with_fields(sound(chance.choice(CODECS)), changes)


def lying_records(chance: Random) -> bytes:
    """Damage inside the records, the CRC mended: what only a reader of records can find."""
    batch = bytearray(sound(chance.choice(CODECS)))
    for _ in range(chance.choice((1, 1, 2))):
        at = chance.randrange(HEADER.size, len(batch))
        batch[at] = chance.choice((0, 1, 2, 0x7F, 0x80, 0xFF, chance.randrange(256)))
    if chance.random() < 0.2:
        del batch[chance.randrange(HEADER.size, len(batch)) :]
        batch[8:12] = (len(batch) - 12).to_bytes(4, "big")
    return sealed(batch)


def records(chance: Random) -> memoryview | None:
    """A records field: sound, lying, torn, several batches, nothing at all."""
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
