"""The largest requests: for each array of each API of brokers' listeners, frames that name any number of things in it.

In: the number of items. Out: whole frames. kio writes them from Kafka's schemas, so the frames are independent of our
readers and writers.
"""

from collections.abc import Iterator
from dataclasses import MISSING, dataclass, fields, is_dataclass
from datetime import timedelta
from struct import pack
from time import time
from typing import Any
from uuid import UUID

from kio.schema.errors import ErrorCode
from tests.fuzz.frames import _shape
from tests.properties.kio_oracle import kio_bytes, kio_class

from stratalog.broker.apis import APIS
from stratalog.wire.apis import ListenerKind, is_flexible
from stratalog.wire.records import Record, build_batch

TOPIC = "large"
"""The topic, of one partition, and the group that requests name."""
BATCH = bytes(build_batch([Record(0, int(time() * 1000), None, b"x")]))
API_VERSIONS = 18
_TEXT, _INT, _ID = "n0000000", 0x5A5A5A5A, UUID(int=0x5A5A5A5A)
"""The placeholder of an item's number."""
_VALUES: dict[str, Any] = {
    "acks": 1,
    "session_epoch": -1,
    "replica_id": -1,
    "current_leader_epoch": -1,
    "partition_max_bytes": 1,
    "max_bytes": 1 << 20,
    "generation_id": 1,
    "generation_id_or_member_epoch": -1,
    "member_epoch": -1,
    "session_timeout_ms": 10_000,
    "protocol_type": "consumer",
    "member_id": "",
    "path": "/nowhere",
    "topic_name": "__cluster_metadata",
    "allow_auto_topic_creation": False,
    "resource_type": 2,
    "resource_types": 2,
    "num_partitions": -1,
    "replication_factor": -1,
    "broker_ids": 1,
    "count": 2,
    "upgrade_type": 1,
    "validate_only": True,
    "response_partition_limit": 2000,
}
_NULL = ("group_instance_id", "transactional_id", "member_id")
_NUMBERED = (
    "partition",
    "partitions",
    "partition_index",
    "partition_indexes",
    "index",
    "broker_ids",
)


@dataclass(frozen=True)
class Large:
    """One API's request with one array of any length."""

    key: int
    version: int
    before: bytes
    item: bytes
    known: bytes
    """An item that names something that exists: TOPIC or its partition 0."""
    after: bytes
    tags: bool = False

    def frame(self, count: int, *, same: bool = False) -> bytes:
        """Return a request of `count` items, with its length. `same`: the known one, over and over."""
        items = [self.known] * count if same else map(self._numbered, range(count))
        flexible = is_flexible(self.key, self.version)
        length = varint(count + (not self.tags)) if flexible else pack(">i", count)
        header = pack(">hhih", self.key, self.version, 7, -1) + b"\0" * flexible
        body = b"".join((header, self.before, length, *items, self.after))
        return pack(">i", len(body)) + body

    def _numbered(self, number: int) -> bytes:
        item = self.item.replace(_TEXT.encode(), b"n%07d" % number)
        return item.replace(pack(">i", _INT), pack(">i", number))


def varint(value: int) -> bytes:
    """Return an unsigned varint."""
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def large_requests(topic_id: UUID) -> dict[str, Large]:
    """Return a request for each array, in the newest version that has it, by the API's name and the array's path.

    Where an array lies in another, that has one item. `topic_id` is that of TOPIC.
    """
    found = {}
    for key, api in sorted(APIS.items()):
        if ListenerKind.BROKER not in api.listeners:
            continue  # the process under attack has no listener that serves it
        for version in range(api.served[0], api.served[1] + 1):
            cls = kio_class(key, version, "request")
            for path in _arrays(cls, ()):
                found[f"{api.name} {'.'.join(path)}"] = _large(key, version, path, topic_id)
    # A section of tags has no null: its length is one less than an array's.
    software = b"\2n\2v"
    found["ApiVersions tags"] = Large(API_VERSIONS, 3, software, b"\5\0", b"\5\0", b"", tags=True)
    return found


def _arrays(cls: Any, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    for one in fields(cls):
        declared, _, is_array = _shape(cls, one.name)
        if is_array:
            yield (*path, one.name)
        if is_dataclass(declared):
            yield from _arrays(declared, (*path, one.name))


def _large(key: int, version: int, path: tuple[str, ...], topic_id: UUID) -> Large:
    cls = kio_class(key, version, "request")
    none = kio_bytes(_Writer(topic_id, count=0).made(cls, path))
    known = kio_bytes(_Writer(topic_id, count=1).made(cls, path))
    one = kio_bytes(_Writer(topic_id, count=1, numbered=True).made(cls, path))
    # The first byte that differs is the last of the array's length.
    at = next(index for index, (a, b) in enumerate(zip(none, one, strict=False)) if a != b)
    start = at if is_flexible(key, version) else at - 3
    after = none[at + 1 :]
    items = [data[at + 1 : len(data) - len(after)] for data in (one, known)]
    return Large(key, version, none[:start], *items, after)


@dataclass(frozen=True)
class _Writer:
    """Makes one request of kio's: `count` items in the array; `numbered`: with what stands for their numbers."""

    topic_id: UUID
    count: int
    numbered: bool = False

    def made(self, cls: Any, path: tuple[str, ...] | None) -> Any:
        """Return an object. `path` leads from it to the array; None: it is the array's item."""
        values = {}
        for one in fields(cls):
            declared, nullable, is_array = _shape(cls, one.name)
            if path and path[0] == one.name:
                count, rest = (1, path[1:]) if path[1:] else (self.count, None)
                values[one.name] = (self._item(one, declared, rest),) * count
            elif nullable and (is_array or is_dataclass(declared) or one.name in _NULL):
                values[one.name] = None
            elif is_array:
                # An item has one thing in each array; elsewhere they are empty.
                values[one.name] = (self._item(one, declared, ()),) if path is None else ()
            elif is_dataclass(declared):
                values[one.name] = self.made(declared, ())
            elif one.default is MISSING or one.name in _VALUES or path is None:
                values[one.name] = self._value(one, numbered=self.numbered and path is None)
        return cls(**values)

    def _item(self, one: Any, declared: Any, path: tuple[str, ...] | None) -> Any:
        if is_dataclass(declared):
            return self.made(declared, path)
        return self._value(one, numbered=self.numbered and path is None)

    def _value(self, one: Any, *, numbered: bool) -> Any:
        given = _VALUES.get(one.name, 0)
        text = _VALUES.get(one.name, TOPIC)
        match one.metadata["kafka_type"]:
            case "string":
                return _TEXT if numbered else text
            case "uuid":
                return _ID if numbered else self.topic_id
            case "int32" if numbered and one.name in _NUMBERED:
                return _INT
            case "bool":
                return bool(given)
            case "bytes":
                return b""
            case "records":
                return BATCH
            case "error_code":
                return ErrorCode.none
            case "timedelta_i32" | "timedelta_i64":
                return timedelta(milliseconds=given or 1000)
        return given
