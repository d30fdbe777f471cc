"""Fetches of large batches that the page cache has: sent from the files, with the bytes that a copy would have.

The broker starts again after the produce, so that its memory has no batch.
"""

import socket
import ssl
import time
from pathlib import Path
from random import Random
from uuid import UUID

import pytest
from tests.kernel import needs_cachestat
from tests.wire_client import Wire

from stratalog.adapters import local_disk
from stratalog.testing import TemporaryBroker
from stratalog.wire.apis import FETCH
from stratalog.wire.envelope import decode_response, encode_request
from stratalog.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from stratalog.wire.records import Record, build_batch

NOW = 1_700_000_000_000
TOPIC = "large"
TIMEOUT_S = 30
VERSIONS = (4, 11, 12, 13, 18)

pytestmark = needs_cachestat


def batches() -> list[bytes]:
    """Batches of 20 to 900 KiB, and two that are tiny."""
    chance = Random(3)
    sizes = (900_000, 20_000, 100, 70_000, 300_000, 17_000, 200, 500_000)
    return [bytes(build_batch([Record(0, NOW, b"k", chance.randbytes(one))])) for one in sizes]


@pytest.fixture
def kept(tmp_path: Path) -> tuple[Path, bytes]:
    """A directory of a stopped broker, and what a reader of partition 0 must get from offset 0 on."""
    directory = tmp_path / "data"
    made = batches()
    with TemporaryBroker(directory=directory) as broker, Wire(broker.address) as wire:
        wire.topic_id(TOPIC)
        for one in made:
            assert wire.produce(TOPIC, one).error_code == 0
    stored = bytearray()
    for offset, one in enumerate(made):
        stored += offset.to_bytes(8, "big") + one[8:12] + bytes(4) + one[16:]  # leader epoch 0
    return directory, bytes(stored)


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The bytes that each answer from a file brought to its socket at once."""
    found: list[int] = []
    send = local_disk._CachedRange.send_behind

    def counted(self: local_disk._CachedRange, head: bytes, to: int) -> int:
        found.append(send(self, head, to))
        return found[-1]

    monkeypatch.setattr(local_disk._CachedRange, "send_behind", counted)
    return found


@pytest.fixture
def encrypted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of the parts of files that were read to be encrypted."""
    found: list[int] = []
    read = local_disk._CachedRange.read

    def counted(self: local_disk._CachedRange, start: int = 0) -> bytes:
        found.append(len(self) - start)
        return read(self, start)

    monkeypatch.setattr(local_disk._CachedRange, "read", counted)
    return found


def trust(broker: TemporaryBroker, *, tls: bool) -> ssl.SSLContext | None:
    return ssl.create_default_context(cafile=str(broker.authority.certificate)) if tls else None


def fetch(topic_id: UUID, version: int, offset: int, size: int = 1 << 20) -> FetchRequest:
    partition = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=size)
    named = {"topic_id": topic_id} if version >= 13 else {"topic": TOPIC}
    topics = [FetchTopic(partitions=[partition], **named)]
    return FetchRequest(max_wait_ms=0, min_bytes=1, session_epoch=-1, topics=topics)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("tls", [False, True])
def test_every_reader_gets_the_same_bytes(
    kept: tuple[Path, bytes], sent: list[int], encrypted: list[int], version: int, tls: bool
) -> None:
    directory, stored = kept
    with (
        TemporaryBroker(directory=directory, tls=tls) as broker,
        Wire(broker.address, trust(broker, tls=tls)) as wire,
    ):
        topic_id = wire.topic_id(TOPIC)
        got, offset = bytearray(), 0
        while len(got) < len(stored):
            answer = wire.ask(version, fetch(topic_id, version, offset))
            (found,) = answer.responses[0].partitions
            assert found.error_code == 0
            data = bytes(found.records)
            assert data
            got += data
            offset += sum(1 for at in starts(data))
        assert got == stored
    assert bool(sent) is not tls
    assert all(size > 64 << 10 for size in sent)
    if tls:
        assert encrypted.count(63 << 10) > 20
        assert max(encrypted) == 63 << 10


def starts(data: bytes) -> list[int]:
    found, at = [], 0
    while at < len(data):
        found.append(at)
        at += 12 + int.from_bytes(data[at + 8 : at + 12], "big")
    return found


def test_a_client_that_does_not_read_gets_all_answers_later(
    kept: tuple[Path, bytes], sent: list[int]
) -> None:
    directory, stored = kept
    with TemporaryBroker(directory=directory) as broker:
        with Wire(broker.address) as wire:
            topic_id = wire.topic_id(TOPIC)
        host, _, port = broker.address.rpartition(":")
        with socket.socket() as slow:
            slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            slow.settimeout(TIMEOUT_S)
            slow.connect((host, int(port)))
            for number in range(20):
                pieces = encode_request(12, number, "slow", fetch(topic_id, 12, 0, 900_100))
                slow.sendall(b"".join(bytes(one) for one in pieces))
            until = time.monotonic() + TIMEOUT_S
            while not sent and time.monotonic() < until:
                time.sleep(0.01)
            with slow.makefile("rb") as incoming:
                for number in range(20):
                    size = int.from_bytes(incoming.read(4), "big")
                    frame = memoryview(incoming.read(size))
                    correlation_id, answer = decode_response(FETCH, 12, frame)
                    assert correlation_id == number
                    (found,) = answer.responses[0].partitions
                    assert bytes(found.records) == stored[: starts(stored)[1]]
    assert min(sent) < 900_000, "every answer left at once: the client is not slow enough"


@pytest.mark.parametrize("tls", [False, True])
def test_a_file_that_ends_early_costs_its_reader_alone(
    kept: tuple[Path, bytes], monkeypatch: pytest.MonkeyPatch, tls: bool
) -> None:
    directory, stored = kept

    def cut_off(self: local_disk._CachedRange, *_: object) -> int:
        raise self._is_shorter()

    with TemporaryBroker(directory=directory, tls=tls) as broker:
        trusting = trust(broker, tls=tls)
        with Wire(broker.address, trusting) as wire, Wire(broker.address, trusting) as other:
            topic_id = wire.topic_id(TOPIC)
            with monkeypatch.context() as patched:
                for way in ("send_behind", "read"):
                    patched.setattr(local_disk._CachedRange, way, cut_off)
                with pytest.raises(ConnectionError):
                    wire.ask(12, fetch(topic_id, 12, 0))
            answer = other.ask(12, fetch(topic_id, 12, 0, 900_100))
    assert bytes(answer.responses[0].partitions[0].records) == stored[: starts(stored)[1]]
