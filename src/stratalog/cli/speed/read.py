"""Read a topic and measure the speed, for `strata perf consume` and `strata bench machine`.

In: a client, where to begin, a consumer's settings. Out: batches' records and bytes a second. It never decodes a
record.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stratalog.cli.speed.load import MB

if TYPE_CHECKING:
    from stratalog.client.aio import Client
    from stratalog.client.reader import Fetched, FetchSettings


@dataclass(slots=True)
class Read:
    """Records and bytes read in some period; bytes count whole batches as they are sent."""

    began_s: float
    records: int = 0
    batch_bytes: int = 0

    def summary(self, now_s: float) -> dict[str, Any]:
        """MB are 2**20 bytes."""
        seconds = max(now_s - self.began_s, 1e-9)
        return {
            "records": self.records,
            "seconds": round(seconds, 3),
            "records_s": round(self.records / seconds, 1),
            "mb_s": round(self.batch_bytes / MB / seconds, 2),
        }


def read_line(summary: Mapping[str, Any]) -> str:
    """Return a line for people, like the producer's."""
    return (
        f"{summary['records']} records read, {summary['records_s']:.1f} records/sec "
        f"({summary['mb_s']:.2f} MB/sec)."
    )


class Reading:
    """Read partitions of a topic from `positions` on, up to `ends` if given."""

    def __init__(
        self,
        client: "Client",
        topic: str,
        positions: Mapping[int, int],
        ends: Mapping[int, int],
        how: "tuple[FetchSettings, bool]",
    ) -> None:
        """`how` is (fetch settings, whether to check CRCs)."""
        from stratalog.adapters.system import monotonic_s
        from stratalog.client.reader import Reader
        from stratalog.wire.ids import TopicPartition

        settings, self._check_crcs = how
        wanted = {
            TopicPartition(topic, index): offset
            for index, offset in positions.items()
            if index not in ends or offset < ends[index]
        }
        self._reader = Reader(client, wanted, settings)
        self._ends = {TopicPartition(topic, index): end for index, end in ends.items()}
        self._now = monotonic_s
        self.total = Read(self._now())
        self.window = Read(self.total.began_s)

    @property
    def throttled_ms(self) -> int:
        """How long client quotas made this reading wait."""
        return self._reader.throttled_ms

    async def run(
        self,
        records: int | None,
        patience_s: float,
        each_poll: Callable[[float], None] = lambda _now_s: None,
    ) -> bool:
        """Read this many records, or to the ends; return False if no record came for `patience_s`.

        Raises Corrupt for a batch with a wrong CRC, Rejected, Unavailable.
        """
        last_record_s = self._now()
        with self._reader as reader:
            while reader.positions and (records is None or self.total.records < records):
                found = await reader.poll(min(patience_s, 0.5))
                for fetched in found:
                    self._count(fetched)
                now_s = self._now()
                each_poll(now_s)
                if found:
                    last_record_s = now_s
                elif now_s - last_record_s > patience_s:
                    return False
        return True

    def _count(self, fetched: "Fetched") -> None:
        from stratalog.errors import Corrupt
        from stratalog.wire.batch import crc_holds, scan
        from stratalog.wire.ids import TopicPartition

        following = fetched.offset
        for position, header in scan(fetched.records):
            if self._check_crcs and not crc_holds(fetched.records, position, header):
                raise Corrupt(f"the batch at offset {header.base_offset} has a wrong CRC")
            following = header.next_offset
            for counts in (self.total, self.window):
                counts.records += header.record_count
                counts.batch_bytes += header.size
        key = TopicPartition(fetched.topic, fetched.partition)
        if key in self._ends and following >= self._ends[key]:
            self._reader.drop(key)
