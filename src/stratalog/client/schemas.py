"""Decode records that were written with a schema registry: Avro, Protobuf and JSON Schema, in Confluent's wire format.

In: a record's bytes, a function that gets a path of the registry. Out: JSON values, and the schema's name and id. It
opens no connection itself, and never guesses: bytes it cannot decode come back with the reason.

Wire format: byte 0, the schema's id in four bytes, then the data; Protobuf's data begins with the message's place in
its file (Confluent's documentation, "Wire format"). Registries of Confluent, Karapace and Apicurio (`/apis/ccompat/v7`)
serve the same paths.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol
from urllib.parse import quote

from stratalog.client.schema_kinds import Compile, Decoder, decoder_of
from stratalog.errors import Unavailable, UserError

__all__ = ["Decoded", "Got", "Schemas", "Undecoded"]

_MAGIC: Final = 0
_FRAME_BYTES: Final = 5
_KEPT_MAX: Final = 1_000
_REFERENCES_MAX: Final = 100


class Got(Protocol):
    """A registry's answer."""

    @property
    def status(self) -> int: ...

    @property
    def body(self) -> bytes: ...


@dataclass(frozen=True, slots=True)
class Decoded:
    """A value as JSON on one line; `schema` is its schema's name, `kind` AVRO, JSON or PROTOBUF."""

    text: str
    schema_id: int
    kind: str
    schema: str


@dataclass(frozen=True, slots=True)
class Undecoded:
    """Bytes in the wire format that could not be decoded, and why."""

    schema_id: int
    reason: str


class Schemas:
    """The schemas of one registry. Decoders are kept by id, since a registry never changes a schema."""

    def __init__(self, get: Callable[[str], Got], compile_proto: Compile) -> None:
        """`get` returns the answer to a path, and raises Unavailable where the registry does not answer."""
        self._get = get
        self._compile_proto = compile_proto
        self._decoders: dict[int, Decoder | str] = {}

    def decode(self, data: bytes | None) -> Decoded | Undecoded | None:
        """Return the value; None for bytes that are not in the wire format. Raises Unavailable, UserError."""
        if data is None or len(data) < _FRAME_BYTES or data[0] != _MAGIC:
            return None
        schema_id = int.from_bytes(data[1:_FRAME_BYTES], "big")
        decoder = self._decoder(schema_id)
        if isinstance(decoder, str):
            return Undecoded(schema_id, decoder)
        try:
            text, name = decoder.decode(data[_FRAME_BYTES:])
        except (
            ValueError,
            KeyError,
            IndexError,
            EOFError,
            TypeError,
            RecursionError,
            OverflowError,
        ) as error:
            reason = str(error) or type(error).__name__
            return Undecoded(schema_id, f"the bytes are not of {decoder.name}: {reason}"[:300])
        return Decoded(text, schema_id, decoder.kind, name)

    def _decoder(self, schema_id: int) -> Decoder | str:
        """Return the decoder of a schema, or why there is none."""
        if schema_id not in self._decoders:
            if len(self._decoders) >= _KEPT_MAX:
                self._decoders.clear()
            self._decoders[schema_id] = self._fetched(schema_id)
        return self._decoders[schema_id]

    def _fetched(self, schema_id: int) -> Decoder | str:
        found = self._object_at(f"/schemas/ids/{schema_id}")
        if found is None:
            return f"the registry has no schema {schema_id}"
        references: dict[str, str] = {}
        self._add_references(found, references)
        kind, text = str(found.get("schemaType") or "AVRO"), str(found.get("schema"))
        return decoder_of(kind, text, references, self._compile_proto)

    def _add_references(self, found: Mapping[str, Any], references: dict[str, str]) -> None:
        """Add the schemas that a schema names, those that they name first, by the names by which it does."""
        for one in found.get("references") or ():
            name = str(one["name"])
            if name in references:
                continue
            if len(references) >= _REFERENCES_MAX:
                raise UserError(f"a schema with more than {_REFERENCES_MAX} references")
            subject, version = quote(str(one["subject"]), safe=""), int(one["version"])
            inner = self._object_at(f"/subjects/{subject}/versions/{version}")
            if inner is None:
                raise UserError(f"the registry has no version {version} of {one['subject']}")
            self._add_references(inner, references)
            references[name] = str(inner.get("schema"))

    def _object_at(self, path: str) -> Mapping[str, Any] | None:
        """Return an answer's object; None for 404. Raises Unavailable, UserError."""
        answer = self._get(path)
        if answer.status == 404:
            return None
        if answer.status in {401, 403}:
            raise UserError(
                f"the registry refuses {path}: status {answer.status}; give it as http://user:password@host"
            )
        if answer.status != 200:
            raise Unavailable(f"the registry answers {path} with status {answer.status}")
        try:
            found = json.loads(answer.body)
        except ValueError:
            found = None
        if not isinstance(found, dict) or "schema" not in found:
            raise UserError(
                f"the answer to {path} is not a schema registry's; "
                "Apicurio's URL ends in /apis/ccompat/v7"
            )
        return found
