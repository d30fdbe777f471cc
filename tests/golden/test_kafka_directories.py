"""Directories that Apache Kafka 4.3.1 left around a compaction load as Kafka loads them.

Method: `kafka_directories/make.py` killed a real node before and after its cleaner ran. The states of a replacement
that was interrupted are made of the same files: the cleaner's result as `.cleaned` or `.swap`, beside old segments.
"""

import tarfile
from collections.abc import Callable, Iterable
from pathlib import Path
from random import Random

import pytest
from tests.sim.disk import SimDisk, paths

from stratalog.config import LogConfig
from stratalog.log.effects import Append, MakeDirectory, perform, run
from stratalog.log.partition_log import PartitionLog
from stratalog.log.reading import ReadPlan
from stratalog.log.recovery import load
from stratalog.wire.batch import scan
from stratalog.wire.records import read_records

ARCHIVE = Path(__file__).parent / "kafka_directories" / "compacted.tar.xz"
TOPIC = "compacted-0"
BEFORE = list(range(19))
AFTER = [0, 3, 9, 12, 15, 17, 18]
CLEANED = (0, 6, 12)
"""Base offsets of the segments that the cleaner wrote: each replaces two."""
SEGMENT_FILES = (".log", ".index", ".timeindex")
Files = dict[str, bytes]


@pytest.fixture(scope="module")
def archive() -> dict[str, Files]:
    found: dict[str, Files] = {"before": {}, "after": {}}
    with tarfile.open(ARCHIVE) as files:
        for member in files:
            if member.isfile():
                place, name = member.name.split("/")
                data = files.extractfile(member)
                assert data is not None
                found[place][name] = data.read()
    return found


def disk_of(files: Files) -> SimDisk:
    disk = SimDisk()
    perform(disk, MakeDirectory(TOPIC))
    for name, data in files.items():
        perform(disk, Append(f"{TOPIC}/{name}", 0, (data,)))
        disk.sync(f"{TOPIC}/{name}")
    disk.sync_directory(TOPIC)
    disk.sync_directory("")
    return disk


def load_from(
    disk: SimDisk,
    policy: str = "compact",
    *,
    clean: bool = False,
    replicated: bool = False,
    was_cleaned: bool = False,
) -> PartitionLog:
    config = LogConfig(cleanup_policy=(policy,), retention_ms=-1)
    program = load(
        TOPIC,
        config,
        clean=clean,
        recovery_point=0,
        high_watermark=19,
        now_ms=0,
        replicated=replicated,
        was_cleaned=was_cleaned,
    )
    return run(disk, program)


def offsets(log: PartitionLog, disk: SimDisk) -> list[int]:
    """The offsets that a consumer finds from the log's start to its end."""
    found, offset = [], log.log_start_offset
    while offset < log.log_end_offset:
        plan = log.read(offset, 100, end_offset=log.log_end_offset)
        while isinstance(plan, ReadPlan):
            plan = log.finish_read(plan, disk.read(plan.path, plan.position, plan.size))
        assert plan.next_offset > offset
        for buffer in plan.buffers:
            for position, header in scan(buffer):
                batch = buffer[position : position + header.size]
                found += [record.offset for record in read_records(batch)]
        offset = plan.next_offset
    return found


def unfinished(disk: SimDisk) -> set[str]:
    return {name for name in paths(disk) if name.endswith((".swap", ".cleaned", ".deleted"))}


@pytest.mark.parametrize("clean", [False, True])
def test_a_compacted_log_keeps_every_record_behind_its_gaps(
    archive: dict[str, Files], clean: bool
) -> None:
    disk = disk_of(archive["after"])
    log = load_from(disk, clean=clean)
    assert offsets(log, disk) == AFTER
    assert (log.log_start_offset, log.log_end_offset) == (0, 19)
    assert (log.recovered.damage, log.recovered.bytes_cut) == ((), 0)
    assert not unfinished(disk)


def test_gaps_in_a_log_that_is_not_compacted_are_reported_and_nothing_behind_them_is_cut(
    archive: dict[str, Files],
) -> None:
    disk = disk_of(archive["after"])
    log = load_from(disk, "delete")
    assert offsets(log, disk) == AFTER
    gaps = [(Path(path).name, reason) for path, reason in log.recovered.damage]
    assert [name for name, _ in gaps] == [f"{base:020}.log" for base in (0, 6)]
    assert ["offsets 4 to 5 are missing" in gaps[0][1], "10 to 11" in gaps[1][1]] == [True, True]


