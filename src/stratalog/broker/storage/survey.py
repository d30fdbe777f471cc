"""Survey a log directory before anything in it is loaded.

In: the directory. Out: a program that ends with its partitions' names and ids, and its checkpoints. It loads no log,
and does not judge the checkpoints: `hosting.py` does.
"""

from collections.abc import Collection
from collections.abc import Set as AbstractSet
from typing import Final
from uuid import UUID

from msgspec import Struct, field

from stratalog.errors import Corrupt, UserError
from stratalog.log.checkpoints import (
    CLEAN_SHUTDOWN,
    CLEANED_OFFSETS,
    LOG_START_OFFSETS,
    PARTITION_METADATA,
    RECOVERY_POINTS,
    REPLICATION_OFFSETS,
    decode_clean_shutdown,
    decode_offsets,
    decode_partition_metadata,
    offset_line,
)
from stratalog.log.effects import (
    ListDirectory,
    Program,
    Read,
    SyncDirectory,
    Unlink,
    WriteLines,
)
from stratalog.wire.ids import TopicPartition

METADATA_DIRECTORY: Final = "__cluster_metadata-0"
TIER_MANIFEST: Final = "tier-manifest"
"""File with a partition's last known manifest, beside its log."""
TIER_INCARNATION: Final = "tier-incarnation"
"""File with the cluster's incarnation, where an earlier release restored the node: its metadata log lacks it."""
DELETE: Final = "-delete"
STRAY: Final = "-stray"
FUTURE: Final = "-future"
_FIRST: Final = f"{0:020}.log"
_NAME_LENGTH_MAX: Final = 255
_METADATA_BYTES_MAX: Final = 4096
_CHECKPOINT_BYTES_MAX: Final = 64 << 20


NO_EPOCH: Final = -1


KAFKAS_TIER: Final = "__remote_log_metadata"
"""The topic in which Apache Kafka lists the segments that its plugin stored."""


class Survey(Struct):
    """The contents of a log directory. Checkpoints are by name: an earlier topic of that name may have written them.

    `partitions`: directories' names with the topic ids in them; `unreadable`: why some of them have none; `unborn`:
    those whose creation was interrupted; `leftovers`: directories of unfinished deletions; `futures`: copies of moves
    to this directory, with their topic ids; `tiered`: by directory, the last known end in the bucket and start of the
    log, None for a log that is not tiered.
    """

    clean: bool = False
    broker_epoch: int = NO_EPOCH
    """The broker epoch that a clean shutdown left (KIP-966)."""
    partitions: list[tuple[str, UUID | None]] = field(default_factory=list)
    leftovers: list[str] = field(default_factory=list)
    futures: list[tuple[str, UUID | None]] = field(default_factory=list)
    unreadable: dict[str, str] = field(default_factory=dict)
    unborn: set[str] = field(default_factory=set)
    tiered: dict[str, tuple[int, int] | None] = field(default_factory=dict)
    recovery_points: dict[TopicPartition, int] = field(default_factory=dict)
    log_starts: dict[TopicPartition, int] = field(default_factory=dict)
    high_watermarks: dict[TopicPartition, int] = field(default_factory=dict)
    cleaned_ends: dict[TopicPartition, int] = field(default_factory=dict)
    checkpointed: set[TopicPartition] = field(default_factory=set)
    """Every partition name in the checkpoints."""


class CheckpointLines:
    """The lines of a directory's checkpoint files, by partition.

    They are texts alone: the garbage collector looks at each object of a hundred thousand, and at no text.
    """

    def __init__(self) -> None:
        self._recovery_points: dict[TopicPartition, str] = {}
        self._high_watermarks: dict[TopicPartition, str] = {}
        self._log_starts: dict[TopicPartition, str] = {}
        self._cleaned_ends: dict[TopicPartition, str] = {}

    @property
    def names(self) -> AbstractSet[TopicPartition]:
        """The partitions that have lines."""
        return self._recovery_points.keys()

    def add(
        self,
        name: TopicPartition,
        recovery_point: int,
        high_watermark: int,
        log_start_offset: int,
        cleaned_end: int | None,
    ) -> None:
        """Note one partition's lines; `cleaned_end` is None for a log that was never compacted."""
        self._recovery_points[name] = offset_line(name, recovery_point)
        self._high_watermarks[name] = offset_line(name, high_watermark)
        self._log_starts[name] = offset_line(name, log_start_offset)
        if cleaned_end is not None:
            self._cleaned_ends[name] = offset_line(name, cleaned_end)

    def remove(self, name: TopicPartition) -> None:
        """Leave a partition out, if it has lines."""
        if self._recovery_points.pop(name, None) is not None:
            del self._high_watermarks[name], self._log_starts[name]
            self._cleaned_ends.pop(name, None)

    def files(self) -> list[WriteLines]:
        """Return the checkpoint files. The lines must not change afterwards."""
        return [
            WriteLines(RECOVERY_POINTS, self._recovery_points.values()),
            WriteLines(REPLICATION_OFFSETS, self._high_watermarks.values()),
            WriteLines(LOG_START_OFFSETS, self._log_starts.values()),
            WriteLines(CLEANED_OFFSETS, self._cleaned_ends.values()),
        ]


def name_aside(directory: str, unique: str, suffix: str) -> str:
    """Return the new name of a directory that is no partition's any more; cut to the file system's limit, as in
    Kafka.
    """
    tail = f".{unique}{suffix}"
    return directory[: _NAME_LENGTH_MAX - len(tail)] + tail


def future_of(name: str) -> str:
    """Return the final name of a move's copy `<topic>-<partition>.<unique>-future`."""
    return name.removesuffix(FUTURE).rpartition(".")[0]


