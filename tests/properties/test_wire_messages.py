"""Every message that kio has, in every version: our bytes are kio's, and what we read is what kio reads."""

import random
from dataclasses import MISSING, fields, is_dataclass
from datetime import UTC, datetime, timedelta
from io import BytesIO
from types import NoneType, UnionType
from typing import Union, get_args, get_origin
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader, entity_writer

from stratalog.wire.apis import APIS
from stratalog.wire.budget import TRUSTED
from stratalog.wire.construct import body_class
from stratalog.wire.entity_reader import decode
from stratalog.wire.entity_writer import encode

NUMBERS = {"int8": 7, "int16": 15, "int32": 31, "int64": 63}
UNSIGNED = {"uint8": 8, "uint16": 16, "uint32": 32, "uint64": 64}
TEXTS = ("", "t", "größe", "x" * 126, "x" * 127, "y" * 130, "z" * 20_000)


def value_of(chance, kind):
    """Any value of a Kafka type, the edges more often than not."""
    if kind in NUMBERS:
        edge = 1 << NUMBERS[kind]
        return chance.choice((0, 1, -1, edge - 1, -edge, chance.randrange(-edge, edge)))
    if kind in UNSIGNED:
        return chance.choice((0, 1, (1 << UNSIGNED[kind]) - 1))
    match kind:
        case "string":
            return chance.choice(TEXTS)
        case "bytes" | "records":
            return chance.choice(TEXTS).encode()
        case "bool":
            return chance.random() < 0.5
        case "uuid":
            return chance.choice((None, UUID(int=chance.getrandbits(128) | 1)))
        case "float64":
            return chance.choice((0.0, -1.5, 1e300))
        case "error_code":
            return chance.choice(list(ErrorCode))
        case "timedelta_i32":
            return timedelta(milliseconds=chance.randrange(-(1 << 31), 1 << 31))
        case "timedelta_i64":
            return timedelta(milliseconds=chance.randrange(-1, 1 << 45))
        case "datetime_i64":
            # Whole seconds: kio goes through a float and is a microsecond off for others.
            return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=chance.randrange(1 << 34))
    raise AssertionError(kind)


def field_value(chance, field):
    if field.default is not MISSING and chance.random() < 0.3:
        return field.default
    kind = field.type
    if get_origin(kind) in (UnionType, Union):
        (kind,) = (one for one in get_args(kind) if one is not NoneType)
        if chance.random() < 0.3:
            return None
    if get_origin(kind) is not tuple:
        return one_value(chance, field, kind)
    item = get_args(kind)[0]
    return tuple(one_value(chance, field, item) for _ in range(chance.choice((0, 1, 1, 2, 3))))


def one_value(chance, field, kind):
    if is_dataclass(kind):
        return instance(chance, kind)
    return value_of(chance, field.metadata["kafka_type"])


def instance(chance, cls):
    return cls(**{field.name: field_value(chance, field) for field in fields(cls)})


@pytest.mark.parametrize("key", sorted(APIS))
def test_we_write_what_kio_writes_and_read_what_kio_reads(key):
    api = APIS[key]
    for version in range(api.oldest, api.newest + 1):
        for side in ("request", "response"):
            cls = body_class(key, version, side)
            write, read = entity_writer(cls), entity_reader(cls)
            for seed in range(3):
                entity = instance(random.Random(f"{key} {version} {side} {seed}"), cls)
                theirs = BytesIO()
                write(theirs, entity)
                ours = bytearray()
                encode(cls, ours, entity)
                assert bytes(ours) == theirs.getvalue(), (side, version, seed)
                assert decode(cls, bytes(ours), TRUSTED) == read(bytes(ours), 0)[0] == entity
