"""Reads any message of Kafka's protocol that kio has a class for.

In: a kio class, bytes and a budget. Out: an instance. It never trusts a length: whatever the bytes are, it raises
Corrupt, or OverBudget before it builds too much, or returns an instance that its class allows.

kio's classes are used, its reader is not: it reserves memory for as many items as an array announces, so that a few
hostile bytes end the process (kio 0.6.5: an abort, which no handler sees), and it lets a null array pass where the
schema forbids null. A class is compiled once into closures; neighbouring fields of fixed size are one `struct` call.
"""

from collections.abc import Callable
from dataclasses import fields
from functools import cache
from struct import Struct
from typing import Any

from stratalog.errors import Corrupt
from stratalog.wire.budget import (
    ARRAY_BYTES,
    ITEM_BYTES,
    NUMBER_BYTES,
    STRING_BYTES,
    TAG_BYTES,
    UUID_BYTES,
    DecodeBudget,
    struct_bytes,
)
from stratalog.wire.fields import FIXED, FieldShape, default_of, is_fixed, runs, shape
from stratalog.wire.primitives import ENDED, I16, I32, read_array_length, read_length
from stratalog.wire.varint import read_unsigned

__all__ = ["decode"]

_Read = Callable[[bytes, int, DecodeBudget], tuple[Any, int]]
# Appends what it read to the list and returns the next position.
_ReadStep = Callable[[bytes, int, DecodeBudget, list[Any]], int]


def decode(cls: Any, data: bytes, budget: DecodeBudget, position: int = 0) -> Any:
    """Return the `cls` at `position`; bytes after it are ignored, as Kafka does.

    Raises Corrupt where the bytes are none, OverBudget where the `cls` would take more memory than it may.
    """
    try:
        return _reader(cls)(data, position, budget)[0]
    except ENDED as error:
        raise Corrupt(f"not a {cls.__name__}: {error}") from error


@cache
def _reader(cls: Any) -> _Read:
    flexible = bool(cls.__flexible__)
    shapes = [shape(field) for field in fields(cls)]
    plain = [field for field in shapes if field.tag is None]
    tagged = [field for field in shapes if field.tag is not None]
    steps = tuple(
        _fixed_step(run) if is_fixed(run[0]) else _single_step(run[0], flexible=flexible)
        for run in runs(plain)
    )
    # The slots are filled directly: a frozen dataclass's own constructor takes twice the time.
    setters = tuple(cls.__dict__[field.name].__set__ for field in plain + tagged)
    defaults = [default_of(field) for field in tagged]
    by_tag = {
        field.tag: (len(plain) + index, _field_reader(field, flexible=True))
        for index, field in enumerate(tagged)
    }
    new = cls.__new__

    def read(data: bytes, position: int, budget: DecodeBudget) -> tuple[Any, int]:
        values: list[Any] = []
        for step in steps:
            position = step(data, position, budget, values)
        if flexible:
            values += defaults
            if data[position] == 0:
                position += 1
            else:
                position = _read_tags(data, position, budget, by_tag, values)
        entity = new(cls)
        for setter, value in zip(setters, values, strict=True):
            setter(entity, value)
        return entity, position

    return read


def _fixed_step(run: list[FieldShape]) -> _ReadStep:
    layout = Struct(">" + "".join(FIXED[field.kafka_type][0] for field in run))
    size = layout.size
    unpack = layout.unpack_from
    converters = []
    for index, field in enumerate(run):
        convert = FIXED[field.kafka_type][1]
        if convert is not None:
            converters.append((index, convert))

    if not converters:

        def step(data: bytes, position: int, _budget: DecodeBudget, values: list[Any]) -> int:
            values += unpack(data, position)
            return position + size

    else:

        def step(data: bytes, position: int, _budget: DecodeBudget, values: list[Any]) -> int:
            first = len(values)
            values += unpack(data, position)
            for index, convert in converters:
                values[first + index] = convert(values[first + index])
            return position + size

    return step


def _single_step(field: FieldShape, *, flexible: bool) -> _ReadStep:
    read = _field_reader(field, flexible=flexible)

    def step(data: bytes, position: int, budget: DecodeBudget, values: list[Any]) -> int:
        value, position = read(data, position, budget)
        values.append(value)
        return position

    return step


