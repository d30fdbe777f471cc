"""Requests as bytes over one connection, for requests that no client library sends.

In: an address, requests. Out: decoded answers. It retries nothing and waits 30 s at most.
"""

import socket
import ssl
from types import TracebackType
from typing import Any, Self, TypeVar
from uuid import UUID

from tests.produce import produce_body

from stratalog.metadata.rights import Operation, Permission, Resource
from stratalog.wire.envelope import decode_response, encode_request
from stratalog.wire.messages import Request
from stratalog.wire.messages.create_acls import AclCreation, CreateAclsRequest
from stratalog.wire.messages.metadata import MetadataRequest, MetadataRequestTopic

TIMEOUT_S = 30
R = TypeVar("R")


class Wire:
    """`with Wire(address) as wire: wire.ask(version, body)`."""

    def __init__(
        self, address: str, trusting: ssl.SSLContext | None = None, source: str = ""
    ) -> None:
        """Connect from an address of this host, such as 127.0.0.2; with `trusting` by TLS."""
        host, _colon, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), TIMEOUT_S, (source, 0))
        if trusting is not None:
            self._socket = trusting.wrap_socket(self._socket, server_hostname=host)
        self._stream = self._socket.makefile("rb")
        self._correlation = 0
        self.client_id = "wire"

    @property
    def socket(self) -> socket.socket:
        """The connection itself."""
        return self._socket

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the connection."""
        self._stream.close()
        self._socket.close()

    def send(self, version: int, body: Request[Any]) -> None:
        """Send a request; `receive` returns the answer."""
        self._correlation += 1
        pieces = encode_request(version, self._correlation, self.client_id, body)
        self._socket.sendall(b"".join(bytes(piece) for piece in pieces))

    def receive(self, key: int, version: int) -> Any:
        """Return the next answer; raise ConnectionError if the broker closed the connection."""
        head = self._stream.read(4)
        if len(head) < 4:
            raise ConnectionError("closed")
        frame = self._stream.read(int.from_bytes(head, "big"))
        return decode_response(key, version, memoryview(frame))[1]

    def ask(self, version: int, body: Request[R]) -> R:
        """Send a request and return its answer."""
        self.send(version, body)
        answer: R = self.receive(body.KEY, version)
        return answer

    def produce(
        self,
        topic: str | UUID,
        records: bytes | bytearray | None,
        *,
        version: int = 9,
        acks: int = -1,
        index: int = 0,
    ) -> Any:
        """Produce one records field to one partition."""
        self.send_produce(topic, records, version=version, acks=acks, index=index)
        return self.receive_produced(version)

    def send_produce(
        self,
        topic: str | UUID,
        records: bytes | bytearray | None,
        *,
        version: int = 9,
        acks: int = -1,
        index: int = 0,
    ) -> None:
        """As `produce`, but `receive_produced` returns the answer."""
        self.send(version, produce_body(topic, records, acks=acks, index=index))

    def receive_produced(self, version: int = 9) -> Any:
        """The answer for the one partition."""
        answer = self.receive(0, version)
        return answer.responses[0].partition_responses[0]

    def topic_id(self, topic: str) -> UUID:
        """Return the topic's id from Metadata, which creates the topic if the broker allows that."""
        body = MetadataRequest(
            topics=[MetadataRequestTopic(name=topic)],
            allow_auto_topic_creation=True,
            include_topic_authorized_operations=False,
        )
        for _ in range(50):
            (found_topic,) = self.ask(12, body).topics
            if found_topic.error_code == 0 and found_topic.partitions:
                found: UUID = found_topic.topic_id
                return found
        raise AssertionError(f"no topic {topic}: {found_topic}")

    def permit_host(self, topic: str, host: str) -> None:
        """Make the one ACL of a topic: from now on only clients of this host have rights on it."""
        allowed = AclCreation(
            resource_type=Resource.TOPIC,
            resource_name=topic,
            principal="User:*",
            host=host,
            operation=Operation.ALL,
            permission_type=Permission.ALLOW,
        )
        results = self.ask(3, CreateAclsRequest(creations=[allowed])).results
        assert [one.error_code for one in results] == [0]
