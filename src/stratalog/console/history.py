"""The bucket as the pages see it: topics, segments, record batches, the result of a verification.

In: an object store, threads to wait for it. Out: facts and whole batches. It never writes to the bucket, and a slow
bucket holds up only the pages that show it.
"""

from asyncio import Future, wait
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice
from typing import Final, TypeVar

from stratalog.console.kept import Kept
from stratalog.errors import Corrupt, Unavailable, UserError
from stratalog.ports import Clock, ObjectStore, Worker
from stratalog.tier.bucket.identity import TierTopic
from stratalog.tier.checking.verify import Checked, Problem, verify
from stratalog.tier.formats.manifest import Manifest
from stratalog.tier.formats.paths import topics_prefix
from stratalog.tier.reading.fetcher import Fetcher
from stratalog.tier.reading.reader import Bucket, open_bucket

__all__ = ["Batches", "History", "ManifestRow", "SegmentRow", "TieredTopic", "Verification"]

T = TypeVar("T")

_TOPICS_MS: Final = 10_000
_CHECK_MS: Final = 10_000
_CHECK_WAIT_S: Final = 1.0
_CACHE_BYTES: Final = 32 << 20
_PARTITIONS_MAX: Final = 5_000
_PROBLEMS_MAX: Final = 200


@dataclass(frozen=True, slots=True)
class SegmentRow:
    """A live segment object, or several neighbours (`segments`) that one archive manifest names together."""

    first: int
    last: int
    segments: int
    records: int
    size: int
    min_timestamp: int
    max_timestamp: int


@dataclass(frozen=True, slots=True)
class ManifestRow:
    """The newest manifest of a partition: its version, the broker that wrote it, when (epoch ms) and as which leader.

    `tiered_end` is the first offset that is not in the bucket; `archives` counts the archive manifests that it names.
    """

    version: int
    written_ms: int
    node_id: int
    leader_epoch: int
    tiered_end: int
    archives: int


@dataclass(frozen=True, slots=True)
class TieredTopic:
    """A topic's sums in the bucket, and the same by partition; times are epoch ms, -1 for none."""

    name: str
    topic_id: str
    segments: int
    records: int
    size: int
    min_timestamp: int
    max_timestamp: int
    bytes_of: dict[int, int]


@dataclass(frozen=True, slots=True)
class Batches:
    """Whole batches from the bucket, from the one that holds the wanted offset on."""

    records: memoryview
    next_offset: int
    aborted: list[tuple[int, int]]


@dataclass(slots=True)
class Verification:
    """A verification of the whole bucket: under way, or its result."""

    began_ms: int
    ended_ms: int | None = None
    bytes_done: int = 0
    bytes_total: int = 0
    checked: Checked = field(default_factory=Checked)
    problems: list[Problem] = field(default_factory=list)
    problems_count: int = 0
    failure: str = ""


