"""Goal: no order of a client's bytes hides a change or a denial from the audit, or makes its lines long.

Method: a broker with logins and ACLs; clients that disconnect at once, expect no answer, or choose texts of any length.
"""

import json
import socket
import struct
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.integration.test_audit import WORD, lines_of, reset, settings
from tests.integration.test_sasl import Raw
from tests.integration.waiting import wait_for

from stratalog.broker.network import turns
from stratalog.metadata.rights import Operation, PatternType, Permission, Resource
from stratalog.testing.broker import TemporaryBroker
from stratalog.wire.envelope import decode_response, encode_request
from stratalog.wire.messages import Request
from stratalog.wire.messages.create_acls import AclCreation, CreateAclsRequest
from stratalog.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from stratalog.wire.messages.find_coordinator import FindCoordinatorRequest
from stratalog.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from stratalog.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from stratalog.wire.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup
from stratalog.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)

LINE_BYTES_MAX = 5000
LONG = "\x01" * 30_000


class Client(Raw):
    """A connection that has logged in."""

    def __init__(self, broker: TemporaryBroker, user: str) -> None:
        super().__init__(broker)
        assert self.handshake("PLAIN") == 0
        assert self.token(f"\0{user}\0{WORD}".encode()) == (0, b"")

    def tell(self, version: int, body: Request[Any], client_id: str = "c") -> None:
        """Send a request."""
        pieces = encode_request(version, 7, client_id, body)
        self.stream.sendall(b"".join(map(bytes, pieces)))

    def answer(self, version: int, body: Request[Any]) -> Any:
        """Send a request; return its answer."""
        self.tell(version, body)
        head = self._exactly(4)
        assert head is not None
        (size,) = struct.unpack(">i", head)
        return decode_response(body.KEY, version, memoryview(self._exactly(size) or b""))[1]


def creation(name: str) -> CreateTopicsRequest:
    topic = CreatableTopic(
        name=name, num_partitions=1, replication_factor=1, assignments=(), configs=()
    )
    return CreateTopicsRequest(topics=[topic], timeout_ms=9000, validate_only=False)


@pytest.fixture
def audited(tmp_path: Path) -> Iterator[tuple[TemporaryBroker, Path]]:
    """Yield a broker and the path of its audit."""
    path = tmp_path / "audit.log"
    with TemporaryBroker(settings(path)) as broker:
        yield broker, path


def test_a_change_has_its_line_although_its_client_disconnects_at_once(
    audited: tuple[TemporaryBroker, Path],
) -> None:
    broker, path = audited
    for number in range(10):
        gone = Client(broker, "admin")
        gone.tell(7, creation(f"t{number}"))
        reset(gone.stream)
    with closing(Client(broker, "admin")) as admin:
        # Decided after those before it. A reset may have destroyed a request that the broker had not read.
        assert not admin.answer(7, creation("last")).topics[0].error_code
        found = {one.name for one in admin.answer(9, MetadataRequest(topics=None)).topics}
    assert len(found) > 1

    def noted() -> set[str]:
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        return {line["topic"] for line in lines if line["event"] == "topic created"}

    wait_for(lambda: noted() == found, f"a line for each of {found}")


def test_a_denied_produce_without_an_answer_has_its_line(
    audited: tuple[TemporaryBroker, Path],
) -> None:
    broker, path = audited
    partition = PartitionProduceData(index=0, records=b"")
    topic = TopicProduceData(name="secret", partition_data=[partition])
    with closing(Client(broker, "alice")) as alice:
        alice.tell(9, ProduceRequest(acks=0, timeout_ms=1000, topic_data=[topic]))
        assert alice.stream.recv(1) == b"", "as in Kafka, the connection's end tells of it"
    (line,) = lines_of(path, 1)
    assert (line["event"], line["principal"]) == ("denied", "User:alice")
    assert line["denied"] == ["WRITE TOPIC secret"]