@pytest.mark.parametrize(("policy", "end"), [("delete", 4), ("compact", 19)])
def test_a_replicated_log_ends_at_its_first_hole_unless_the_cleaner_made_it(
    archive: dict[str, Files], policy: str, end: int
) -> None:
    log = load_from(disk_of(archive["after"]), policy, replicated=True)
    assert (log.log_end_offset, log.recovered.damage) == (end, ())


def test_a_replicated_log_that_was_compacted_once_keeps_every_record_behind_its_gaps(
    archive: dict[str, Files],
) -> None:
    disk = disk_of(archive["after"])
    log = load_from(disk, "delete", replicated=True, was_cleaned=True)
    assert (log.log_end_offset, log.recovered.bytes_cut) == (19, 0)
    assert offsets(log, disk) == AFTER


def of_cleaner(archive: dict[str, Files], base: int, suffix: str) -> Files:
    """The files that the cleaner wrote for one segment, with a suffix."""
    names = [f"{base:020}{one}" for one in SEGMENT_FILES]
    return {name + suffix: archive["after"][name] for name in names}


def deleted(files: Files, base: int) -> Files:
    """The files of one old segment as they are named before they are removed."""
    old = {f"{base:020}{one}" for one in SEGMENT_FILES}
    return {name + (".deleted" if name in old else ""): data for name, data in files.items()}


def committed(archive: dict[str, Files]) -> Files:
    """Every replacement is committed, and no old segment is removed."""
    files = dict(archive["before"])
    for base in CLEANED:
        files |= of_cleaner(archive, base, ".swap")
    return files


def partly_removed(archive: dict[str, Files]) -> Files:
    return deleted(deleted(committed(archive), 0), 9)


def partly_renamed(archive: dict[str, Files]) -> Files:
    """Kafka has renamed the first segment's log and not yet its indexes; the last segment is complete."""
    files = {
        name: data
        for name, data in archive["after"].items()
        if not name.startswith((f"{0:020}.", f"{6:020}."))
    }
    files |= of_cleaner(archive, 6, ".swap") | of_cleaner(archive, 0, ".swap")
    log = f"{0:020}.log"
    files[log] = files.pop(log + ".swap")
    return files


def not_committed(archive: dict[str, Files]) -> Files:
    return (
        archive["before"] | of_cleaner(archive, 0, ".cleaned") | of_cleaner(archive, 6, ".cleaned")
    )


def split_not_committed(archive: dict[str, Files]) -> Files:
    """A split renames its segments to `.swap` from the last one on: with a `.cleaned` one left, it is not committed."""
    return archive["before"] | of_cleaner(archive, 0, ".cleaned") | of_cleaner(archive, 6, ".swap")


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (committed, AFTER),
        (partly_removed, AFTER),
        (partly_renamed, AFTER),
        (not_committed, BEFORE),
        (split_not_committed, BEFORE),
    ],
)
def test_an_interrupted_replacement_is_completed_if_it_was_committed(
    archive: dict[str, Files],
    state: Callable[[dict[str, Files]], Files],
    expected: list[int],
) -> None:
    disk = disk_of(state(archive))
    log = load_from(disk)
    assert offsets(log, disk) == expected
    assert (log.log_end_offset, log.recovered.bytes_cut) == (19, 0)
    assert not unfinished(disk)
    assert offsets(load_from(disk), disk) == expected, "the next start must find the same records"


def crashes(seeds: Iterable[int]) -> Iterable[tuple[int, int]]:
    return [(seed, after) for seed in seeds for after in (1, 5, 9, 13)]


@pytest.mark.parametrize(("seed", "after"), crashes(range(5)))
def test_a_power_loss_within_the_completion_loses_no_record(
    archive: dict[str, Files], seed: int, after: int
) -> None:
    disk = disk_of(committed(archive))
    program = load(
        TOPIC, LogConfig(cleanup_policy=("compact",)), clean=False, recovery_point=0, now_ms=0
    )
    result = None
    for _ in range(after):
        result = perform(disk, program.send(result))
    disk.crash(Random(seed))
    assert offsets(load_from(disk), disk) == AFTER
