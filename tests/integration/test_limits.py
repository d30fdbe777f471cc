"""Hostile clients cannot grow a broker's memory beyond a bound, and other clients are served meanwhile.

A real process; its resident memory stays below a generous bound; the tests read no clock.
"""

import asyncio
import os
import resource
import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from tests.broker_process import BrokerProcess, broker_process

from stratalog.adapters.network import TcpNetwork
from stratalog.client.aio import Client
from stratalog.client.calls import NewTopic
from stratalog.wire.envelope import encode_request
from stratalog.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from stratalog.wire.records import Record, build_batch

MIB = 1 << 20
TIMEOUT_S = 30
ROOM = 150 * MIB
"""The limit of a broker's growth in memory for each attack."""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    limits = {
        "queued__max__request__bytes": str(32 * MIB),
        "queued__max__response__bytes": str(32 * MIB),
    }
    with broker_process(tmp_path_factory.mktemp("broker"), **limits) as running:
        asyncio.run(prepare(running))
        yield running


async def prepare(broker: BrokerProcess) -> None:
    batch = build_batch([Record(0, 1_790_000_000_000, None, b"x" * 500_000)])
    async with await Client.connect(TcpNetwork(), broker.address) as client:
        await client.create_topics(
            [NewTopic("events", partitions=1, configs={"retention.ms": "-1"})]
        )
        for _ in range(20):
            await client.produce("events", 0, bytearray(batch))


def resident(broker: BrokerProcess) -> int:
    assert broker.process is not None
    pages = int(Path(f"/proc/{broker.process.pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


async def serves(broker: BrokerProcess) -> None:
    """Write and read as another client."""
    async with await Client.connect(TcpNetwork(), broker.address) as client:
        batch = build_batch([Record(0, 1_790_000_000_000, None, b"mine")])
        produced = await client.produce("events", 0, batch)
        fetched = await client.fetch("events", 0, produced.base_offset)
        assert b"mine" in bytes(fetched.records)


@contextmanager
def under(broker: BrokerProcess) -> Iterator[ExitStack]:
    """Yield a stack for the attack's connections. Check that other clients are served and that memory is within its
    bound, while these connections are open and after they have ended.
    """
    before = resident(broker)

    def check() -> None:
        asyncio.run(serves(broker))
        assert resident(broker) - before < ROOM

    with ExitStack() as stack:
        yield stack
        check()
    check()
    assert "Traceback" not in broker.log_text


def connect(broker: BrokerProcess) -> socket.socket:
    return socket.create_connection(("127.0.0.1", broker.port), TIMEOUT_S)


def push(connection: socket.socket, data: bytes) -> None:
    """Send until the broker takes no more bytes for a while."""
    connection.settimeout(0.3)
    try:
        connection.sendall(data)
    except TimeoutError:
        return


def fetch_all() -> bytes:
    """Return a Fetch from the beginning with the largest limits."""
    partition = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=0x7FFFFFFF)
    body = FetchRequest(
        replica_id=-1,
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=0x7FFFFFFF,
        isolation_level=0,
        topics=[FetchTopic(topic="events", partitions=[partition])],
    )
    return b"".join(bytes(piece) for piece in encode_request(4, 1, "slow", body))


def test_clients_that_fetch_much_and_read_nothing_are_bounded(broker: BrokerProcess) -> None:
    with under(broker) as stack:
        for _ in range(40):
            connection = stack.enter_context(connect(broker))
            push(connection, fetch_all() * 20)


def test_a_flood_of_pipelined_requests_is_bounded(broker: BrokerProcess) -> None:
    api_versions = struct.pack(">ihhih", 10, 18, 0, 1, -1)
    with under(broker) as stack:
        for _ in range(4):
            connection = stack.enter_context(connect(broker))
            push(connection, api_versions * 10_000)


def test_clients_that_announce_large_requests_and_send_little_are_bounded(
    broker: BrokerProcess,
) -> None:
    with under(broker) as stack:
        for turn in range(400):
            connection = stack.enter_context(connect(broker))
            connection.sendall(struct.pack(">i", 100 * MIB) + bytes(1 if turn % 2 else 60_000))
            for _ in range(3):
                connection.sendall(b"\0")


def test_five_thousand_idle_connections_are_bounded(broker: BrokerProcess) -> None:
    count = 5000
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert broker.process is not None
    if hard < 2 * count:
        pytest.skip(f"5,000 connections: the system allows {hard} open files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2 * count), hard))
    resource.prlimit(broker.process.pid, resource.RLIMIT_NOFILE, (max(soft, 2 * count), hard))
    try:
        with under(broker) as stack:
            for _ in range(count):
                stack.enter_context(connect(broker))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
