"""Send log files into a topic, through the wire protocol.

In: files of lines, plain or gzip, in the order given; a broker's address. Out: one record per line, with the line's
time as its timestamp. Batches are small enough for segments to roll by the log's time. Memory is bounded by a batch and
a block, whatever the files' sizes. It never skips a line: one without a readable time takes the time of the line before
it.
"""

import gzip
import io
import stat
import zlib
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from combined import line_time_ms

from stratalog.client.aio import Client
from stratalog.client.calls import NewTopic
from stratalog.client.idempotent import IdempotentPipeline
from stratalog.errors import ErrorCode, Rejected, UserError
from stratalog.wire.records import BatchBuilder

BLOCK_BYTES = 1 << 18
BATCH_BYTES_MAX = 1 << 18
LINE_BYTES_MAX = 1 << 20
"""A longer line becomes several records: bad lines, except perhaps the first."""

SEGMENTS = 12
SEGMENT_BYTES_MIN = 1 << 20  # Kafka's own limit
SEGMENT_BYTES_MAX = 1 << 26
WINDOWS_PER_SEGMENT = 8
LONG_MAX = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Survey:
    """Facts about a log before the load. `file_bytes` is the size on disk, `bytes` the unpacked size; the times are
    those of the first and the last readable line, epoch ms (0 where no line has one).
    """

    file_bytes: int
    bytes: int
    first_ms: int
    last_ms: int

    @property
    def segment_ms(self) -> int:
        """Record time that one segment spans, so that a log has about a dozen segments."""
        return max(1, (self.last_ms - self.first_ms) // SEGMENTS)

    @property
    def segment_bytes(self) -> int:
        """The size at which a segment rolls, independent of its times."""
        return min(SEGMENT_BYTES_MAX, max(SEGMENT_BYTES_MIN, self.bytes // SEGMENTS))


def check_readable(path: Path) -> None:
    """Raise UserError with one line where `path` is no readable file."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise UserError(f"{path}: not a regular file")
        with path.open("rb"):
            pass
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}") from error


def blocks(path: Path, on_read: Callable[[int], None]) -> Iterator[bytes]:
    """Yield the file's bytes in pieces, unpacked if it is gzip. `on_read` receives the bytes read from the file."""
    with path.open("rb") as raw:
        packed = raw.read(2) == b"\x1f\x8b"
        raw.seek(0)
        source = gzip.GzipFile(fileobj=raw) if packed else raw
        before = 0
        try:
            while block := source.read(BLOCK_BYTES):
                after = raw.tell()
                on_read(after - before)
                before = after
                yield block
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise UserError(f"{path}: damaged gzip file: {error}") from error
        except OSError as error:
            raise UserError(f"{path}: {error.strerror or error}") from error


def lines(path: Path, on_read: Callable[[int], None]) -> Iterator[list[bytes]]:
    """Yield the file's lines without their ends (LF or CR LF), some at a time; the last may lack its end."""
    rest = b""
    for block in blocks(path, on_read):
        found = (rest + block).split(b"\n")
        rest = found.pop()
        while len(rest) > LINE_BYTES_MAX:
            found.append(rest[:LINE_BYTES_MAX])
            rest = rest[LINE_BYTES_MAX:]
        if found:
            yield [line.removesuffix(b"\r") for line in found]
    if rest:
        yield [rest.removesuffix(b"\r")]


def survey(paths: Sequence[Path], on_read: Callable[[int], None]) -> Survey:
    """Read both ends of each file; a gzip file must be unpacked completely for its end."""
    unpacked = 0
    times: list[int] = []
    for path in paths:
        with path.open("rb") as raw:
            packed = raw.read(2) == b"\x1f\x8b"
            size = raw.seek(0, io.SEEK_END)
            raw.seek(0)
            first = raw.read(LINE_BYTES_MAX)
            raw.seek(max(0, size - LINE_BYTES_MAX))
            last = raw.read()
        if packed:
            first, last, size = _both_ends(path, on_read)
        else:
            on_read(size)
        unpacked += size
        for end in (first.split(b"\n"), reversed(last.split(b"\n"))):
            time_ms = next(filter(None, map(line_time_ms, end)), None)
            if time_ms is not None and time_ms >= 0:
                times.append(time_ms)
    return Survey(
        file_bytes=sum(path.stat().st_size for path in paths),
        bytes=unpacked,
        first_ms=min(times, default=0),
        last_ms=max(times, default=0),
    )


def _both_ends(path: Path, on_read: Callable[[int], None]) -> tuple[bytes, bytes, int]:
    first = last = b""
    size = 0
    for block in blocks(path, on_read):
        size += len(block)
        if len(first) < LINE_BYTES_MAX:
            first += block
        last = (last + block)[-LINE_BYTES_MAX:] if len(block) < LINE_BYTES_MAX else block
    return first, last, size


async def create_topic(client: Client, topic: str, seen: Survey, replicas: int = 1) -> None:
    """Create the topic: one partition, kept for ever, tiered as soon as its segments close. Raises Rejected.

    Of several replicas all but one must have a record before it counts.
    """
    configs = {
        "remote.storage.enable": "true",
        "retention.ms": "-1",
        "segment.ms": str(seen.segment_ms),
        "segment.bytes": str(seen.segment_bytes),
        "local.retention.bytes": "1",
        "file.delete.delay.ms": "0",
        "max.message.bytes": str(2 * LINE_BYTES_MAX),
        # Lines may have any time: Kafka's limit of an hour ahead would refuse a whole batch.
        "message.timestamp.before.max.ms": str(LONG_MAX),
        "message.timestamp.after.max.ms": str(LONG_MAX),
        "min.insync.replicas": str(max(1, replicas - 1)),
    }
    [made] = await client.create_topics(
        [NewTopic(topic, partitions=1, replication_factor=replicas, configs=configs)]
    )
    if made.error != ErrorCode.none:
        raise Rejected(made.error, made.message or f"topic {topic} cannot be created")


async def load(
    pipeline: IdempotentPipeline,
    topic: str,
    paths: Sequence[Path],
    seen: Survey,
    on_read: Callable[[int], None],
    halfway: Callable[[], Awaitable[None]] | None = None,
) -> int:
    """Send every line as a record of `topic`, in order; return the number of records. `halfway` runs once in between.

    A batch ends at a size, or once time has advanced by a part of a segment: the broker rolls between batches, never
    inside one.
    """
    window_ms = max(1, seen.segment_ms // WINDOWS_PER_SEGMENT)
    time_ms = seen.first_ms
    count = sent_bytes = 0
    batch = BatchBuilder()
    window_end = time_ms + window_ms
    for path in paths:
        for some in lines(path, on_read):
            for line in some:
                found = line_time_ms(line)
                if found is not None and found >= 0:  # Kafka has no records from before 1970
                    time_ms = found
                full = batch.size + len(line) > BATCH_BYTES_MAX
                if (full or time_ms >= window_end) and batch.count:
                    await pipeline.send(topic, 0, batch)
                    count += batch.count
                    sent_bytes += batch.size
                    batch = BatchBuilder()
                    if halfway is not None and sent_bytes >= seen.bytes // 2:
                        await halfway()
                        halfway = None
                if time_ms >= window_end:
                    window_end = time_ms + window_ms
                batch.add(None, line, time_ms)
    if halfway is not None:
        await halfway()
    if batch.count:
        await pipeline.send(topic, 0, batch)
        count += batch.count
    await pipeline.drain()
    return count
