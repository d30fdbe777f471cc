"""`failOnDataLoss=false`: the read logs, counts and skips a missing or damaged object, and reads all others.

Method: the tests damage a bucket that the archiver filled. Each record holds its own offset, so a wrong row shows.
"""

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from crc32c import crc32c
from tests.unit.table.buckets import Bucket, batch, topic_id
from tests.unit.table.test_tasks import manifest_in, shared, values

from stratalog import ReadMetrics, read
from stratalog.adapters.object_store import open_store
from stratalog.errors import Corrupt
from stratalog.table.plan import Range, plan
from stratalog.table.tasks import read_task
from stratalog.tier.formats.segment_object import SegmentIndex, read_footer

END, SEGMENT = 600, 200
ENTRY = 10
"""Records of each batch; each batch is one index entry."""


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Topic `t`: three segments of 20 batches; each batch is an index entry."""
    place = tmp_path_factory.mktemp("bucket")
    made = Bucket(open_store(place.as_uri()))
    made.create("t")
    made.archive(
        "t",
        0,
        [
            [batch(at, ENTRY, size=200) for at in range(base, base + SEGMENT, ENTRY)]
            for base in range(0, END, SEGMENT)
        ],
    )
    return place


@pytest.fixture
def place(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "copy"))


def second(place: Path) -> tuple[Path, SegmentIndex]:
    """Return the file of the second segment, and its index."""
    manifest = manifest_in(place)
    path, entry = manifest.path_of(manifest.segments[1]), manifest.segments[1]
    index = read_footer(open_store(place.as_uri()), path, entry.size, entry.data_size)
    return place / path, index


def taken(place: Path, min_tasks: int | None = None) -> tuple[list[int], ReadMetrics]:
    """Return the offsets that at least `min_tasks` tasks read with `failOnDataLoss=false`."""
    wanted = Range("t", topic_id("t"), 0, 0, END)
    held = list(manifest_in(place).recent())
    metrics, asked = ReadMetrics(), shared(place, fail=False)
    work = plan([(wanted, held)], has_broker=False, min_tasks=min_tasks)
    found = [at for task in work for at in values(read_task(task, asked, metrics))]
    assert metrics.records == len(found)
    return found, metrics


def flip(file: Path, at: int) -> None:
    data = bytearray(file.read_bytes())
    data[at] ^= 0x04
    file.write_bytes(data)


def missing(file: Path) -> None:
    file.unlink()


def cut_short(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-100])


def footer_altered(file: Path) -> None:
    flip(file, len(file.read_bytes()) - 5)


def another_s(file: Path) -> None:
    first = min(file.parent.glob("*.seg"))
    file.write_bytes(first.read_bytes())


@pytest.mark.parametrize("min_tasks", [None, 3, 40])
@pytest.mark.parametrize("damage", [missing, cut_short, footer_altered, another_s])
def test_an_object_that_cannot_be_opened_is_skipped(
    place: Path,
    damage: Callable[[Path], None],
    min_tasks: int | None,
    caplog: pytest.LogCaptureFixture,
) -> None:
    file, _ = second(place)
    damage(file)
    found, metrics = taken(place, min_tasks)
    assert found == [*range(200), *range(400, END)]
    assert metrics.skipped == SEGMENT
    assert "; 200 offsets skipped" in str(metrics)
    (line,) = [one.getMessage() for one in caplog.records]
    assert file.name in line
    assert line.endswith("; offsets 200 to 399 of t-0 are skipped")


@pytest.mark.parametrize("min_tasks", [None, 3, 40])
@pytest.mark.parametrize("entries", [(0,), (7,), (7, 8, 9), (3, 12), (19,), tuple(range(20))])
def test_only_damaged_index_entries_are_skipped(
    place: Path,
    entries: Sequence[int],
    min_tasks: int | None,
    caplog: pytest.LogCaptureFixture,
) -> None:
    file, index = second(place)
    assert len(index.entries) == SEGMENT // ENTRY
    for one in entries:
        flip(file, index.entries.positions[one] + 30)
    lost = {200 + ENTRY * one + at for one in entries for at in range(ENTRY)}
    found, metrics = taken(place, min_tasks)
    assert found == [at for at in range(END) if at not in lost]
    assert metrics.skipped == len(lost)
    lines = [one.getMessage() for one in caplog.records]
    assert all(file.name in line and "are not those that were archived" in line for line in lines)
    if min_tasks is None:
        runs = sum(one - 1 not in entries for one in entries)
        assert len(lines) == runs, "neighbouring entries must be one report"


def test_an_object_that_vanishes_after_its_index_was_read_is_skipped(
    place: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    file, index = second(place)
    monkeypatch.setattr("stratalog.table.chunks.load_index", lambda _store, one: opened[one.path])
    store, manifest = open_store(place.as_uri()), manifest_in(place)
    opened = {
        one.path: read_footer(store, one.path, one.entry.size, one.entry.data_size)
        for one in manifest.recent()
    }
    assert index.entries.base_offsets[0] == SEGMENT
    file.unlink()
    found, metrics = taken(place)
    assert found == [*range(200), *range(400, END)]
    assert metrics.skipped == SEGMENT
    (line,) = [one.getMessage() for one in caplog.records]
    assert "missing from the bucket" in line


def test_a_hole_and_a_malformed_batch_are_skipped(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The object is as it was archived: the log itself was damaged."""
    senseless = bytearray(batch(30, 10))
    senseless[57:61] = (11).to_bytes(4, "big")  # more records than offsets
    senseless[17:21] = crc32c(senseless[21:]).to_bytes(4, "big")
    made = Bucket(open_store(tmp_path.as_uri()), index_interval_bytes=1 << 20)
    made.create("t")
    made.archive("t", 0, [[batch(0, 10), batch(20, 10)], [bytes(senseless)], [batch(40, 10)]])
    with pytest.raises(Corrupt, match="offsets 10 to 19 are missing"):
        read("t", tier_url=tmp_path.as_uri()).read_all()
    metrics = ReadMetrics()
    reader = read("t", tier_url=tmp_path.as_uri(), fail_on_data_loss=False, metrics=metrics)
    assert reader.read_all()["offset"].to_pylist() == [*range(10), *range(20, 30), *range(40, 50)]
    assert metrics.skipped == 20
    hole, wrong = [one.getMessage() for one in caplog.records]
    assert hole.endswith("offsets 10 to 19 are missing; offsets 10 to 19 of t-0 are skipped")
    assert wrong.endswith("more records than offsets; offsets 30 to 39 of t-0 are skipped")


