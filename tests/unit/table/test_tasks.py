"""Tasks: they return every offset of a range once for any cuts; a wrong or missing record is an error.

Bucket tasks read a directory that the archiver filled; broker tasks read from a scripted client.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from crc32c import crc32c
from tests.transactional_log import ABORT, Step, transactional_log
from tests.unit.table.buckets import Bucket, batch, topic_id

from stratalog.adapters.object_store import open_store
from stratalog.client.calls import READ_COMMITTED, ListedOffset
from stratalog.client.fetches import FetchedPartition, FetchSpan
from stratalog.errors import Corrupt, DataLoss, ErrorCode, Rejected, Unavailable
from stratalog.kernels.columns import COLUMNS, ORIGIN
from stratalog.kernels.missing import Missing
from stratalog.table import chunks, tasks
from stratalog.table.places import Shared
from stratalog.table.plan import BrokerTask, Range, Task, plan
from stratalog.table.tasks import read_task
from stratalog.tier.formats.manifest import Manifest
from stratalog.tier.reading.reader import open_bucket, read_entries
from stratalog.wire.compression import CODEC_NAMES
from stratalog.wire.transactions import AbortedTransaction

END = 600


def shared(place: Path | None = None, *, fail: bool = True) -> Shared:
    return Shared(
        "broker:1",
        place.as_uri() if place else None,
        (*COLUMNS, ORIGIN),
        0,
        fail,
        "tester",
        1.0,
        1.0,
    )


def values(found: Iterator[pa.RecordBatch]) -> list[int]:
    """Return the offsets, each checked against its record's content."""
    offsets = []
    for rows in found:
        for row in rows.to_pylist():
            assert row["key"] == b"key-%d" % row["offset"]
            assert row["value"].startswith(b"value-%d." % row["offset"])
            offsets.append(row["offset"])
    return offsets


def read_all(work: list[Task], place: Path, asked: Shared | None = None) -> list[int]:
    return [offset for task in work for offset in values(read_task(task, asked or shared(place)))]


