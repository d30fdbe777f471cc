"""Retention by time of objects without a record: a cleaning leaves such ones."""

from stratalog.adapters.object_store import MemoryStore
from stratalog.tier.formats.manifest import Entry, Manifest, SegmentState
from stratalog.tier.reading.archives import ArchiveManifests
from stratalog.tier.writing.expiry import Retention, without_expired

RETENTION_MS = 1000
MADE_MS = 5_000_000


def entry(base: int, max_timestamp: int) -> Entry:
    return Entry(
        id=f"{base:022}",
        base_offset=base,
        last_offset=base + 9,
        leader_epoch=0,
        size=200,
        data_size=100,
        records=0 if max_timestamp < 0 else 10,
        min_timestamp=max_timestamp,
        max_timestamp=max_timestamp,
        min_timestamp_exact=True,
        data_crc=0,
        footer_crc=0,
        leader_epochs=((0, 0),),
        state=SegmentState.COPY_FINISHED,
        state_ms=MADE_MS,
    )


def start_at(now_ms: int) -> int:
    """Return the log start that retention gives a manifest whose first object has no record."""
    tip = Manifest(
        cluster_id="cluster",
        topic_id="A" * 22,
        topic="t",
        partition=0,
        tiered_end=20,
        segments=(entry(0, -1), entry(10, MADE_MS)),
    )
    retention = Retention(RETENTION_MS, -1, 0, 0, grace_ms=0)
    changed = without_expired(tip, retention, now_ms, ArchiveManifests(MemoryStore("memory://x")))
    return 0 if changed is None else changed.log_start_offset


def test_an_object_without_a_record_is_as_old_as_itself() -> None:
    """A consumer in its offsets would be out of range otherwise, and could skip all later records."""
    assert start_at(MADE_MS + RETENTION_MS) == 0
    assert start_at(MADE_MS + RETENTION_MS + 1) == 20
