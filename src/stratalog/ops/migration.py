"""Inspect a log directory of Apache Kafka: what it holds, what will differ under our server, what is refused.

In: a log directory that no process uses. Out: findings, for people. It changes nothing, and starts nothing.
"""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from msgspec.structs import replace

from stratalog.broker.storage.bootstrap_file import BOOTSTRAP_FILE, first_levels
from stratalog.broker.storage.survey import (
    KAFKAS_TIER,
    METADATA_DIRECTORY,
    kafkas_tier,
    parse_directory_name,
)
from stratalog.config.addresses import is_address
from stratalog.errors import Corrupt
from stratalog.log.checkpoints import (
    CLEAN_SHUTDOWN,
    LOG_START_OFFSETS,
    META_PROPERTIES,
    decode_meta_properties,
    decode_offsets,
)
from stratalog.metadata.client_quotas import IP
from stratalog.metadata.image import METADATA_VERSION, METADATA_VERSION_LEVEL, Image
from stratalog.metadata.levels import unreadable
from stratalog.metadata.replay import Replay
from stratalog.metadata.snapshot import decode_snapshot, image_of, parse_file_name
from stratalog.ports import Disk
from stratalog.quorum.features import SUPPORTED_FEATURES
from stratalog.quorum.metadata_batches import decode_record
from stratalog.wire.batch import scan
from stratalog.wire.ids import TopicPartition
from stratalog.wire.internal.security_records import ClientQuotaRecord
from stratalog.wire.records import read_records

__all__ = ["Finding", "inspect"]

_FILE_BYTES_MAX: Final = 1 << 31


@dataclass(frozen=True, slots=True)
class Finding:
    """`kind` is "holds", "differs" or "refused"; a refused directory starts no server."""

    kind: str
    text: str


def inspect(disk: Disk) -> Iterator[Finding]:
    """Yield what a directory holds, then what differs, then what is refused. Raises OSError."""
    names = {entry.name for entry in disk.list("")}
    try:
        meta = decode_meta_properties(disk.read(META_PROPERTIES, 0, _FILE_BYTES_MAX))
    except FileNotFoundError:
        yield Finding("refused", f"it has no {META_PROPERTIES}: it is no formatted log directory")
        return
    except Corrupt as error:
        yield Finding("refused", str(error))
        return
    yield Finding("holds", f"node {meta.node_id} of cluster {meta.cluster_id}")
    ending = "a clean stop" if CLEAN_SHUTDOWN in names else "a crash: the logs are recovered"
    yield Finding("holds", f"logs after {ending}")
    directories = [name for name in names if parse_directory_name(name) is not None]
    partitions = sorted(name for name in directories if name != METADATA_DIRECTORY)
    size = sum(file.size for name in partitions for file in disk.list(name))
    yield Finding("holds", f"{len(partitions)} partitions of {size} bytes")
    if METADATA_DIRECTORY not in names:
        text = f"it has no {METADATA_DIRECTORY}: without it in another one of log.dirs no server starts"
        yield Finding("differs", text)
        return
    try:
        image = read_image(disk)
    except Corrupt as error:
        yield Finding("refused", f"{METADATA_DIRECTORY}: {error}")
        return
    if METADATA_VERSION not in image.features and BOOTSTRAP_FILE in names:
        try:
            levels = first_levels(disk.read(BOOTSTRAP_FILE, 0, _FILE_BYTES_MAX))
        except Corrupt as error:
            yield Finding("refused", f"{BOOTSTRAP_FILE}: {error}")
            return
        yield from _of_first_levels(levels)
        level = levels.get(METADATA_VERSION, METADATA_VERSION_LEVEL)
        image = replace(image, features={METADATA_VERSION: level})
    yield from _of_image(image)
    yield from _of_tier(disk, partitions, image)


