"""Clean the closed segments of one log: one pass over it, with a table of keys of bounded size.

In: a plan, which any process can carry out. Out: a program that reads the segments and writes what stays to `.cleaned`
files, durably; what was written, for `log/replacing.py` to swap in. It never touches a file that readers use.

First it notes the last offset of each key in the dirty part, until the table is full: the rest stays dirty, for another
pass. Then it writes groups of neighbouring segments, each group into one segment of the first one's base offset. The
last batch of a group stays, at least as a header: so a segment ends where the next one begins, and a recovery by
another cleanup policy meets no hole. Kafka: `Cleaner.doClean`, `groupSegmentsBySize` (which keeps that of a round).
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from msgspec import Struct, field

from stratalog.errors import Corrupt
from stratalog.log.cleaning.filtering import NOWHERE_ELSE, BatchFilter, Horizons, check_sound
from stratalog.log.cleaning.transactions import Transactions
from stratalog.log.effects import (
    Append,
    Effect,
    ListDirectory,
    Program,
    Sync,
    SyncDirectory,
    Unlink,
    run,
)
from stratalog.log.scanning import TakeRun, visit
from stratalog.log.segment import (
    CLEANED,
    RELATIVE_OFFSET_MAX,
    Segment,
    segment_path,
)
from stratalog.log.transaction_index import Aborted
from stratalog.ports import Buffer, Disk
from stratalog.wire.batch import HEADER_SIZE, BatchHeader, parse_header
from stratalog.wire.compression import decompress
from stratalog.wire.sift import BYTES_A_KEY, KeyOffsets, note, note_plain

__all__ = ["Cleaned", "Plan", "Rewritten", "TooFewKeys", "clean", "clean_on", "places_for"]


class TooFewKeys(Corrupt):
    """The table is too small for the keys of one batch. The message says which setting to raise."""


class Plan(Struct, frozen=True):
    """One cleaning: `segments` below the first offset that may not be cleaned, and the topic's settings.

    `places` is the size of the table of keys, of which `keys_max` are filled. Sizes are bytes, times milliseconds.
    """

    directory: str
    segments: tuple[Segment, ...]
    first_dirty: int
    places: int
    keys_max: int
    segment_bytes: int
    segment_index_bytes: int
    index_interval_bytes: int
    delete_retention_ms: int
    wall_ms: int
    producers: Mapping[int, tuple[int, int]]
    aborted: tuple[Aborted, ...]
    """Those with batches in `segments`; a marker may lie behind them."""
    deletable_end: int = NOWHERE_ELSE
    """As in `Horizons`."""


class Rewritten(Struct, frozen=True):
    """`segment` is in `.cleaned` files, in place of those that have the base offsets `replaced`."""

    segment: Segment
    replaced: tuple[int, ...]


class Cleaned(Struct):
    """What a pass did. `end_offset` is the first offset that is still dirty; bytes are of log read and written."""

    end_offset: int = 0
    rewritten: list[Rewritten] = field(default_factory=list)
    keys: int = 0
    bytes_noted: int = 0
    bytes_read: int = 0
    bytes_written: int = 0


def places_for(offsets: int, memory_bytes: int, load_factor: float) -> tuple[int, int]:
    """The size of a table for the keys of so many offsets, and how many keys it takes: no more than memory allows."""
    places = min(memory_bytes // BYTES_A_KEY, int(offsets / load_factor) + 2)
    return places, min(int(places * load_factor), places - 1)


def clean(plan: Plan) -> Program[Cleaned]:
    """Carry out a plan. Raises Corrupt for damage, and TooFewKeys for a table that is too small for one batch."""
    yield from _remove_leftovers(plan.directory)
    done = Cleaned()
    keys = yield from _note(plan, Transactions(plan.aborted), done)
    transactions = Transactions(plan.aborted)
    horizons = Horizons(plan.wall_ms, plan.delete_retention_ms, plan.deletable_end)
    batches = BatchFilter(keys, done.end_offset - 1, transactions, plan.producers, horizons)
    looked_at = [one for one in plan.segments if one.base_offset < done.end_offset]
    for group in _groups(looked_at, plan):
        rewriting = _Rewriting(plan, group, batches)
        yield from rewriting.write()
        done.bytes_read += rewriting.bytes_read
        done.bytes_written += rewriting.segment.size
        aborted_kept, transactions.kept = transactions.kept, []
        if rewriting.is_changed or len(group) > 1:
            yield from rewriting.finish(aborted_kept)
            replaced = tuple(one.base_offset for one in group)
            done.rewritten.append(Rewritten(rewriting.segment, replaced))
        else:
            yield Unlink(rewriting.path)
    if done.rewritten:
        yield SyncDirectory(plan.directory)
    return done


def clean_on(open_disk: Callable[[], Disk], plan: Plan) -> Cleaned:
    """Carry out a plan in any process, on a disk of its own. Raises OSError; what was begun is removed then."""
    disk = open_disk()
    try:
        return run(disk, clean(plan))
    except (Corrupt, OSError):
        with suppress(OSError):
            run(disk, _remove_leftovers(plan.directory))
        raise


def _remove_leftovers(directory: str) -> Program[None]:
    """Remove what a cleaning left that was broken off: recovery takes it for a sign that a swap is not committed."""
    entries = yield ListDirectory(directory)
    assert isinstance(entries, list)
    for entry in entries:
        if entry.name.endswith(CLEANED):
            yield Unlink(f"{directory}/{entry.name}")


def _note(plan: Plan, transactions: Transactions, done: Cleaned) -> Program[KeyOffsets]:
    """Note the keys of the dirty part, up to `done.end_offset`."""
    keys = KeyOffsets(plan.places)
    first_dirty = plan.first_dirty
    end = first_dirty
    is_full = False

    def take(header: BatchHeader, view: memoryview) -> bool:
        nonlocal end, is_full
        if header.last_offset < first_dirty:
            return True
        check_sound(view, header, segment)
        if header.is_control:
            transactions.may_go(view, header)
        elif not transactions.is_aborted(header) and header.record_count:
            body = decompress(header.codec, view[HEADER_SIZE : header.size])
            count = header.record_count
            noted = note(body, count, header.base_offset, first_dirty, keys, plan.keys_max)
            if noted < 0:
                raise Corrupt(
                    f"{segment.path}: a record of the batch at {header.base_offset} is unsound"
                )
            if noted < count:
                is_full = True
                return False
        end = header.next_offset
        return True

    def take_run(data: bytes, position: int, stop: int) -> int:
        nonlocal end
        bounds = segment.base_offset, segment.next_offset
        position, taken = note_plain(data, position, stop, bounds, first_dirty, keys, plan.keys_max)
        end = max(end, taken)
        return position

    for segment in plan.segments:
        if segment.next_offset <= first_dirty:
            continue
        position = yield from _visit(segment, take, take_run)
        done.bytes_noted += position
        if is_full:
            break
        _check_whole(segment, position)
        end = segment.next_offset
    if end == first_dirty:
        raise TooFewKeys(
            f"{plan.keys_max} keys are too few for the batch at offset {end}: "
            "raise log.cleaner.dedupe.buffer.size"
        )
    done.end_offset = end
    done.keys = keys.count
    return keys


def _visit(
    segment: Segment, take: Callable[[BatchHeader, memoryview], bool], take_run: TakeRun
) -> Program[int]:
    """`visit` to the segment's end; raises what `take` raises."""
    failure: Corrupt | None = None

    def guarded(header: BatchHeader, view: memoryview) -> bool:
        nonlocal failure
        try:
            return take(header, view)
        except Corrupt as error:
            failure = error
            return False

    position = yield from visit(segment.path, 0, segment.size, guarded, take_run)
    if failure is not None:
        raise failure
    return position


