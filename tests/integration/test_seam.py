"""Reads over the moving seam of bucket and broker return every offset once, during uploads and expiry.

Method: a producer never pauses; the broker closes segments every moment, archives, merges and drops them from its disk.
Hypothesis chooses a range, its cuts, the order of its tasks, and whether planned records have left the broker's disk by
then. Streams advance step by step; another driver plans some steps again. Each record contains its own offset. If
records are deleted between plan and read, the read returns all of them or raises DataLoss, never a part.
`SEAM_EXAMPLES=500` sets how often.
"""

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from pyspark.sql.streaming.datasource import ReadMaxRows
from pyspark.sql.types import StructType
from tests.broker_process import broker_process
from tests.integration.test_spark_broker import SEGMENT, both, delete_records, produce, until
from tests.integration.test_spark_kills import Producer

from stratalog.errors import DataLoss
from stratalog.spark.source import StratalogSource
from stratalog.table.options import parse_options
from stratalog.table.plan import BrokerTask, Task
from stratalog.table.query import batch_tasks, shared_of
from stratalog.table.tasks import read_task

pytestmark = [pytest.mark.timeout(900), pytest.mark.xdist_group("spark")]

TOPIC = "seam"
SOME = settings(
    max_examples=int(os.environ.get("SEAM_EXAMPLES", "20")),
    deadline=None,
    suppress_health_check=list(HealthCheck),  # an example's duration depends on the broker
)
Offset = tuple[int, int]
"""Partition and offset."""


@dataclass
class Moving:
    """A producer that never pauses, and the current start of each partition."""

    producer: Producer
    starts: list[int] = field(default_factory=lambda: [0, 0])

    def since(self, back: int) -> list[int]:
        """Return offsets at a distance behind the end, as far as they exist."""
        return [
            max(start, end - back)
            for start, end in zip(self.starts, self.producer.ends, strict=True)
        ]

    def delete(self, before: Sequence[int]) -> None:
        for index, end in enumerate(before):
            delete_records(self.producer.broker, TOPIC, end, index)
        self.starts = list(before)


@pytest.fixture(scope="module")
def moving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Moving]:
    place = tmp_path_factory.mktemp("seam")
    with broker_process(place, log__retention__check__interval__ms="100") as broker:
        produce(broker, TOPIC, 0, 500, partitions=2, configs=SEGMENT | {"segment.ms": "300"})
        with Producer(broker, [500, 500], TOPIC).running() as made:
            yield Moving(made)


def options(moving: Moving, **more: str) -> dict[str, str]:
    return both(moving.producer.broker, TOPIC, columns="partition,offset,key,value", **more)


def move_on(producer: Producer) -> None:
    """Wait until no present record is on the broker's disk."""
    ends = list(producer.ends)

    def gone() -> bool:
        return all(
            min(int(one.stem) for one in (producer.broker.data / f"{TOPIC}-{index}").glob("*.log"))
            >= end
            for index, end in enumerate(ends)
        )

    until(gone, "the seam stands still")


def rows(found: Any) -> Iterator[tuple[Offset, str]]:
    """Return each row's position and origin; a row that contradicts its offset is an error."""
    for part in found:
        for row in part.to_pylist():
            assert row["key"] == b"key-%d" % row["offset"], row
            assert row["value"].startswith(b"value-%d." % row["offset"]), row
            yield (row["partition"], row["offset"]), row["origin"]


def spans(firsts: Sequence[int], ends: Sequence[int]) -> list[Offset]:
    return [
        (index, offset)
        for index, (first, end) in enumerate(zip(firsts, ends, strict=True))
        for offset in range(first, end)
    ]


