"""Send the same requests to two brokers, and make their answers comparable.

In: an address, and requests as names and plain values. Out: a trace, one entry for each answer. Values that must differ
between two clusters (ids, addresses, times, the wording of messages) are replaced by placeholders. It never judges:
`differences` only returns where two traces differ.

Each request goes out in a version that both brokers have: the newest less `depth`, so that a few depths cover them all.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from enum import Enum
from itertools import count, zip_longest
from socket import create_connection
from typing import Any
from uuid import UUID

from msgspec import Struct
from tests.properties.kio_oracle import filled, kio_class, request_frame

from stratalog.client.calls import error_of
from stratalog.ports import Buffer
from stratalog.wire.apis import APIS, PRODUCE
from stratalog.wire.batch import scan
from stratalog.wire.envelope import decode_response, encode_request
from stratalog.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from stratalog.wire.records import read_records

TIMEOUT_S = 30
KEYS = {"".join(word.title() for word in api.name.split("_")): api for api in APIS.values()}
NO_ID = UUID(int=0)
GONE = UUID(int=77)
Versions = Mapping[int, tuple[int, int]]

# Field name -> the placeholder for its value, if the value is set.
STANDS_FOR = {
    "host": "a host",
    "port": "a port",
    "cluster_id": "an id",
    "documentation": "a text",
    "log_dir": "a directory",
    "throttle_time_ms": "a time",
    "total_bytes": "bytes",
    "usable_bytes": "bytes",
}
# Each broker decides whether and how it words an error; empty and null aborted transactions mean the same.
LEFT_OUT = {"error_message", "aborted_transactions"}
# Fields that identify an entry in a list without a defined order.
IDENTIFIED_BY = (
    "name",
    "topic",
    "topic_name",
    "member_id",
    "group_id",
    "partition_index",
    "index",
    "resource_name",
    "topic_id",
)
_MEMBER = re.compile(r"^(.*)-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$")


@dataclass
class Connection:
    """One connection. Separate `send` and `receive` let a request wait while other connections send theirs."""

    broker: "Broker"
    host: str
    port: int
    client_id: str = "story"

    def __post_init__(self) -> None:
        self.socket = create_connection((self.host, self.port), timeout=TIMEOUT_S)
        self.stream = self.socket.makefile("rb")
        self.correlation = count(1)
        self.waiting: list[tuple[str, int, int]] = []

    def send(self, api: str, **values: Any) -> None:
        """Send one request; leave out fields that the version lacks."""
        key = KEYS[api].key
        version = self.broker.version(key)
        number = next(self.correlation)
        if key == PRODUCE:
            pieces = encode_request(version, number, self.client_id, _produce(values))
            frame = b"".join(bytes(piece) for piece in pieces)
        else:
            body = filled(kio_class(key, version, "request"), values)
            frame = request_frame(key, version, number, self.client_id, body)
        self.socket.sendall(frame)
        self.waiting.append((api, key, version))

    def receive(self, *, traced: bool = True) -> Any:
        """Return the next answer; add it to the trace unless `traced` is False."""
        api, key, version = self.waiting.pop(0)
        size = self.stream.read(4)
        assert len(size) == 4, f"{api} v{version}: the connection was closed"
        frame = self.stream.read(int.from_bytes(size, "big"))
        _, body = decode_response(key, version, memoryview(frame))
        if traced:
            self.broker.add(f"{api}", body)
        return body

    def ask(self, api: str, **values: Any) -> Any:
        """Send one request; return its answer."""
        self.send(api, **values)
        return self.receive()

    def close(self) -> None:
        self.stream.close()
        self.socket.close()


@dataclass
class Broker:
    """One of the two brokers. `prefix` separates the names of one pass from those of the next."""

    address: str
    prefix: str
    common: Versions = field(default_factory=dict)
    depth: int = 0
    trace: list[tuple[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.connections: list[Connection] = []
        self.names: dict[UUID, str] = {}

    def version(self, key: int) -> int:
        oldest, newest = self.common.get(key, (0, 0))
        return max(oldest, newest - self.depth)

    def connect(self, client_id: str = "story") -> Connection:
        host, _, port = self.address.rpartition(":")
        self.connections.append(Connection(self, host, int(port), client_id))
        return self.connections[-1]

    def close(self) -> None:
        for connection in self.connections:
            connection.close()
        self.connections.clear()

    def name(self, text: str) -> str:
        """Return this pass's own name for the topic or group `text`."""
        return f"{self.prefix}{text}"

    def note_id(self, topic_id: UUID, name: str) -> None:
        """Show this id as `name` from now on."""
        self.names[topic_id] = name

    def id_of(self, name: str) -> UUID:
        """Return the topic's id as noted last, or an id that no topic has."""
        return next((one for one, noted in reversed(self.names.items()) if noted == name), GONE)

    def add(self, label: str, body: Any) -> None:
        """Append an entry to the trace."""
        self.trace.append((label, self.plain(body, "")))

    def plain(self, value: Any, name: str) -> Any:
        """Return `value` of the field `name` in a comparable form."""
        if name in STANDS_FOR:
            unset = value is None or value in ("", -1)
            return value if unset and name != "throttle_time_ms" else STANDS_FOR[name]
        if name == "records":
            return records(value)
        if name.endswith("error_code"):
            return error_of(value).name
        if name in ("session_id", "producer_id"):
            return "an id" if value > 0 or (value == 0 and name == "producer_id") else value
        if isinstance(value, Struct) or is_dataclass(value):
            struct = isinstance(value, Struct)
            names = value.__struct_fields__ if struct else [one.name for one in fields(value)]
            return {
                one: self.plain(getattr(value, one), one) for one in names if one not in LEFT_OUT
            }
        if isinstance(value, (tuple, list)):
            return self.entries([self.plain(one, "") for one in value])
        return self.scalar(value)

    def entries(self, found: list[Any]) -> Any:
        """Return a list, or a dict if its entries have an identifying field: Kafka does not promise their order."""
        if found and all(isinstance(one, dict) for one in found):
            for name in IDENTIFIED_BY:
                keys = [one.get(name) for one in found]
                if None not in keys and len(set(keys)) == len(keys):
                    return dict(zip(keys, found, strict=True))
        return found

    def scalar(self, value: Any) -> Any:
        match value:
            case Enum():
                return value.name
            case UUID():
                return "no id" if value == NO_ID else self.names.get(value, "an id")
            case bytes() | memoryview() | bytearray():
                return bytes(value)
            case str():
                named = value.removeprefix(self.prefix)
                member = _MEMBER.match(named)
                return f"{member[1]}-ID" if member else named
            case _:
                return value


