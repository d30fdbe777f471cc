"""kio's classes as the oracle of ours: any value of a message at a version, as kio's, as ours, and as plain values.

kio 0.6.5 has one frozen dataclass per message and version, with readers and writers of its own.
"""

import struct
from dataclasses import MISSING, fields, is_dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from importlib import import_module
from io import BytesIO
from types import NoneType, UnionType
from typing import Union, get_args, get_origin, get_type_hints
from uuid import UUID

from kio.schema.errors import ErrorCode
from kio.serial import entity_reader, entity_writer
from msgspec import Struct

from stratalog.wire.apis import APIS, is_flexible
from stratalog.wire.ids import ZERO_ID

NUMBERS = {"int8": 7, "int16": 15, "int32": 31, "int64": 63}
UNSIGNED = {"uint8": 8, "uint16": 16, "uint32": 32, "uint64": 64}
TEXTS = ("", "t", "größe", "x" * 126, "x" * 127, "y" * 130, "z" * 20_000)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MILLISECOND = timedelta(milliseconds=1)


def kio_class(key, version, side):
    name = APIS[key].name
    module = import_module(f"kio.schema.{name}.v{version}.{side}")
    return getattr(module, "".join(word.title() for word in name.split("_")) + side.title())


def our_class(key, side):
    module = import_module(f"stratalog.wire.messages.{APIS[key].name}")
    return getattr(
        module, "".join(word.title() for word in APIS[key].name.split("_")) + side.title()
    )


def kio_bytes(entity):
    out = BytesIO()
    entity_writer(type(entity))(out, entity)
    return out.getvalue()


def kio_read(cls, data):
    return entity_reader(cls)(data, 0)[0]


def value_of(chance, kind):
    """Any value of a Kafka type; extreme values are frequent."""
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
            return EPOCH + timedelta(seconds=chance.randrange(1 << 34))
    raise AssertionError(kind)


def field_value(chance, field):
    if field.default is not MISSING and chance.random() < 0.3:
        return field.default
    kind, nullable, is_array = declared(field)
    if nullable and chance.random() < 0.3:
        return None
    if not is_array:
        return one_value(chance, field, kind)
    return tuple(one_value(chance, field, kind) for _ in range(chance.choice((0, 1, 1, 2, 3))))


def one_value(chance, field, kind):
    if is_dataclass(kind):
        return instance(chance, kind)
    return value_of(chance, field.metadata["kafka_type"])


def instance(chance, cls):
    """Any value of a class of kio's."""
    return cls(**{field.name: field_value(chance, field) for field in fields(cls)})


def declared(field):
    """Return the type of a field or of its items, whether it may be null, whether it is an array."""
    kind, nullable = without_none(field.type)
    is_array = get_origin(kind) is tuple
    return (without_none(get_args(kind)[0])[0] if is_array else kind), nullable, is_array


def without_none(kind):
    if get_origin(kind) not in (UnionType, Union):
        return kind, False
    (one,) = (one for one in get_args(kind) if one is not NoneType)
    return one, True


def filled(cls, values):
    """Return an object of a class of kio's from plain values, numbers for times and codes.

    A field that is left out is its default, else zero, empty or null. A value that the version lacks is dropped.
    """
    given = {}
    for field in fields(cls):
        kind, nullable, is_array = declared(field)
        if field.name in values:
            value = values[field.name]
            if is_array and value is not None:
                given[field.name] = tuple(one_filled(kind, field, one) for one in value)
            else:
                given[field.name] = one_filled(kind, field, value)
        elif field.default is MISSING:
            empty = None if nullable else ()
            given[field.name] = empty if is_array or nullable else zero(kind, field)
    return cls(**given)


def one_filled(kind, field, value):
    if value is None:
        return None
    if is_dataclass(kind):
        return filled(kind, value)
    match field.metadata["kafka_type"]:
        case "timedelta_i32" | "timedelta_i64":
            return timedelta(milliseconds=value)
        case "datetime_i64":
            return EPOCH + timedelta(milliseconds=value)
        case "error_code":
            return ErrorCode(value)
    return value


def zero(kind, field):
    if is_dataclass(kind):
        return filled(kind, {})
    zeros = {"string": "", "bytes": b"", "bool": False, "uuid": None}
    return one_filled(kind, field, zeros.get(field.metadata["kafka_type"], 0))


def request_frame(key, version, correlation_id, client_id, entity):
    """Return the frame of a request of kio's, its length first."""
    header = struct.pack(">hhih", key, version, correlation_id, len(client_id)) + client_id.encode()
    whole = header + b"\0" * is_flexible(key, version) + kio_bytes(entity)
    return len(whole).to_bytes(4, "big") + whole


def plain(value):
    """Return a value of kio's or of ours as dicts, lists, numbers, text and bytes."""
    if isinstance(value, Struct):
        return {name: plain(getattr(value, name)) for name in value.__struct_fields__}
    if is_dataclass(value):
        return {
            field.name: plain_field(field, getattr(value, field.name)) for field in fields(value)
        }
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    if isinstance(value, memoryview):
        return bytes(value)
    if isinstance(value, timedelta):
        return value // MILLISECOND
    if isinstance(value, datetime):
        return (value - EPOCH) // MILLISECOND
    return int(value) if isinstance(value, ErrorCode) else value


def plain_field(field, value):
    if value is None and "tuple" not in str(field.type):
        return {"uuid": ZERO_ID, "datetime_i64": -1}.get(field.metadata.get("kafka_type"))
    if field.metadata.get("kafka_type") == "uuid" and isinstance(value, tuple):
        return [ZERO_ID if one is None else one for one in value]
    return plain(value)


def renamed(name, ours):
    """Return our name for kio's: its `throttle_time` is `throttle_time_ms`, its `id_` is `id`."""
    others = (name, f"{name}_ms", name.rstrip("_"), name.replace("k_raft", "kraft"))
    return next(one for one in others if one in ours)


def made(cls, values):
    """Return an object of our class from the plain values of kio's object."""
    kinds = hints(cls)
    return cls(
        **{
            (own := renamed(name, kinds)): one_made(kinds[own], value)
            for name, value in values.items()
        }
    )


def one_made(kind, value):
    if value is None:
        return None
    if get_origin(kind) in (UnionType, Union):  # buffers of several kinds
        kind = next(one for one in get_args(kind) if one is not NoneType)
    if kind is memoryview:
        return memoryview(value)
    if isinstance(value, list):
        return [one_made(get_args(kind)[0], one) for one in value]
    return made(kind, value) if isinstance(value, dict) else value


@cache
def hints(cls):
    return get_type_hints(cls)