def between(firsts: Sequence[int], ends: Sequence[int], data: st.DataObject) -> list[int]:
    """Return an offset of each partition from a drawn share: the log's length changes."""
    shares = [data.draw(st.sampled_from([0, 100]) | st.integers(0, 100)) for _ in firsts]
    spans_of = zip(firsts, ends, shares, strict=True)
    return [first + (end - first) * share // 100 for first, end, share in spans_of]


def by_partition(offsets: Sequence[int]) -> str:
    return json.dumps({TOPIC: {str(index): offset for index, offset in enumerate(offsets)}})


def planned(moving: Moving, data: st.DataObject) -> tuple[dict[str, str], list[Offset]]:
    """Draw options for a range of the present records, mostly over the seam, and the rows that it must return."""
    oldest, known = moving.since(3000), list(moving.producer.ends)
    firsts = between(oldest, known, data)
    ends = between(firsts, known, data)
    asked = options(moving, startingOffsets=by_partition(firsts), endingOffsets=by_partition(ends))
    for name, largest in (("minPartitions", 9), ("maxRecordsPerPartition", 700)):
        given = data.draw(st.none() | st.integers(1, largest), label=name)
        if given is not None:
            asked[name] = str(max(given, largest // 10))
    return asked, spans(firsts, ends)


@SOME
@given(data=st.data())
def test_a_batch_has_every_offset_once(moving: Moving, data: st.DataObject) -> None:
    asked, expected = planned(moving, data)
    parsed = parse_options(asked)
    tasks: list[Task] = batch_tasks(parsed)
    if data.draw(st.booleans(), label="it moves on"):
        move_on(moving.producer)
    # The number of tasks depends on the broker, so a draw of each task's place would differ when it is repeated.
    Random(data.draw(st.integers(0, 2**32), label="order")).shuffle(tasks)
    found = [where for task in tasks for where, _ in rows(read_task(task, shared_of(parsed)))]
    assert sorted(found) == expected


@SOME
@given(data=st.data())
def test_a_stream_has_every_offset_once(moving: Moving, data: st.DataObject) -> None:
    oldest, known = moving.since(2000), list(moving.producer.ends)
    begins = between(oldest, known, data)
    asked = options(moving, startingOffsets=by_partition(begins))
    driver = StratalogSource(asked).streamReader(StructType())
    at = driver.initialOffset()
    found: list[Offset] = []
    for _ in range(data.draw(st.integers(1, 4), label="batches")):
        limit = ReadMaxRows(data.draw(st.sampled_from([300, 1500, 10_000])))
        following = driver.latestOffset(at, limit)
        tasks = driver.partitions(at, following)
        if data.draw(st.booleans(), label="it moves on"):
            move_on(moving.producer)
        if data.draw(st.booleans(), label="the driver is killed"):
            driver = StratalogSource(asked).streamReader(StructType())
            driver.initialOffset()
            tasks = driver.partitions(at, following)
        found += [where for task in tasks for where, _ in rows(driver.read(task))]
        at = following
    driver.stop()
    (topic,) = at["topics"].values()
    ends = [topic["partitions"][str(index)] for index in range(len(begins))]
    assert sorted(found) == spans(begins, ends)


@SOME
@given(data=st.data())
def test_records_deleted_between_plan_and_read_are_never_missed(
    moving: Moving, data: st.DataObject
) -> None:
    """The query's lease keeps records in the bucket; those of the broker are lost, and the read reports that."""
    begins, known = moving.since(1500), list(moving.producer.ends)
    ends = by_partition(known)
    parsed = parse_options(
        options(moving, startingOffsets=by_partition(begins), endingOffsets=ends)
    )
    tasks = batch_tasks(parsed)
    cut = between(begins, known, data)
    moving.delete(cut)
    if data.draw(st.booleans(), label="it moves on"):
        move_on(moving.producer)
    found: list[Offset] = []
    lost: set[Offset] = set()
    for task in tasks:
        wanted = task.wanted
        try:
            found += [where for where, _ in rows(read_task(task, shared_of(parsed)))]
        except DataLoss as said:
            assert isinstance(task, BrokerTask)
            assert wanted.first < cut[wanted.partition], said
            assert f"{TOPIC}-{wanted.partition}: offsets " in str(said)
            lost |= {(wanted.partition, offset) for offset in range(wanted.first, wanted.end)}
    assert len(found) == len(set(found))
    assert set(spans(begins, known)) - set(found) <= lost
    event(f"lost: {bool(lost)}")