def test_a_read_stops_and_names_the_object_unless_data_loss_is_allowed(place: Path) -> None:
    file, _ = second(place)
    file.unlink()
    with pytest.raises(Corrupt, match=file.name):
        read("t", tier_url=place.as_uri()).read_all()
    metrics = ReadMetrics()
    reader = read("t", tier_url=place.as_uri(), fail_on_data_loss=False, metrics=metrics)
    assert reader.read_all().num_rows == END - SEGMENT
    assert metrics.skipped == SEGMENT


def test_a_damaged_archive_manifest_is_skipped(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made = Bucket(open_store(tmp_path.as_uri()))
    made.create("t")
    made.archive("t", 0, [[batch(at, 10)] for at in range(0, 1000, 10)])
    (archived,) = manifest_in(tmp_path).archives
    (file,) = tmp_path.rglob("archive/*")
    flip(file, 60)
    with pytest.raises(Corrupt, match=file.name):
        read("t", tier_url=tmp_path.as_uri())
    reader = read("t", tier_url=tmp_path.as_uri(), fail_on_data_loss=False)
    assert reader.read_all()["offset"].to_pylist() == list(range(archived.last_offset + 1, 1000))
    damaged, gone = [one.getMessage() for one in caplog.records]
    assert file.name in damaged
    assert gone == f"t-0 in the bucket: offsets 0 to {archived.last_offset} are missing"
