"""Kafka's internal records: what its metadata, offsets and transaction logs hold.

In: bytes of one record's key or value. Out: frozen objects, and back. It knows no batch, log or file.

`scripts/generate_messages.py` generates `*_records.py` and `codecs/`, as it does for messages: classes, and
straight-line functions, one for each range of versions with equal bytes. A record's functions are imported with the
first such record. The rest is written by hand.
"""

from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from typing import Any, NamedTuple

from stratalog.errors import Corrupt
from stratalog.ports import Buffer
from stratalog.wire.budget import TRUSTED, DecodeBudget
from stratalog.wire.internal.codecs import MODULES
from stratalog.wire.message_fields import UNREADABLE, past_end

__all__ = ["RecordCodec", "read_record", "record_codec"]


class RecordCodec(NamedTuple):
    """One type of record: its class, Kafka's number (-1 for none), the newest version, readers and writers by version.

    A reader takes the data and where the record begins. It returns the record and where that ends, which may lie past
    the end of the data; or it raises an error of `UNREADABLE`. A writer appends to a bytearray; it raises
    AssertionError for a value that its version cannot hold.
    """

    type: type[Any]
    number: int
    newest: int
    read: Mapping[int, Callable[[bytes, int, DecodeBudget], tuple[Any, int]]]
    write: Mapping[int, Callable[[bytearray, Any], None]]


@cache
def record_codec(name: str) -> RecordCodec:
    """Return the readers and writers of the records of the class `name`, and import them where they are new."""
    found: RecordCodec = import_module(f"{__name__}.codecs.{MODULES[name]}").CODEC
    return found


def read_record(codec: RecordCodec, data: Buffer, position: int, version: int) -> tuple[Any, int]:
    """Return the record of `version` at `position`, and where it ends.

    Raises Corrupt for bytes that are no such record, and for a version that `codec` does not have. Tagged fields with
    unknown tags are skipped (KIP-482).
    """
    read = codec.read.get(version)
    if read is None:
        name, known = codec.type.__name__, f"{min(codec.read)} to {codec.newest}"
        raise Corrupt(f"{name} version {version}: only {known} are known")
    try:
        record, end = read(bytes(data), position, TRUSTED)
        if end > len(data):
            raise past_end(end, len(data))
    except UNREADABLE as error:
        raise Corrupt(f"{codec.type.__name__} version {version}: {error}") from error
    return record, end
