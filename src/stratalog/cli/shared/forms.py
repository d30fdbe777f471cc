"""Print records: the value, key and value, JSON, or a format of the user's.

In: records. Out: bytes on standard output, unchanged except in JSON. It never chooses the records.
"""

import base64
import json
import sys
from typing import TYPE_CHECKING, Any

from stratalog.cli.shared.terminal import note, show_json

if TYPE_CHECKING:
    from stratalog.client.schemas import Decoded, Schemas
    from stratalog.wire.ids import TopicPartition
    from stratalog.wire.records import Record

FIELDS = {
    "t": "topic",
    "p": "partition",
    "o": "offset",
    "T": "timestamp",
    "k": "key",
    "K": "key length",
    "s": "value",
    "S": "value length",
    "h": "headers",
}
UNDECODED_NOTES_MAX = 5
ESCAPES = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}


class Printer:
    """Print records and count them."""

    def __init__(
        self,
        key_separator: str | None,
        schemas: "Schemas | None" = None,
        *,
        headers: bool,
        as_json: bool,
        layout: str | None = None,
    ) -> None:
        """Raises UserError for a malformed format, and for two formats at once."""
        from stratalog.errors import UserError

        if layout is not None and (as_json or headers or key_separator is not None):
            raise UserError("--format says it all: leave --json, --headers and --key-separator out")
        self.count = 0
        self._headers = headers
        self._separator = None if key_separator is None else key_separator.encode()
        self._as_json = as_json
        self._layout = None if layout is None else pieces_of(layout)
        self._schemas = schemas
        self._undecoded: dict[str, int] = {}

    def print(self, key: "TopicPartition", record: "Record") -> None:
        """Print one record; its bytes are unchanged except in JSON, and where a registry decodes them.

        Raises UserError, Unavailable where the registry does not answer.
        """
        self.count += 1
        decoded: dict[str, Decoded] = {}
        if self._schemas is not None:
            decoded = self._decoded(self._schemas, record)
            if not self._as_json:
                record = with_json(record, decoded)
        if self._as_json and decoded:
            row = {"topic": key.topic, "partition": key.partition, **record_json(record)}
            for name, one in decoded.items():
                row.pop(f"{name}_base64", None)
                row |= {name: None, f"{name}_schema_id": one.schema_id}
            print(_with_decoded(row, decoded), flush=True)
            return
        if self._as_json:
            show_json({"topic": key.topic, "partition": key.partition, **record_json(record)})
            return
        if self._layout is not None:
            sys.stdout.buffer.write(self._laid_out(self._layout, key, record))
            return
        line = record.value or b""
        if self._separator is not None:
            line = (record.key or b"") + self._separator + line
        if self._headers:
            line = headers_text(record) + b"\t" + line
        sys.stdout.buffer.write(line + b"\n")

    def _decoded(self, schemas: "Schemas", record: "Record") -> "dict[str, Decoded]":
        """Return the key and the value that have a schema; count those that could not be decoded."""
        from stratalog.client.schemas import Decoded, Undecoded

        found: dict[str, Decoded] = {}
        for name, data in (("key", record.key), ("value", record.value)):
            match schemas.decode(data):
                case Decoded() as one:
                    found[name] = one
                case Undecoded(reason=reason):
                    if (
                        len(self._undecoded) >= UNDECODED_NOTES_MAX
                        and reason not in self._undecoded
                    ):
                        reason = "other reasons"
                    self._undecoded[reason] = self._undecoded.get(reason, 0) + 1
                case None:
                    pass
        return found

    def say_undecoded(self) -> None:
        """Print a note for each reason why keys or values are shown as they are."""
        for reason, count in self._undecoded.items():
            note(f"warning: {count} key(s) or value(s) are printed as they are: {reason}")

    def _laid_out(
        self, layout: "list[bytes | str]", key: "TopicPartition", record: "Record"
    ) -> bytes:
        out = b""
        for piece in layout:
            match piece:
                case bytes():
                    out += piece
                case "s":
                    out += record.value or b""
                case "k":
                    out += record.key or b""
                case "h":
                    out += headers_text(record)
                case _:
                    out += str(self._fact(piece, key, record)).encode()
        return out

    def _fact(self, field: str, key: "TopicPartition", record: "Record") -> str | int:
        match field:
            case "t":
                return key.topic
            case "p":
                return key.partition
            case "o":
                return record.offset
            case "T":
                return record.timestamp
            case "K":
                return -1 if record.key is None else len(record.key)
            case _:
                return -1 if record.value is None else len(record.value)


def _with_decoded(row: dict[str, Any], decoded: "dict[str, Decoded]") -> str:
    """Return a row as JSON, in which decoded keys and values keep their digits."""
    fields = {
        name: decoded[name].text if name in decoded else json.dumps(one, ensure_ascii=False)
        for name, one in row.items()
    }
    return "{" + ", ".join(f'"{name}": {text}' for name, text in fields.items()) + "}"


def with_json(record: "Record", decoded: "dict[str, Decoded]") -> "Record":
    """Return the record with decoded keys and values as JSON, each on one line."""
    lines = {name: one.text.encode() for name, one in decoded.items()}
    return record._replace(key=lines.get("key", record.key), value=lines.get("value", record.value))


def headers_text(record: "Record") -> bytes:
    """NAME=VALUE,…"""
    return b",".join(name.encode() + b"=" + (value or b"") for name, value in record.headers)


def pieces_of(layout: str) -> "list[bytes | str]":
    """Return a --format as bytes to print and letters of `FIELDS`. Raises UserError naming the unknown letter."""
    from stratalog.errors import UserError

    pieces: list[bytes | str] = []
    letters = iter(layout)
    for letter in letters:
        if letter == "\\":
            escaped = next(letters, "")
            if escaped not in ESCAPES:
                raise UserError(
                    f"--format: \\{escaped} is not accepted; accepted: \\n \\t \\r \\0 \\\\"
                )
            pieces.append(ESCAPES[escaped])
        elif letter == "%":
            field = next(letters, "")
            if field == "%":
                pieces.append(b"%")
            elif field in FIELDS:
                pieces.append(field)
            else:
                accepted = ", ".join(f"%{name} ({meaning})" for name, meaning in FIELDS.items())
                raise UserError(f"--format: %{field} is not accepted; accepted: {accepted}, %%")
        else:
            pieces.append(letter.encode())
    return pieces


def record_json(record: "Record") -> dict[str, Any]:
    """Return a record for JSON: text where it is UTF-8, else base64 under another name."""
    return {
        "offset": record.offset,
        "timestamp": record.timestamp,
        **text_or_base64("key", record.key),
        **text_or_base64("value", record.value),
        "headers": [
            {"name": name, **text_or_base64("value", value)} for name, value in record.headers
        ],
    }


def text_or_base64(name: str, data: bytes | None) -> dict[str, str | None]:
    """Return `{name: text}`, or `{name_base64: …}` for bytes that are no text."""
    if data is None:
        return {name: None}
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data).decode()}
