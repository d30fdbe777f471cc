"""One table-driven codec for Kafka's schema language (KIP-482 tagged fields included).

In: a record and its table of fields, or bytes. Out: bytes, or a record. It never reads a file and holds no table of
its own: those are generated (`*_records.py`).

Every (schema, version) is compiled once, on first use, to two lists of closures.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from struct import Struct, error
from typing import Any
from uuid import UUID

from stratalog.errors import Corrupt
from stratalog.ports import Buffer
from stratalog.wire.varint import encode_unsigned, read_unsigned

Reader = Callable[[Buffer, int], tuple[Any, int]]
Writer = Callable[[bytearray, Any], None]

NO_ID = UUID(int=0)
_FIXED = {
    "bool": Struct(">?"),
    "int8": Struct(">b"),
    "int16": Struct(">h"),
    "uint16": Struct(">H"),
    "int32": Struct(">i"),
    "uint32": Struct(">I"),
    "int64": Struct(">q"),
    "float64": Struct(">d"),
}
_NO_DEFAULT: Any = object()


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a schema, as Kafka's JSON has it.

    `kind` is a primitive's name or "struct" (then `of` is its schema); `versions` is inclusive; `nullable` and
    `tagged` give the first version where the field is so, -1 where never.
    """

    name: str
    kind: str
    versions: tuple[int, int]
    array: bool = False
    of: "Schema | None" = None
    nullable: int = -1
    tag: int = -1
    default: Any = _NO_DEFAULT
    ignorable: bool = False

    def default_value(self) -> Any:
        """What a version without this field is read as, and what a tagged field need not be written for."""
        if self.default is not _NO_DEFAULT:
            return self.default
        if self.array:
            return ()
        match self.kind:
            case "string":
                return ""
            case "bytes":
                return b""
            case "uuid":
                return NO_ID
            case "bool":
                return False
            case "struct":
                assert self.of is not None
                return self.of.type(**{f.name: f.default_value() for f in self.of.fields})
            case _:
                return 0

    def is_in(self, version: int) -> bool:
        return self.versions[0] <= version <= self.versions[1]


@dataclass(frozen=True, slots=True, eq=False)
class Schema:
    """A record type: its dataclass, Kafka's number (-1: none), valid versions (inclusive), first flexible version."""

    type: type[Any]
    api_key: int
    versions: tuple[int, int]
    flexible: int
    fields: tuple[Field, ...]


def by_type(schemas: Sequence[Schema]) -> dict[type[Any], Schema]:
    """Each record's class -> its schema."""
    return {schema.type: schema for schema in schemas}


def by_key(schemas: Sequence[Schema]) -> dict[int, Schema]:
    """Kafka's number -> the schema, of those that have one."""
    table = {schema.api_key: schema for schema in schemas if schema.api_key >= 0}
    assert len(table) == sum(schema.api_key >= 0 for schema in schemas), (
        "two schemas share a number"
    )
    return table


def encode_into(out: bytearray, schema: Schema, version: int, record: Any) -> None:
    """Append `record` at `version`; a field that this version lacks must hold its default or be ignorable."""
    assert schema.versions[0] <= version <= schema.versions[1], (schema.type.__name__, version)
    _struct_writer(schema, version)(out, record)


def decode_from(data: Buffer, position: int, schema: Schema, version: int) -> tuple[Any, int]:
    """The record of `version` at `position` and where it ends.

    Raises Corrupt for bytes that are not such a record, and for a version outside the schema's. Tagged fields with
    unknown tags are skipped (KIP-482).
    """
    if not schema.versions[0] <= version <= schema.versions[1]:
        raise Corrupt(f"{schema.type.__name__} version {version}: only {schema.versions} are known")
    try:
        return _struct_reader(schema, version)(data, position)
    except (error, IndexError, UnicodeDecodeError, OverflowError) as bad:
        raise Corrupt(f"{schema.type.__name__} version {version}: {bad}") from bad


@cache
def _struct_writer(schema: Schema, version: int) -> Writer:
    flexible = version >= schema.flexible >= 0
    plain: list[tuple[str, Writer]] = []
    tagged: list[tuple[int, str, Writer, Any]] = []
    absent: list[tuple[str, Any]] = []
    for field in schema.fields:
        if not field.is_in(version):
            if not field.ignorable:
                absent.append((field.name, field.default_value()))
        elif field.tag >= 0:
            writer = _field_writer(field, version, flexible=flexible)
            tagged.append((field.tag, field.name, writer, field.default_value()))
        else:
            plain.append((field.name, _field_writer(field, version, flexible=flexible)))
    tagged.sort(key=lambda entry: entry[0])

    def write(out: bytearray, record: Any) -> None:
        for name, default in absent:
            value = getattr(record, name)
            assert value == default, (
                f"{schema.type.__name__} version {version} cannot say {name}={value!r}"
            )
        for name, writer in plain:
            writer(out, getattr(record, name))
        if flexible:
            _write_tagged(out, record, tagged)

    return write


def _write_tagged(out: bytearray, record: Any, tagged: list[tuple[int, str, Writer, Any]]) -> None:
    present = [entry for entry in tagged if getattr(record, entry[1]) != entry[3]]
    out += encode_unsigned(len(present))
    for tag, name, writer, _ in present:
        body = bytearray()
        writer(body, getattr(record, name))
        out += encode_unsigned(tag)
        out += encode_unsigned(len(body))
        out += body


