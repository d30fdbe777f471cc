"""Measure what cleaning does for a coordinator: how long a start loads a long log of offset commits, before and after.

usage: python -m bench.cleaning [--commits 10000000] [--groups 1000] [--batch 10] [--directory DIR] [--skip-before]

The log of `__consumer_offsets` is written as segment files, not by requests: commits of all groups in turn, `--batch`
of them in a batch. A node starts with it. Then the cleaner cleans it, here in one thread, and a node starts again. The
active segment is never cleaned. A start counts until the offsets of all groups can be read, and each is compared.
"""

import argparse
import asyncio
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from struct import Struct

from bench.turns import node, start, until
from stratalog.adapters.local_disk import LocalDisk
from stratalog.config import LogConfig
from stratalog.coordinators.records import KeptOffset, offset_record
from stratalog.log.cleaning.choosing import cleanable, plan_cleaning
from stratalog.log.cleaning.cleaner import Cleaned, clean
from stratalog.log.effects import perform, run
from stratalog.log.partition_log import PartitionLog
from stratalog.log.recovery import load
from stratalog.log.segment import LOG, segment_path
from stratalog.node import Node
from stratalog.quorum.controller import NewTopic
from stratalog.wire.records import Record, build_batch

PARTITION = "__consumer_offsets-0"
SEGMENT_BYTES = 104_857_600
"""The default of `offsets.topic.segment.bytes`."""
ROUNDS = 20
"""So many commits of a group have offsets of their own; then they repeat."""
DEDUPE_BYTES = 134_217_728
LOAD_FACTOR = 0.9
_OFFSET = Struct(">q")


def group_name(number: int) -> str:
    return f"group-{number:06}"


def made_round(number: int, groups: int, a_batch: int) -> tuple[bytearray, list[int]]:
    """One commit of each group, in batches: the bytes, and the batches' positions."""
    now_ms = int(time.time() * 1000)
    data, positions = bytearray(), []
    for first in range(0, groups, a_batch):
        records = []
        for group in range(first, min(first + a_batch, groups)):
            kept = KeptOffset(1000 * group + number, commit_timestamp_ms=now_ms)
            key, value = offset_record(group_name(group), "t", 0, kept)
            records.append(Record(0, now_ms, key, value))
        positions.append(len(data))
        data += build_batch(records, leader_epoch=0)
    return data, positions


