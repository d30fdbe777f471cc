"""Values of a schema registry: decoded as their schemas say, and refused with a reason where they cannot be.

fastavro and protobuf encode what our decoders decode. A real registry is asked in tests/compat/test_registry.py.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from io import BytesIO
from typing import Any

import pytest
from fastavro import parse_schema, schemaless_writer
from hypothesis import given
from hypothesis import strategies as st

from stratalog.adapters.protoc import compile_proto
from stratalog.client.schema_kinds import least_bytes, message_path
from stratalog.client.schemas import Decoded, Schemas, Undecoded
from stratalog.errors import Unavailable, UserError


@dataclass
class Answer:
    status: int
    body: bytes


@dataclass
class Registry:
    """Answers by path, and the paths that were asked."""

    answers: dict[str, Answer] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)

    def get(self, path: str) -> Answer:
        self.asked.append(path)
        return self.answers.get(path, Answer(404, b'{"error_code": 40403}'))

    def has(self, schema_id: int, schema: object, **more: Any) -> None:
        text = schema if isinstance(schema, str) else json.dumps(schema)
        self.answers[f"/schemas/ids/{schema_id}"] = Answer(
            200, json.dumps({"schema": text, **more}).encode()
        )

    @property
    def schemas(self) -> Schemas:
        return Schemas(self.get, compile_proto)


USER = {
    "type": "record",
    "name": "User",
    "namespace": "shop",
    "fields": [
        {"name": "name", "type": "string"},
        {"name": "age", "type": ["null", "int"]},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {
            "name": "sum",
            "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
        },
        {"name": "raw", "type": "bytes"},
        {"name": "rate", "type": "double"},
        {"name": "tags", "type": {"type": "map", "values": {"type": "array", "items": "string"}}},
    ],
}
ALICE = {
    "name": "Alice",
    "age": None,
    "at": datetime(2026, 11, 24, 10, 0, tzinfo=UTC),
    "sum": Decimal("12.50"),
    "raw": b"\x00\xff",
    "rate": float("nan"),
    "tags": {"a": ["b", "c"]},
}


def framed(schema_id: int, data: bytes) -> bytes:
    return b"\x00" + schema_id.to_bytes(4, "big") + data


def avro(schema: Any, value: Any) -> bytes:
    out = BytesIO()
    schemaless_writer(out, parse_schema(schema), value)
    return out.getvalue()


def test_an_avro_record_becomes_json() -> None:
    registry = Registry()
    registry.has(7, USER)
    schemas = registry.schemas
    found = schemas.decode(framed(7, avro(USER, ALICE)))
    assert isinstance(found, Decoded)
    assert (found.kind, found.schema, found.schema_id) == ("AVRO", "shop.User", 7)
    assert json.loads(found.text) == {
        "name": "Alice",
        "age": None,
        "at": "2026-11-24T10:00:00+00:00",
        "sum": "12.50",
        "raw": "\x00\xff",
        "rate": "nan",
        "tags": {"a": ["b", "c"]},
    }
    schemas.decode(framed(7, avro(USER, ALICE)))
    assert registry.asked == ["/schemas/ids/7"], "a schema never changes"


def test_bytes_without_the_frame_are_left_alone() -> None:
    registry = Registry()
    for data in (None, b"", b"text", b"\x00abc", b"\x01\x00\x00\x00\x01x"):
        assert registry.schemas.decode(data) is None
    assert registry.asked == []


@given(st.binary(max_size=60))
def test_any_bytes_are_decoded_or_refused_with_a_reason(data: bytes) -> None:
    registry = Registry()
    registry.has(1, USER)
    registry.has(2, {"title": "T"}, schemaType="JSON")
    for schema_id in (1, 2):
        found = registry.schemas.decode(framed(schema_id, data))
        assert isinstance(found, Decoded | Undecoded)
        if isinstance(found, Undecoded):
            assert found.reason


def test_what_is_left_over_or_cut_off_is_refused() -> None:
    registry = Registry()
    registry.has(7, USER)
    data = avro(USER, ALICE)
    for wrong in (data + b"x", data[:-1]):
        found = registry.schemas.decode(framed(7, wrong))
        assert isinstance(found, Undecoded), found
        assert "shop.User" in found.reason


def test_a_schema_that_refers_to_others_is_decoded_with_them() -> None:
    registry = Registry()
    inner = {
        "type": "record",
        "name": "In",
        "namespace": "n",
        "fields": [{"name": "x", "type": "int"}],
    }
    outer = {"type": "record", "name": "Out", "fields": [{"name": "in", "type": "n.In"}]}
    references = [{"name": "n.In", "subject": "in/value", "version": 3}]
    registry.has(9, outer, references=references)
    registry.answers["/subjects/in%2Fvalue/versions/3"] = Answer(
        200, json.dumps({"schema": json.dumps(inner)}).encode()
    )
    found = registry.schemas.decode(framed(9, b"\x54"))
    assert isinstance(found, Decoded), found
    assert json.loads(found.text) == {"in": {"x": 42}}


def test_json_with_a_schema_is_shown_as_it_is() -> None:
    registry = Registry()
    registry.has(3, {"title": "Order"}, schemaType="JSON")
    found = registry.schemas.decode(framed(3, b'{"a":[1, null]}'))
    assert found == Decoded('{"a": [1, null]}', 3, "JSON", "Order")
    assert isinstance(registry.schemas.decode(framed(3, b"{")), Undecoded)


PROTO = """
syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
import "other.proto";
message First { string a = 1; }
message Second {
  message Inner { repeated int32 numbers = 1; Money cost = 2; google.protobuf.Timestamp at = 3; }
}
"""
OTHER = 'syntax = "proto3"; package shop; message Money { int64 cents = 1; }'


def test_a_protobuf_message_is_found_by_its_indexes() -> None:
    registry = Registry()
    references = [{"name": "other.proto", "subject": "money", "version": 1}]
    registry.has(4, PROTO, schemaType="PROTOBUF", references=references)
    registry.answers["/subjects/money/versions/1"] = Answer(
        200, json.dumps({"schema": OTHER}).encode()
    )
    schemas = registry.schemas
    first = schemas.decode(framed(4, b"\x00" + b"\x0a\x02hi"))
    assert first == Decoded('{"a": "hi"}', 4, "PROTOBUF", "shop.First")
    inner = b"\x0a\x02\x01\x02" + b"\x12\x02\x08\x05" + b"\x1a\x02\x08\x01"
    found = schemas.decode(framed(4, b"\x04\x02\x00" + inner))
    assert isinstance(found, Decoded), found
    assert found.schema == "shop.Second.Inner"
    assert json.loads(found.text) == {
        "numbers": [1, 2],
        "cost": {"cents": "5"},
        "at": "1970-01-01T00:00:01Z",
    }
    for wrong in (b"", b"\x02", b"\x02\x08", b"\x04\x02\x08", b"\x00\x0a\x09hi", b"\x00\xff"):
        refused = schemas.decode(framed(4, wrong))
        assert isinstance(refused, Undecoded), (wrong, refused)


@pytest.mark.parametrize(
    ("schema", "kind", "reason"),
    [
        ("{", "AVRO", "not understood"),
        ({"type": "array", "items": "null"}, "AVRO", "without bytes"),
        ("message {", "PROTOBUF", "not understood"),
        ('syntax = "proto3"; import "/etc/passwd";', "PROTOBUF", "not understood"),
        ("x", "THRIFT", "THRIFT are not decoded"),
    ],
)
def test_a_schema_that_is_no_use_is_a_reason(schema: object, kind: str, reason: str) -> None:
    registry = Registry()
    registry.has(1, schema, schemaType=kind)
    found = registry.schemas.decode(framed(1, b"\x00"))
    assert isinstance(found, Undecoded)
    assert reason in found.reason


def test_a_registry_that_lacks_the_schema_refuses_or_fails_has_a_message_of_its_own() -> None:
    registry = Registry()
    missing = registry.schemas.decode(framed(5, b"x"))
    assert missing == Undecoded(5, "the registry has no schema 5")
    for status, error in ((401, UserError), (403, UserError), (500, Unavailable)):
        registry.answers["/schemas/ids/6"] = Answer(status, b"no")
        with pytest.raises(error):
            registry.schemas.decode(framed(6, b"x"))
    registry.answers["/schemas/ids/6"] = Answer(200, b"<html>")
    with pytest.raises(UserError, match="ccompat"):
        registry.schemas.decode(framed(6, b"x"))


NESTED: Mapping[str, Any] = {
    "type": "record",
    "name": "R",
    "fields": [{"name": "next", "type": ["null", "R"]}],
}


@pytest.mark.parametrize(
    ("schema", "least"),
    [
        ("null", 0),
        ("int", 1),
        (["null", "int"], 1),
        ({"type": "fixed", "name": "F", "size": 0}, 0),
        ({"type": "record", "name": "E", "fields": []}, 0),
        (NESTED, 1),
        ({"type": "map", "values": "null"}, 1),
        ({"type": "array", "items": "int"}, 1),
    ],
)
def test_the_fewest_bytes_of_a_schema(schema: Any, least: int) -> None:
    assert least_bytes(schema, {}) == least


@pytest.mark.parametrize(
    "items", ["null", {"type": "record", "name": "E", "fields": [{"name": "x", "type": "null"}]}]
)
def test_an_array_that_could_claim_any_length_is_refused(items: Any) -> None:
    hidden = {"type": "map", "values": ["int", {"type": "array", "items": items}]}
    with pytest.raises(ValueError, match="without bytes"):
        least_bytes(hidden, {})


@given(st.lists(st.integers(0, 1 << 20), min_size=1, max_size=5))
def test_message_indexes_are_read_as_they_are_written(path: list[int]) -> None:
    def zigzag(number: int) -> bytes:
        number, out = number << 1, bytearray()
        while number > 0x7F:
            out.append(number & 0x7F | 0x80)
            number >>= 7
        return bytes([*out, number])

    data = zigzag(len(path)) + b"".join(map(zigzag, path))
    assert message_path(data + b"rest") == (path, len(data))
