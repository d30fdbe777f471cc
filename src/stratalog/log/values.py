"""The values that a partition's log returns.

In: nothing. Out: values. It decides nothing.
"""

from typing import NamedTuple

from msgspec import Struct

from stratalog.log.damage import Damage
from stratalog.log.effects import Effect
from stratalog.log.epochs import LeaderEpochs
from stratalog.log.producers import ProducerStates
from stratalog.log.segment import Segment
from stratalog.wire.transactions import AbortedTransaction

__all__ = [
    "Appended",
    "Contents",
    "Placed",
    "Recovered",
    "SegmentInfo",
    "SegmentParts",
    "TieredHistory",
]


Placed = tuple[int, int, int, bool]
"""The place of one row, which is one batch of a client: first and last offset, append time, whether it is a repeat.

The time is -1 unless the broker stamped the records. A repeat has the place of the batch that the log had already.
"""


class Appended(NamedTuple):
    """Batches of one decision: their offsets (inclusive), and the effects to perform before readers see them.

    `duplicate`: the log had all of these batches already, at the given offsets, and there are no effects. `size` is in
    bytes. Only the log uses the other fields: how far each segment may be read then, and each batch with its first and
    its next offset.
    """

    base_offset: int
    last_offset: int
    log_append_time_ms: int
    log_start_offset: int
    duplicate: bool
    effects: tuple[Effect, ...]
    size: int
    ends: list[tuple[Segment, int]]
    batches: list[tuple[int, int, memoryview]]


class Recovered(Struct, frozen=True):
    """Result of loading: bytes cut off as a torn tail, the number of scanned segments, and files that lack durable
    bytes.
    """

    bytes_cut: int
    segments_scanned: int
    damage: tuple[Damage, ...] = ()


class SegmentInfo(Struct, frozen=True):
    """A closed segment, for the archiver: offsets [base_offset, next_offset), its `.log` file of `size` bytes."""

    base_offset: int
    next_offset: int
    size: int
    path: str
    max_timestamp: int


class SegmentParts(Struct, frozen=True):
    """Companions of a closed segment: its leader epochs as (epoch, first offset), and the paths of its files.

    The producer snapshot is of the state at the segment's end. `transaction_index` has the bytes of the `.txnindex`
    file; `aborted` are all aborted transactions with offsets in the segment, in the order of their markers.
    """

    leader_epochs: list[tuple[int, int]]
    snapshot_path: str
    index_path: str
    time_index_path: str
    transaction_index: bytes
    aborted: tuple[AbortedTransaction, ...]


class Contents(Struct, frozen=True):
    """The parts of a log: its segments (at least one), and producers and epochs as of their end."""

    segments: list[Segment]
    producers: ProducerStates
    epochs: LeaderEpochs
    snapshots: set[int]
    """Offsets of the existing producer snapshots."""
    log_start_offset: int
    recovery_point: int
    recovered: Recovered


class TieredHistory(Struct, frozen=True):
    """The state of a log at `end_offset`, where the bucket has every record below it.

    `leader_epochs` are (epoch, first offset) pairs below the end, both ascending. `producer_snapshot` is Kafka's
    `.snapshot` file at the end (empty: no producer).
    """

    end_offset: int
    leader_epochs: tuple[tuple[int, int], ...]
    producer_snapshot: bytes
