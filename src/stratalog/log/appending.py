"""Decide appends to one partition's log: offsets, repeats, refusals, new segments.

In: checked record batches as rows, the time. Out: each row's offsets or its refusal, and effects for the directory's
executor to perform in order. It never touches a disk and decodes no records in the common case.

A row is one batch of a client, as its header's fields. The log decides all rows of one call in their order, as if each
of them had come alone. A single request is one row. Kafka: `UnifiedLog.append`.
"""

from collections.abc import Sequence
from operator import itemgetter
from typing import Final

from stratalog.config import LogConfig
from stratalog.errors import Rejected
from stratalog.log.admission import check_fetched, check_row, is_full
from stratalog.log.effects import Append, Effect, Unlink
from stratalog.log.log_files import LogFiles
from stratalog.log.segment import Segment
from stratalog.log.tail import TailCache
from stratalog.log.values import Appended, Contents, Placed
from stratalog.wire.batch import (
    ATTRIBUTES,
    BASE_OFFSET,
    CONTROL,
    LAST_OFFSET_DELTA,
    LEADER_EPOCH,
    MAX_TIMESTAMP,
    PRODUCER_ID,
    SIZE,
    BatchHeader,
    assign,
    set_log_append_time,
)

__all__ = ["AppendingLog"]

_LOG_APPEND_TIME: Final = "LogAppendTime"
_NOWHERE: Final = (-1, -1, -1)
_EPOCH_MAX: Final = (1 << 31) - 1
_STATE_BYTES: Final = 2 << 20
"""A coordinator loads so much in 15 ms; there are 50 of them by default."""
_last_offset: Final = itemgetter(1)