@pytest.fixture(scope="module")
def bucket(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Topic `t`: three segments of 200 offsets, in batches of 10 of every codec."""
    place = tmp_path_factory.mktemp("bucket")
    made = Bucket(open_store(place.as_uri()))
    made.create("t")
    segments = [
        [
            batch(at, 10, codec=CODEC_NAMES[at // 10 % 5], size=200)
            for at in range(base, base + 200, 10)
        ]
        for base in range(0, END, 200)
    ]
    assert made.archive("t", 0, segments) == END
    return place


def manifest_in(place: Path) -> Manifest:
    found = open_bucket(open_store(place.as_uri()))
    topic = found.topic("t")
    assert topic is not None
    pinned = found.manifest(topic, 0)
    assert pinned is not None
    return pinned


def planned(
    place: Path, first: int = 0, end: int = END, min_tasks: int | None = None
) -> list[Task]:
    wanted = Range("t", topic_id("t"), 0, first, end)
    return plan(
        [(wanted, list(manifest_in(place).recent()))], has_broker=False, min_tasks=min_tasks
    )


@pytest.mark.parametrize("min_tasks", [None, 2, 7, 60])
@pytest.mark.parametrize(("first", "end"), [(0, END), (1, 2), (195, 405), (213, 214), (599, 600)])
def test_a_buckets_range_is_complete_for_any_cuts(
    bucket: Path, first: int, end: int, min_tasks: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunks, "CHUNK_BYTES", 3000)
    found = []
    for task in planned(bucket, first, end, min_tasks):
        found += values(read_task(task, shared(bucket)))
    assert found == list(range(first, end))


def test_only_the_bytes_of_a_range_are_requested(
    bucket: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def counted(store: Any, segment: Any, index: Any, first: int, stop: int) -> bytes:
        asked.append((index.entries.base_offsets[first], index.entries.last_offsets[stop - 1]))
        return read_entries(store, segment, index, first, stop)

    monkeypatch.setattr(chunks, "read_entries", counted)
    (task,) = planned(bucket, 250, 260)
    assert values(read_task(task, shared(bucket))) == list(range(250, 260))
    ((first, last),) = asked
    assert 200 <= first <= 250
    assert 259 <= last <= 320  # an index entry has a few batches; the segment ends at 399


def test_a_range_that_ends_early_is_missing(bucket: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If an index and its data disagree, the error names the missing offsets."""
    cuts = chunks._cuts
    monkeypatch.setattr(chunks, "CHUNK_BYTES", 3000)
    monkeypatch.setattr(chunks, "_cuts", lambda *where: list(cuts(*where))[:-1])
    (task,) = planned(bucket, 0, 200)
    with pytest.raises(Missing, match=r"\.seg: offsets 1\d\d to 199 are missing"):
        values(read_task(task, shared(bucket)))


def damaged_copy(bucket: Path, tmp_path: Path) -> tuple[Path, Path]:
    """Return a copy of the bucket, and the file of its second segment."""
    copy = tmp_path / "copy"
    for file in sorted(bucket.rglob("*")):
        if file.is_file():
            target = copy / file.relative_to(bucket)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(file.read_bytes())
    second = manifest_in(copy).segments[1]
    return copy, copy / manifest_in(copy).path_of(second)


def test_a_missing_object_is_named(bucket: Path, tmp_path: Path) -> None:
    copy, segment = damaged_copy(bucket, tmp_path)
    work = planned(copy, min_tasks=3)
    segment.unlink()
    with pytest.raises(Corrupt, match=segment.name):
        read_all(work, copy)


@pytest.mark.parametrize("part", [0.0, 0.02, 0.3, 0.6, 0.9, 0.97, 0.9999])
def test_an_altered_object_is_named(bucket: Path, tmp_path: Path, part: float) -> None:
    """The test alters a base offset (which no batch checksum covers), records, the index, and the footer."""
    copy, segment = damaged_copy(bucket, tmp_path)
    work = planned(copy, min_tasks=3)
    data = bytearray(segment.read_bytes())
    data[int(len(data) * part)] ^= 0x04
    segment.write_bytes(data)
    with pytest.raises(Corrupt, match=segment.name):
        read_all(work, copy)


def test_an_object_cut_short_is_named(bucket: Path, tmp_path: Path) -> None:
    copy, segment = damaged_copy(bucket, tmp_path)
    work = planned(copy, min_tasks=3)
    segment.write_bytes(segment.read_bytes()[:-100])
    with pytest.raises(Corrupt, match=segment.name):
        read_all(work, copy)


def test_a_segment_in_the_place_of_another_is_named(bucket: Path, tmp_path: Path) -> None:
    copy, segment = damaged_copy(bucket, tmp_path)
    work = planned(copy, min_tasks=3)
    other = copy / manifest_in(copy).path_of(manifest_in(copy).segments[0])
    segment.write_bytes(other.read_bytes())
    with pytest.raises(Corrupt, match=segment.name):
        read_all(work, copy)


def test_an_unknown_set_of_transactions_in_the_bucket_is_an_error(tmp_path: Path) -> None:
    made = Bucket(open_store(tmp_path.as_uri()))
    made.create("t")
    one = bytearray(batch(0, 5))
    one[22] |= 0x10
    one[17:21] = crc32c(one[21:]).to_bytes(4, "big")
    made.archive("t", 0, [[bytes(one)]])
    (task,) = planned(tmp_path, 0, 5)
    assert values(read_task(task, shared(tmp_path))) == [0, 1, 2, 3, 4]
    with pytest.raises(Rejected, match="not how they ended"):
        values(read_task(task, replace(shared(tmp_path), isolation=READ_COMMITTED)))


def test_a_transaction_s_end_counts_in_every_segment_with_its_records(
    tmp_path: Path,
) -> None:
    """The third segment aborts the transaction: a read of the first segment alone hides its records."""
    log = transactional_log([Step(1, 3), Step(2, 3), Step(1, 0, kind=ABORT), Step(2, 0)])
    made = Bucket(open_store(tmp_path.as_uri()))
    made.create("t")
    made.archive("t", 0, [[one] for one in log.batches], aborted=log.aborted)
    asked = replace(shared(tmp_path), isolation=READ_COMMITTED)
    for first, end, seen in ((0, 3, []), (3, 6, [3, 4, 5]), (0, 8, [3, 4, 5]), (6, 8, [])):
        assert read_all(planned(tmp_path, first, end), tmp_path, asked) == seen


# --- broker -----------------------------------------------------------------------------------------------------


@dataclass
class PlayedClient:
    """A scripted client of one partition: it returns `script`, then `at_once` of the log's `batches` at a time."""

    batches: list[bytes]
    start: int = 0
    at_once: int = 3
    script: list[Any] = field(default_factory=list)
    asked: list[int] = field(default_factory=list)
    aborted: list[AbortedTransaction] = field(default_factory=list)

    def fetch(self, span: FetchSpan) -> FetchedPartition:
        self.asked.append(span.offset)
        if self.script:
            scripted = self.script.pop(0)
            if isinstance(scripted, Exception):
                raise scripted
            return FetchedPartition(0, 100, memoryview(scripted))
        ends = [
            int.from_bytes(one[:8], "big") + int.from_bytes(one[23:27], "big")
            for one in self.batches
        ]
        left = [one for one, last in zip(self.batches, ends, strict=True) if last >= span.offset]
        behind = ends[len(ends) - len(left) : len(ends) - len(left) + self.at_once]
        # As Kafka's index of aborted transactions: those that overlap the returned records.
        aborted = [
            (one.producer_id, one.first_offset)
            for one in self.aborted
            if one.last_offset >= span.offset and behind and one.first_offset <= behind[-1]
        ]
        records = memoryview(b"".join(left[: self.at_once]))
        return FetchedPartition(0, 100, records, aborted)

    def list_offsets(
        self, wanted: dict[tuple[str, int], int]
    ) -> dict[tuple[str, int], ListedOffset]:
        return {key: ListedOffset(ErrorCode.none, self.start, -1, 0) for key in wanted}


LOG = [batch(at, 10) for at in range(0, 100, 10)]
GONE = Rejected(ErrorCode.offset_out_of_range, "out of range")


def fetched(
    client: PlayedClient,
    monkeypatch: pytest.MonkeyPatch,
    first: int = 5,
    end: int = 97,
    *,
    fail: bool = True,
    gaps: bool = False,
) -> list[int]:
    monkeypatch.setattr(tasks, "client_of", lambda _: client)
    task = BrokerTask(Range("t", topic_id("t"), 0, first, end, gaps))
    return values(read_task(task, shared(fail=fail)))


def test_a_brokers_range_is_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    client = PlayedClient(LOG)
    assert fetched(client, monkeypatch) == list(range(5, 97))
    assert client.asked == [5, 30, 60, 90]


def test_answers_without_records_are_retried_a_bounded_number_of_times(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client = PlayedClient(LOG, script=[b"", b"", LOG[0][:40]])
    assert fetched(client, monkeypatch) == list(range(5, 97))
    monkeypatch.setattr(tasks, "EMPTY_ANSWERS_MAX", 5)
    client = PlayedClient(LOG[:3])
    with pytest.raises(
        Unavailable, match=r"t-0 from broker:1: no answer holds offset 30 of \[5, 97\)"
    ):
        fetched(client, monkeypatch)


def test_a_hole_in_a_broker_s_log_is_data_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    holed = LOG[:4] + LOG[5:]
    with pytest.raises(
        DataLoss, match="offsets 40 to 49 are missing; failOnDataLoss=false reads on"
    ):
        fetched(PlayedClient(holed), monkeypatch)
    there = [*range(5, 40), *range(50, 97)]
    assert fetched(PlayedClient(holed), monkeypatch, fail=False) == there
    assert fetched(PlayedClient(holed), monkeypatch, gaps=True) == there


def test_a_log_that_has_lost_its_beginning_meanwhile_is_data_loss(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def client() -> PlayedClient:
        return PlayedClient(LOG[6:], start=60, script=[LOG[0] + LOG[1], GONE])

    says = r"t-0: offsets 20 to 59 are gone \(the log now starts at 60\)"
    with pytest.raises(DataLoss, match=says):
        fetched(client(), monkeypatch)
    assert fetched(client(), monkeypatch, fail=False) == [*range(5, 20), *range(60, 97)]


def test_a_truncated_log_is_always_data_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    for fail in (True, False):
        with pytest.raises(DataLoss):
            fetched(PlayedClient(LOG, script=[GONE]), monkeypatch, fail=fail)


def test_a_damaged_answer_is_corrupt(monkeypatch: pytest.MonkeyPatch) -> None:
    altered = bytearray(LOG[0])
    altered[-1] ^= 1
    with pytest.raises(Corrupt, match="t-0 from broker:1: batch at offset 0: its checksum"):
        fetched(PlayedClient(LOG, script=[bytes(altered)]), monkeypatch)


def test_other_refusals_are_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = Rejected(ErrorCode.unknown_topic_id, "unknown topic id")
    with pytest.raises(Rejected, match="unknown topic id"):
        fetched(PlayedClient(LOG, script=[refused]), monkeypatch)


def test_a_range_beyond_the_end_of_the_bucket_is_missing(bucket: Path) -> None:
    with pytest.raises(Missing, match="t-0 in the bucket: offsets 600 to 699"):
        planned(bucket, 0, 700)
