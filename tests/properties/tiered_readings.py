"""Every way to read a compacted log that lies on a disk and in a bucket, beside a model.

In: the log on a simulated disk, the bucket's writer, and each record that was ever appended. Out: committed records of
the disk or of the bucket; assertions. It appends, cleans and commits nothing.
"""

from dataclasses import dataclass

from stratalog.log.transaction_index import overlapping
from stratalog.tier.reading.archives import ArchiveManifests
from stratalog.tier.reading.fetcher import load_index
from stratalog.tier.reading.reader import read_entries
from stratalog.wire.batch import scan
from stratalog.wire.records import read_records
from stratalog.wire.transactions import Aborted

END = 1 << 60


@dataclass
class Transaction:
    """`is_committed` is None while it is open."""

    first: int = -1
    is_committed: bool | None = None


class Readings:
    """`records` has each record by its offset: key, value, transaction or None. `open` is the open transaction."""

    def __init__(self, steps, bucket, chance):
        self.steps = steps
        self.bucket = bucket
        self.chance = chance
        self.tier = None
        self.records: dict[int, tuple[bytes, bytes | None, Transaction | None]] = {}
        self.open: Transaction | None = None

    def stable_end(self):
        end = self.steps.log.log_end_offset
        return end if self.open is None else min(end, self.open.first)

    def expected(self, end):
        return {
            key: value
            for offset, (key, value, transaction) in sorted(self.records.items())
            if offset < end and (transaction is None or transaction.is_committed)
        }

    def _taken(self, data, aborted, first):
        """Yield (base offset, next offset, committed pairs) of each batch that reaches `first`."""
        hidden = Aborted([(one.producer_id, one.first_offset) for one in aborted])
        for at, header in scan(data):
            is_hidden = hidden.has(header)
            if header.last_offset < first:
                continue
            pairs = []
            if not header.is_control and not is_hidden:
                for record in read_records(data[at : at + header.size]):
                    key, value, _ = self.records[record.offset]
                    assert (record.key, record.value) == (key, value), "an offset changed"
                    if record.offset >= first:
                        pairs.append((key, value))
            yield header.base_offset, header.next_offset, pairs

    def from_bucket(self, first, end=END, manifest=None):
        manifest = manifest or self.tier.manifest
        for segment in ArchiveManifests(self.bucket).live(manifest, first=first, end=end):
            index = load_index(self.bucket, segment)
            if not len(index.entries):
                continue
            data = read_entries(self.bucket, segment, index, 0, len(index.entries))
            for batch in self._taken(data, index.aborted or (), first):
                if batch[0] < end:
                    yield batch

    def from_disk(self, first):
        log = self.steps.log
        listed = overlapping(log.segments, 0, END)
        yield from self._taken(self.steps.read_all(), listed, first)

    def equals_the_dictionary(self):
        log, end = self.steps.log, self.stable_end()
        tiered = self.tier.tiered_end
        first, last = sorted((log.local_start_offset, tiered))
        for seam in {first, last, *(self.chance.randint(first, last) for _ in range(2))}:
            found = {}
            for base, _, pairs in [*self.from_bucket(0, seam), *self.from_disk(seam)]:
                if base < end:
                    found |= dict(pairs)
            assert values_of(found) == values_of(self.expected(end)), f"with a seam at {seam}"
        alone = {}
        for _, _, pairs in self.from_bucket(0):
            alone |= dict(pairs)
        assert values_of(alone) == values_of(self.expected(tiered)), "the bucket alone"
        self._check_gaps_are_admitted()

    def _check_gaps_are_admitted(self):
        """A reader takes an absent offset for lost data, unless the manifest says that there may be some."""
        manifest = self.tier.manifest
        if manifest.may_have_gaps:
            return
        next_offset = 0
        for segment in ArchiveManifests(self.bucket).live(manifest, first=0, end=END):
            data = self.bucket.get_range(segment.path, 0, segment.entry.data_size)
            for _at, header in scan(data):
                assert header.base_offset == next_offset, "a batch is absent"
                assert header.record_count == header.last_offset_delta + 1, "a record is absent"
                next_offset = header.next_offset
        assert next_offset == manifest.archived_end


def values_of(found):
    return {key: value for key, value in found.items() if value is not None}
