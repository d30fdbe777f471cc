"""Frames that a client should never send, for every served API and version.

In: one source of chance, and what the broker under attack has (topics, groups). Out: frames without their length, some
sound but senseless, most of them damaged. The same chance gives the same frames.
"""

from collections.abc import Iterator
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from random import Random
from types import NoneType, UnionType
from typing import Any, NamedTuple, Union, get_args, get_origin
from uuid import UUID

from kio.schema.errors import ErrorCode
from tests.fuzz.poison import records
from tests.properties.kio_oracle import kio_bytes, kio_class

from stratalog.broker.apis import APIS
from stratalog.wire.apis import FETCH, PRODUCE, is_flexible
from stratalog.wire.codecs import codec
from stratalog.wire.ids import ZERO_ID
from stratalog.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)

BITS = {"int8": 7, "int16": 15, "int32": 31, "int64": 63}
UNSIGNED_BITS = {"uint8": 8, "uint16": 16, "uint32": 32, "uint64": 64}
SMALL = (0, 0, 0, 1, 1, 2, 3, -1, -2, 7, 100, 1000, 30_000)
TEXTS = ("", "a", ".", "..", "größe", "a/b", "x" * 127, "x" * 249, "x" * 250, "z" * 20_000)
SETTINGS = {
    "cleanup.policy": ("compact", "delete", "", "compact,delete", "x"),
    "retention.ms": ("-1", "0", "9223372036854775807", "9223372036854775808", "nan"),
    "segment.bytes": ("1048576", "1", "-1", "2147483647"),
    "max.message.bytes": ("0", "100", "1000000", ""),
    "message.timestamp.type": ("LogAppendTime", "CreateTime", "Sometime"),
    "compression.type": ("zstd", "producer", "none", "lzma"),
    "remote.storage.enable": ("true", "maybe"),
    "min.insync.replicas": ("1", "2", "0"),
    "num.partitions": ("1",),
    "unknown.setting": ("1",),
}
NODE = 70_123_456
"""The id of the node under attack; mutations never make it of another number.

A controller obeys requests to fence or unregister that broker, which then leads no partition.
"""
LIKELY = {
    "broker_ids": (NODE, NODE, NODE, 2, 0, -1),
    "broker_id": (2, 2, 3, 0, -1),
    "replicas": (NODE, NODE, NODE, 2, 0, -1),
    "partition": (0, 0, 0, 0, 1, 2, -1, 99),
    "index": (0, 0, 0, 0, 1, 2, -1, 99),
    "resource_type": (2, 2, 2, 4, 4, 8, 16, 32, 0),
    "timestamp": (-1, -2, -3, -4, -5, 0, 1_700_000_000_002, 1 << 62),
    "epoch": (-1, -1, -1, 0, 1, 7),
    "offset": (0, 0, 1, 2, 5, 7, -1),
    "timeout": (10_000, 6000, 0, -1),
    "bytes": (1 << 20, 1 << 20, 1, 0, -1, 0x7FFFFFFF),
    "factor": (1, -1, 1, 2, 0),
}
"""Numbers by a word of the field's name: with other numbers most requests would fail at their first check."""
OVERLONG = (b"\xff\xff\xff\xff\x0f", b"\xff\xff\xff\xff\x7f", b"\xff" * 10, b"\x80" * 5 + b"\x01")
LENGTHS = tuple(
    number.to_bytes(size, "big", signed=True)
    for size in (2, 4)
    for number in (-1, -2, 0, 1, 0x7F, 0x7FFF, (1 << (8 * size - 1)) - 1, -(1 << (8 * size - 1)))
)
LIST_OFFSETS = 2
JOIN_GROUP = 11
DAMAGED_OF_ONE = 3
"""Number of damaged frames for each sound one: the content of a sound frame is hostile, too, and reaches further
code.
"""


@dataclass
class Known:
    """Names for the fuzzer. `topic_ids` are ids of existing topics; the fuzzer invents the other names."""

    topics: tuple[str, ...] = ("sound", "other", "made", "__consumer_offsets")
    groups: tuple[str, ...] = ("group", "others", "")
    topic_ids: list[UUID] = field(default_factory=list)
    members: list[str] = field(default_factory=list)
    sessions: list[int] = field(default_factory=list)

    def learn(self, key: int, answer: Any) -> None:
        """Add names from the broker's answers: members of groups, fetch sessions."""
        if key == JOIN_GROUP and answer.member_id:
            self.members = [*self.members[-9:], answer.member_id]
        if key == FETCH and answer.session_id:
            self.sessions = [*self.sessions[-9:], answer.session_id]