def rounds_of(commits: int, groups: int, a_batch: int) -> Iterator[tuple[int, bytearray]]:
    """Yield (first offset, bytes) for each round of commits. The bytes change later."""
    made = [made_round(number, groups, a_batch) for number in range(ROUNDS)]
    for turn in range(commits // groups):
        data, positions = made[turn % ROUNDS]
        base = turn * groups
        for index, position in enumerate(positions):  # the CRC does not cover the base offset
            _OFFSET.pack_into(data, position, base + index * a_batch)
        yield base, data


def write_log(directory: Path, commits: int, groups: int, a_batch: int) -> int:
    """Write segments, each as full as it can be; return their bytes."""
    for old in (*directory.glob("0*"), directory.parent / ".kafka_cleanshutdown"):
        old.unlink()
    total, base, pieces, size = 0, 0, [], 0
    for offset, data in rounds_of(commits, groups, a_batch):
        if size + len(data) > SEGMENT_BYTES:
            write_segment(directory, base, pieces)
            pieces, size, base = [], 0, offset
        pieces.append(bytes(data))
        size += len(data)
        total += len(data)
    write_segment(directory, base, pieces)
    return total


def write_segment(directory: Path, base: int, pieces: list[bytes]) -> None:
    with Path(segment_path(str(directory), base, LOG)).open("wb") as file:
        file.writelines(pieces)


def cleaned(disk: LocalDisk, log: PartitionLog) -> Cleaned:
    """One pass over everything below the active segment, and the swap."""
    wall_ms = int(time.time() * 1000)
    found = cleanable(log, log.log_end_offset, wall_ms)
    done = run(disk, clean(plan_cleaning(found, wall_ms, DEDUPE_BYTES, LOAD_FACTOR)))
    originals = {one.base_offset: one for one in found.segments}
    for one in done.rewritten:
        old = [originals[base] for base in one.replaced]
        for effect in log.swaps.begin(one.segment, old, wall_ms):
            perform(disk, effect)
        log.swaps.end(is_done=True)
    log.cleaned_end = done.end_offset
    return done


def size_of(directory: Path) -> int:
    return sum(one.stat().st_size for one in directory.glob(f"*{LOG}"))


def clean_log(place: Path) -> None:
    """Clean the log as a cleaner does, and print the time."""
    config = LogConfig(
        cleanup_policy=("compact",), segment_bytes=SEGMENT_BYTES, file_delete_delay_ms=0
    )
    disk = LocalDisk(str(place))
    log = run(disk, load(PARTITION, config, clean=True, recovery_point=0, now_ms=0))
    log.synced(log.log_end_offset)
    began, cpu = time.perf_counter(), time.process_time()
    done = cleaned(disk, log)
    took, used = time.perf_counter() - began, time.process_time() - cpu
    read = done.bytes_noted
    print(
        f"cleaned {read / 1e6:.0f} MB in {took:.1f} s: {read / 1e6 / took:.0f} MB/s, "
        f"{used / (read / 1e9):.2f} CPU s/GB, {done.keys} keys",
        flush=True,
    )
    for effect in (*log.due(1, wall_ms=int(time.time() * 1000)), *log.close()):
        perform(disk, effect)
    disk.close()
    for left in (place / PARTITION).glob("*.deleted"):
        left.unlink()


async def serve(place: Path, what: str, expected: dict[str, int]) -> None:
    """Start a node, wait for the offsets, compare them, stop."""
    running = node(str(place), log__cleaner__enable="false")
    began, cpu = time.perf_counter(), time.process_time()
    await start(running)
    serves = time.perf_counter() - began
    assert running.broker is not None
    groups = running.broker.groups
    await until(lambda: bool(groups.coordinated) and not groups.is_loading)
    took, used = time.perf_counter() - began, time.process_time() - cpu
    found = {group: one.offset for group, kept in groups.committed() for _, _, one in kept}
    assert found == expected, f"{len(found)} of {len(expected)} groups, or other offsets"
    size = size_of(place / PARTITION) / 1e6
    print(
        f"{what:24} {size:8.1f} MB: the node serves after {serves:5.2f} s, "
        f"its {len(found)} groups after {took:6.2f} s, {used:.2f} s of CPU",
        flush=True,
    )
    await running.stop()


async def made_node(place: Path) -> None:
    """Make the directory of a node with an empty offsets topic."""
    running: Node = node(str(place))
    await start(running)
    assert running.broker is not None
    await running.broker.groups.ensure_topic()
    await until(lambda: bool(running.broker and running.broker.groups.coordinated))
    await running.broker.local_controller.create_topics([NewTopic("t", 1, 1)], validate_only=False)
    await running.stop()


async def measure(place: Path, options: argparse.Namespace) -> None:
    commits, groups = options.commits, options.groups
    await made_node(place)
    began = time.perf_counter()
    size = write_log(place / PARTITION, commits, groups, options.batch)
    took = time.perf_counter() - began
    print(f"{commits} commits of {groups} groups: {size / 1e6:.0f} MB in {took:.0f} s", flush=True)
    last = (commits // groups - 1) % ROUNDS
    expected = {group_name(number): 1000 * number + last for number in range(groups)}
    if not options.skip_before:
        await serve(place, "after a crash", expected)
        await serve(place, "before the cleaning", expected)
    await asyncio.to_thread(clean_log, place)
    await serve(place, "after the cleaning", expected)
    await serve(place, "and once more", expected)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.cleaning")
    parser.add_argument("--commits", type=int, default=10_000_000)
    parser.add_argument("--groups", type=int, default=1000)
    parser.add_argument("--batch", type=int, default=10, help="commits in a batch")
    parser.add_argument(
        "--directory", help="where the log is made; 60 bytes a commit, 120 with --batch 1"
    )
    parser.add_argument("--skip-before", action="store_true", help="no start with the whole log")
    options = parser.parse_args()
    place = Path(tempfile.mkdtemp(dir=options.directory))
    try:
        asyncio.run(measure(place / "node", options))
    finally:
        shutil.rmtree(place)


if __name__ == "__main__":
    main()