def records(value: Buffer | Sequence[Buffer] | None) -> Any:
    """Return the records of fetched batches: offset, key, value, headers; and the batches' epochs and producers."""
    whole = (
        b""
        if value is None
        else bytes(value)
        if not isinstance(value, (tuple, list))
        else b"".join(map(bytes, value))
    )
    found = []
    for position, header in scan(whole):
        batch = memoryview(whole)[position : position + header.size]
        kept = [(one.offset, one.key, one.value, one.headers) for one in read_records(batch)]
        found.append(
            {"epoch": header.leader_epoch, "attributes": header.attributes, "records": kept}
        )
    return found


def _produce(values: Mapping[str, Any]) -> ProduceRequest:
    topics = [
        TopicProduceData(
            name=one.get("name", ""),
            topic_id=one.get("topic_id") or NO_ID,
            partition_data=[
                PartitionProduceData(index=index, records=batch and memoryview(batch))
                for index, batch in one["partitions"]
            ],
        )
        for one in values["topics"]
    ]
    return ProduceRequest(
        transactional_id=values.get("transactional_id"),
        acks=values.get("acks", -1),
        timeout_ms=10_000,
        topic_data=topics,
    )


def api_versions(address: str) -> dict[int, tuple[int, int]]:
    """Return the versions that a broker advertises: key -> oldest and newest version."""
    broker = Broker(address, "")
    try:
        answer = broker.connect().ask("ApiVersions")
    finally:
        broker.close()
    return {one.api_key: (one.min_version, one.max_version) for one in answer.api_keys}


def in_common(ours: Versions, theirs: Versions) -> dict[int, tuple[int, int]]:
    """Return the versions that both brokers serve and that have a schema."""
    found = {}
    for key in ours.keys() & theirs.keys():
        oldest = max(ours[key][0], theirs[key][0], APIS[key].oldest)
        newest = min(ours[key][1], theirs[key][1], APIS[key].newest)
        if oldest <= newest:
            found[key] = (oldest, newest)
    return found


def differences(left: Any, right: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield where two traces differ: path, the left value, the right value."""
    if isinstance(left, dict) and isinstance(right, dict):
        for key in [*left, *(right.keys() - left.keys())]:
            yield from differences(left.get(key), right.get(key), f"{path}.{key}")
    elif isinstance(left, (list, tuple)) and isinstance(right, (list, tuple)):
        for index, (one, other) in enumerate(zip_longest(left, right)):
            yield from differences(one, other, f"{path}[{index}]")
    elif left != right:
        yield path, left, right


def answers_are_equal(
    both: tuple[str, str],
    tells: Callable[[Broker], None],
    prefix: str,
    common: dict[int, tuple[int, int]],
    *,
    steps_min: int,
) -> None:
    """Tell our broker and Apache Kafka a story of more than `steps_min` steps; assert that all answers are equal."""
    traces = []
    for address in both:
        broker = Broker(address, prefix, common)
        try:
            tells(broker)
        finally:
            broker.close()
        traces.append(broker.trace)
    found = [
        f"#{step} {label}{path}: ours {mine!r}, Kafka's {theirs!r}"
        for step, ((label, one), (_, other)) in enumerate(zip(*traces, strict=True))
        for path, mine, theirs in differences(one, other)
    ]
    assert not found, "\n".join(found)
    assert len(traces[0]) > steps_min, f"{len(traces[0])} steps"
