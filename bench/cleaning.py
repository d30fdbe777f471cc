"""Measure what cleaning does for a coordinator: how long a start loads a long log of offset commits, before and after.

usage: python -m bench.cleaning [--commits 10000000] [--groups 1000] [--batch 10] [--partitions 1] [--active 2]
       [--directory DIR] [--skip-before] [--starts 3]

The logs of `__consumer_offsets` are written as segment files, not by requests: commits of a partition's groups in turn,
`--batch` of them in a batch. A node starts with it. Then the cleaner cleans it, here in one thread, and a node starts
again. The active segment is never cleaned: `--active` is its size in MiB, 2 where this broker wrote the log. A start
counts until the offsets of all groups can be read, and each is compared. The last starts are those of `strata server`,
as a process: from the command to the answers that a client gets.
"""

import argparse
import asyncio
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from struct import Struct

from bench.peers import strata
from bench.turns import node, start, until
from stratalog.adapters.blocking_socket import BlockingNetwork
from stratalog.adapters.local_disk import LocalDisk
from stratalog.client.admin import fetch_offsets
from stratalog.client.blocking import BlockingClient
from stratalog.config import LogConfig
from stratalog.coordinators.placement import partition_for
from stratalog.coordinators.records import KeptOffset, offset_record
from stratalog.errors import ErrorCode, Rejected
from stratalog.log.cleaning.choosing import cleanable, plan_cleaning
from stratalog.log.cleaning.cleaner import Cleaned, clean
from stratalog.log.effects import perform, run
from stratalog.log.partition_log import PartitionLog
from stratalog.log.recovery import load
from stratalog.log.segment import LOG, segment_path
from stratalog.node import Node
from stratalog.quorum.controller import NewTopic
from stratalog.wire.records import Record, build_batch

TOPIC = "__consumer_offsets"
SEGMENT_BYTES = 104_857_600
"""The default of `offsets.topic.segment.bytes`."""
ROUNDS = 20
"""So many commits of a group have offsets of their own; then they repeat."""
DEDUPE_BYTES = 134_217_728
LOAD_FACTOR = 0.9
_OFFSET = Struct(">q")


def groups_of(partition: int, options: argparse.Namespace) -> list[str]:
    names = (f"group-{number:06}" for number in range(options.groups))
    return [name for name in names if partition_for(name, options.partitions) == partition]


def made_round(number: int, groups: list[str], a_batch: int) -> tuple[bytearray, list[int]]:
    """One commit of each group, in batches: the bytes, and the batches' positions."""
    now_ms = int(time.time() * 1000)
    data, positions = bytearray(), []
    for first in range(0, len(groups), a_batch):
        records = []
        for group in groups[first : first + a_batch]:
            kept = KeptOffset(number, commit_timestamp_ms=now_ms)
            key, value = offset_record(group, "t", 0, kept)
            records.append(Record(0, now_ms, key, value))
        positions.append(len(data))
        data += build_batch(records, leader_epoch=0)
    return data, positions


def rounds_of(turns: int, groups: list[str], a_batch: int) -> Iterator[tuple[int, bytearray]]:
    """Yield (first offset, bytes) for each round of commits. The bytes change later."""
    made = [made_round(number, groups, a_batch) for number in range(ROUNDS)]
    for turn in range(turns):
        data, positions = made[turn % ROUNDS]
        base = turn * len(groups)
        for index, position in enumerate(positions):  # the CRC does not cover the base offset
            _OFFSET.pack_into(data, position, base + index * a_batch)
        yield base, data


def write_log(place: Path, partition: int, options: argparse.Namespace) -> int:
    """Write segments, each as full as it can be, and the active one; return their bytes."""
    directory, groups = place / f"{TOPIC}-{partition}", groups_of(partition, options)
    for old in (*directory.glob("0*"), place / ".kafka_cleanshutdown"):
        old.unlink(missing_ok=True)
    total, base, pieces, size = 0, 0, [], 0
    turns = options.commits // options.groups
    left = turns * len(made_round(0, groups, options.batch)[0])
    for offset, data in rounds_of(turns, groups, options.batch):
        is_last = left <= options.active << 20 < left + len(data)
        if size + len(data) > SEGMENT_BYTES or (is_last and pieces):
            write_segment(directory, base, pieces)
            pieces, size, base = [], 0, offset
        pieces.append(bytes(data))
        size += len(data)
        total += len(data)
        left -= len(data)
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


def size_of(place: Path) -> int:
    return sum(one.stat().st_size for one in place.glob(f"{TOPIC}-*/*{LOG}"))


def clean_logs(place: Path, partitions: int) -> None:
    """Clean the logs as a cleaner does, and print the time."""
    took = used = 0.0
    read = keys = 0
    for number in range(partitions):
        done, seconds, cpu = clean_log(place, f"{TOPIC}-{number}")
        took, used = took + seconds, used + cpu
        read, keys = read + done.bytes_noted, keys + done.keys
    print(
        f"cleaned {read / 1e6:.0f} MB in {took:.1f} s: {read / 1e6 / took:.0f} MB/s, "
        f"{used / (read / 1e9):.2f} CPU s/GB, {keys} keys",
        flush=True,
    )