@cache
def _struct_reader(schema: Schema, version: int) -> Reader:
    flexible = version >= schema.flexible >= 0
    plain: list[tuple[str, Reader]] = []
    tagged: dict[int, tuple[str, Reader]] = {}
    defaults: dict[str, Any] = {}
    for field in schema.fields:
        if not field.is_in(version) or field.tag >= 0:
            defaults[field.name] = field.default_value()
        if field.is_in(version):
            reader = _field_reader(field, version, flexible=flexible)
            if field.tag >= 0:
                tagged[field.tag] = (field.name, reader)
            else:
                plain.append((field.name, reader))

    def read(data: Buffer, position: int) -> tuple[Any, int]:
        values = dict(defaults)
        for name, reader in plain:
            values[name], position = reader(data, position)
        if flexible:
            position = _read_tagged(data, position, tagged, values)
        return schema.type(**values), position

    return read


def _read_tagged(
    data: Buffer, position: int, tagged: dict[int, tuple[str, Reader]], values: dict[str, Any]
) -> int:
    count, position = read_unsigned(data, position)
    previous = -1
    for _ in range(count):
        tag, position = read_unsigned(data, position)
        size, position = read_unsigned(data, position)
        if tag <= previous or position + size > len(data):
            raise Corrupt(f"tagged field {tag} at {position}: out of order or cut short")
        previous = tag
        if tag in tagged:
            name, reader = tagged[tag]
            values[name], end = reader(data, position)
            if end != position + size:
                raise Corrupt(
                    f"tagged field {tag} ({name}): {end - position} bytes, announced {size}"
                )
        position += size
    return position


def _field_writer(field: Field, version: int, *, flexible: bool) -> Writer:
    nullable = version >= field.nullable >= 0
    if not field.array:
        return _value_writer(field, version, flexible=flexible, nullable=nullable)
    write_length = _length_writer(">i", flexible=flexible)
    write_one = _value_writer(field, version, flexible=flexible, nullable=False)

    def write(out: bytearray, value: Any) -> None:
        if value is None:
            assert nullable, f"{field.name} may not be null in version {version}"
            write_length(out, -1)
            return
        write_length(out, len(value))
        for one in value:
            write_one(out, one)

    return write


def _field_reader(field: Field, version: int, *, flexible: bool) -> Reader:
    nullable = version >= field.nullable >= 0
    if not field.array:
        return _value_reader(field, version, flexible=flexible, nullable=nullable)
    read_length = _length_reader(Struct(">i"), flexible=flexible)
    read_one = _value_reader(field, version, flexible=flexible, nullable=False)

    def read(data: Buffer, position: int) -> tuple[Any, int]:
        count, position = read_length(data, position)
        if count < 0 and nullable:
            return None, position
        # Every element takes a byte at least: a count beyond that is a lie, and must not cost memory.
        _check_length(field, count, len(data) - position)
        values = []
        for _ in range(count):
            one, position = read_one(data, position)
            values.append(one)
        return tuple(values), position

    return read


def _value_writer(field: Field, version: int, *, flexible: bool, nullable: bool) -> Writer:
    if field.kind == "struct":
        assert field.of is not None
        return _struct_writer(field.of, version)
    if field.kind == "uuid":
        return lambda out, value: out.extend(value.bytes)
    if field.kind in _FIXED:
        pack = _FIXED[field.kind].pack
        return lambda out, value: out.extend(pack(value))
    is_string = field.kind == "string"
    assert is_string or field.kind == "bytes", field.kind
    write_length = _length_writer(">h" if is_string else ">i", flexible=flexible)

    def write(out: bytearray, value: Any) -> None:
        if value is None:
            assert nullable, f"{field.name} may not be null in version {version}"
            write_length(out, -1)
            return
        body = value.encode() if is_string else value
        write_length(out, len(body))
        out += body

    return write


def _value_reader(field: Field, version: int, *, flexible: bool, nullable: bool) -> Reader:
    if field.kind == "struct":
        assert field.of is not None
        return _struct_reader(field.of, version)
    if field.kind in _FIXED:
        fixed = _FIXED[field.kind]
        return lambda data, position: (fixed.unpack_from(data, position)[0], position + fixed.size)
    if field.kind == "uuid":
        return _read_uuid
    is_string = field.kind == "string"
    assert is_string or field.kind == "bytes", field.kind
    read_length = _length_reader(Struct(">h" if is_string else ">i"), flexible=flexible)

    def read(data: Buffer, position: int) -> tuple[Any, int]:
        size, position = read_length(data, position)
        if size < 0 and nullable:
            return None, position
        _check_length(field, size, len(data) - position)
        body = bytes(data[position : position + size])
        return (body.decode() if is_string else body), position + size

    return read


def _read_uuid(data: Buffer, position: int) -> tuple[UUID, int]:
    body = bytes(data[position : position + 16])
    if len(body) != 16:
        raise Corrupt(f"uuid cut short at {position}")
    return UUID(bytes=body), position + 16


def _check_length(field: Field, size: int, left: int) -> None:
    if not 0 <= size <= left:
        raise Corrupt(f"{field.name}: length {size} with {left} bytes left")


def _length_writer(format_: str, *, flexible: bool) -> Callable[[bytearray, int], None]:
    """Writes a length, -1 for null: plus one as a varint where flexible, else fixed."""
    if flexible:
        return lambda out, length: out.extend(encode_unsigned(length + 1))
    pack = Struct(format_).pack
    return lambda out, length: out.extend(pack(length))


def _length_reader(fixed: Struct, *, flexible: bool) -> Callable[[Buffer, int], tuple[int, int]]:
    if not flexible:
        return lambda data, position: (
            fixed.unpack_from(data, position)[0],
            position + fixed.size,
        )

    def read(data: Buffer, position: int) -> tuple[int, int]:
        length, position = read_unsigned(data, position)
        return length - 1, position

    return read
