"""Every message that kio has, in every version: our bytes equal kio's, and we read the same values as kio."""

from random import Random
from struct import error as struct_error
from sys import getsizeof
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Struct
from msgspec.structs import fields as struct_fields
from tests.properties.kio_oracle import (
    instance,
    kio_bytes,
    kio_class,
    kio_read,
    made,
    our_class,
    plain,
)
from tests.properties.test_wire_hostile import mutated

from stratalog.errors import Corrupt
from stratalog.wire.apis import APIS
from stratalog.wire.budget import DecodeBudget, OverBudget
from stratalog.wire.codecs import codec

SIDES = ("request", "response")
UNREADABLE = (Corrupt, OverBudget, struct_error, IndexError, UnicodeDecodeError)


def joined(pieces):
    return b"".join(bytes(piece) for piece in pieces)


def read(key, side, version, data, budget=None):
    table = codec(key)
    reader = (table.read_request if side == "request" else table.read_response)[version]
    views = table.request_has_records if side == "request" else table.response_has_records
    data = memoryview(bytearray(data)) if views else bytes(data)
    return reader(data, 0, budget or DecodeBudget(1 << 40))


def write(key, side, version, message):
    table = codec(key)
    writer = (table.write_request if side == "request" else table.write_response)[version]
    return joined(writer(bytearray(), message))


@pytest.mark.parametrize("key", sorted(APIS))
@settings(max_examples=4, deadline=None)
@given(st.randoms(use_true_random=False))
def test_we_write_the_bytes_of_kio_and_read_the_values_of_kio(key, chance):
    api = APIS[key]
    for version in range(api.oldest, api.newest + 1):
        for side in SIDES:
            theirs = instance(chance, kio_class(key, version, side))
            data = kio_bytes(theirs)
            message = made(our_class(key, side), plain(theirs))
            assert write(key, side, version, message) == data, (side, version)
            assert plain(read(key, side, version, data)) == plain(message), (side, version)
            assert kio_read(type(theirs), data) == theirs


def deep_bytes(value):
    """Return the memory of a message and its fields, except records and shared objects."""
    if isinstance(value, memoryview | bool | UUID) or value in (None, (), "", b""):
        return 0
    if isinstance(value, int) and -5 <= value <= 256:
        return 0
    if isinstance(value, str):  # as if it were ASCII: see STRING_BYTES
        return getsizeof("") + len(value.encode())
    size = getsizeof(value)
    if isinstance(value, Struct):
        parts = [(getattr(value, field.name), field.default) for field in struct_fields(value)]
        return size + sum(deep_bytes(part) for part, default in parts if part is not default)
    return size + sum(map(deep_bytes, value)) if isinstance(value, list | tuple) else size


@pytest.mark.parametrize("key", sorted(APIS))
def test_hostile_bytes_give_a_message_or_a_documented_error(key):
    chance = Random(key)
    api = APIS[key]
    for version in range(api.oldest, api.newest + 1):
        for side in SIDES:
            sound = kio_bytes(small_instance(chance, kio_class(key, version, side)))
            for turn in range(20):
                data = mutated(chance, sound) if turn else sound
                budget = DecodeBudget(1 << 20)
                try:
                    message = read(key, side, version, data, budget)
                except UNREADABLE:
                    assert turn, "the mutated message must have been sound"
                    continue
                # A message that was read can be written and read again as the same; the budget covers its memory.
                again = read(key, side, version, write(key, side, version, message))
                assert repr(plain(again)) == repr(plain(message))
                assert deep_bytes(message) <= budget.charged <= 1 << 20


def small_instance(chance, cls):
    """Return an instance without the text of 20,000 letters, because most mutations would fall into that text."""
    while True:
        entity = instance(chance, cls)
        if "zzz" not in repr(entity):
            return entity


@pytest.mark.parametrize("key", sorted(APIS))
def test_a_reader_builds_nothing_beyond_its_budget(key):
    chance = Random(key)
    api = APIS[key]
    for side in SIDES:
        data = kio_bytes(instance(chance, kio_class(key, api.newest, side)))
        whole = DecodeBudget(1 << 40)
        read(key, side, api.newest, data, whole)
        with pytest.raises(OverBudget):
            read(key, side, api.newest, data, DecodeBudget(whole.charged - 1))
