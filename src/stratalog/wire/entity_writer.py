"""Writes any message of Kafka's protocol that kio has a class for.

In: a kio class and an instance. Out: its bytes. It never checks more than the schema: a value that does not fit its
type is a bug of the caller.

The counterpart of `entity_reader`, and some times faster than kio's own writer, which is Python too.
"""

from collections.abc import Callable
from dataclasses import fields
from functools import cache
from operator import attrgetter
from struct import Struct
from typing import Any

from stratalog.wire.fields import FIXED, FieldShape, default_of, is_fixed, runs, shape
from stratalog.wire.primitives import I16, I32, write_length
from stratalog.wire.varint import encode_unsigned

__all__ = ["encode"]

_Write = Callable[[bytearray, Any], None]


def encode(cls: Any, out: bytearray, entity: Any) -> None:
    """Append `entity`, a `cls`. Values that the schema does not allow are bugs (`struct.error`, AttributeError)."""
    _writer(cls)(out, entity)


@cache
def _writer(cls: Any) -> _Write:
    flexible = bool(cls.__flexible__)
    shapes = [shape(field) for field in fields(cls)]
    steps = tuple(
        _fixed_writer(run) if is_fixed(run[0]) else _single_writer(run[0], flexible=flexible)
        for run in runs([field for field in shapes if field.tag is None])
    )
    tagged = sorted((field for field in shapes if field.tag is not None), key=_tag_of)
    tag_writers = tuple(
        (
            _tag_of(field),
            attrgetter(field.name),
            default_of(field),
            _field_writer(field, flexible=True),
        )
        for field in tagged
    )

    def write(out: bytearray, entity: Any) -> None:
        for step in steps:
            step(out, entity)
        if not flexible:
            return
        count_at = len(out)
        out.append(0)  # The count is one byte: no message has as many as 127 tags of its own.
        for tag, get, default, write_value in tag_writers:
            value = get(entity)
            if value != default:
                out[count_at] += 1
                encoded = bytearray()
                write_value(encoded, value)
                out += encode_unsigned(tag)
                out += encode_unsigned(len(encoded))
                out += encoded

    return write


def _tag_of(field: FieldShape) -> int:
    assert field.tag is not None, field.name
    return field.tag


def _fixed_writer(run: list[FieldShape]) -> _Write:
    pack = Struct(">" + "".join(FIXED[field.kafka_type][0] for field in run)).pack
    get = attrgetter(*(field.name for field in run))
    converters = []
    for index, field in enumerate(run):
        convert = FIXED[field.kafka_type][2]
        if convert is not None:
            converters.append((index, convert))
    if len(run) == 1:
        only = converters[0][1] if converters else None

        def write(out: bytearray, entity: Any) -> None:
            value = get(entity)
            out += pack(value if only is None else only(value))

    elif not converters:

        def write(out: bytearray, entity: Any) -> None:
            out += pack(*get(entity))

    else:

        def write(out: bytearray, entity: Any) -> None:
            values = list(get(entity))
            for index, convert in converters:
                values[index] = convert(values[index])
            out += pack(*values)

    return write


def _single_writer(field: FieldShape, *, flexible: bool) -> _Write:
    get = attrgetter(field.name)
    write_value = _field_writer(field, flexible=flexible)

    def write(out: bytearray, entity: Any) -> None:
        write_value(out, get(entity))

    return write


def _field_writer(field: FieldShape, *, flexible: bool) -> _Write:
    if field.is_array:
        return _array_writer(field, flexible=flexible)
    if field.item is not None:
        write_entity = _writer(field.item)
        if not field.is_nullable or field.tag is not None:
            return write_entity

        def write_nullable(out: bytearray, value: Any) -> None:
            if value is None:
                out.append(0xFF)
            else:
                out.append(1)
                write_entity(out, value)

        return write_nullable
    return _value_writer(field.kafka_type, nullable=field.is_nullable, flexible=flexible)


def _array_writer(field: FieldShape, *, flexible: bool) -> _Write:
    if field.item is not None:
        write_item = _writer(field.item)
    else:
        write_item = _value_writer(field.kafka_type, nullable=False, flexible=flexible)
    nullable = field.is_nullable
    name = field.name

    def write(out: bytearray, items: Any) -> None:
        if items is None:
            assert nullable, f"{name} must not be null"
            write_length(out, -1, flexible, I32)
            return
        write_length(out, len(items), flexible, I32)
        for item in items:
            write_item(out, item)

    return write


def _value_writer(kafka_type: str, *, nullable: bool, flexible: bool) -> _Write:
    if kafka_type in FIXED:
        code, _, convert = FIXED[kafka_type]
        pack = Struct(">" + code).pack

        def write_fixed(out: bytearray, value: Any) -> None:
            out += pack(value if convert is None else convert(value))

        return write_fixed
    text = kafka_type == "string"
    legacy = I16 if text else I32

    def write(out: bytearray, value: Any) -> None:
        if value is None:
            assert nullable, f"a {kafka_type} must not be null"
            write_length(out, -1, flexible, legacy)
            return
        raw = value.encode("utf-8") if text else value
        write_length(out, len(raw), flexible, legacy)
        out += raw

    return write