def test_a_denied_request_has_its_line_although_its_client_ends_at_once(
    audited: tuple[TemporaryBroker, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    broker, path = audited
    # The rights to some topics are decided before the broker sees the connection's end.
    monkeypatch.setattr(turns, "_SLICE_ITEMS", 450)
    monkeypatch.setattr(turns, "_SLICE_NS", 10**10)
    names = [MetadataRequestTopic(name=f"secret-{number}") for number in range(300)]
    gone = [Client(broker, "alice") for _ in range(5)]
    for alice in gone:
        alice.tell(9, MetadataRequest(topics=names))
        alice.stream.shutdown(socket.SHUT_WR)
    lines = lines_of(path, len(gone))
    for alice in gone:
        alice.close()
    assert {(line["event"], line["api"]) for line in lines} == {("denied", "Metadata")}
    assert {line["denied"][0] for line in lines} == {"DESCRIBE TOPIC secret-0"}


def test_topics_that_a_client_does_not_name_are_not_denied(
    audited: tuple[TemporaryBroker, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    broker, path = audited
    monkeypatch.setattr(turns, "_SLICE_ITEMS", 20)
    with closing(Client(broker, "admin")) as admin:
        topics = [creation(f"t{number}").topics[0] for number in range(300)]
        request = CreateTopicsRequest(topics=topics, timeout_ms=9000, validate_only=False)
        assert not any(one.error_code for one in admin.answer(7, request).topics)
        gone = [Client(broker, "alice") for _ in range(5)]
        for alice in gone:
            alice.tell(9, MetadataRequest(topics=None))
            alice.stream.shutdown(socket.SHUT_WR)
        for alice in gone:
            while alice.stream.recv(65536):
                pass
            alice.close()
        assert not admin.answer(7, creation("last")).topics[0].error_code
    assert {line["event"] for line in lines_of(path, 301)} == {"topic created"}


def allowing(resource: Resource, name: str, operation: Operation) -> AclCreation:
    """Return an ACL for alice."""
    return AclCreation(
        resource_type=resource,
        resource_name=name,
        resource_pattern_type=PatternType.LITERAL,
        principal="User:alice",
        host="*",
        operation=operation,
        permission_type=Permission.ALLOW,
    )


def test_topics_of_a_groups_offsets_that_a_client_does_not_name_are_not_denied(
    audited: tuple[TemporaryBroker, Path],
) -> None:
    broker, path = audited
    partition = OffsetCommitRequestPartition(
        partition_index=0, committed_offset=5, committed_metadata=""
    )
    topics = [OffsetCommitRequestTopic(name="secret", partitions=[partition])]
    with closing(Client(broker, "admin")) as admin, closing(Client(broker, "alice")) as alice:
        admin.answer(7, creation("secret"))
        admin.answer(
            3, CreateAclsRequest(creations=[allowing(Resource.GROUP, "hers", Operation.DESCRIBE)])
        )
        commit = OffsetCommitRequest(group_id="hers", member_id="", topics=topics)
        find = FindCoordinatorRequest(coordinator_keys=["hers"])
        wait_for(lambda: not admin.answer(4, find).coordinators[0].error_code, "the coordinator")
        wait_for(
            lambda: not admin.answer(8, commit).topics[0].partitions[0].error_code, "the group"
        )
        groups = [OffsetFetchRequestGroup(group_id=name, topics=None) for name in ("hers", "his")]
        hers, his = alice.answer(8, OffsetFetchRequest(groups=groups)).groups
        assert (hers.error_code, hers.topics, his.error_code) == (0, [], 30)
    *_, line = lines_of(path, 3)
    assert line["denied"] == ["DESCRIBE GROUP his"]


def test_operations_that_a_client_only_asks_about_are_not_denied(
    audited: tuple[TemporaryBroker, Path],
) -> None:
    broker, path = audited
    allowed = allowing(Resource.TOPIC, "mine", Operation.READ)
    with closing(Client(broker, "admin")) as admin, closing(Client(broker, "alice")) as alice:
        admin.answer(7, creation("mine"))
        admin.answer(3, CreateAclsRequest(creations=[allowed]))
        names = [MetadataRequestTopic(name=name) for name in ("mine", "secret")]
        request = MetadataRequest(topics=names, include_topic_authorized_operations=True)
        mine, secret = sorted(alice.answer(9, request).topics, key=lambda one: one.name)
        read = 1 << Operation.READ | 1 << Operation.DESCRIBE
        assert (mine.topic_authorized_operations, secret.error_code) == (read, 29)
    *_, line = lines_of(path, 3)
    assert line["denied"] == ["DESCRIBE TOPIC secret"]


def test_texts_of_any_length_make_no_long_lines(audited: tuple[TemporaryBroker, Path]) -> None:
    broker, path = audited
    with closing(Raw(broker)) as raw:
        assert raw.handshake(LONG) == 33
    with closing(Raw(broker)) as raw:
        assert raw.handshake("PLAIN") == 0
        assert raw.token(b"\0" + LONG[:15_000].encode() + b"\0wrong") == (58, b"")
    with closing(Client(broker, "alice")) as alice, closing(Client(broker, "alice")) as named:
        alice.tell(9, MetadataRequest(topics=[MetadataRequestTopic(name=LONG)]))
        alice.stream.settimeout(5)
        alice.stream.recv(1)
        named.tell(7, creation("denied"), LONG)
        named.stream.recv(1)
    lines = lines_of(path, 3)
    assert {line["event"] for line in lines} == {"login failed", "denied"}
    assert max(map(len, path.read_text().splitlines())) < LINE_BYTES_MAX
    assert lines[1]["user"].endswith("… (15000 characters)")
