"""Repair the logs that a node itself must read: its metadata log, and groups' committed offsets.

In: a log directory that no broker uses. Out: the damage in it; if the operator accepts the loss, logs without the
damaged bytes. It keeps a copy of every file that it changes, and never touches the records of other topics.

It cuts the metadata log where the damage begins, because each of its records builds on those before it. In
`__consumer_offsets` it removes the damaged bytes alone, because each of its records stands for itself.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from stratalog.broker.coordination.groups import OFFSETS_TOPIC
from stratalog.broker.storage.survey import METADATA_DIRECTORY, parse_directory_name
from stratalog.errors import Corrupt
from stratalog.log.damage import next_sound, why_not_torn
from stratalog.log.effects import Program, run
from stratalog.log.scanning import scan_segment
from stratalog.log.segment import (
    INDEX,
    LOG,
    SNAPSHOT,
    TIME_INDEX,
    TRANSACTION_INDEX,
    Segment,
    segment_path,
)
from stratalog.metadata.snapshot import decode_snapshot, parse_file_name
from stratalog.ports import Disk
from stratalog.quorum.metadata_batches import decode_record
from stratalog.wire.records import read_records

__all__ = ["Loss", "losses", "repair"]

_COPY: Final = ".damaged"
_FILE_BYTES_MAX: Final = 1 << 31
_INTERVAL: Final = 4096


@dataclass(frozen=True, slots=True)
class Loss:
    """The loss of bytes [start, end) of the segment at `path`, with offsets from `offset` on.

    `reason` is a line for people. `goes` has a line for each readable record in it. `is_cut`: everything behind `start`
    is lost, too, in this segment and later ones.
    """

    path: str
    start: int
    end: int
    offset: int
    reason: str
    goes: tuple[str, ...] = ()
    is_cut: bool = False


def losses(disk: Disk) -> list[Loss]:
    """Return the losses of a repair of the directory. Raises Corrupt where a repair is impossible."""
    found: list[Loss] = []
    for entry in disk.list(""):
        key = parse_directory_name(entry.name) if entry.is_directory else None
        if entry.name == METADATA_DIRECTORY:
            found += _metadata_losses(disk)
        elif key is not None and key[0] == OFFSETS_TOPIC:
            found += run(disk, _gaps(disk, entry.name))
    return found


def repair(disk: Disk, found: list[Loss]) -> dict[str, str]:
    """Remove the bytes that `losses` found; return the copy's path of each changed file. May be repeated."""
    copies = {}
    for path in dict.fromkeys(loss.path for loss in found):
        mine = [loss for loss in found if loss.path == path]
        data = disk.read(path, 0, _FILE_BYTES_MAX)
        copies[path] = _keep(disk, path, data)
        for loss in reversed(mine):
            data = data[: loss.start] + data[loss.end :]
        if mine[-1].is_cut:
            _drop_later(disk, path, mine[-1].offset)
        for suffix in (INDEX, TIME_INDEX, TRANSACTION_INDEX):
            disk.unlink(path.removesuffix(LOG) + suffix)
        disk.write_file(path, data)
    return copies


def _keep(disk: Disk, path: str, data: bytes) -> str:
    """Write a durable copy of a file beside it; return the copy's path."""
    directory, _, _name = path.rpartition("/")
    copy = _free_name(disk, path)
    disk.append(copy, 0, (data,))
    disk.sync(copy)
    disk.sync_directory(directory)
    return copy


def _free_name(disk: Disk, path: str) -> str:
    directory, _, name = path.rpartition("/")
    names = {entry.name for entry in disk.list(directory)}
    copy, number = name + _COPY, 1
    while copy in names:
        number += 1
        copy = f"{name}{_COPY}-{number}"
    return f"{directory}/{copy}"


