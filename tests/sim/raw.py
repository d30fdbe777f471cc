"""A connection that sends exactly a test's bytes or requests, in the given version.

In: request bodies, or any bytes. Out: answers in the order of the requests. It never retries or routes.
"""

import asyncio
from collections import deque
from typing import Any, TypeVar, cast
from uuid import UUID

from stratalog.ports import Network
from stratalog.wire.envelope import decode_response, encode_request
from stratalog.wire.frames import FrameReader
from stratalog.wire.ids import ZERO_ID
from stratalog.wire.messages import Request
from stratalog.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic, PartitionData
from stratalog.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)

R = TypeVar("R")


class Raw(asyncio.BufferedProtocol):
    """Use `connect`."""

    def __init__(self) -> None:
        self.closed = asyncio.get_running_loop().create_future()
        self._reader = FrameReader(1 << 30)
        self._waiting: deque[tuple[int, int, asyncio.Future[Any]]] = deque()
        self._transport: asyncio.Transport

    @classmethod
    async def connect(cls, network: Network, host: str = "127.0.0.1", port: int = 9092) -> "Raw":
        _, protocol = await network.connect(host, port, cls)
        return cast(Raw, protocol)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._reader.get_buffer(sizehint)

    def buffer_updated(self, nbytes: int) -> None:
        for frame in self._reader.buffer_updated(nbytes):
            api_key, version, answer = self._waiting.popleft()
            answer.set_result(decode_response(api_key, version, frame)[1])

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.closed.done():
            self.closed.set_result(None)
        for *_, answer in self._waiting:
            answer.cancel()

    def ask(self, version: int, body: Request[R]) -> "asyncio.Future[R]":
        """Send a request; the future has its answer, or is cancelled when the connection ends."""
        answer: asyncio.Future[R] = self.expect(body.KEY, version)
        self.tell(version, body)
        return answer

    def expect(self, api_key: int, version: int) -> "asyncio.Future[Any]":
        """Return the next answer that nothing expects, of a request that `send` sends."""
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting.append((api_key, version, answer))
        return answer

    def tell(self, version: int, body: Request[Any]) -> None:
        """Send a request that the broker does not answer."""
        pieces = encode_request(version, 7, "raw", body)
        self.send(b"".join(bytes(piece) for piece in pieces))

    def send(self, data: bytes) -> None:
        """Send any bytes."""
        self._transport.write(data)

    def close(self) -> None:
        self._transport.close()


def fetch_body(
    wanted: list[tuple[str | UUID, int, int]],
    *,
    max_bytes: int = 1 << 20,
    partition_max_bytes: int = 1 << 20,
    min_bytes: int = 1,
    max_wait_ms: int = 500,
    isolation_level: int = 0,
    leader_epoch: int = -1,
    last_fetched_epoch: int = -1,
    rack: str = "",
) -> FetchRequest:
    """A Fetch of (topic name, or id from version 13 on; partition; offset)."""
    return FetchRequest(
        max_wait_ms=max_wait_ms,
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        isolation_level=isolation_level,
        session_epoch=-1,
        rack_id=rack,
        topics=[
            FetchTopic(
                topic="" if isinstance(topic, UUID) else topic,
                topic_id=topic if isinstance(topic, UUID) else ZERO_ID,
                partitions=[
                    FetchPartition(
                        partition=partition,
                        current_leader_epoch=leader_epoch,
                        fetch_offset=offset,
                        last_fetched_epoch=last_fetched_epoch,
                        partition_max_bytes=partition_max_bytes,
                    )
                ],
            )
            for topic, partition, offset in wanted
        ],
    )


def records_of(partition: PartitionData) -> bytes:
    """The batches of a partition; none where the field is null."""
    assert isinstance(partition.records, memoryview | None), (
        "the fetched records must be one buffer"
    )
    return bytes(partition.records or b"")


def list_offsets_body(topic: str, timestamp: int, *, partition: int = 0) -> ListOffsetsRequest:
    asked = ListOffsetsPartition(partition_index=partition, timestamp=timestamp)
    return ListOffsetsRequest(
        replica_id=-1,
        timeout_ms=10_000,
        topics=[ListOffsetsTopic(name=topic, partitions=[asked])],
    )
