"""The manifest: one immutable, versioned list of the objects of a partition that count.

In: values; stored bytes. Out: manifests, their bytes, and answers about offsets. It never reads or writes the bucket:
`tier/bucket/commit.py` commits versions, `tier/reading/archives.py` opens the archive manifests with the oldest
entries.

It is stored as sealed JSON (`tier/formats/envelope.py`). Readers ignore unknown fields and refuse an unknown
`format`.
"""

from bisect import bisect_left
from collections.abc import Iterator
from enum import StrEnum
from typing import Final, NamedTuple, TypeVar
from uuid import UUID

from msgspec import UNSET, DecodeError, Struct, UnsetType, ValidationError
from msgspec.json import Decoder, Encoder
from msgspec.structs import replace

from stratalog.errors import Corrupt
from stratalog.tier.formats.envelope import seal, unseal
from stratalog.tier.formats.key_filter import PAGE_BYTES
from stratalog.tier.formats.paths import SegmentName, archive_path, partition_prefix, segment_path
from stratalog.wire.ids import check_stored_name, topic_id_parse

__all__ = [
    "ArchivedManifest",
    "Entry",
    "Manifest",
    "RemoteSegment",
    "SegmentState",
    "Totals",
    "decode",
    "encode",
    "given_up",
]

FORMAT: Final = 1
FORMAT_WITH_ARCHIVES: Final = 2


class SegmentState(StrEnum):
    """KIP-405's `RemoteLogSegmentState`. A segment that is not listed has one of the two other states: unfinished, or
    removed.
    """

    COPY_STARTED = "COPY_SEGMENT_STARTED"
    COPY_FINISHED = "COPY_SEGMENT_FINISHED"
    DELETE_STARTED = "DELETE_SEGMENT_STARTED"
    DELETE_FINISHED = "DELETE_SEGMENT_FINISHED"


