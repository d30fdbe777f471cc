"""Readers and writers of Kafka's messages: one module per API, each imported when a request of it comes.

In: a body's bytes, or an object of `wire/messages`. Out: the other. They never know headers or frames
(`wire/envelope.py` does).

`scripts/generate_messages.py` writes straight-line functions: one for each struct and each range of versions in which
its bytes are the same. Neighbouring fields of fixed size are one `struct` call.

A reader leaves what its version lacks at the schema's default, and skips tagged fields that it does not know. The
writer of a response drops what its version lacks: a handler answers all versions alike. The writer of a request refuses
a value other than the default that its version lacks, unless the schema marks the field as ignorable, as Kafka does.
"""

from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from typing import Any

from msgspec import Struct

from stratalog.ports import Buffer
from stratalog.wire.apis import APIS
from stratalog.wire.budget import DecodeBudget

__all__ = ["Codec", "codec"]


class Codec(Struct, frozen=True):
    """The readers and writers of one API, by version.

    A reader takes the data, the position of the body and the budget of what may be built. The data are a memoryview
    where records are views of it (`request_has_records`, `response_has_records`), else bytes. It raises Corrupt,
    `struct.error`, IndexError or UnicodeDecodeError where the data are no such message.

    A writer appends to a bytearray and returns the buffers to send, of which that is the first.
    """

    read_request: Mapping[int, Callable[[Any, int, DecodeBudget], Any]]
    write_request: Mapping[int, Callable[[bytearray, Any], list[Buffer]]]
    read_response: Mapping[int, Callable[[Any, int, DecodeBudget], Any]]
    write_response: Mapping[int, Callable[[bytearray, Any], list[Buffer]]]
    request_has_records: bool = False
    response_has_records: bool = False


@cache
def codec(api_key: int) -> Codec:
    """Return the readers and writers of an API, and import them where they are new."""
    found: Codec = import_module(f"stratalog.wire.codecs.{APIS[api_key].name}").CODEC
    return found