def clean_log(place: Path, name: str) -> tuple[Cleaned, float, float]:
    """Clean one log; return what was done, and the seconds and the CPU seconds that it took."""
    config = LogConfig(
        cleanup_policy=("compact",), segment_bytes=SEGMENT_BYTES, file_delete_delay_ms=0
    )
    disk = LocalDisk(str(place))
    log = run(disk, load(name, config, clean=True, recovery_point=0, now_ms=0))
    log.synced(log.log_end_offset)
    began, cpu = time.perf_counter(), time.process_time()
    done = cleaned(disk, log)
    took, used = time.perf_counter() - began, time.process_time() - cpu
    for effect in (*log.due(1, wall_ms=int(time.time() * 1000)), *log.close()):
        perform(disk, effect)
    disk.close()
    for left in (place / name).glob("*.deleted"):
        left.unlink()
    return done, took, used


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
    size = size_of(place) / 1e6
    print(
        f"{what:24} {size:8.1f} MB: the node serves after {serves:5.2f} s, "
        f"its {len(found)} groups after {took:6.2f} s, {used:.2f} s of CPU",
        flush=True,
    )
    await running.stop()


def fetched(client: BlockingClient, group: str) -> int:
    """Fetch the only offset of a group, as soon as its coordinator is loaded."""
    while True:
        try:
            (found,) = client.call(fetch_offsets(group), 1).values()
        except Rejected as error:
            if error.code is not ErrorCode.coordinator_load_in_progress:
                raise
            time.sleep(0.005)
        else:
            return found


def start_process(place: Path, expected: dict[str, int]) -> None:
    """Start `strata server` of this checkout, and fetch the offsets of every group as a client."""
    began = time.perf_counter()
    command = str(Path(sys.executable).with_name("strata"))
    with (
        strata(place, command, log__cleaner__enable="false") as server,
        BlockingClient(BlockingNetwork(), server.address) as client,
    ):
        ready = time.perf_counter() - began
        client.metadata()
        for group, offset in expected.items():
            found = fetched(client, group)
            assert found == offset, f"{group}: {found}, not {offset}"
        took = time.perf_counter() - began
        print(
            f"strata server: ready after {ready:5.2f} s, a client has the offsets of {len(expected)} "
            f"groups after {took:5.2f} s, {server.cpu_seconds():.2f} s of CPU",
            flush=True,
        )


async def made_node(place: Path, partitions: int) -> None:
    """Make the directory of a node with an empty offsets topic."""
    running: Node = node(str(place), offsets__topic__num__partitions=str(partitions))
    await start(running)
    assert running.broker is not None
    await running.broker.groups.ensure_topic()
    await until(lambda: bool(running.broker and running.broker.groups.coordinated))
    await running.broker.local_controller.create_topics([NewTopic("t", 1, 1)], validate_only=False)
    await running.stop()


async def measure(place: Path, options: argparse.Namespace) -> None:
    groups = options.groups
    await made_node(place, options.partitions)
    began = time.perf_counter()
    size = sum(write_log(place, number, options) for number in range(options.partitions))
    took = time.perf_counter() - began
    print(
        f"{options.commits} commits of {groups} groups in {options.partitions} partitions: "
        f"{size / 1e6:.0f} MB in {took:.0f} s",
        flush=True,
    )
    last = (options.commits // groups - 1) % ROUNDS
    expected = {f"group-{number:06}": last for number in range(groups)}
    if not options.skip_before:
        await serve(place, "after a crash", expected)
        await serve(place, "before the cleaning", expected)
    await asyncio.to_thread(clean_logs, place, options.partitions)
    await serve(place, "after the cleaning", expected)
    await serve(place, "and once more", expected)
    for _ in range(options.starts):
        await asyncio.to_thread(start_process, place.parent, expected)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.cleaning")
    parser.add_argument("--commits", type=int, default=10_000_000)
    parser.add_argument("--groups", type=int, default=1000)
    parser.add_argument("--batch", type=int, default=10, help="commits in a batch")
    parser.add_argument("--partitions", type=int, default=1)
    parser.add_argument("--active", type=int, default=2, help="MiB of each active segment")
    parser.add_argument(
        "--directory", help="where the log is made; 60 bytes a commit, 120 with --batch 1"
    )
    parser.add_argument("--skip-before", action="store_true", help="no start with the whole log")
    parser.add_argument("--starts", type=int, default=3, help="starts of `strata server`")
    options = parser.parse_args()
    place = Path(tempfile.mkdtemp(dir=options.directory))
    try:
        asyncio.run(measure(place / "data", options))
    finally:
        shutil.rmtree(place)


if __name__ == "__main__":
    main()