class Frame(NamedTuple):
    """`sound`: the frame follows the schema of its key and version exactly."""

    key: int
    version: int
    data: bytes
    sound: bool


OFTEN = {PRODUCE: 3, FETCH: 2, LIST_OFFSETS: 3}
VERSIONS = [
    (key, version)
    for key, api in sorted(APIS.items())
    for version in range(api.served[0], api.served[1] + 1)
    for _ in range(OFTEN.get(key, 1))
]


class Frames:
    """An endless supply: `next(frames)`."""

    def __init__(self, chance: Random, known: Known) -> None:
        self._chance = chance
        self._known = known
        self._supply = self._frames()

    def __next__(self) -> Frame:
        return next(self._supply)

    def _frames(self) -> Iterator[Frame]:
        chance = self._chance
        while True:
            key, version = chance.choice(VERSIONS)
            head = self._header(key, version)
            body = self._body(key, version)
            sound = head + body
            yield Frame(key, version, sound, sound=True)
            if len(sound) > 5000 and chance.random() < 0.9:
                continue  # damage within a long text finds few faults
            for _ in range(DAMAGED_OF_ONE):
                if chance.random() < 0.9:
                    yield Frame(key, version, head + damaged(chance, body), sound=False)
                else:
                    yield Frame(key, version, damaged(chance, sound), sound=False)

    def _header(self, key: int, version: int) -> bytes:
        start = key.to_bytes(2, "big") + version.to_bytes(2, "big")
        start += self._chance.getrandbits(24).to_bytes(4, "big") + b"\0\4fuzz"
        return start + b"\0" if is_flexible(key, version) else start

    def _body(self, key: int, version: int) -> bytes:
        if key == PRODUCE:
            return self._produce(version)
        return kio_bytes(self._instance(kio_class(key, version, "request")))

    def _produce(self, version: int) -> bytes:
        chance = self._chance
        topics = [
            TopicProduceData(
                name=chance.choice(self._known.topics),
                topic_id=self._uuid() or ZERO_ID,
                partition_data=[
                    PartitionProduceData(
                        index=chance.choice((0, 0, 0, 1, 2, -1, 99)), records=records(chance)
                    )
                    for _ in range(chance.choice((0, 1, 1, 2)))
                ],
            )
            for _ in range(chance.choice((0, 1, 1, 1, 2)))
        ]
        request = ProduceRequest(
            transactional_id=chance.choice((None,) * 8 + ("", "transaction")),
            acks=chance.choice((1, 1, 1, -1, -1, -1, 0, 2)),
            timeout_ms=chance.choice((0, 1000, -1, 1 << 30)),
            topic_data=topics,
        )
        pieces = codec(PRODUCE).write_request[version](bytearray(), request)
        return b"".join(bytes(piece) for piece in pieces)

    def _instance(self, cls: Any) -> Any:
        return cls(**{one.name: self._field(cls, one) for one in fields(cls)})

    def _field(self, cls: Any, one: Any) -> Any:
        chance = self._chance
        if one.default is not MISSING and chance.random() < 0.3:
            return one.default
        declared, nullable, is_array = _shape(cls, one.name)
        if nullable and chance.random() < (0.7 if "transactional" in one.name else 0.15):
            return None
        if not is_array:
            return self._one(one, declared)
        return tuple(self._one(one, declared) for _ in range(chance.choice((0, 1, 1, 1, 2, 3))))

    def _one(self, one: Any, declared: Any) -> Any:
        if is_dataclass(declared):
            return self._instance(declared)
        return self._value(one.name, one.metadata["kafka_type"])

    def _number(self, name: str, kind: str) -> int:
        chance = self._chance
        if kind in UNSIGNED_BITS:
            return chance.choice((0, 1, (1 << UNSIGNED_BITS[kind]) - 1))
        if name == "session_id" and self._known.sessions and chance.random() < 0.8:
            return chance.choice(self._known.sessions)
        edge = 1 << BITS[kind]
        if chance.random() < 0.9:
            return max(-edge, min(edge - 1, chance.choice(_likely(name))))
        return chance.choice((edge - 1, -edge, chance.randrange(-edge, edge)))

    def _value(self, name: str, kind: str) -> Any:
        chance = self._chance
        if kind in BITS or kind in UNSIGNED_BITS:
            return self._number(name, kind)
        match kind:
            case "string":
                return self._text(name)
            case "bytes" | "records":
                return chance.randbytes(chance.choice((0, 1, 10, 200)))
            case "bool":
                return chance.random() < 0.5
            case "uuid":
                return self._uuid()
            case "float64":
                return chance.choice((0.0, -1.5, 1e300, float("nan"), float("inf")))
            case "error_code":
                return chance.choice(list(ErrorCode))
            case "timedelta_i32" | "timedelta_i64":
                edge = 1 << (31 if kind == "timedelta_i32" else 45)
                if "session" in name and chance.random() < 0.8:
                    return timedelta(seconds=10)
                milliseconds = (0, 1, 10, 100, 6000, 10_000, 10_000, -1, edge - 1, -edge)
                return timedelta(milliseconds=chance.choice(milliseconds))
            case "datetime_i64":
                seconds = chance.randrange(1 << 34)
                return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds)
        raise AssertionError(kind)

    def _text(self, name: str) -> str:
        chance = self._chance
        if chance.random() < 0.1:
            return chance.choice(TEXTS)
        if "group" in name:
            return chance.choice(self._known.groups)
        if name in ("config_name", "key"):
            return chance.choice(tuple(SETTINGS))
        if name == "value":
            return chance.choice(SETTINGS[chance.choice(tuple(SETTINGS))])
        if "protocol" in name:
            return chance.choice(("consumer", "range", ""))
        if "member" in name or "instance" in name:
            return chance.choice(("", "member", *self._known.members))
        if name == "resource_name":
            return chance.choice((*self._known.topics, str(NODE), "", "2"))
        return chance.choice(self._known.topics)

    def _uuid(self) -> UUID | None:
        chance = self._chance
        if self._known.topic_ids and chance.random() < 0.7:
            return chance.choice(self._known.topic_ids)
        return chance.choice((None, UUID(int=chance.getrandbits(128) | 1)))


