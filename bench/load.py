"""Load any broker in the same way: with librdkafka's generator, or with our own for many connections.

In: a running server and a topic. Out: measurements from the client's side. The generators are compiled, so
that no broker waits for its client.
"""

import os
import re
import socket
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from struct import Struct
from typing import Protocol

from pipelines.access_log.fetched import fetching

from bench.peers import Server, rdkafka_performance
from stratalog.wire.envelope import decode_response, encode_request
from stratalog.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from stratalog.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from stratalog.wire.records import Record, build_batch

PRODUCE, PRODUCE_VERSION = 0, 7
FETCH, FETCH_VERSION = 1, 11
TIMEOUT_S = 300
BATCH_BYTES_MAX = 1_000_000  # librdkafka's message.max.bytes
RECORD_BYTES = 12  # overhead of a record beside its value, at most
MANY = "sticky.partitioning.linger.ms=0"
"""librdkafka's option that spreads records over all partitions instead of one after the other."""
_LENGTH = Struct(">i")
_OFFSET = 0x0123456789ABCDEF


class Loaded(Protocol):
    """A broker or a cluster under load."""

    @property
    def address(self) -> str:
        """Return `host:port,…`."""

    def cpu_seconds(self) -> float:
        """Return the CPU seconds that the processes of this broker or cluster have used."""


@dataclass(frozen=True)
class Throughput:
    """Megabytes per second, records per second and broker CPU seconds per gigabyte."""

    rate: float
    records: float
    cpu: float


@cache
def compiled(name: str) -> Path:
    """Compile the program bench/`name`.c into the cache; return it."""
    source = Path(__file__).with_name(f"{name}.c")
    with fetching(name) as built:
        if not built.exists() or built.stat().st_mtime < source.stat().st_mtime:
            subprocess.run(
                [os.environ.get("CC", "cc"), "-O2", "-o", str(built), str(source)],
                check=True,
                timeout=60,
            )
        return built