class Entry(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One segment object. Sizes are bytes, times epoch ms (timestamps -1: no record), offsets inclusive.

    `id` is the object's id in 22 characters; `leader_epoch` that of the leader that uploaded it. Objects may cover
    offsets without a batch (compaction), never overlap, and follow each other without a gap. `min_timestamp` is a true
    minimum only where `min_timestamp_exact`. `leader_epochs` are (epoch, first offset) pairs. `state_ms`: the time of
    the last change of state. `key_pages`: the pages of its key filter, 0 without one.
    """

    id: str
    base_offset: int
    last_offset: int
    leader_epoch: int
    size: int
    data_size: int
    records: int
    min_timestamp: int
    max_timestamp: int
    min_timestamp_exact: bool
    data_crc: int
    footer_crc: int
    leader_epochs: tuple[tuple[int, int], ...]
    state: SegmentState
    state_ms: int
    key_pages: int = 0

    @property
    def tail_start(self) -> int:
        """Where the object's tail begins: behind the batches and the key filter."""
        return self.data_size + PAGE_BYTES * self.key_pages


class ArchivedManifest(Struct, frozen=True, kw_only=True):
    """Neighbouring entries that lie in an archive manifest (`tier/formats/archive_manifest.py`).

    `id`, `size` and `crc` are the object's. Only its entries from `base_offset` to `last_offset` count: `segments` in
    number, whose objects have `segments_size` bytes, of which `data_size` are log. Timestamps, `state` and `state_ms`
    are as in `Entry`, for all of them. Where it names no segments (`base_offset` is above `last_offset`), another
    archive has them now, and only the object itself must still be removed.
    """

    id: str
    size: int
    crc: int
    base_offset: int
    last_offset: int
    segments: int
    segments_size: int
    data_size: int
    records: int
    min_timestamp: int
    max_timestamp: int
    min_timestamp_exact: bool
    state: SegmentState
    state_ms: int


class Totals(NamedTuple):
    """The numbers of segments and records, and the bytes of the objects."""

    segments: int
    records: int
    size: int


Named = TypeVar("Named", Entry, ArchivedManifest)


class RemoteSegment(Struct, frozen=True):
    """A segment object and its path, for readers."""

    path: str
    entry: Entry


class Manifest(Struct, frozen=True, kw_only=True):
    """One version of a partition's list of objects in the bucket.

    `topic_id` is in 22 characters. Written by `node_id` as leader of `leader_epoch`; `write_id` is drawn for each
    write.
    `tiered_end` is the first offset that was never archived; `log_start_offset` and `last_stable_offset` are the
    leader's at `written_ms`. Boundary groups below `boundary` are pruned (`tier/bucket/commit.py`). `cleaned_end` is
    there once the topic was compacted (`clean_end`, `may_have_gaps`).

    Invariants: versions of a partition rise by one. `leader_epoch`, `log_start_offset` and `boundary` never fall, and
    `tiered_end` falls only where a removed tier comes back (`archived_end`). The live entries of `archives` and then
    `segments` are sorted and tile the offsets up to `tiered_end`. In `segments`, deleted entries come first, and at
    least one is live if any of `archives` is.
    """

    format: int = FORMAT
    cluster_id: str
    topic_id: str
    topic: str
    partition: int
    version: int = 0
    node_id: int = -1
    leader_epoch: int = -1
    write_id: str = ""
    written_ms: int = 0
    log_start_offset: int = 0
    last_stable_offset: int = 0
    tiered_end: int = 0
    boundary: int = 0
    cleaned_end: int | UnsetType = UNSET
    archives: tuple[ArchivedManifest, ...] = ()
    segments: tuple[Entry, ...] = ()

    @property
    def topic_uuid(self) -> UUID:
        """The topic's id."""
        return topic_id_parse(self.topic_id)

    @property
    def prefix(self) -> str:
        """The partition's folder in the bucket."""
        return partition_prefix(self.cluster_id, self.topic_uuid, self.partition)

    def path_of(self, entry: Entry) -> str:
        """Return the path of an entry's object."""
        object_id = topic_id_parse(entry.id)
        name = SegmentName(entry.base_offset, entry.last_offset, entry.leader_epoch, object_id)
        return segment_path(self.prefix, name)

    def archive_path(self, archived: ArchivedManifest) -> str:
        """Return the path of an archive manifest."""
        return archive_path(self.prefix, topic_id_parse(archived.id))

    def live_archives(self) -> Iterator[ArchivedManifest]:
        """Return the archive manifests whose entries readers may read, in the order of offsets: all older than
        `recent`.
        """
        return (one for one in self.archives if one.state is SegmentState.COPY_FINISHED)

    def everything(self) -> Iterator[Entry | ArchivedManifest]:
        """Yield everything that the manifest names, live or not."""
        yield from self.archives
        yield from self.segments

    def recent(self) -> Iterator[RemoteSegment]:
        """Yield the segments that readers may read and that no archive manifest has, in the order of offsets.

        `ArchiveManifests.live` (`tier/reading/archives.py`) gives all of them.
        """
        prefix = self.prefix
        for entry in self.segments:
            if entry.state is SegmentState.COPY_FINISHED:
                object_id = topic_id_parse(entry.id)
                name = SegmentName(
                    entry.base_offset, entry.last_offset, entry.leader_epoch, object_id
                )
                yield RemoteSegment(segment_path(prefix, name), entry)

    @property
    def live_bytes(self) -> int:
        """Bytes of log that readers may read (without the objects' tails)."""
        archived = sum(one.data_size for one in self.live_archives())
        recent = (e.data_size for e in self.segments if e.state is SegmentState.COPY_FINISHED)
        return archived + sum(recent)

    def live_totals(self) -> Iterator[Totals]:
        """Totals of the live segments: of each archive manifest, and of each further segment."""
        for named in self.live_archives():
            yield Totals(named.segments, named.records, named.segments_size)
        for entry in self.segments:
            if entry.state is SegmentState.COPY_FINISHED:
                yield Totals(1, entry.records, entry.size)

    @property
    def clean_end(self) -> int:
        """Below it a cleaning of the bucket has looked at every record: the last one of each key is left."""
        return 0 if self.cleaned_end is UNSET else self.cleaned_end

    @property
    def may_have_gaps(self) -> bool:
        """Whether the topic was compacted at any time, so that offsets may be absent."""
        return self.cleaned_end is not UNSET

    @property
    def start_offset(self) -> int:
        """The first offset that can be read from the bucket; `tiered_end` without one."""
        for one in self.everything():
            if one.state is SegmentState.COPY_FINISHED:
                return max(self.log_start_offset, one.base_offset)
        return self.tiered_end

    @property
    def archived_end(self) -> int:
        """The next offset to upload: `tiered_end`, or a lower one where a removed tier (KIP-950) comes back."""
        if any(entry.state is SegmentState.COPY_FINISHED for entry in self.segments):
            return self.tiered_end
        return min(self.tiered_end, self.log_start_offset)

    def recent_segment_for(self, offset: int) -> RemoteSegment | None:
        """Return the segment of `recent` that covers `offset`; None where none does."""
        if not self.start_offset <= offset < self.tiered_end:
            return None
        first = next(  # deleted entries come first
            at for at, e in enumerate(self.segments) if e.state is SegmentState.COPY_FINISHED
        )
        at = bisect_left(self.segments, offset, first, key=lambda entry: entry.last_offset)
        if at == len(self.segments) or self.segments[at].base_offset > offset:
            return None
        entry = self.segments[at]
        return RemoteSegment(self.path_of(entry), entry)


def given_up(named: Named, now_ms: int) -> Named:
    """Return an entry as no longer live, from `now_ms` on."""
    if named.state is not SegmentState.COPY_FINISHED:
        return named
    return replace(named, state=SegmentState.DELETE_STARTED, state_ms=now_ms)


_encoder: Final = Encoder()
_decoder: Final = Decoder(Manifest)


def encode(manifest: Manifest) -> bytes:
    """Return the bytes to store, in format 1 where that suffices."""
    number = FORMAT_WITH_ARCHIVES if manifest.archives else FORMAT
    return seal(_encoder.encode(replace(manifest, format=number)))


def decode(data: bytes, path: str) -> Manifest:
    """Return the manifest in stored bytes.

    Raises Corrupt naming `path` for altered bytes, an unknown format, and a name or id that is none.
    """
    try:
        manifest = _decoder.decode(unseal(data, path))
    except (DecodeError, ValidationError) as error:
        raise Corrupt(f"{path}: not a manifest: {error}") from error
    if manifest.format not in {FORMAT, FORMAT_WITH_ARCHIVES}:
        raise Corrupt(
            f"{path}: a manifest of format {manifest.format}; "
            f"this version reads {FORMAT} and {FORMAT_WITH_ARCHIVES}"
        )
    try:
        check_stored_name(manifest.topic)
        check_stored_name(manifest.cluster_id, "cluster id")
        for text in (manifest.topic_id, *(one.id for one in manifest.everything())):
            topic_id_parse(text)
    except ValueError as error:
        raise Corrupt(f"{path}: not a manifest: {error}") from error
    return manifest
