"""The door follows a topic's settings, and serves each mix of requests as the handlers do.

Clients produce, fetch and ask for other things over a few connections, while the topic's settings change. A broker with
a door must give the answers, files and counts of one without.
"""

import random
import socket
from contextlib import ExitStack
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.integration.test_small_requests import (
    COMPILED,
    NOW,
    SEEDS,
    batch,
    compiled,
    rows,
    wait_until,
)
from tests.produce import produce_body
from tests.sim.door import PythonDoor
from tests.wire_client import Wire

from stratalog.metadata.image import ResourceType
from stratalog.testing import TemporaryBroker
from stratalog.wire.apis import FETCH, PRODUCE
from stratalog.wire.envelope import encode_request
from stratalog.wire.messages.api_versions import ApiVersionsRequest
from stratalog.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from stratalog.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)

__all__ = ["compiled", "rows"]

SETTINGS = (
    {"max.message.bytes": "120"},
    {"max.message.bytes": "100000"},
    {"message.timestamp.type": "LogAppendTime"},
    {"message.timestamp.type": "CreateTime"},
    {"compression.type": "gzip"},
    {"compression.type": "uncompressed"},
    {"compression.type": "producer"},
    {"cleanup.policy": "compact"},
    {"cleanup.policy": "delete"},
    {"message.timestamp.after.max.ms": "0"},
    {"message.timestamp.after.max.ms": "9223372036854775807"},
    {"min.insync.replicas": "2"},
    {"min.insync.replicas": "1"},
    {"flush.messages": "3"},
    {"segment.bytes": str(1 << 20)},
)


def mixed(chance: random.Random, sequence: dict[int, int], end: int) -> tuple[int, object]:
    """Return a request, and its version, of a client that produces and fetches over one connection."""
    kind = chance.random()
    if kind < 0.7:
        request = produce_body("changing", batch(chance, sequence), acks=chance.choice((1, -1)))
        if kind < 0.01:
            request = replace(request, transactional_id="none")
        elif kind < 0.02:
            request = replace(request, acks=2)
        return chance.choice((7, 9, 11, 12)), request
    if kind > 0.98:
        return 2, ApiVersionsRequest()
    partition = FetchPartition(
        partition=0,
        fetch_offset=max(end - chance.randint(-1, 3), 0) if kind < 0.85 else end,
        partition_max_bytes=1 << 20,
    )
    fetch = FetchRequest(
        topics=[FetchTopic(topic="changing", partitions=[partition])],
        max_wait_ms=chance.choice((0, 1, 7)),
        min_bytes=chance.choice((0, 1, 100)),
        isolation_level=chance.choice((0, 1)),
    )
    return chance.choice((4, 11, 12)), fetch


def changing(tmp_path: Path, name: str, seed: int, settings: dict[str, str]) -> dict[str, object]:
    """Send requests of all kinds over a few connections, and change the topic's settings in between."""
    chance = random.Random(seed)
    broker = TemporaryBroker(
        {"log.retention.check.interval.ms": "3600000", **settings}, directory=tmp_path / name
    )
    broker._clock.now_ms = lambda: NOW
    answers: list[list[bytes]] = []
    with broker, ExitStack() as stack:
        wire = stack.enter_context(Wire(broker.address))
        topic_id = wire.topic_id("changing")
        (hosted,) = [
            one for one in broker._node.broker.hosting.all() if one.name.topic == "changing"
        ]
        port = int(broker.address.rpartition(":")[2])
        sequence: dict[int, int] = {}
        sockets = [
            stack.enter_context(socket.create_connection(("127.0.0.1", port), 30)) for _ in range(3)
        ]
        number = 0
        for _ in range(160):
            if chance.random() < 0.12:
                configs = [
                    AlterableConfig(name=key, config_operation=0, value=value)
                    for key, value in chance.choice(SETTINGS).items()
                ]
                changed = AlterConfigsResource(
                    resource_type=ResourceType.TOPIC, resource_name="changing", configs=configs
                )
                done = wire.ask(
                    1, IncrementalAlterConfigsRequest(resources=[changed], validate_only=False)
                )
                assert [one.error_code for one in done.responses] == [0]
            at = chance.randrange(3)
            end = hosted.log.log_end_offset
            burst = [mixed(chance, sequence, end) for _ in range(chance.choice((1, 2, 5, 20)))]
            frames = []
            for version, request in burst:
                number += 1
                pieces = encode_request(version, number, f"client {at}", request)
                frames.append(b"".join(bytes(one) for one in pieces))
            sockets[at].sendall(b"".join(frames))
            answers.append([received(sockets[at]) for _ in burst])
        wait_until(lambda: not broker._node.broker.client_memory.requests, "nothing in memory")
        metrics = broker._node.broker.metrics.requests
        counted = {
            "errors": dict(metrics.errors),
            "requests": {key: sum(metrics.durations[key].counts) for key in (PRODUCE, FETCH)},
            "bytes": (hosted.metrics.bytes_in, hosted.metrics.bytes_out),
            "messages": hosted.metrics.messages_out,
            "end": (hosted.log.log_end_offset, hosted.high_watermark),
        }
        broker.stop()
        files = {
            path.name: path.read_bytes()
            for path in sorted((tmp_path / name / "changing-0").glob("*"))
            if path.suffix in (".log", ".index", ".timeindex", ".snapshot")
        }
    plain = [[one.replace(topic_id.bytes, bytes(16)) for one in some] for some in answers]
    return {"answers": plain, "counted": counted, "files": files}


def received(connection: socket.socket) -> bytes:
    """Return the next answer."""
    with connection.makefile("rb", buffering=0) as stream:
        head = read_whole(stream, 4)
        return head + read_whole(stream, int.from_bytes(head, "big"))


def read_whole(stream, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = stream.read(size - len(data))
        assert more, "the broker closed the connection"
        data += more
    return data


@pytest.mark.parametrize("kind", ["compiled", "python"])
@pytest.mark.parametrize("seed", SEEDS)
def test_the_door_follows_a_topics_settings_and_serves_every_mix_of_requests(
    kind, seed, tmp_path, monkeypatch, rows
):
    monkeypatch.setattr("stratalog.broker.network.lending._LAST", 2)  # lent again at once
    expected = changing(tmp_path, "handlers", seed, {"small.requests.compiled": "false"})
    assert not rows
    if kind == "python":
        monkeypatch.setattr("stratalog.adapters.system.open_door", PythonDoor)
    found = changing(tmp_path, "door", seed, COMPILED)
    assert sum(rows) > 20, "many requests are rows"
    for at, (ours, theirs) in enumerate(zip(found["answers"], expected["answers"], strict=True)):
        assert ours == theirs, at
    assert found["counted"] == expected["counted"]
    assert found["files"].keys() == expected["files"].keys()
    for place, data in expected["files"].items():
        assert found["files"][place] == data, place