@cache
def _likely(name: str) -> tuple[int, ...]:
    return next((values for word, values in LIKELY.items() if word in name), SMALL)


@cache
def _shape(cls: Any, name: str) -> tuple[Any, bool, bool]:
    """(declared type of the value or item, whether it may be null, whether it is an array)."""
    declared = next(one.type for one in fields(cls) if one.name == name)
    nullable = False
    if get_origin(declared) in (UnionType, Union):
        nullable = NoneType in get_args(declared)
        (declared,) = (one for one in get_args(declared) if one is not NoneType)
    if get_origin(declared) is not tuple:
        return declared, nullable, False
    item = get_args(declared)[0]
    if get_origin(item) in (UnionType, Union):
        (item,) = (one for one in get_args(item) if one is not NoneType)
    return item, nullable, True


def damaged(chance: Random, sound: bytes) -> bytes:
    """Return `sound` with one to three mutations: bits, lengths, counts, endless varints, removed or added pieces."""
    data = bytearray(sound)
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        at = chance.randrange(len(data) + 1)
        match chance.randrange(8):
            case 0 if at < len(data):
                data[at] ^= 1 << chance.randrange(8)
            case 1 if at < len(data):
                data[at] = chance.choice((0, 1, 2, 0x7F, 0x80, 0xFF, chance.randrange(256)))
            case 2:
                del data[at : at + chance.randrange(1, 9)]
            case 3:
                data[at:at] = chance.randbytes(chance.randrange(1, 6))
            case 4:
                wound = chance.choice(LENGTHS)
                data[at : at + len(wound)] = wound
            case 5:
                data[at : at + 1] = chance.choice(OVERLONG)
            case 6:
                piece = data[at : at + chance.randrange(1, 40)]
                data[at:at] = piece * chance.choice((1, 1, 2, 30))
            case _:
                del data[at:]
    return bytes(data)
