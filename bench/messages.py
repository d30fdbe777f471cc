"""Measure how long one core reads a small request and writes its response, and the cost of a node's import.

In: nothing. Out: a table for RESULTS.md: microseconds of CPU time for one message, medians over the rounds. A request
is read as the broker reads it (`decode_request`), a response is made and written as a handler does.

    python -m bench.messages [--rounds 9] [--times 20000]

Each message is for one partition or one member. The last two lines come from a new process for each round.
"""

import subprocess
import sys
import time
from argparse import ArgumentParser
from collections.abc import Callable
from functools import partial
from typing import Any, Final, NamedTuple
from uuid import UUID

from bench.broker import spread
from stratalog.wire.apis import APIS
from stratalog.wire.budget import DecodeBudget
from stratalog.wire.envelope import decode_request, encode_request, encode_response
from stratalog.wire.fetch import EncodedResponse, encode_topics
from stratalog.wire.messages import Request
from stratalog.wire.messages.fetch import (
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchTopic,
    PartitionData,
)
from stratalog.wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from stratalog.wire.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from stratalog.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from stratalog.wire.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from stratalog.wire.records import Record, build_batch

SERVED: Final = {key: (api.oldest, api.newest) for key, api in APIS.items()}
TOPIC_ID: Final = UUID(int=0x5EED)
BATCH: Final = memoryview(build_batch([Record(0, 1_700_000_000_000, None, b"x" * 100)]))
IMPORT: Final = """
import re, time
import stratalog.node
print(time.process_time() * 1000)
print(int(re.search(r"RssAnon:\\s+(\\d+)", open("/proc/self/status").read())[1]) / 1024)
"""


class Small(NamedTuple):
    """A request, and the function that makes its response."""

    name: str
    version: int
    request: Request[Any]
    response: Callable[[], Any]


def smalls() -> list[Small]:
    """Return the messages that a broker reads and writes most."""
    return [
        Small("Produce", 12, produced(), produce_response),
        Small("Fetch", 17, fetched(), fetch_response),
        Small("Heartbeat", 4, heartbeat(), lambda: HeartbeatResponse(error_code=0)),
        Small("OffsetCommit", 9, committed(), commit_response),
        Small("Metadata", 13, metadata(), metadata_response),
    ]


def produced() -> ProduceRequest:
    """Return a request with a batch of one small record."""
    data = PartitionProduceData(index=0, records=BATCH)
    topic = TopicProduceData(name="topic", partition_data=[data])
    return ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=[topic])


def produce_response() -> ProduceResponse:
    """Return what a handler returns for `produced`."""
    one = PartitionProduceResponse(index=0, error_code=0, base_offset=1, log_start_offset=0)
    topic = TopicProduceResponse(name="topic", partition_responses=[one])
    return ProduceResponse(responses=[topic])


def fetched() -> FetchRequest:
    """Return a fetch of one partition, without a session."""
    one = FetchPartition(partition=0, fetch_offset=1, partition_max_bytes=1 << 20)
    topic = FetchTopic(topic_id=TOPIC_ID, partitions=[one])
    return FetchRequest(max_wait_ms=500, min_bytes=1, session_epoch=0, topics=[topic])


def fetch_response() -> EncodedResponse:
    """Return what a handler returns for `fetched`."""
    one = PartitionData(
        partition_index=0,
        error_code=0,
        high_watermark=2,
        last_stable_offset=2,
        log_start_offset=0,
        aborted_transactions=None,
        records=(BATCH,),
    )
    topic = FetchableTopicResponse(topic_id=TOPIC_ID, partitions=[one])
    return EncodedResponse(0, 7, encode_topics([topic], 17))


def heartbeat() -> HeartbeatRequest:
    """Return a group member's heartbeat."""
    return HeartbeatRequest(group_id="group", generation_id=3, member_id="consumer-1-" + "x" * 36)


def committed() -> OffsetCommitRequest:
    """Return a commit of one offset."""
    one = OffsetCommitRequestPartition(partition_index=0, committed_offset=9, committed_metadata="")
    topic = OffsetCommitRequestTopic(name="topic", partitions=[one])
    return OffsetCommitRequest(
        group_id="group", generation_id_or_member_epoch=3, member_id="member", topics=[topic]
    )


def commit_response() -> OffsetCommitResponse:
    """Return what a handler returns for `committed`."""
    one = OffsetCommitResponsePartition(partition_index=0, error_code=0)
    return OffsetCommitResponse(topics=[OffsetCommitResponseTopic(name="topic", partitions=[one])])


def metadata() -> MetadataRequest:
    """Return a Metadata request for one topic."""
    return MetadataRequest(topics=[MetadataRequestTopic(name="topic")])


def metadata_response() -> MetadataResponse:
    """Return a broker and a topic of one partition."""
    one = MetadataResponsePartition(
        error_code=0,
        partition_index=0,
        leader_id=1,
        replica_nodes=[1],
        isr_nodes=[1],
        offline_replicas=[],
    )
    topic = MetadataResponseTopic(error_code=0, name="topic", topic_id=TOPIC_ID, partitions=[one])
    broker = MetadataResponseBroker(node_id=1, host="127.0.0.1", port=9092)
    return MetadataResponse(brokers=[broker], cluster_id="c" * 22, controller_id=1, topics=[topic])


def read(frame: memoryview, budget: DecodeBudget) -> None:
    """Read a request as the broker does."""
    budget.charged = 0
    decode_request(frame, SERVED, budget)


def write(small: Small) -> None:
    """Make and write a response as the broker does."""
    encode_response(small.request.KEY, small.version, 7, small.response())


def micros(work: Callable[[], None], times: int) -> float:
    """Return the microseconds of CPU time that one call takes."""
    began = time.process_time()
    for _ in range(times):
        work()
    return (time.process_time() - began) / times * 1e6


def imported() -> tuple[float, float]:
    """Return the CPU milliseconds and the MiB of anonymous memory of a process that imports the node."""
    done = subprocess.run(
        [sys.executable, "-c", IMPORT], capture_output=True, text=True, check=True
    )
    milliseconds, mebibytes = map(float, done.stdout.split())
    return milliseconds, mebibytes


def main() -> None:
    """Print the table."""
    parser = ArgumentParser(prog="python -m bench.messages", description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--times", type=int, default=20_000)
    chosen = parser.parse_args()
    works: dict[str, Callable[[], None]] = {}
    for small in smalls():
        frame = b"".join(map(bytes, encode_request(small.version, 7, "client-1", small.request)))
        request = memoryview(bytearray(frame))[4:]
        works[f"{small.name} {small.version}: read"] = partial(read, request, DecodeBudget(1 << 18))
        works[f"{small.name} {small.version}: write"] = partial(write, small)
    found: dict[str, list[float]] = {name: [] for name in works}
    found |= {"import of the node, CPU ms": [], "memory after it, MiB": []}
    for _ in range(chosen.rounds):
        for name, work in works.items():
            found[name].append(micros(work, chosen.times))
        milliseconds, mebibytes = imported()
        found["import of the node, CPU ms"].append(milliseconds)
        found["memory after it, MiB"].append(mebibytes)
    print("| message | microseconds |\n|---|---|")
    for name, values in found.items():
        print(f"| {name} | {spread(values)} |")


if __name__ == "__main__":
    main()
