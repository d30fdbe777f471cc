"""Measure how far consumer groups lag, and how long their unread records will be kept.

In: committed offsets, the logs and manifests that hold them, the time. Out: a `Lag` for each committed offset. It
decodes no record, reads no bucket, and never runs as part of a request. A scrape looks up batches by their headers,
from the page cache or through the directory's reader threads.

A committed offset is looked up once: its place stays valid until the offset moves. At most `LOOKUPS_MAX` lookups run
in one scrape; the others follow in the next scrapes.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Final

from stratalog.broker.broker import Broker
from stratalog.broker.partitions.partition import HostedPartition
from stratalog.coordinators.messages import NO_TOPIC_ID
from stratalog.coordinators.records import KeptOffset
from stratalog.errors import Rejected
from stratalog.log.reading import batch_at
from stratalog.log.segment import Segment
from stratalog.monitor.pause import Pause
from stratalog.tier.formats.manifest import SegmentState
from stratalog.tier.writing.tier_writer import TierWriter

LOOKUPS_MAX: Final = 500
_RATE_NS_MIN: Final = 1_000_000_000
_SECOND_NS: Final = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Lag:
    """One committed offset's distance from the log's end, and from retention.

    Seconds and bytes; None where its batch was not looked up yet. Headroom is infinite where nothing is left to read or
    retention does not apply.
    """

    group: str
    topic: str
    partition: int
    records: int
    seconds: float | None
    headroom_seconds: float | None
    headroom_bytes: float | None


@dataclass(frozen=True, slots=True)
class _Place:
    """The place of an offset's batch: timestamps in epoch ms, the local segment and the position in it.

    `segment` is None for a batch in the bucket; retention depends on the timestamp `kept_until`.
    """

    offset: int
    timestamp: int
    kept_until: int
    segment: Segment | None
    position: int


_Key = tuple[str, HostedPartition]


class GroupLags:
    """Measures all groups of one broker. One measurement at a time."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._places: dict[_Key, _Place] = {}
        self._rates: dict[HostedPartition, tuple[int, int, float]] = {}
        """By partition: bytes appended at the last measurement, its time (ns), and bytes per second before."""
        self.lookups_left = 0
        """Offsets that the last measurement did not look up."""

    async def measure(self, pause: Pause) -> AsyncIterator[Lag]:
        """Yield every committed offset of a partition hosted here."""
        places: dict[_Key, _Place] = {}
        rates: dict[HostedPartition, tuple[int, int, float]] = {}
        left, self.lookups_left = LOOKUPS_MAX, 0
        for group, committed in self._broker.groups.committed():
            for topic, index, kept in committed:
                await pause()
                hosted = self._broker.hosting.find(topic, index)
                if hosted is None or kept.topic_id not in (hosted.key.topic_id, NO_TOPIC_ID):
                    continue
                key = (group, hosted)
                place = self._places.get(key)
                if _is_behind(hosted, kept) and (place is None or place.offset != kept.offset):
                    if left > 0:
                        left -= 1
                        place = await self._look_up(hosted, kept.offset)
                    else:
                        self.lookups_left += 1
                if place is not None:
                    places[key] = place
                if hosted not in rates:
                    rates[hosted] = self._rate(hosted)
                yield self._lag(group, hosted, kept, place, rates[hosted][2])
        self._places, self._rates = places, rates

    def _rate(self, hosted: HostedPartition) -> tuple[int, int, float]:
        """Return bytes per second since the last measurement that was some time ago."""
        now_ns, total = self._broker.clock.elapsed_ns(), hosted.metrics.bytes_in
        before = self._rates.get(hosted)
        if before is None:
            return total, now_ns, 0.0
        took_ns = now_ns - before[1]
        if took_ns < _RATE_NS_MIN:
            return before
        return total, now_ns, (total - before[0]) * _SECOND_NS / took_ns

    async def _look_up(self, hosted: HostedPartition, offset: int) -> _Place | None:
        log = hosted.log
        if offset < log.local_start_offset:
            return self._place_in_bucket(hosted, offset)
        try:
            found = await hosted.look(partial(batch_at, log.segments, offset, log.log_end_offset))
        except Rejected:  # deleted, or its directory failed: other metrics report both
            return None
        if found is None:
            return None
        segment, position, header = found
        first = header.max_timestamp if header.is_log_append_time else header.base_timestamp
        timestamp = first if first >= 0 else segment.touched_ms
        return _Place(offset, timestamp, timestamp, segment, position)

    def _place_in_bucket(self, hosted: HostedPartition, offset: int) -> _Place | None:
        """Find the place from the manifest alone, to within one segment or one archive manifest."""
        tier = self._tier(hosted)
        span = tier.lookup.time_span_at(max(offset, hosted.log.log_start_offset)) if tier else None
        if span is None:
            return None
        earliest, latest = span
        return _Place(offset, earliest if earliest >= 0 else latest, latest, None, 0)

    def _tier(self, hosted: HostedPartition) -> TierWriter | None:
        tiering = self._broker.tiering
        return None if tiering is None else tiering.history.writer(hosted)

    def _lag(
        self,
        group: str,
        hosted: HostedPartition,
        kept: KeptOffset,
        place: _Place | None,
        bytes_per_second: float,
    ) -> Lag:
        partition, log = hosted.name, hosted.log
        records = max(hosted.high_watermark - kept.offset, 0)
        if records == 0:
            return Lag(group, partition.topic, partition.partition, 0, 0.0, inf, inf)
        if kept.offset < log.log_start_offset:
            seconds = None if place is None else _behind(hosted, place)
            return Lag(group, partition.topic, partition.partition, records, seconds, 0.0, 0.0)
        if place is None:
            return Lag(group, partition.topic, partition.partition, records, None, None, None)
        room = self._room(hosted, place)
        seconds_left = _time_left(hosted, place, self._broker.clock.now_ms())
        if bytes_per_second > 0:
            seconds_left = min(seconds_left, room / bytes_per_second)
        return Lag(
            group,
            partition.topic,
            partition.partition,
            records,
            _behind(hosted, place),
            seconds_left,
            room,
        )

    def _room(self, hosted: HostedPartition, place: _Place) -> float:
        """Return how many bytes may be appended until `retention.bytes` deletes this place."""
        config = hosted.log.config
        if config.retention_bytes < 0 or "delete" not in config.cleanup_policy:
            return inf
        return max(config.retention_bytes - self._ahead(hosted, place), 0)

    def _ahead(self, hosted: HostedPartition, place: _Place) -> int:
        """Return bytes of log from this place to the end."""
        log = hosted.log
        if place.segment is not None:
            base = place.segment.base_offset
            return sum(s.size for s in log.segments if s.base_offset >= base) - place.position
        tier = self._tier(hosted)
        manifest = tier.manifest if tier is not None else None
        if manifest is None:
            return log.size
        finished = SegmentState.COPY_FINISHED
        return sum(s.size for s in log.segments if s.next_offset > log.tiered_end) + sum(
            entry.data_size
            for entry in manifest.segments
            if entry.state is finished and entry.last_offset >= place.offset
        )


def _is_behind(hosted: HostedPartition, kept: KeptOffset) -> bool:
    return kept.offset < hosted.high_watermark


def _behind(hosted: HostedPartition, place: _Place) -> float:
    """Return seconds between the batch at this place and the newest record there is."""
    newest = max(segment.max_timestamp for segment in hosted.log.segments[-2:])
    return max(newest - place.timestamp, 0) / 1000


def _time_left(hosted: HostedPartition, place: _Place, now_ms: int) -> float:
    """Return seconds until `retention.ms` deletes this place."""
    config = hosted.log.config
    if config.retention_ms < 0 or "delete" not in config.cleanup_policy:
        return inf
    return max(place.kept_until + config.retention_ms - now_ms, 0) / 1000