def read_image(disk: Disk) -> Image:
    """Replay the newest snapshot and the log behind it, to the log's last whole batch. Raises Corrupt."""
    names = [entry.name for entry in disk.list(METADATA_DIRECTORY)]
    snapshots = [found for name in names if (found := parse_file_name(name)) is not None]
    replay = Replay()
    if snapshots:
        newest = max(snapshots, key=lambda one: (one.end_offset, one.epoch))
        data = disk.read(f"{METADATA_DIRECTORY}/{newest.file_name()}", 0, _FILE_BYTES_MAX)
        replay = Replay(image_of(decode_snapshot(data), newest))
    for name in sorted(name for name in names if name.endswith(".log")):
        data = disk.read(f"{METADATA_DIRECTORY}/{name}", 0, _FILE_BYTES_MAX)
        for position, header in scan(memoryview(data)):
            batch = data[position : position + header.size]
            if len(batch) < header.size:
                break
            for record in read_records(batch):
                try:
                    decoded = decode_record(record, is_control=header.is_control)
                except Corrupt as error:
                    level = replay.image().features.get(METADATA_VERSION)
                    raise unreadable(error, level) from error
                replay.replay(record.offset, header.leader_epoch, decoded)
    return replay.image()


def _of_first_levels(levels: Mapping[str, int]) -> Iterator[Finding]:
    shown = ", ".join(f"{name}={level}" for name, level in levels.items() if level)
    yield Finding("holds", f"no records yet; {BOOTSTRAP_FILE} has {shown}")
    served = {one.name for one in SUPPORTED_FEATURES}
    left = [name for name, level in sorted(levels.items()) if level and name not in served]
    if left:
        yield Finding("differs", f"the cluster begins without {', '.join(left)}: not served")


def _of_image(image: Image) -> Iterator[Finding]:
    topics = sorted(image.topic_ids_by_name)
    yield Finding("holds", f"metadata of {len(topics)} topics and {len(image.brokers)} brokers")
    foreign = len(image.foreign)
    if foreign:
        yield Finding("holds", f"{foreign} records of quotas, ACLs, users and others, which stay")
    supported = {one.name: one for one in SUPPORTED_FEATURES}
    for name, level in sorted(image.features.items()):
        served = supported.get(name)
        if served is None and level:
            yield Finding(
                "refused",
                f"{name}={level} is not served; lower it while Apache Kafka runs: "
                f"kafka-features.sh downgrade --feature {name}=0",
            )
        elif name == METADATA_VERSION and served is not None and level < served.min_level:
            yield Finding(
                "refused",
                f"{name}={level} is below {served.min_level}; raise it while Apache Kafka 4.3 runs: "
                "kafka-features.sh upgrade --release-version 4.3",
            )
        elif served is not None and level > served.max_level:
            yield Finding(
                "refused", f"{name}={level} is above {served.max_level}, the highest known"
            )
    yield from _of_quotas(image)
    if KAFKAS_TIER in topics:
        for name in topics:
            if image.topic_configs(name).get("remote.storage.enable") == "true":
                yield Finding(
                    "differs", f"topic {name}: what a plugin of Kafka's tiered is not read"
                )


def _of_quotas(image: Image) -> Iterator[Finding]:
    for (kind, _), record in image.foreign.items():
        for one in record.entity if kind == ClientQuotaRecord.__name__ else ():
            if one.entity_type == IP and one.entity_name and not is_address(one.entity_name):
                text = f"a quota of ip {one.entity_name} has no effect: names are not looked up"
                yield Finding("differs", text)


def _of_tier(disk: Disk, partitions: list[str], image: Image) -> Iterator[Finding]:
    if KAFKAS_TIER not in image.topic_ids_by_name:
        return
    starts: dict[TopicPartition, int] = {}
    with suppress(FileNotFoundError, Corrupt):
        starts = decode_offsets(disk.read(LOG_START_OFFSETS, 0, _FILE_BYTES_MAX))
    for name in partitions:
        key = parse_directory_name(name)
        if key and image.topic_configs(key.topic).get("remote.storage.enable") == "true":
            names = [file.name for file in disk.list(name)]
            if reason := kafkas_tier(name, names, key, starts.get(key, 0)):
                yield Finding("refused", reason)