def _drop_later(disk: Disk, path: str, offset: int) -> None:
    """Rename later segments, and remove files about offsets beyond `offset`."""
    directory = path.rpartition("/")[0]
    for base in _bases(disk, directory):
        later = segment_path(directory, base, LOG)
        if later > path:
            disk.rename(later, _free_name(disk, later))
    for entry in disk.list(directory):
        stem, _, suffix = entry.name.rpartition(".")
        if f".{suffix}" == SNAPSHOT and stem.isdecimal() and int(stem) > offset:
            disk.unlink(f"{directory}/{entry.name}")
    disk.sync_directory(directory)


def _bases(disk: Disk, directory: str) -> list[int]:
    return [
        int(entry.name.removesuffix(LOG))
        for entry in disk.list(directory)
        if entry.name.endswith(LOG) and entry.name.removesuffix(LOG).isdecimal()
    ]


def _metadata_losses(disk: Disk) -> Iterator[Loss]:
    names = [entry.name for entry in disk.list(METADATA_DIRECTORY)]
    snapshots = [found for name in names if (found := parse_file_name(name)) is not None]
    start = 0
    if snapshots:
        newest = max(snapshots, key=lambda one: (one.end_offset, one.epoch))
        path = f"{METADATA_DIRECTORY}/{newest.file_name()}"
        try:
            decode_snapshot(disk.read(path, 0, _FILE_BYTES_MAX))
        except Corrupt as error:
            raise Corrupt(f"{path}: {error}: nothing can be cut from a snapshot") from error
        start = newest.end_offset
    bases = _bases(disk, METADATA_DIRECTORY)
    closed_at = [int(name.removesuffix(SNAPSHOT)) for name in names if name.endswith(SNAPSHOT)]
    first = max((base for base in bases if base <= start), default=None)
    if first is None:
        path = segment_path(METADATA_DIRECTORY, start, LOG)
        raise Corrupt(f"{path} is missing: nothing is left to cut")
    for base in bases:
        if base < first:
            continue
        segment = Segment(METADATA_DIRECTORY, base, 0)
        size = disk.size(segment.path)
        run(disk, scan_segment(segment, size, _INTERVAL, check_crc=True, gaps_below=0))
        later = [one for one in bases if one > base]
        why = run(disk, why_not_torn(segment, size, max(closed_at, default=0), later))
        if why is not None:
            goes = [*_records(disk, segment.path, segment.size, size)]
            for one in later:
                goes += _records(
                    disk, segment_path(METADATA_DIRECTORY, one, LOG), 0, _FILE_BYTES_MAX
                )
            yield Loss(
                segment.path, segment.size, size, segment.next_offset, why, tuple(goes), is_cut=True
            )
            return


def _records(disk: Disk, path: str, start: int, end: int) -> Iterator[str]:
    """Yield a line for each readable record in bytes [start, end) of the metadata log."""
    end = min(end, disk.size(path))
    while (found := run(disk, next_sound(path, start, end, 0))) is not None:
        start, header = found
        view = memoryview(disk.read(path, start, header.size))
        for record in read_records(view):
            try:
                text = repr(decode_record(record, is_control=header.is_control))
            except Corrupt as error:
                text = str(error)
            yield f"offset {record.offset}: {text}"
        start += header.size


def _gaps(disk: Disk, directory: str) -> Program[list[Loss]]:
    """Return every span of a log's bytes that holds no sound batch."""
    found = []
    for base in _bases(disk, directory):
        segment = Segment(directory, base, 0)
        size = disk.size(segment.path)
        while segment.size < size:
            yield from scan_segment(segment, size, _INTERVAL, check_crc=True)
            start, offset = segment.size, segment.next_offset
            if start < size:
                sound = yield from next_sound(segment.path, start + 1, size, offset)
                end, behind = (size, -1) if sound is None else (sound[0], sound[1].base_offset)
                upto = f"up to {behind}" if sound else "on"
                reason = f"{segment.path}: byte {start}, offsets from {offset} {upto}: damaged"
                found.append(Loss(segment.path, start, end, offset, reason))
                segment.skip_to(end, behind)
    return found
