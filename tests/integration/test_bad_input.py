"""A broker process answers bad input with Kafka's error code, or closes one connection. Other clients are not affected,
and no record is lost.
"""

import asyncio
import random
import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.broker_process import BrokerProcess, broker_process

from stratalog.adapters.network import TcpNetwork
from stratalog.broker.apis import APIS
from stratalog.client.aio import Client
from stratalog.client.calls import NewTopic
from stratalog.errors import ErrorCode, Rejected
from stratalog.wire.batch import scan
from stratalog.wire.records import BatchBuilder

TIMEOUT_S = 20
FRAME_BYTES_MAX = 1_000_000


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    directory = tmp_path_factory.mktemp("broker")
    with broker_process(directory, socket__request__max__bytes=str(FRAME_BYTES_MAX)) as running:
        asyncio.run(create(running, "sound"))
        yield running


async def create(broker: BrokerProcess, name: str, **configs: str) -> None:
    async with await Client.connect(TcpNetwork(), broker.address) as client:
        settings = {key.replace("__", "."): value for key, value in configs.items()}
        (result,) = await client.create_topics([NewTopic(name, partitions=1, configs=settings)])
        assert result.error is ErrorCode.none, result


def batch(size: int = 10, count: int = 3) -> bytearray:
    builder = BatchBuilder()
    for _ in range(count):
        builder.add(None, b"x" * size, 1_790_000_000_000)
    return builder.build()


async def produce(broker: BrokerProcess, topic: str, data: bytearray) -> Any:
    async with await Client.connect(TcpNetwork(), broker.address) as client:
        return await client.produce(topic, 0, data)


def code_of(call: Any) -> ErrorCode:
    with pytest.raises(Rejected) as refused:
        asyncio.run(call)
    return refused.value.code


def flipped(position: int) -> bytearray:
    data = batch()
    data[position] ^= 1
    return data


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (flipped(70), ErrorCode.corrupt_message),
        (flipped(17), ErrorCode.corrupt_message),
        (batch()[:-1], ErrorCode.invalid_record),
        (bytearray(b"nonsense" * 10), ErrorCode.corrupt_message),
    ],
    ids=["a flipped bit in the records", "a flipped bit in the CRC", "a byte short", "nonsense"],
)
def test_corrupt_batches_are_refused(
    broker: BrokerProcess, data: bytearray, code: ErrorCode
) -> None:
    assert code_of(produce(broker, "sound", data)) is code


def test_a_batch_above_max_message_bytes_is_refused(broker: BrokerProcess) -> None:
    asyncio.run(create(broker, "narrow", max__message__bytes="1000"))
    assert code_of(produce(broker, "narrow", batch(2000))) is ErrorCode.message_too_large
    assert asyncio.run(produce(broker, "narrow", batch(10))).base_offset == 0


def test_an_offset_beyond_the_end_is_out_of_range(broker: BrokerProcess) -> None:
    async def fetch() -> None:
        async with await Client.connect(TcpNetwork(), broker.address) as client:
            await client.fetch("sound", 0, 10**6)

    assert code_of(fetch()) is ErrorCode.offset_out_of_range


def connect(broker: BrokerProcess) -> socket.socket:
    return socket.create_connection(("127.0.0.1", broker.port), TIMEOUT_S)


def request(key: int, version: int, correlation: int = 7, body: bytes = b"") -> bytes:
    header = struct.pack(">hhih", key, version, correlation, -1)
    return struct.pack(">i", len(header) + len(body)) + header + body


def answer(connection: socket.socket) -> bytes:
    """Return one frame without its length, or b"" if the broker closed the connection."""
    prefix = connection.recv(4, socket.MSG_WAITALL)
    if len(prefix) < 4:
        return b""
    return connection.recv(struct.unpack(">i", prefix)[0], socket.MSG_WAITALL)


def is_closed(connection: socket.socket) -> bool:
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


