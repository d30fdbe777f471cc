"""Requests of any size: for each API that has an array, frames that name `count` things, all different or all the same.

In: how many items. Out: whole frames. They are written by hand, from Kafka's message schemas, so that no reader or
writer of ours must agree with itself.
"""

from collections.abc import Callable
from dataclasses import dataclass
from struct import pack

TOPIC = "large"
"""The topic, of one partition, that requests about partitions name."""
Item = Callable[[int], bytes]


@dataclass(frozen=True)
class Large:
    """One API's request with one array that may be any length."""

    key: int
    version: int
    before: bytes
    item: Item
    after: bytes = b""
    flexible: bool = False

    def frame(self, count: int, *, same: bool = False) -> bytes:
        """Return a request of `count` items, with its length. `same`: the first one, over and over."""
        items = [self.item(1)] * count if same else map(self.item, range(count))
        length = varint(count + 1) if self.flexible else pack(">i", count)
        header = pack(">hhih", self.key, self.version, 7, -1) + b"\0" * self.flexible
        body = b"".join((header, self.before, length, *items, self.after))
        return pack(">i", len(body)) + body


def varint(value: int) -> bytes:
    """Return an unsigned varint."""
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def text(value: str | None) -> bytes:
    """Return a string with a length of two bytes; null is -1."""
    if value is None:
        return b"\xff\xff"
    encoded = value.encode()
    return pack(">h", len(encoded)) + encoded


def names(number: int) -> bytes:
    """Return a name that nothing has, of a few bytes."""
    return text(f"n{number}")


def one(item: bytes) -> bytes:
    """Return an array of one item."""
    return pack(">i", 1) + item


def of_topic(*before: bytes) -> bytes:
    """Return what stands before the partitions of an array of one topic."""
    return b"".join(before) + pack(">i", 1) + text(TOPIC)


def _fetched(number: int) -> bytes:
    return pack(">iqqi", number, 0, -1, 1 << 20)


def _i32(number: int) -> bytes:
    return pack(">i", number)


_EMPTY = bytes(4)
_FETCH = pack(">iiiibii", -1, 0, 0, 1 << 20, 0, 0, -1)
_PRODUCE = b"\xff\xff" + pack(">hi", 1, 1000)
_COMMIT = text("group") + pack(">i", -1) + text("") + pack(">q", -1)
_JOIN = text("group") + pack(">ii", 10_000, 10_000) + text("") + text("consumer")
_SYNC = text("group") + pack(">i", 1) + text("member")

