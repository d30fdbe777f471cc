"""Find where a replica may begin: the state of a partition's log at the end of a segment in the bucket.

In: a store, a partition's folder and an offset, or a manifest. Out: the offset at which the replica begins, the leader
epochs and the producers below that. It reads no batch, and never writes.

Kafka: `TierStateMachine.buildRemoteLogAuxState` (KIP-405).
"""

from collections.abc import Sequence

from stratalog.errors import Unavailable
from stratalog.log.values import TieredHistory
from stratalog.ports import ObjectStore
from stratalog.tier.bucket.commit import load_latest, run
from stratalog.tier.formats.manifest import Manifest, RemoteSegment
from stratalog.tier.reading.archives import ArchiveManifests
from stratalog.tier.reading.fetcher import load_index

__all__ = ["history_at_end", "tiered_history"]


def tiered_history(
    store: ObjectStore, archives: ArchiveManifests, prefix: str, offset: int
) -> TieredHistory:
    """Return the state at the end of the segment that has the record before `offset`. Blocking.

    Merged segments of the bucket may end above `offset`, and never above the end of what the leader uploaded. Raises
    Corrupt naming a damaged object; Unavailable, also where a stale list shows no manifest with that segment yet.
    """
    manifest = run(store, load_latest(prefix))
    segments = [] if manifest is None else list(archives.live(manifest, end=offset))
    if not segments or segments[-1].entry.last_offset < offset - 1:
        raise Unavailable(f"{prefix}: no manifest is found yet that has offset {offset - 1}")
    return _at_end_of(store, segments)


def history_at_end(
    store: ObjectStore, archives: ArchiveManifests, manifest: Manifest
) -> TieredHistory:
    """Return the state at the end of all that a manifest names. Blocking.

    Where it names no segment, nothing is known but that end. Raises Corrupt, Unavailable.
    """
    segments = list(archives.live(manifest))
    if not segments:
        return TieredHistory(manifest.archived_end, (), b"")
    return _at_end_of(store, segments)


def _at_end_of(store: ObjectStore, segments: Sequence[RemoteSegment]) -> TieredHistory:
    index = load_index(store, segments[-1])
    epochs: list[tuple[int, int]] = []
    for segment in segments:
        for epoch, start in segment.entry.leader_epochs:
            if not epochs or epoch > epochs[-1][0]:
                epochs.append((epoch, start))
    return TieredHistory(segments[-1].entry.last_offset + 1, tuple(epochs), index.producer_snapshot)