def test_an_unknown_version_of_api_versions_is_answered_in_version_0(broker: BrokerProcess) -> None:
    with connect(broker) as connection:
        connection.sendall(request(18, 99, body=b"\0"))
        found = answer(connection)
        assert struct.unpack_from(">ih", found) == (7, ErrorCode.unsupported_version)
        connection.sendall(request(18, 0, correlation=8))
        assert struct.unpack_from(">ih", answer(connection)) == (8, 0)


@pytest.mark.parametrize(
    "sent",
    [
        struct.pack(">i", -1),
        struct.pack(">i", FRAME_BYTES_MAX + 1),
        struct.pack(">i", 0x7FFFFFFF),
        struct.pack(">i", 3) + b"abc",
        request(9999, 0),
        request(3, 12, body=b"\xff" * 40),
        request(0, 9, body=b"\x00\xff\xff\xff\xff\x0f"),
        request(1, 1),
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    ],
    ids=[
        "negative length",
        "a byte too long",
        "two gigabytes",
        "no header",
        "unknown API",
        "unparsable Metadata",
        "unparsable Produce",
        "unsupported version",
        "HTTP",
    ],
)
def test_an_unparsable_request_closes_its_connection_and_logs_one_line(
    broker: BrokerProcess, sent: bytes
) -> None:
    before = broker.log_text.count("connection closed")
    with connect(broker) as bystander, connect(broker) as connection:
        connection.sendall(sent)
        assert is_closed(connection)
        bystander.sendall(request(18, 0))
        assert answer(bystander), "another client is no longer served"
    assert broker.log_text.count("connection closed") == before + 1
    assert "Traceback" not in broker.log_text


def test_random_bytes_leave_the_broker_serving(tmp_path: Path) -> None:
    # Of its own: the log has few lines of one kind in ten seconds.
    with broker_process(tmp_path) as broker:
        asyncio.run(create(broker, "sound"))
        seed = random.randrange(2**32)
        chance = random.Random(seed)
        for _ in range(200):
            with connect(broker) as connection:
                body = chance.randbytes(chance.randrange(200))
                key = chance.choice(sorted(APIS))
                connection.sendall(request(key, chance.randrange(6), body=body))
                connection.settimeout(0.02)
                try:
                    answer(connection)
                except (TimeoutError, ConnectionResetError):
                    continue
        assert asyncio.run(produce(broker, "sound", batch())).base_offset >= 0, f"seed {seed}"
        assert "Traceback" not in broker.log_text, f"seed {seed}"


@pytest.mark.parametrize("damage", ["altered", "missing"])
def test_a_damaged_object_is_an_error_that_names_it_and_never_data(
    tmp_path: Path, damage: str
) -> None:
    async def fill(broker: BrokerProcess) -> None:
        await create(
            broker,
            "tiered",
            remote__storage__enable="true",
            segment__bytes="1048576",
            local__retention__ms="0",
            retention__ms="-1",
            file__delete__delay__ms="0",
        )
        async with await Client.connect(TcpNetwork(), broker.address) as client:
            for _ in range(40):
                await client.produce("tiered", 0, batch(50_000, 2))
            async with asyncio.timeout(TIMEOUT_S):
                while (tmp_path / "data" / "tiered-0" / f"{0:020d}.log").exists():
                    await asyncio.sleep(0.05)

    async def fetch_first(broker: BrokerProcess) -> None:
        async with await Client.connect(TcpNetwork(), broker.address) as client:
            fetched = await client.fetch("tiered", 0, 0)
            assert list(scan(memoryview(fetched.records)))

    with broker_process(tmp_path) as broker:
        asyncio.run(fill(broker))
        victim = min((tmp_path / "bucket").rglob("*.seg"))
        if damage == "missing":
            victim.unlink()
        else:
            data = bytearray(victim.read_bytes())
            data[500] ^= 0x40
            victim.write_bytes(data)
        assert code_of(fetch_first(broker)) is ErrorCode.corrupt_message
        assert victim.stem in broker.log_text
        assert asyncio.run(produce(broker, "tiered", batch())).base_offset > 0