class History:
    """Reads one bucket, in threads. Methods raise Unavailable, Corrupt and UserError as the bucket's reader does."""

    def __init__(
        self, store: ObjectStore, reading: Worker, verifying: Worker, clock: Clock
    ) -> None:
        """`verifying` has one thread: a verification reads everything, and pages must not wait for it."""
        self.url = store.url
        self.verification: Verification | None = None
        self._store = store
        self._reading = reading
        self._verifying = verifying
        self._clock = clock
        self._bucket: Bucket | None = None
        self._verified: Future[None] | None = None
        self._checked: Future[str] | None = None
        self._check_again_ms = 0
        self._problem = ""
        self._fetcher = Fetcher(store, _CACHE_BYTES)
        self._topics = Kept(lambda: self._in_thread(self._all_topics), clock, _TOPICS_MS)

    def failure(self, error: Exception) -> str:
        """Return why the bucket cannot be read: the error, and the URL unless the error names it."""
        return str(error) if self.url in str(error) else f"{self.url}: {error}"

    async def close(self) -> None:
        """Let the threads go."""
        await self._reading.close()
        await self._verifying.close()

    async def _in_thread(self, call: Callable[[], T]) -> T:
        return await self._reading.submit(call)

    async def problem(self) -> str:
        """Return why the bucket cannot be read, or "" where it can. The bucket is asked every ten seconds at most.

        A bucket that does not answer within a second holds up no page: the result of the check before it stands.
        """
        now_ms = self._clock.steady_ms()
        if self._checked is None or (self._checked.done() and now_ms >= self._check_again_ms):
            self._check_again_ms = now_ms + _CHECK_MS
            self._checked = self._reading.submit(self._check)
        done, _ = await wait({self._checked}, timeout=_CHECK_WAIT_S)
        if done:
            self._problem = self._checked.result()
        return self._problem

    def _check(self) -> str:
        """Use both rights that the pages need, in two requests: to read an object, and to list."""
        try:
            bucket = open_bucket(self._store)
            next(iter(self._store.list(topics_prefix(bucket.cluster_id))), None)
        except (Unavailable, Corrupt, UserError, OSError) as error:
            return self.failure(error)
        return ""

    def _opened(self) -> Bucket:
        if self._bucket is None:
            self._bucket = open_bucket(self._store)
        return self._bucket

    async def topics(self) -> tuple[list[TieredTopic], bool]:
        """Return the topics in the bucket, and whether there are more: at most 5,000 partitions are looked at."""
        return await self._topics.get()

    def _all_topics(self) -> tuple[list[TieredTopic], bool]:
        self._bucket = bucket = open_bucket(self._store)  # anew: it may be gone
        rows: list[TieredTopic] = []
        left = _PARTITIONS_MAX
        for topic in bucket.topics():
            if topic.partitions > left:
                return rows, True
            left -= topic.partitions
            rows.append(_totals(topic, bucket.manifests(topic)))
        return rows, False

    async def partitions(
        self, name: str, rows_max: int
    ) -> dict[int, tuple[ManifestRow, list[SegmentRow]]]:
        """Return the manifest and the newest `rows_max` live segments of each partition of a topic that has some."""
        return await self._in_thread(lambda: self._partitions(name, rows_max))

    def _partitions(
        self, name: str, rows_max: int
    ) -> dict[int, tuple[ManifestRow, list[SegmentRow]]]:
        bucket = self._opened()
        topic = bucket.topic(name)
        if topic is None:
            return {}
        manifests = islice(bucket.manifests(topic).items(), _PARTITIONS_MAX)
        return {
            index: (_manifest_row(manifest), _rows(manifest)[-rows_max:])
            for index, manifest in manifests
        }

    async def batches(
        self, name: str, partition: int, offset: int, max_bytes: int
    ) -> Batches | None:
        """Return batches from the bucket; None where it has nothing at or after the offset."""
        return await self._in_thread(lambda: self._batches(name, partition, offset, max_bytes))

    def _batches(self, name: str, partition: int, offset: int, max_bytes: int) -> Batches | None:
        bucket = self._opened()
        topic = bucket.topic(name)
        manifest = None if topic is None else bucket.manifest(topic, partition)
        segment = None if manifest is None else next(bucket.live(manifest, first=offset), None)
        if segment is None:
            return None
        offset = max(offset, segment.entry.base_offset)
        found = self._fetcher.read(segment, offset, max_bytes)
        data = b"".join(found.buffers)
        return Batches(memoryview(data), found.next_offset, list(found.aborted or ()))

    def verify(self) -> None:
        """Begin to verify the whole bucket, unless that is under way; `verification` shows how far it is."""
        if self.verification is not None and self.verification.ended_ms is None:
            return
        self.verification = state = Verification(self._clock.now_ms())
        self._verified = self._verifying.submit(lambda: self._verify(state))

    def _verify(self, state: Verification) -> None:
        def progress(done: int, total: int) -> None:
            state.bytes_done, state.bytes_total = done, total

        try:
            found = verify(
                self._store, now_ms=state.began_ms, progress=progress, checked=state.checked
            )
        except (Unavailable, Corrupt, UserError, OSError) as error:
            state.failure = str(error)
        else:
            state.problems, state.problems_count = found[:_PROBLEMS_MAX], len(found)
        state.ended_ms = self._clock.now_ms()


def _totals(topic: TierTopic, manifests: dict[int, Manifest]) -> TieredTopic:
    rows = [row for manifest in manifests.values() for row in _rows(manifest)]
    return TieredTopic(
        topic.name,
        topic.topic_id,
        sum(row.segments for row in rows),
        sum(row.records for row in rows),
        sum(row.size for row in rows),
        min((row.min_timestamp for row in rows if row.min_timestamp >= 0), default=-1),
        max((row.max_timestamp for row in rows), default=-1),
        {index: manifest.live_bytes for index, manifest in manifests.items()},
    )


def _manifest_row(manifest: Manifest) -> ManifestRow:
    return ManifestRow(
        manifest.version,
        manifest.written_ms,
        manifest.node_id,
        manifest.leader_epoch,
        manifest.tiered_end,
        sum(1 for one in manifest.live_archives() if one.segments),
    )


def _rows(manifest: Manifest) -> list[SegmentRow]:
    """Return the live segments as the manifest alone knows them: no archive manifest is opened for a picture."""
    rows = [
        SegmentRow(
            one.base_offset,
            one.last_offset,
            one.segments,
            one.records,
            one.segments_size,
            one.min_timestamp,
            one.max_timestamp,
        )
        for one in manifest.live_archives()
        if one.segments
    ]
    for segment in manifest.recent():
        one = segment.entry
        rows.append(
            SegmentRow(
                one.base_offset,
                one.last_offset,
                1,
                one.records,
                one.size,
                one.min_timestamp,
                one.max_timestamp,
            )
        )
    return rows