def _check_whole(segment: Segment, position: int) -> None:
    if position < segment.size:
        raise Corrupt(f"{segment.path}: no batch can be read at byte {position}")


def _groups(segments: Sequence[Segment], plan: Plan) -> list[list[Segment]]:
    """Neighbours that fit one segment in bytes, index bytes and relative offsets."""
    groups: list[list[Segment]] = []
    size = index_size = time_index_size = 0
    for segment in segments:
        size += segment.size
        index_size += segment.index_size
        time_index_size += segment.time_index_size
        if (
            not groups
            or size > plan.segment_bytes
            or index_size > plan.segment_index_bytes
            or time_index_size > plan.segment_index_bytes
            or segment.next_offset - 1 - groups[-1][0].base_offset > RELATIVE_OFFSET_MAX
        ):
            groups.append([])
            size, index_size = segment.size, segment.index_size
            time_index_size = segment.time_index_size
        groups[-1].append(segment)
    return groups


class _Rewriting:
    """One group of segments on its way into `.cleaned` files."""

    def __init__(self, plan: Plan, group: list[Segment], batches: BatchFilter) -> None:
        last = group[-1]
        self.segment = Segment(plan.directory, group[0].base_offset, last.created_ms)
        self.segment.first_append_ms, self.segment.touched_ms = last.created_ms, last.touched_ms
        self.path = self.segment.path + CLEANED
        self.bytes_read = 0
        self.is_changed = False
        self._group = group
        self._batches = batches
        self._interval = plan.index_interval_bytes
        self._out: list[Buffer] = []
        self._written = 0

    def write(self) -> Program[None]:
        """Write the batches that stay. What stays of one read is written before the next read."""
        yield Append(self.path, 0, ())
        for segment in self._group:
            position = yield from self._writing(self._sift(segment))
            _check_whole(segment, position)
            self.bytes_read += segment.size

    def _writing(self, reading: Program[int]) -> Program[int]:
        """Perform a program that reads; before each next read, write what stays of the last one."""
        try:
            effect = next(reading)
            while True:
                result = yield effect
                effect = reading.send(result)
                yield from self._write_out()
        except StopIteration as end:
            yield from self._write_out()
            return int(end.value)

    def _write_out(self) -> Program[None]:
        if self._out:
            yield Append(self.path, self._written, self._out)
            self._out, self._written = [], self.segment.size

    def _sift(self, segment: Segment) -> Program[int]:
        """Read a segment, and add what stays of its batches to `self._out`; return the position behind the last one."""
        is_last_segment = segment is self._group[-1]
        done = 0

        def take(header: BatchHeader, view: memoryview) -> bool:
            nonlocal done
            done += header.size
            check_sound(view, header, segment)
            self._take(header, view, is_last=is_last_segment and done == segment.size)
            return True

        def take_run(data: bytes, position: int, stop: int) -> int:
            nonlocal done
            out: list[bytes] = []
            kept: list[tuple[int, int, int]] = []
            behind, is_changed = self._batches.keep_run(data, position, stop, segment, out, kept)
            self._out += out
            self.is_changed = self.is_changed or is_changed
            for last_offset, size, largest in kept:
                self.segment.add(last_offset, last_offset + 1, size, largest, self._interval)
            done += behind - position
            return behind

        return (yield from _visit(segment, take, take_run))

    def _take(self, header: BatchHeader, view: memoryview, *, is_last: bool) -> None:
        kept = self._batches.keep(view, header, is_last=is_last)
        if kept is not view:
            self.is_changed = self.is_changed or kept is None or kept != view
        if kept is None:
            return
        self._out.append(kept)
        next_offset, largest = header.next_offset, header.max_timestamp
        if kept is not view:
            largest = parse_header(kept).max_timestamp
        self.segment.add(header.last_offset, next_offset, len(kept), largest, self._interval)

    def finish(self, aborted: Sequence[Aborted]) -> Program[None]:
        """Write the indexes, and make all files durable. `aborted` are the transactions whose markers stay."""
        segment, last = self.segment, self._group[-1]
        segment.next_offset = last.next_offset
        segment.readable = segment.size
        files: list[Effect] = []
        for effect in segment.seal():
            assert isinstance(effect, Append)
            files.append(effect._replace(path=effect.path + CLEANED))
        if aborted:
            entries = b"".join(one.encode() for one in aborted)
            segment.transaction_index = bytearray(entries)
            files.append(Append(segment.transaction_index_path + CLEANED, 0, (entries,)))
        segment.drop_indexes()
        yield from files
        for suffix in segment.file_suffixes():
            yield Sync(segment_path(segment.directory, segment.base_offset, suffix) + CLEANED)
