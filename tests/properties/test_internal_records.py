"""Every internal record, at every version, is read as it was written; other bytes raise Corrupt only.

The fields of a version, their widths and their nulls are those that its writer takes. That they are Kafka's is tested
in `tests/compat/test_dump_metadata.py`.
"""

from collections.abc import Callable
from contextlib import suppress
from functools import cache
from itertools import product
from struct import error as struct_error
from types import NoneType
from typing import Any, get_args
from uuid import UUID

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stratalog.errors import Corrupt
from stratalog.wire.internal import RecordCodec, read_record, record_codec
from stratalog.wire.internal.codecs import METADATA as METADATA_NAMES
from stratalog.wire.internal.codecs import MODULES
from stratalog.wire.internal.control import decode_control
from stratalog.wire.internal.metadata import decode, decode_versioned, encode
from stratalog.wire.internal.offsets import (
    GroupMetadataKey,
    OffsetCommitKey,
    decode_key,
    decode_value,
)

METADATA = [*map(record_codec, METADATA_NAMES.values())]
RECORDS = [*map(record_codec, MODULES)]
CASES = [
    pytest.param(codec, version, id=f"{codec.type.__name__}-{version}")
    for codec in RECORDS
    for version in codec.write
]
KEYS = (OffsetCommitKey(group="g", topic="t", partition=0), GroupMetadataKey(group="g"))
TWO_OF = {
    bool: (False, True),
    int: (0, 1),
    float: (0.5, 1.5),
    str: ("a", "b"),
    bytes: (b"a", b"b"),
    UUID: (UUID(int=1), UUID(int=2)),
}
OTHERS = {
    bool: st.booleans(),
    float: st.floats(allow_nan=False),
    str: st.text(max_size=200),
    bytes: st.binary(max_size=200),
    UUID: st.uuids(),
}
LOW = (-(2**63), -(2**31), -(2**15), -(2**7), 0)
HIGH = (2**63 - 1, 2**31 - 1, 2**16 - 1, 2**15 - 1, 2**7 - 1)


def samples(kind: Any) -> tuple[Any, Any]:
    """Two different values of a type."""
    if issubclass(kind, msgspec.Struct):
        return smallest(kind), smallest(kind, 1)
    return TWO_OF[kind]


def smallest(kind: type[Any], which: int = 0, **values: Any) -> Any:
    """An object with `values`, and with a sample of each other field that has no default."""
    for field in msgspec.structs.fields(kind):
        if field.required and field.name not in values:
            one, many, _ = parts(field.type)
            sample = samples(one)[which]
            values[field.name] = (sample,) if many else sample
    return kind(**values)


def parts(annotation: Any) -> tuple[Any, bool, bool]:
    """Return the type of a field's value or items, whether the field is an array, and whether it may be None."""
    kinds = [one for one in get_args(annotation) if one is not NoneType]
    nullable = NoneType in get_args(annotation)
    kind = kinds[0] if nullable else annotation
    many = bool(get_args(kind))
    return (get_args(kind)[0] if many else kind), many, nullable


def fields(kind: type[Any], write: Callable[[Any], bytes]) -> dict[str, st.SearchStrategy]:
    """Values of the fields that `write` writes of an object."""
    found = {}
    for field in msgspec.structs.fields(kind):
        one, many, nullable = parts(field.type)

        def put(value: Any, name: str = field.name, many: bool = many) -> bytes:
            return write(smallest(kind, **{name: (value,) if many else value}))

        with suppress(AssertionError):
            first, second = map(put, samples(one))
            if first != second:
                value = values(one, put)
                value = st.lists(value, max_size=3).map(tuple) if many else value
                null = nullable and takes(
                    lambda name=field.name: write(smallest(kind, **{name: None}))
                )
                found[field.name] = st.none() | value if null else value
    return found


def values(kind: Any, put: Callable[[Any], bytes]) -> st.SearchStrategy:
    """Values of a type, as large as `put` takes them."""
    if issubclass(kind, msgspec.Struct):
        return st.builds(kind, **fields(kind, put))
    if kind is not int:
        return OTHERS[kind]
    ends = [next(n for n in tries if takes(lambda n=n: put(n))) for tries in (LOW, HIGH)]
    return st.integers(*ends)


def takes(write: Callable[[], bytes]) -> bool:
    with suppress(struct_error, AssertionError):
        write()
        return True
    return False


def records(codec: RecordCodec, version: int) -> st.SearchStrategy:
    return records_of(codec.type, version)


@cache
def records_of(kind: type[Any], version: int) -> st.SearchStrategy:
    codec = record_codec(kind.__name__)
    return values(kind, lambda record: written(codec, version, record))


def written(codec: RecordCodec, version: int, record: Any, before: bytes = b"") -> bytes:
    out = bytearray(before)
    codec.write[version](out, record)
    return bytes(out)


@pytest.mark.parametrize("codec", RECORDS, ids=lambda codec: codec.type.__name__)
def test_every_field_is_in_some_version(codec):
    found = set()
    for version in codec.write:
        found |= fields(codec.type, lambda it, version=version: written(codec, version, it)).keys()
    assert found == set(codec.type.__struct_fields__)


@pytest.mark.parametrize(("codec", "version"), CASES)
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_a_record_is_read_as_it_was_written(codec, version, data):
    record = data.draw(records(codec, version))
    out = written(codec, version, record, b"before")
    assert read_record(codec, out, 6, version) == (record, len(out))
    assert read_record(codec, memoryview(out), 6, version) == (record, len(out))


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_framed_metadata_records_are_read_with_their_version(data):
    codec = data.draw(st.sampled_from(METADATA))
    version = data.draw(st.sampled_from([*codec.write]))
    record = data.draw(records(codec, version))
    assert decode_versioned(encode(record, version)) == (record, version)


def damaged(codecs, prefix):
    """Bytes of some record with a few of them changed, removed or added."""

    @st.composite
    def draw(draw_from):
        codec = draw_from(st.sampled_from(codecs))
        version = draw_from(st.sampled_from([*codec.write]))
        record = draw_from(records(codec, version))
        out = bytearray(written(codec, version, record, prefix(codec, version)))
        for _ in range(draw_from(st.integers(1, 3))):
            start = draw_from(st.integers(0, len(out)))
            out[start : start + draw_from(st.integers(0, 4))] = draw_from(st.binary(max_size=5))
        return bytes(out)

    return draw()


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=60) | damaged(METADATA, lambda codec, v: bytes([1, codec.number, v])))
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
