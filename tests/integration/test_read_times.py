"""`stratalog.read` over the seam of bucket and broker returns exactly the records of a list.

Timestamps do not rise with offsets, as after a backfill. Old records are only in the bucket, new ones only at the
broker. Hypothesis chooses the source, the times, the partitions and the offsets of each read.
"""

import asyncio
import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st
from tests.broker_process import BrokerProcess, broker_process
from tests.integration.test_spark_broker import SEGMENT, tiered_end, wait_until_tiered

from stratalog import ReadMetrics, read
from stratalog.adapters.network import TcpNetwork
from stratalog.client.aio import Client
from stratalog.client.calls import NewTopic
from stratalog.wire.compression import CODEC_NAMES
from stratalog.wire.records import BatchBuilder

pytestmark = pytest.mark.timeout(300)

SPAN_MS = 10_000
BASES = {
    "unordered": 1_700_000_000_000,
    "appended": 1_700_000_000_000,
    "around-1970": -SPAN_MS // 2,
}
"""Timestamps of a topic lie in [base, base + SPAN_MS)."""
PARTITIONS = 2
FEW = settings(max_examples=int(os.environ.get("READ_EXAMPLES", "40")), deadline=None)


@dataclass
class Filled:
    """Yield a broker and its topics' records: for each partition, the timestamp (epoch ms) of each offset."""

    broker: BrokerProcess
    topics: dict[str, list[list[int]]]


def batches(random: Random, base: int, records: int) -> Iterator[list[int]]:
    """Return batches' timestamps: mostly rising, with old and scattered ones among them."""
    made = 0
    while made < records:
        size = random.choice([1, 1, 7, 40])
        begin = SPAN_MS * made // records
        kind = random.random()
        if kind < 0.5:
            found = [min(begin + at, SPAN_MS - 1) for at in range(size)]
        elif kind < 0.7:
            found = [random.randrange(100) for _ in range(size)]
        else:
            found = [random.randrange(SPAN_MS) for _ in range(size)]
        made += size
        yield [base + at for at in found]


async def fill(broker: BrokerProcess, topic: str, known: list[list[int]], records: int) -> None:
    random = Random(len(known[0]) + len(topic))
    async with (
        await Client.connect(TcpNetwork(), broker.address) as client,
        client.pipeline(window=4) as pipeline,
    ):
        for partition in range(PARTITIONS):
            for number, timestamps in enumerate(batches(random, BASES[topic], records)):
                builder = BatchBuilder(CODEC_NAMES[number % 5])
                for timestamp in timestamps:
                    builder.add(b"key", random.randbytes(700), timestamp)
                _ = await pipeline.send(topic, partition, builder.build())
                known[partition] += timestamps


async def create(broker: BrokerProcess, topic: str, configs: dict[str, str]) -> None:
    async with await Client.connect(TcpNetwork(), broker.address) as client:
        (created,) = await client.create_topics([NewTopic(topic, PARTITIONS, 1, configs)])
        assert not created.error, created


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Filled]:
    with broker_process(tmp_path_factory.mktemp("read")) as broker:
        made = Filled(broker, {})
        for topic in BASES:
            kind = "LogAppendTime" if topic == "appended" else "CreateTime"
            made.topics[topic] = [[] for _ in range(PARTITIONS)]
            kept = SEGMENT | {"retention.ms": "-1", "message.timestamp.type": kind}
            asyncio.run(create(broker, topic, kept))
            for records in (3000, 400):  # the second part stays at the broker
                asyncio.run(fill(broker, topic, made.topics[topic], records))
                wait_until_tiered(broker, topic, 1000)
        # Append times are known only after a read of all records.
        for partition in range(PARTITIONS):
            found = read("appended", **where(made, "both"), partitions=[partition]).read_all()
            assert len(found) == len(made.topics["appended"][partition])
            made.topics["appended"][partition] = times(found)
        yield made


def times(found: Any) -> list[int]:
    return [round(at.timestamp() * 1000) for at in found["timestamp"].to_pylist()]


def where(filled: Filled, place: str) -> dict[str, Any]:
    given: dict[str, Any] = {}
    if place != "bucket":
        given["bootstrap_servers"] = filled.broker.address
    if place != "broker":
        given["tier_url"] = filled.broker.bucket_url
    return given


def moments(data: st.DataObject, known: list[list[int]]) -> tuple[int | None, int | None]:
    """Draw since and until, in microseconds."""
    all_times = [at for partition in known for at in partition]
    first, last = min(all_times) * 1000, max(all_times) * 1000
    edge = st.none() | st.integers(first - 2000, last + 2000)
    edge |= st.sampled_from(all_times).map(lambda ms: ms * 1000)
    since, until = data.draw(edge, label="since"), data.draw(edge, label="until")
    if since is not None and until is not None and since > until:
        return until, since
    return since, until


def moment(microseconds: int | None) -> datetime | None:
    if microseconds is None:
        return None
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=microseconds)


@FEW
@given(data=st.data())
def test_a_read_returns_the_same_records_as_a_list(filled: Filled, data: st.DataObject) -> None:
    topic = data.draw(st.sampled_from(sorted(filled.topics)), label="topic")
    place = data.draw(st.sampled_from(["both", "both", "bucket", "broker"]), label="place")
    known = filled.topics[topic]
    since, until = moments(data, known)
    chosen = data.draw(st.sets(st.sampled_from(range(PARTITIONS)), min_size=1), label="partitions")
    ends = [len(partition) for partition in known]
    if place == "bucket":
        ends = [tiered_end(filled.broker, topic, index) for index in range(PARTITIONS)]
    spans = {index: (0, ends[index]) for index in sorted(chosen)}
    asked: dict[str, Any] = {"partitions": sorted(chosen)}
    if data.draw(st.booleans(), label="offsets"):
        for index in spans:
            pair = st.tuples(*[st.integers(0, ends[index])] * 2).map(sorted).map(tuple)
            spans[index] = data.draw(pair)
        asked = {"offsets": spans}
    metrics = ReadMetrics()
    found = read(
        topic,
        **where(filled, place),
        **asked,
        since=moment(since),
        until=moment(until),
        columns=["partition", "offset", "timestamp"],
        metrics=metrics,
    ).read_all()
    columns = (found["partition"].to_pylist(), found["offset"].to_pylist(), times(found))
    assert list(zip(*columns, strict=True)) == [
        (index, offset, known[index][offset])
        for index, (first, end) in spans.items()
        for offset in range(first, end)
        if (since is None or known[index][offset] * 1000 >= since)
        and (until is None or known[index][offset] * 1000 < until)
    ]
    event(f"{bool(metrics.bucket_bytes)} bucket, {bool(metrics.broker_bytes)} broker")
