"""The kinds of schemas: a decoder for each.

In: a schema's text and those it refers to. Out: values as JSON. Nothing here asks a registry.

A record may be hostile, and so may a schema: an array whose items take no bytes could claim 2**62 of them, so such a
schema is refused.
"""

import json
import math
from collections.abc import Callable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from io import BytesIO
from typing import Any, Final, Protocol
from uuid import UUID

from stratalog.client.json_text import on_one_line

__all__ = ["Compile", "Decoder", "decoder_of", "least_bytes", "message_path"]

_INSTALL: Final = "pip install 'stratalog[registry]'"
_NESTED_MAX: Final = 50


class Decoder(Protocol):
    """Decodes the data of one schema."""

    kind: str
    name: str

    def decode(self, data: bytes) -> tuple[str, str]:
        """Return the value as JSON on one line, and its schema's name.

        Raises ValueError, KeyError, IndexError, EOFError, TypeError.
        """


Compile = Callable[[str, Mapping[str, str]], bytes]
"""Compiles a .proto file, and those it imports by name, to a FileDescriptorSet. Raises ValueError, ImportError."""


def decoder_of(
    kind: str, text: str, references: Mapping[str, str], compile_proto: Compile
) -> Decoder | str:
    """Return the decoder of a schema, or why there is none."""
    try:
        match kind.upper():
            case "AVRO":
                return _Avro(text, references)
            case "JSON":
                return _Json(text)
            case "PROTOBUF":
                return _Protobuf(compile_proto(text, references))
            case _:
                return f"schemas of the type {kind} are not decoded"
    except ImportError as error:
        return f"the package {error.name} is missing: {_INSTALL}"
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        return f"its schema is not understood: {error}"[:300]


class _Avro:
    """Avro's binary encoding."""

    kind = "AVRO"

    def __init__(self, text: str, references: Mapping[str, str]) -> None:
        from fastavro.schema import parse_schema  # noqa: PLC0415 - optional

        named: dict[str, Any] = {}
        for one in references.values():
            parse_schema(_avro(one), named_schemas=named)
        schema = _avro(text)
        self._schema = parse_schema(schema, named_schemas=named)
        least_bytes(self._schema, named)
        self.name = _avro_name(schema)

    def decode(self, data: bytes) -> tuple[str, str]:
        from fastavro import schemaless_reader  # noqa: PLC0415 - optional

        source = BytesIO(data)
        value = schemaless_reader(source, self._schema, None)
        if source.tell() != len(data):
            raise ValueError(f"{len(data) - source.tell()} bytes are left over")
        return _json(plain(value)), self.name


def _avro(text: str) -> Any:
    """Return a schema; a registry may give the name of a primitive type without quotes."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _avro_name(schema: Any) -> str:
    if isinstance(schema, dict):
        space, name = schema.get("namespace"), schema.get("name", schema.get("type"))
        return f"{space}.{name}" if space and "." not in str(name) else str(name)
    return "union" if isinstance(schema, list) else str(schema)


def least_bytes(schema: Any, named: Mapping[str, Any], within: frozenset[str] = frozenset()) -> int:
    """Return the fewest bytes that a value of an Avro schema takes.

    Raises ValueError for an array whose items may take none: five bytes could claim any number of them.
    """
    if isinstance(schema, list):
        for one in schema:
            least_bytes(one, named, within)
        return 1
    if isinstance(schema, str):
        if schema == "null":
            return 0
        if schema in named and schema not in within:
            return least_bytes(named[schema], named, within | {schema})
        return 1
    kind = schema["type"]
    if kind == "array":
        if least_bytes(schema["items"], named, within) == 0:
            raise ValueError("an array of items without bytes is refused")
        return 1
    if kind == "map":
        least_bytes(schema["values"], named, within)
        return 1
    if kind == "fixed":
        return int(schema["size"])
    if kind in {"record", "error"}:
        inside = within | {schema["name"]}
        return sum(least_bytes(one["type"], named, inside) for one in schema["fields"])
    return 1 if kind == "enum" else least_bytes(kind, named, within)


class _Json:
    """JSON Schema: the data is JSON. It is shown with its own digits, not validated."""

    kind = "JSON"

    def __init__(self, text: str) -> None:
        found = json.loads(text)
        title = found.get("title") if isinstance(found, dict) else None
        self.name = str(title or "JSON Schema")

    def decode(self, data: bytes) -> tuple[str, str]:
        return on_one_line(data.decode(json.detect_encoding(data))), self.name


class _Protobuf:
    """Protobuf; `compiled` is a FileDescriptorSet whose last file has the messages."""

    kind = "PROTOBUF"

    def __init__(self, compiled: bytes) -> None:
        from google.protobuf.descriptor_pb2 import FileDescriptorSet  # noqa: PLC0415 - optional
        from google.protobuf.descriptor_pool import DescriptorPool  # noqa: PLC0415

        files = FileDescriptorSet.FromString(compiled).file
        self._pool = DescriptorPool()
        for file in files:
            self._pool.Add(file)
        self._file = files[-1]
        self.name = self._file.package or "Protobuf"

    def decode(self, data: bytes) -> tuple[str, str]:
        from google.protobuf.json_format import MessageToDict  # noqa: PLC0415 - optional
        from google.protobuf.message import DecodeError  # noqa: PLC0415
        from google.protobuf.message_factory import GetMessageClass  # noqa: PLC0415

        path, at = message_path(data)
        message = self._file.message_type[path[0]]
        name = f"{self._file.package}.{message.name}" if self._file.package else message.name
        for index in path[1:]:
            message = message.nested_type[index]
            name = f"{name}.{message.name}"
        made = GetMessageClass(self._pool.FindMessageTypeByName(name))()
        try:
            made.ParseFromString(data[at:])
        except DecodeError as error:
            raise ValueError(str(error)) from None
        return _json(MessageToDict(made, preserving_proto_field_name=True)), name


def message_path(data: bytes) -> tuple[list[int], int]:
    """Return the indexes that lead to a message in its file, and where the message's bytes begin.

    A count and that many indexes, all in zigzag; a count of 0 stands for the first message. Raises ValueError.
    """
    count, at = _zigzag(data, 0)
    if count == 0:
        return [0], at
    if not 0 < count <= _NESTED_MAX:
        raise ValueError(f"{count} message indexes")
    path = []
    for _ in range(count):
        index, at = _zigzag(data, at)
        if index < 0:
            raise ValueError(f"the message index {index}")
        path.append(index)
    return path, at


def _zigzag(data: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        if at >= len(data) or shift > 63:
            raise ValueError("the message index is cut off")
        byte = data[at]
        number |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return (number >> 1) ^ -(number & 1), at


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def plain(value: Any) -> Any:
    """Return a decoded value as JSON can hold it: bytes as Avro's JSON encoding has them, times in ISO 8601."""
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else str(value)
        case bytes():
            return value.decode("latin-1")
        case dict():
            return {str(name): plain(one) for name, one in value.items()}
        case list() | tuple():
            return [plain(one) for one in value]
        case datetime() | date() | time():
            return value.isoformat()
        case Decimal() | UUID() | timedelta():
            return str(value)
        case _:
            return str(value)