def partition_name(found: str) -> str:
    """Return the name that a partition's directory has once it is loaded: a copy of a committed move gets the
    partition's.
    """
    return future_of(found) if found.endswith(FUTURE) else found


def index_of(name: str) -> int:
    """Return the index of a partition, by the name of its directory."""
    return int(name.rpartition("-")[2])


def parse_directory_name(name: str) -> TopicPartition | None:
    """Return topic and index of a partition's directory."""
    topic, dash, index = name.rpartition("-")
    return TopicPartition(topic, int(index)) if dash and topic and index.isdecimal() else None


def read_incarnation() -> Program[int]:
    """Return the decimal number in `TIER_INCARNATION`; 0 without the file. Raises UserError."""
    try:
        data = yield Read(TIER_INCARNATION, 0, _METADATA_BYTES_MAX)
    except FileNotFoundError:
        return 0
    assert isinstance(data, bytes)
    if not data.strip().isdigit():
        raise UserError(f"{TIER_INCARNATION}: {data[:80]!r} is no number; restore the node again")
    return int(data)


def survey_directory() -> Program[Survey]:
    """Survey a directory.

    The survey removes the mark of a clean shutdown at once; only a clean close writes it again.
    """
    entries = yield ListDirectory("")
    assert isinstance(entries, list)
    survey = Survey(clean=any(entry.name == CLEAN_SHUTDOWN for entry in entries))
    for entry in entries:
        name = entry.name
        if not entry.is_directory or name == METADATA_DIRECTORY or name.endswith(STRAY):
            continue
        if name.endswith(DELETE):
            survey.leftovers.append(name)
        elif name.endswith(FUTURE):
            survey.futures.append((name, (yield from _topic_id(name, survey))))
            survey.tiered[name] = yield from _tiered(name)
        elif parse_directory_name(name) is not None:
            topic_id = yield from _topic_id(name, survey)
            if topic_id is None and not (yield from _has_log(name)):
                survey.unborn.add(name)
            survey.partitions.append((name, topic_id))
            survey.tiered[name] = yield from _tiered(name)
    survey.recovery_points = yield from _offsets(RECOVERY_POINTS)
    survey.log_starts = yield from _offsets(LOG_START_OFFSETS)
    survey.high_watermarks = yield from _offsets(REPLICATION_OFFSETS)
    survey.cleaned_ends = yield from _offsets(CLEANED_OFFSETS)
    survey.checkpointed = {
        *survey.recovery_points,
        *survey.log_starts,
        *survey.high_watermarks,
        *survey.cleaned_ends,
    }
    if survey.clean:
        mark = yield Read(CLEAN_SHUTDOWN, 0, _METADATA_BYTES_MAX)
        assert isinstance(mark, bytes)
        survey.broker_epoch = decode_clean_shutdown(mark)
        yield Unlink(CLEAN_SHUTDOWN)
        yield SyncDirectory("")  # a loss of power must not bring it back
    return survey


def _topic_id(directory: str, survey: Survey) -> Program[UUID | None]:
    path = f"{directory}/{PARTITION_METADATA}"
    try:
        data = yield Read(path, 0, _METADATA_BYTES_MAX)
        assert isinstance(data, bytes)
        return decode_partition_metadata(data)
    except FileNotFoundError:
        survey.unreadable[directory] = f"{path} is missing"
    except Corrupt as error:
        survey.unreadable[directory] = f"{path}: {error}"
    return None


def files_of(directory: str) -> Program[list[str]]:
    """Return the names of a partition's files."""
    entries = yield ListDirectory(directory)
    assert isinstance(entries, list)
    return [entry.name for entry in entries]


def _has_log(directory: str) -> Program[bool]:
    entries = yield ListDirectory(directory)
    assert isinstance(entries, list)
    return any(
        entry.name.endswith(".log") and (entry.size or entry.name != _FIRST) for entry in entries
    )


def kafkas_tier(
    directory: str, files: Collection[str], key: TopicPartition, log_start: int
) -> str | None:
    """Return why a tiered partition cannot be served: only Kafka reads its first offsets. None where they are ours.

    `files`: the names in its directory. Apache Kafka leaves a log start below the first local segment, as we do; but we
    keep the tier's manifest beside the log.
    """
    bases = [name.removesuffix(".log") for name in files if name.endswith(".log")]
    end = min((int(base) for base in bases if base.isdigit()), default=0)
    if log_start >= end or TIER_MANIFEST in files:
        return None
    return (
        f"{directory}: a plugin of Apache Kafka stores offsets {log_start} to {end - 1} of topic {key.topic}, "
        "and only Kafka reads them. While Kafka runs, delete the topic or copy it to one without remote.storage.enable"
    )


def _tiered(directory: str) -> Program[tuple[int, int] | None]:
    try:
        data = yield Read(f"{directory}/{TIER_MANIFEST}", 0, _CHECKPOINT_BYTES_MAX)
        assert isinstance(data, bytes)
        from stratalog.tier.formats.manifest import decode  # noqa: PLC0415 - brokers without a bucket have none

        manifest = decode(data, f"{directory}/{TIER_MANIFEST}")
    except FileNotFoundError:
        return None
    except Corrupt:
        return 0, 0  # the tier is being removed, or its file is incomplete
    return manifest.archived_end, manifest.log_start_offset


def _offsets(path: str) -> Program[dict[TopicPartition, int]]:
    try:
        data = yield Read(path, 0, _CHECKPOINT_BYTES_MAX)
        assert isinstance(data, bytes)
        return decode_offsets(data)
    except (FileNotFoundError, Corrupt):
        return {}  # then recovery begins at each log's start