def rdkafka(server: Loaded, *options: str) -> tuple[str, float]:
    """Run rdkafka_performance; return its output and the broker's CPU seconds meanwhile."""
    before = server.cpu_seconds()
    done = subprocess.run(
        [str(rdkafka_performance()), "-b", server.address, "-u", "-q", *options],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert "|" in done.stdout, done.stdout[-500:] + done.stderr[-500:]
    return done.stdout, server.cpu_seconds() - before


def throughput(output: str, cpu: float) -> Throughput:
    """Return the last line of rdkafka_performance's table."""
    rows = [
        re.split(r"\s*\|\s*", line.strip("| \n"))
        for line in output.splitlines()
        if line.startswith("|")
    ]
    last = [row for row in rows if row[0].strip().isdigit()][-1]
    seconds, count, size = float(last[0]) / 1000, float(last[1]), float(last[2])
    return Throughput(size / 1e6 / seconds, count / seconds, cpu / (size / 1e9))


def produce(server: Loaded, topic: str, size: int, count: int, *options: str) -> Throughput:
    """Run one producer: acks=1, `count` records of `size` bytes."""
    return throughput(
        *rdkafka(
            server,
            *("-P", "-t", topic, "-s", str(size), "-c", str(count), "-a", "1"),
            *("-X", "linger.ms=5", "-X", "queue.buffering.max.messages=1000000"),
            *options,
        )
    )


def consume(server: Server, topic: str, count: int, *options: str) -> Throughput:
    """Run one consumer of partition 0 from its beginning."""
    return throughput(
        *rdkafka(
            server,
            *("-C", "-t", topic, "-p", "0", "-o", "beginning", "-c", str(count)),
            *("-X", "fetch.message.max.bytes=1048576", "-X", "queued.min.messages=1000000"),
            *options,
        )
    )


def latencies(
    server: Loaded, topic: str, per_second: int, seconds: float, *options: str
) -> tuple[float, float]:
    """Return p50 and p99 in ms from the call of produce to the acknowledgement (linger.ms=0)."""
    with tempfile.NamedTemporaryFile(prefix="bench-latency-") as times:
        rdkafka(
            server,
            *("-P", "-t", topic, "-s", "100", "-a", "1", "-X", "linger.ms=0", "-l"),
            *("-A", times.name, "-r", str(per_second), "-c", str(round(per_second * seconds))),
            *options,
        )
        lines = Path(times.name).read_text().split()
    # The first records wait for the connection and the metadata.
    each = [int(line) / 1000 for line in lines if line.isdigit()][per_second // 2 :]
    assert len(each) > per_second * seconds / 2, (
        f"{len(each)} acknowledgements: the producer did not keep its rate"
    )
    cuts = statistics.quantiles(each, n=100)
    return cuts[49], cuts[98]


def batch(size: int, records: int, timestamp_ms: int) -> bytes:
    """Return a batch of `records` records of `size` bytes."""
    return bytes(build_batch([Record(0, timestamp_ms, None, bytes(size))] * records))


def produce_frame(topic: str, partitions: Iterable[int], records: bytes, acks: int = 1) -> bytes:
    """Return a whole produce request with the same batch for each partition."""
    parts = [PartitionProduceData(index=index, records=memoryview(records)) for index in partitions]
    body = ProduceRequest(
        acks=acks,
        timeout_ms=30_000,
        topic_data=[TopicProduceData(name=topic, partition_data=parts)],
    )
    return b"".join(encode_request(PRODUCE_VERSION, 1, "bench", body))


def fetch_frame(topic: str) -> tuple[bytes, int]:
    """Return a fetch of partition 0 as librdkafka sends it, without a session, and the position of its offset."""
    partition = FetchPartition(partition=0, fetch_offset=_OFFSET, partition_max_bytes=1 << 20)
    body = FetchRequest(
        max_wait_ms=500,
        min_bytes=1,
        max_bytes=50 << 20,
        session_epoch=-1,
        topics=[FetchTopic(topic=topic, partitions=[partition])],
    )
    frame = b"".join(encode_request(FETCH_VERSION, 1, "bench", body))
    return frame, frame.index(_OFFSET.to_bytes(8, "big"))


def once(server: Server, topic: str, partitions: int, records: bytes) -> None:
    """Append the batch to every partition; retry the partitions that have no leader yet."""
    missing = list(range(partitions))
    with socket.create_connection(("127.0.0.1", server.port), 60) as connection:
        for _ in range(600):
            connection.sendall(produce_frame(topic, missing, records))
            answer = b""
            while len(answer) < 4 or len(answer) - 4 < _LENGTH.unpack_from(answer)[0]:
                more = connection.recv(1 << 20)
                assert more, "the broker closed the connection"
                answer += more
            _correlation, body = decode_response(PRODUCE, PRODUCE_VERSION, memoryview(answer)[4:])
            answers = body.responses[0].partition_responses
            missing = [one.index for one in answers if one.error_code]
            if not missing:
                return
            time.sleep(0.1)
    raise SystemExit(f"{server.name}: {len(missing)} partitions of {topic} have no leader")


def many_producers(
    server: Server, topic: str, connections: int, seconds: float
) -> tuple[float, float]:
    """Return requests per second and broker CPU ms per request: one record of 100 B and one request in flight each."""
    frame = produce_frame(topic, range(1), batch(100, 1, round(time.time() * 1000)))
    before = server.cpu_seconds()
    answers, took = _generate("produce", server, seconds, connections, [frame], "1")
    return answers / took, (server.cpu_seconds() - before) * 1000 / answers


def made_batches(server: Server, topic: str, size: int, seconds: float) -> Throughput:
    """Run one producer of prepared full batches, five requests in flight: the broker never waits for the client."""
    records = BATCH_BYTES_MAX // (size + RECORD_BYTES)
    frame = produce_frame(topic, range(1), batch(size, records, round(time.time() * 1000)))
    before = server.cpu_seconds()
    answers, took = _generate("produce", server, seconds, 1, [frame], "5")
    count = answers * records
    rate = count * size / 1e6 / took
    return Throughput(rate, count / took, (server.cpu_seconds() - before) / (count * size / 1e9))


def paced(
    leaders: Mapping[int, int], topic: str, per_second: int, seconds: float
) -> tuple[float, float]:
    """Return p50 and p99 in ms from the time when a record is due to its acknowledgement by all replicas.

    `leaders` has the port of each partition's leader. Each record of 100 B is a request. Unlike librdkafka's generator,
    which polls without a pause at such rates, this one sleeps in between.
    """
    records = batch(100, 1, round(time.time() * 1000))
    with tempfile.TemporaryDirectory(prefix="bench-load-") as scratch:
        times, words = Path(scratch) / "times", []
        for partition, port in leaders.items():
            frame = Path(scratch) / str(partition)
            frame.write_bytes(produce_frame(topic, [partition], records, acks=-1))
            words += [str(port), str(frame)]
        _run("paced", per_second, seconds, times, *words)
        each = [int(line) / 1000 for line in times.read_text().split()]
    cuts = statistics.quantiles(each[per_second // 2 :], n=100)
    return cuts[49], cuts[98]


def tail_consumers(
    server: Server, topic: str, consumers: int, seconds: float
) -> tuple[float, float]:
    """Return delivered MB/s and broker CPU seconds per GB: ten records of 1 KiB once all consumers have the last."""
    frame = produce_frame(topic, range(1), batch(1024, 10, round(time.time() * 1000)))
    fetch, at = fetch_frame(topic)
    before = server.cpu_seconds()
    _rounds, took, delivered = _generate(
        "tail", server, seconds, consumers, [frame, fetch], str(at)
    )
    return delivered / 1e6 / took, (server.cpu_seconds() - before) / (delivered / 1e9)


def _generate(
    what: str, server: Server, seconds: float, connections: int, frames: list[bytes], *more: str
) -> list[float]:
    with tempfile.TemporaryDirectory(prefix="bench-load-") as scratch:
        paths = []
        for number, frame in enumerate(frames):
            paths.append(Path(scratch) / str(number))
            paths[-1].write_bytes(frame)
        return _run(what, server.port, seconds, connections, *paths, *more)


def _run(*words: object) -> list[float]:
    """Run our generator; return its numbers."""
    done = subprocess.run(
        [*map(str, (compiled("load"), *words))],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [float(word) for word in done.stdout.split()]
