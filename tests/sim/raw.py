"""A connection that says exactly what a test says, in the version it names.

In: request bodies, or any bytes. Out: answers in the order of the requests. It never retries or routes.
"""

import asyncio
from collections import deque
from typing import Any, cast

from stratalog.ports import Network
from stratalog.wire.envelope import decode_response, encode_request, request
from stratalog.wire.frames import FrameReader


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

    def ask(self, api_key: int, version: int, body: Any) -> "asyncio.Future[Any]":
        """Send a request; the future has its answer, or is cancelled when the connection ends."""
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting.append((api_key, version, answer))
        self.tell(api_key, version, body)
        return answer

    def tell(self, api_key: int, version: int, body: Any) -> None:
        """Send a request that nobody answers."""
        pieces = encode_request(api_key, version, 7, "raw", body)
        self.send(b"".join(bytes(piece) for piece in pieces))

    def send(self, data: bytes) -> None:
        """Send any bytes."""
        self._transport.write(data)

    def close(self) -> None:
        self._transport.close()


def fetch_body(
    version: int,
    wanted: list[tuple[Any, int, int]],
    *,
    max_bytes: int = 1 << 20,
    partition_max_bytes: int = 1 << 20,
    min_bytes: int = 1,
    max_wait_ms: int = 500,
    isolation_level: int = 0,
    leader_epoch: int = -1,
) -> Any:
    """A Fetch of (topic name, or id from version 13 on; partition; offset)."""
    make = request(1, version)
    return make.FetchRequest(
        replica_id=-1,
        max_wait=max_wait_ms,
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        isolation_level=isolation_level,
        session_id=0,
        session_epoch=-1,
        rack_id="",
        forgotten_topics_data=[],
        topics=[
            make.FetchTopic(
                topic=topic,
                topic_id=topic,
                partitions=[
                    make.FetchPartition(
                        partition=partition,
                        current_leader_epoch=leader_epoch,
                        fetch_offset=offset,
                        last_fetched_epoch=-1,
                        log_start_offset=-1,
                        partition_max_bytes=partition_max_bytes,
                    )
                ],
            )
            for topic, partition, offset in wanted
        ],
    )


def list_offsets_body(version: int, topic: str, timestamp: int, *, partition: int = 0) -> Any:
    make = request(2, version)
    return make.ListOffsetsRequest(
        replica_id=-1,
        isolation_level=0,
        timeout=10_000,
        topics=[
            make.ListOffsetsTopic(
                name=topic,
                partitions=[
                    make.ListOffsetsPartition(
                        partition_index=partition, current_leader_epoch=-1, timestamp=timestamp
                    )
                ],
            )
        ],
    )