LARGE: dict[str, Large] = {
    "Produce, partitions": Large(0, 7, of_topic(_PRODUCE), lambda n: _i32(n) + b"\xff" * 4),
    "Produce, topics": Large(0, 7, _PRODUCE, lambda n: names(n) + one(_i32(0) + b"\xff" * 4)),
    "Fetch, partitions": Large(1, 7, of_topic(_FETCH), _fetched, _EMPTY),
    "Fetch, topics": Large(1, 7, _FETCH, lambda n: names(n) + one(_fetched(0)), _EMPTY),
    "Fetch, forgotten": Large(1, 7, _FETCH + _EMPTY + of_topic(), _i32),
    "ListOffsets, partitions": Large(2, 1, of_topic(_i32(-1)), lambda n: _i32(n) + pack(">q", -1)),
    "ListOffsets, topics": Large(
        2, 1, _i32(-1), lambda n: names(n) + one(_i32(0) + pack(">q", -1))
    ),
    "Metadata": Large(3, 8, b"", names, b"\0\0\0"),
    "OffsetCommit, partitions": Large(
        8, 2, of_topic(_COMMIT), lambda n: pack(">iq", n, 5) + text("x")
    ),
    "OffsetCommit, topics": Large(
        8, 2, _COMMIT, lambda n: names(n) + one(pack(">iq", 0, 5) + text("x"))
    ),
    "OffsetFetch, partitions": Large(9, 5, of_topic(text("group")), _i32),
    "OffsetFetch, topics": Large(9, 5, text("group"), lambda n: names(n) + one(_i32(0))),
    "OffsetFetch, groups": Large(
        9, 8, b"", lambda n: b"\x0b" + b"group%05d" % n + b"\x01\0", b"\0\0", flexible=True
    ),
    "FindCoordinator": Large(10, 4, b"\0", lambda n: b"\x0a" + b"k%08d" % n, b"\0", flexible=True),
    "JoinGroup": Large(11, 1, _JOIN, lambda n: names(n) + _EMPTY),
    "LeaveGroup": Large(13, 3, text("group"), lambda n: names(n) + text(None)),
    "SyncGroup": Large(14, 1, _SYNC, lambda n: names(n) + _EMPTY),
    "DescribeGroups": Large(15, 2, b"", names),
    "ListGroups, states": Large(16, 4, b"", lambda n: b"\x0a" + b"s%08d" % n, b"\0", flexible=True),
    "ListGroups, types": Large(
        16, 5, b"\x01", lambda n: b"\x0a" + b"t%08d" % n, b"\0", flexible=True
    ),
    "CreateTopics, topics": Large(
        19, 4, b"", lambda n: names(n) + pack(">ihii", -1, -1, 0, 0), pack(">ib", 1000, 1)
    ),
    "CreateTopics, assignments": Large(
        19,
        4,
        _i32(1) + text("wide") + pack(">ih", -1, -1),
        lambda n: _i32(n) + one(_i32(1)),
        _EMPTY + pack(">ib", 1000, 1),
    ),
    "CreateTopics, settings": Large(
        19,
        4,
        _i32(1) + text("wide") + pack(">ih", 1, 1) + _EMPTY,
        lambda n: names(n) + text("v"),
        pack(">ib", 1000, 1),
    ),
    "DeleteTopics": Large(20, 3, b"", names, _i32(1000)),
    "DeleteTopics, ids": Large(
        20, 6, b"", lambda n: b"\0" + pack(">qq", 1, n) + b"\0", _i32(1000) + b"\0", flexible=True
    ),
    "DeleteRecords, partitions": Large(21, 1, of_topic(), lambda n: pack(">iq", n, 0), _i32(1000)),
    "DeleteRecords, topics": Large(
        21, 1, b"", lambda n: names(n) + one(pack(">iq", 0, 0)), _i32(1000)
    ),
    "OffsetForLeaderEpoch, partitions": Large(
        23, 3, of_topic(_i32(-1)), lambda n: pack(">iii", n, -1, 0)
    ),
    "OffsetForLeaderEpoch, topics": Large(
        23, 3, _i32(-1), lambda n: names(n) + one(pack(">iii", 0, -1, 0))
    ),
    "DescribeConfigs, topics": Large(32, 1, b"", lambda n: b"\2" + names(n) + b"\xff" * 4, b"\0"),
    "DescribeConfigs, names": Large(32, 1, _i32(1) + b"\2" + text(TOPIC), names, b"\0"),
    "AlterConfigs, topics": Large(33, 1, b"", lambda n: b"\2" + names(n) + _EMPTY, b"\1"),
    "AlterConfigs, settings": Large(
        33, 1, _i32(1) + b"\2" + text(TOPIC), lambda n: names(n) + text("v"), b"\1"
    ),
    "AlterReplicaLogDirs, partitions": Large(
        34, 1, _i32(1) + text("/nowhere") + _i32(1) + text(TOPIC), _i32
    ),
    "AlterReplicaLogDirs, topics": Large(
        34, 1, _i32(1) + text("/nowhere"), lambda n: names(n) + one(_i32(0))
    ),
    "DescribeLogDirs, partitions": Large(35, 1, of_topic(), _i32),
    "DescribeLogDirs, topics": Large(35, 1, b"", lambda n: names(n) + one(_i32(0))),
    "CreatePartitions, topics": Large(
        37, 1, b"", lambda n: names(n) + pack(">ii", 2, -1), pack(">ib", 1000, 1)
    ),
    "CreatePartitions, assignments": Large(
        37,
        1,
        _i32(1) + text(TOPIC) + _i32(2),
        lambda n: one(_i32(1)),
        pack(">ib", 1000, 1),
    ),
    "DeleteGroups": Large(42, 1, b"", names),
    "ElectLeaders, partitions": Large(43, 1, b"\0" + of_topic(), _i32, _i32(1000)),
    "ElectLeaders, topics": Large(43, 1, b"\0", lambda n: names(n) + one(_i32(0)), _i32(1000)),
    "IncrementalAlterConfigs, topics": Large(
        44, 0, b"", lambda n: b"\2" + names(n) + _EMPTY, b"\1"
    ),
    "IncrementalAlterConfigs, settings": Large(
        44, 0, _i32(1) + b"\2" + text(TOPIC), lambda n: names(n) + b"\0" + text("v"), b"\1"
    ),
    "AlterPartitionReassignments": Large(
        45,
        0,
        _i32(1000) + b"\2" + varint(len(TOPIC) + 1) + TOPIC.encode(),
        lambda n: _i32(n) + b"\0\0",
        b"\0\0",
        flexible=True,
    ),
    "ListPartitionReassignments": Large(
        46,
        0,
        _i32(1000) + b"\2" + varint(len(TOPIC) + 1) + TOPIC.encode(),
        _i32,
        b"\0\0",
        flexible=True,
    ),
    "OffsetDelete, partitions": Large(47, 0, of_topic(text("group")), _i32),
    "OffsetDelete, topics": Large(47, 0, text("group"), lambda n: names(n) + one(_i32(0))),
    "DescribeQuorum": Large(
        55, 0, b"\2\x13__cluster_metadata", lambda n: _i32(n) + b"\0", b"\0\0", flexible=True
    ),
    "UpdateFeatures": Large(
        57,
        1,
        _i32(1000),
        lambda n: b"\x0a" + b"f%08d" % n + b"\0\1\1\0",
        b"\1\0",
        flexible=True,
    ),
    "DescribeProducers, partitions": Large(
        61, 0, b"\2" + varint(len(TOPIC) + 1) + TOPIC.encode(), _i32, b"\0\0", flexible=True
    ),
    "ListConfigResources": Large(74, 1, b"", lambda n: bytes((n % 100,)), b"\0", flexible=True),
    "DescribeTopicPartitions": Large(
        75, 0, b"", lambda n: b"\x0a" + b"n%08d" % n + b"\0", _i32(2000) + b"\xff\0", flexible=True
    ),
    # A section of tags has no null: its length is one less than an array's.
    "ApiVersions, tags": Large(18, 3, b"\2n\2v", lambda n: b"\x05\0", b"\x05\0", flexible=True),
}
"""By the API's name, with the array's where it has several."""