def _read_tags(
    data: bytes,
    position: int,
    budget: DecodeBudget,
    by_tag: dict[int | None, tuple[int, _Read]],
    values: list[Any],
) -> int:
    count, position = read_unsigned(data, position)
    for _ in range(count):
        budget.charge(TAG_BYTES)
        tag, position = read_unsigned(data, position)
        size, position = read_unsigned(data, position)
        if position + size > len(data):
            raise Corrupt("a tagged field runs past the end")
        known = by_tag.get(tag)
        if known is not None:
            index, read = known
            values[index], end = read(data, position, budget)
            if end != position + size:
                raise Corrupt(f"tag {tag} does not fill its size")
        position += size
    return position


def _field_reader(field: FieldShape, *, flexible: bool) -> _Read:
    if field.is_array:
        return _array_reader(field, flexible=flexible)
    if field.item is not None:
        # Kafka marks a struct that may be null with a byte, but not where a tag marks it already.
        nullable = field.is_nullable and field.tag is None
        return _nullable_reader(_reader(field.item)) if nullable else _reader(field.item)
    return _value_reader(field.kafka_type, nullable=field.is_nullable, flexible=flexible)


def _nullable_reader(read: _Read) -> _Read:
    def read_nullable(data: bytes, position: int, budget: DecodeBudget) -> tuple[Any, int]:
        # KIP-893: -1 for null, anything else for what follows.
        if data[position] == 0xFF:
            return None, position + 1
        return read(data, position + 1, budget)

    return read_nullable


def _array_reader(field: FieldShape, *, flexible: bool) -> _Read:
    if field.item is not None:
        read_item = _reader(field.item)
    else:
        read_item = _value_reader(field.kafka_type, nullable=False, flexible=flexible)
    item_bytes = _item_bytes(field)
    nullable = field.is_nullable
    name = field.name

    def read(data: bytes, position: int, budget: DecodeBudget) -> tuple[Any, int]:
        count, position = read_array_length(data, position, flexible)
        if count < 0:
            if nullable:
                return None, position
            raise Corrupt(f"{name} must not be null")
        budget.charge(ARRAY_BYTES + count * item_bytes)
        items = []
        for _ in range(count):
            item, position = read_item(data, position, budget)
            items.append(item)
        return tuple(items), position

    return read


def _item_bytes(field: FieldShape) -> int:
    """Return what each item of an array takes beside its own strings and arrays, which charge for themselves."""
    if field.item is None:
        return ITEM_BYTES + _number_bytes(field.kafka_type)
    shapes = [shape(one) for one in fields(field.item)]
    own = struct_bytes(len(shapes)) + sum(
        _number_bytes(one.kafka_type) for one in shapes if one.kafka_type == "uuid"
    )
    return ITEM_BYTES + own


def _number_bytes(kafka_type: str) -> int:
    if kafka_type == "uuid":
        return UUID_BYTES
    return NUMBER_BYTES if kafka_type in FIXED else 0


def _value_reader(kafka_type: str, *, nullable: bool, flexible: bool) -> _Read:
    if kafka_type in FIXED:
        code, convert, _ = FIXED[kafka_type]
        layout = Struct(">" + code)

        def read_fixed(data: bytes, position: int, _budget: DecodeBudget) -> tuple[Any, int]:
            (value,) = layout.unpack_from(data, position)
            return (value if convert is None else convert(value)), position + layout.size

        return read_fixed
    text = kafka_type == "string"
    legacy = I16 if text else I32

    def read(data: bytes, position: int, budget: DecodeBudget) -> tuple[Any, int]:
        length, position = read_length(data, position, flexible, legacy)
        if length < 0:
            if nullable:
                return None, position
            raise Corrupt(f"a {kafka_type} must not be null")
        end = position + length
        if end > len(data):
            raise Corrupt(f"a {kafka_type} of {length} bytes runs past the end")
        budget.charge(STRING_BYTES + length)
        raw = data[position:end]
        if not text:
            return raw, end
        try:
            return raw.decode("utf-8"), end
        except UnicodeDecodeError as error:
            raise Corrupt("a string is not UTF-8") from error

    return read