class AppendingLog(LogFiles):
    """The part of a log that takes appends; `PartitionLog` is the whole."""

    def __init__(
        self, directory: str, config: LogConfig, contents: Contents, tail: TailCache
    ) -> None:
        super().__init__(directory, config, contents)
        self.log_start_offset = contents.log_start_offset
        self.log_end_offset = self.next_offset
        self.tail = tail

    def append_as_leader(
        self,
        view: memoryview,
        header: BatchHeader,
        *,
        leader_epoch: int,
        now_ms: int,
        wall_ms: int,
        origin: str = "client",
    ) -> Appended:
        """Append one row, as `append_rows`; raises its refusal, with nothing changed."""
        rows, appended = self.append_rows(
            view,
            (header,),
            leader_epoch=leader_epoch,
            now_ms=now_ms,
            wall_ms=wall_ms,
            origin=origin,
        )
        row = rows[0]
        if type(row) is not tuple:
            assert isinstance(row, Rejected), row
            raise row
        return appended

    def append_rows(  # noqa: PLR0915 - a call for each part would cost as much as the part
        self,
        view: memoryview,
        headers: Sequence[BatchHeader],
        *,
        leader_epoch: int,
        now_ms: int,
        wall_ms: int,
        origin: str = "client",
    ) -> tuple[list[Placed | Rejected], Appended]:
        """Assign offsets to checked batches that follow one another in the writable `view`, in place.

        Return each row's place or refusal, and what to perform for all of them. Only a batch of origin "client" must
        have the next sequence. A refused row changes nothing: RECORD_LIST_TOO_LARGE, INVALID_TIMESTAMP, and the errors
        of `ProducerStates.check` and `check_marker`.
        """
        config, segment, producers = self.config, self.segments[-1], self.producers
        append_time = wall_ms if config.message_timestamp_type == _LOG_APPEND_TIME else -1
        has_room = append_time < 0 and self._has_room(segment, headers, now_ms)
        rows: list[Placed | Rejected] = []
        taken = _Taken()
        base, end = self.next_offset, 0
        for header in headers:
            size, producer_id = header[SIZE], header[PRODUCER_ID]
            start, end = end, end + size
            batch = view[start:end]
            repeated = None
            try:
                check_row(header, config, None if append_time >= 0 else wall_ms)
                if producer_id >= 0:
                    if origin == "client":
                        repeated = producers.check(header)
                    elif header[ATTRIBUTES] & CONTROL:
                        producers.check_marker(header, batch)
            except Rejected as error:
                rows.append(error.with_traceback(None))
                continue
            if repeated is not None:
                # As Kafka, answer with the time of the first append (`LogAppendInfo.setLogAppendTime`).
                rows.append((repeated[2], repeated[3], repeated[4], True))
                continue
            if append_time >= 0:
                header = set_log_append_time(batch, 0, header, wall_ms)  # noqa: PLW2901 - as it is stored
            assign(batch, 0, base, leader_epoch)
            last = base + header[LAST_OFFSET_DELTA]
            if not has_room:
                self.next_offset = base
                segment = self._make_room(taken, size, (header,), last, now_ms)
            if leader_epoch > self.epochs.latest:
                self.epochs.assign(leader_epoch, base)
            segment.add(last, last + 1, size, header[MAX_TIMESTAMP], config.index_interval_bytes)
            if producer_id >= 0:
                self._take(taken, header, batch, base, now_ms)
            taken.batches.append((base, last + 1, batch))
            rows.append((base, last, append_time, False))
            base = last + 1
        segment.touched_ms = now_ms
        self.next_offset = base
        return rows, self._appended(taken, rows, view, append_time)

    def append_as_follower(
        self, view: memoryview, now_ms: int, *, leader_epoch: int = _EPOCH_MAX
    ) -> Appended:
        """Append batches that already have offsets and epochs, from the leader of `leader_epoch`.

        Raises Corrupt where they are not whole and sound, begin below `next_offset`, or have a later epoch. Gaps are
        kept.
        """
        headers = check_fetched(view, self.next_offset, self.directory, leader_epoch)
        taken = _Taken()
        last = headers[-1].last_offset
        segment = self._make_room(taken, len(view), headers, last, now_ms)
        interval = self.config.index_interval_bytes
        end = 0
        for header in headers:
            size, base = header[SIZE], header[BASE_OFFSET]
            start, end = end, end + size
            self.epochs.assign(header[LEADER_EPOCH], base)
            following = header.next_offset
            segment.add(following - 1, following, size, header[MAX_TIMESTAMP], interval)
            batch = view[start:end]
            if header[PRODUCER_ID] >= 0:
                self._take(taken, header, batch, base, now_ms)
            taken.batches.append((base, following, batch))
        segment.touched_ms = now_ms
        self.next_offset = last + 1
        return self._appended(taken, (), view, -1)

    def _has_room(self, segment: Segment, headers: Sequence[BatchHeader], now_ms: int) -> bool:
        """Return whether the active segment takes all rows as it is, so that none of them must be checked alone."""
        if not segment.size or self._saved:
            return False
        if len(headers) == 1:
            size, last = headers[0][SIZE], self.next_offset + headers[0][LAST_OFFSET_DELTA]
        else:
            size, last = 0, self.next_offset - 1
            for header in headers:
                size += header[SIZE]
                last += header[LAST_OFFSET_DELTA] + 1
        return not self._is_full(segment, size, headers, last, now_ms)

    def _is_full(
        self, segment: Segment, size: int, headers: Sequence[BatchHeader], last: int, now_ms: int
    ) -> bool:
        """Return whether batches must go to a new segment.

        A coordinator's active segment is full once it is larger than all closed ones. Only those are cleaned, so a
        start would load up to `segment_bytes` of outdated records, whatever live state there is.
        """
        if self.config.is_state and segment.size > _STATE_BYTES:
            closed = sum(one.size for one in self.segments) - segment.size
            if segment.size > closed and self.config.is_compacted:
                return True
        return is_full(segment, self.config, size, headers, last_offset=last, now_ms=now_ms)

    def _make_room(
        self,
        taken: "_Taken",
        size: int,
        headers: Sequence[BatchHeader],
        last_offset: int,
        now_ms: int,
    ) -> Segment:
        """Return the active segment, a new one where it is full, its files prepared for what follows."""
        segment, config = self.segments[-1], self.config
        if segment.size:
            if self._is_full(segment, size, headers, last_offset, now_ms):
                taken.write(segment)
                taken.effects.extend(self._roll(now_ms))
                segment = self.segments[-1]
            elif self._saved:
                # Its index files are outdated from here on. After a crash, recovery must not trust them.
                outdated = (Unlink(segment.index_path), Unlink(segment.time_index_path))
                taken.effects.extend(outdated)
        if not segment.size:
            taken.effects.extend(segment.begin(config, now_ms))
        self._saved = False
        return segment

    def _take(
        self, taken: "_Taken", header: BatchHeader, batch: memoryview, offset: int, now_ms: int
    ) -> None:
        """Record the batch of a producer, and the transaction that it aborts if it is a marker."""
        if header[ATTRIBUTES] & CONTROL:
            aborted = self.producers.take(header, batch, offset, now_ms)
            if aborted is not None:
                taken.effects.append(self.segments[-1].add_aborted(aborted))
        else:
            self.producers.update(header, offset, now_ms)

    def _appended(
        self,
        taken: "_Taken",
        rows: Sequence[Placed | Rejected],
        view: memoryview,
        append_time: int,
    ) -> Appended:
        effects, ends, batches = taken.effects, taken.ends, taken.batches
        if not batches:
            # All rows repeat batches, or are refused. The last repeat lies behind the others.
            repeats = [one[:3] for one in rows if type(one) is tuple]
            offsets = max(repeats, key=_last_offset, default=_NOWHERE)
            return Appended(*offsets, self.log_start_offset, True, (), 0, [], [])  # noqa: FBT003
        size = len(view)
        if ends or (rows and len(rows) != len(batches)):
            taken.write(self.segments[-1])
            size = sum([len(batch) for _, _, batch in batches])
        else:
            segment = self.segments[-1]
            effects.append(Append(segment.path, segment.size - size, (view,)))
            ends.append((segment, segment.size))
        if self.next_offset - self.recovery_point >= self.config.flush_messages:
            effects.extend(self.flush())
        # Made of a tuple: half the time of a call with nine arguments.
        return Appended._make(
            (
                batches[0][0],
                self.next_offset - 1,
                append_time,
                self.log_start_offset,
                False,
                tuple(effects),
                size,
                ends,
                batches,
            )
        )

    def performed(self, appended: Appended, *, is_fetched: bool = False) -> None:
        """Show `appended` to readers, once its effects are performed. Call in the order of the appends.

        `is_fetched`: its batches are parts of a leader's answer.
        """
        batches = appended.batches
        if not batches:
            return
        assert appended.base_offset >= self.log_end_offset, (
            "appends are performed in the order they were decided"
        )
        self.log_end_offset = appended.last_offset + 1
        for segment, end in appended.ends:
            segment.readable = end
        if self._sealed:
            self._drop_sealed(batches[-1][0])
        if not is_fetched:
            self.tail.extend(batches, appended.size)
            return
        add = self.tail.add
        for base, following, view in batches:
            add(base, following, view, is_fetched=True)


class _Taken:
    """The batches that one decision takes, how far they reach in each segment, and their effects so far."""

    __slots__ = ("batches", "effects", "ends")

    def __init__(self) -> None:
        self.effects: list[Effect] = []
        self.ends: list[tuple[Segment, int]] = []
        self.batches: list[tuple[int, int, memoryview]] = []

    def write(self, segment: Segment) -> None:
        """Add the effect that writes the batches which are in `segment`."""
        pieces = [batch for base, _, batch in self.batches if base >= segment.base_offset]
        size = sum(map(len, pieces))
        if size:
            self.effects.append(Append(segment.path, segment.size - size, pieces))
            self.ends.append((segment, segment.size))
