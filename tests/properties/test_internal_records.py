"""Every internal record, at every version, comes back as it was written; other bytes are Corrupt and nothing else."""

from contextlib import suppress
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stratalog.errors import Corrupt
from stratalog.wire.internal import (
    control_records,
    marker_records,
    metadata_records,
    offsets_records,
    security_records,
    transactions_records,
)
from stratalog.wire.internal.codec import Field, Schema, decode_from, encode_into
from stratalog.wire.internal.control import decode_control
from stratalog.wire.internal.metadata import decode, decode_versioned, encode
from stratalog.wire.internal.offsets import (
    GroupMetadataKey,
    OffsetCommitKey,
    decode_key,
    decode_value,
)

METADATA = (
    *metadata_records.SCHEMAS,
    *security_records.SCHEMAS,
    *marker_records.SCHEMAS,
)
SCHEMAS = (
    *METADATA,
    *control_records.SCHEMAS,
    *offsets_records.SCHEMAS,
    *transactions_records.SCHEMAS,
)
CASES = [
    pytest.param(schema, version, id=f"{schema.type.__name__}-{version}")
    for schema in SCHEMAS
    for version in range(schema.versions[0], schema.versions[1] + 1)
]
KEYS = (OffsetCommitKey(group="g", topic="t", partition=0), GroupMetadataKey(group="g"))
PRIMITIVES = {
    "bool": st.booleans(),
    "int8": st.integers(-(2**7), 2**7 - 1),
    "int16": st.integers(-(2**15), 2**15 - 1),
    "uint16": st.integers(0, 2**16 - 1),
    "int32": st.integers(-(2**31), 2**31 - 1),
    "int64": st.integers(-(2**63), 2**63 - 1),
    "float64": st.floats(allow_nan=False),
    "string": st.text(max_size=200),
    "bytes": st.binary(max_size=200),
    "uuid": st.uuids(),
}


def values(field: Field, version: int) -> st.SearchStrategy:
    if not field.is_in(version):
        return st.just(field.default_value())
    value = records(field.of, version) if field.of else PRIMITIVES[field.kind]
    if field.array:
        value = st.lists(value, max_size=3).map(tuple)
    return st.none() | value if version >= field.nullable >= 0 else value


def records(schema: Schema, version: int) -> st.SearchStrategy:
    return st.builds(schema.type, **{f.name: values(f, version) for f in schema.fields})


@pytest.mark.parametrize(("schema", "version"), CASES)
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_a_record_comes_back(schema, version, data):
    record = data.draw(records(schema, version))
    out = bytearray(b"before")
    encode_into(out, schema, version, record)
    assert decode_from(out, 6, schema, version) == (record, len(out))
    assert decode_from(memoryview(bytes(out)), 6, schema, version) == (record, len(out))


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_framed_metadata_records_come_back_with_their_version(data):
    schema = data.draw(st.sampled_from(METADATA))
    version = data.draw(st.integers(*schema.versions))
    record = data.draw(records(schema, version))
    assert decode_versioned(encode(record, version)) == (record, version)


def damaged(schemas, prefix):
    """Bytes of some record with a few of them changed, removed or added."""

    @st.composite
    def draw(draw_from):
        schema = draw_from(st.sampled_from(schemas))
        version = draw_from(st.integers(*schema.versions))
        out = bytearray(prefix(schema, version))
        encode_into(out, schema, version, draw_from(records(schema, version)))
        for _ in range(draw_from(st.integers(1, 3))):
            start = draw_from(st.integers(0, len(out)))
            out[start : start + draw_from(st.integers(0, 4))] = draw_from(st.binary(max_size=5))
        return bytes(out)

    return draw()


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=60) | damaged(METADATA, lambda s, v: bytes([1, s.api_key, v])))
def test_metadata_bytes_are_a_record_or_corrupt(data):
    try:
        record, version = decode_versioned(data)
    except Corrupt:
        return
    assert decode(encode(record, version)) == record or record != record  # noqa: PLR0124 (NaN)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=60), st.binary(max_size=60))
def test_other_logs_bytes_are_a_record_or_corrupt(key_bytes, value_bytes):
    for kind in (1, 2):
        with suppress(Corrupt):
            decode_key(kind.to_bytes(2, "big") + key_bytes)
    for key, version in product(KEYS, range(5)):
        with suppress(Corrupt):
            decode_value(key, version.to_bytes(2, "big") + value_bytes)
    for kind in range(8):
        with suppress(Corrupt):
            decode_control(b"\0\0" + kind.to_bytes(2, "big"), value_bytes)
