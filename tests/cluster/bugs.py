"""Bugs that a cluster may have, each as a patch of the product, for `python -m tests.cluster --bugs`.

In: the name of a bug. Out: a context in which every node has that bug. A checker must find each after some seed.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

from msgspec.structs import replace
from tests.planting import Patch, named, planting

from stratalog.broker.coordination import metadata_snapshots
from stratalog.broker.coordination.cluster_image import ClusterImage
from stratalog.broker.coordination.metadata_log import MetadataLog
from stratalog.broker.fetching import gathering
from stratalog.broker.partitions import cleaning as partition_cleaning
from stratalog.broker.partitions.purgatory import Waiting
from stratalog.coordinators.groups import GroupShard
from stratalog.errors import ErrorCode
from stratalog.log import admission
from stratalog.log.cleaning.filtering import NOWHERE_ELSE
from stratalog.log.producers import ProducerStates
from stratalog.metadata import delta
from stratalog.quorum import brokers, elections, isr
from stratalog.quorum.saved_state import NO_NODE
from stratalog.replication.partition import PartitionReplica
from stratalog.tier.bucket import commit


def acknowledged_before_the_isr() -> Iterator[Patch]:
    """The leader's own log end is the high watermark."""

    def advance(self: Any) -> bool:
        moved = self.log_end_offset > self.high_watermark
        self.high_watermark = max(self.high_watermark, self.log_end_offset)
        return moved

    yield PartitionReplica, "_advance", advance


def watermark_from_one_replica() -> Iterator[Patch]:
    """The high watermark is where the fastest follower is."""

    def advance(self: Any) -> bool:
        ends = [one.log_end_offset for one in self.followers.values()]
        reached = min(self.log_end_offset, max(ends, default=self.log_end_offset))
        moved = reached > self.high_watermark
        self.high_watermark = max(self.high_watermark, reached)
        return moved

    yield PartitionReplica, "_advance", advance


def unclean_election() -> Iterator[Patch]:
    """The controller elects a replica that is alive where no eligible one is."""
    real = elections._elect

    def elect(before: Any, replicas: Any, isr: Any, elr: Any, _election: Any, rules: Any) -> Any:
        return real(before, replicas, isr, elr, elections.Election.UNCLEAN, rules)

    yield elections, "_elect", elect


def no_truncation() -> Iterator[Patch]:
    """The leader sees no divergence, so a follower keeps records that no other log has."""

    def none(*_: Any) -> None:
        return None

    yield gathering, "diverging_epoch", none


def isr_joined_too_early() -> Iterator[Patch]:
    """A follower joins the ISR before it has every committed record."""

    def joins(self: Any, node_id: int) -> bool:
        follower = self.followers[node_id]
        return follower.may_join and node_id not in self.isr and follower.log_end_offset >= 0

    yield PartitionReplica, "_joins", joins


def acts_before_it_registered() -> Iterator[Patch]:
    """A node that starts acts on metadata that names its earlier incarnation as a leader."""

    def hold(self: Any) -> Any:
        self.acts = True
        return self.image

    yield ClusterImage, "hold", hold


def vote_not_saved() -> Iterator[Patch]:
    """A voter answers before its vote is on the disk, and the vote never comes there."""
    real = MetadataLog.save_state

    def save_state(self: Any, state: Any) -> Any:
        if state.voted_id != NO_NODE:
            return self.directory.write([])
        return real(self, state)

    yield MetadataLog, "save_state", save_state


def epoch_not_raised() -> Iterator[Patch]:
    """A new leader of a partition has the epoch of the leader before."""
    real = delta.changed_partition

    def changed_partition(before: Any, record: Any) -> Any:
        return replace(real(before, record), leader_epoch=before.leader_epoch)

    yield delta, "changed_partition", changed_partition


def stale_isr() -> Iterator[Patch]:
    """The controller accepts an ISR from a leader that leads no more."""
    yield isr, "_refusal", lambda *_: ErrorCode.none


def old_image_served() -> Iterator[Patch]:
    """A broker answers with the settings of a topic that it knew first."""

    def topic_configs(self: Any, name: str) -> Any:
        known = self.__dict__.setdefault("_known", {})
        return known.setdefault(name, self.image.topic_configs(name))

    yield ClusterImage, "topic_configs", topic_configs


def acknowledged_before_the_quorum() -> Iterator[Patch]:
    """The controller answers once its own disk has the record."""

    def commit(self: Any, _high_watermark: int) -> None:
        self._high_watermark = 1 << 60
        self._uncommitted.commit(self._high_watermark)

    yield MetadataLog, "commit", commit


def elr_ignored() -> Iterator[Patch]:
    """A broker that lost its last records stays eligible."""
    yield brokers, "_lost_data", lambda *_: False


def least_isr_ignored() -> Iterator[Patch]:
    """The high watermark moves while the ISR is smaller than `min.insync.replicas`."""
    yield PartitionReplica, "is_below_min_isr", property(lambda self: False)


def short_snapshot() -> Iterator[Patch]:
    """A snapshot of the metadata lacks its last records."""
    real = metadata_snapshots.snapshot_batches

    def snapshot_batches(image: Any, *others: Any) -> Any:
        configs = dict(list(image.configs.items())[:-1])
        return real(replace(image, configs=configs), *others)

    yield metadata_snapshots, "snapshot_batches", snapshot_batches


def archiver_not_fenced() -> Iterator[Patch]:
    """A leader that was deposed goes on writing manifests."""
    yield commit, "_refuse_if_fenced", lambda *_: None


def repeated_batch_accepted() -> Iterator[Patch]:
    """A leader appends a batch again that its log has: a producer's second attempt is there twice."""
    yield ProducerStates, "check", lambda *_: None


def old_generation_commits() -> Iterator[Patch]:
    """A coordinator takes offsets of a member that the group went on without."""
    yield GroupShard, "_check_commit", lambda *_: ErrorCode.none


def news_that_is_passed_over() -> Iterator[Patch]:
    """A follower's session notes no change that its follower does not name."""
    yield Waiting, "mark", lambda *_: None


def tombstones_leave_the_disk_early() -> Iterator[Patch]:
    """A cleaning of the disk removes tombstones while the bucket has older records of their keys."""
    real = partition_cleaning.plan_cleaning

    def plan_cleaning(*given: Any, **named: Any) -> Any:
        return real(*given, **{**named, "bucket_cleaned_end": NOWHERE_ELSE})

    yield partition_cleaning, "plan_cleaning", plan_cleaning


def cleans_what_is_not_committed() -> Iterator[Patch]:
    """A cleaning removes a record for a later one that a truncation may still take away."""
    real = partition_cleaning.cleanable

    def cleanable(log: Any, _last_stable_offset: int, wall_ms: int) -> Any:
        return real(log, log.log_end_offset, wall_ms)

    yield partition_cleaning, "cleanable", cleanable


def damaged_batches_appended() -> Iterator[Patch]:
    """A follower checks no CRC of what its leader sends."""
    yield admission, "crc_holds", lambda *_: True


BUGS = named(
    (
        acknowledged_before_the_isr,
        watermark_from_one_replica,
        unclean_election,
        no_truncation,
        isr_joined_too_early,
        acts_before_it_registered,
        vote_not_saved,
        epoch_not_raised,
        stale_isr,
        elr_ignored,
        least_isr_ignored,
        old_image_served,
        acknowledged_before_the_quorum,
        short_snapshot,
        archiver_not_fenced,
        repeated_batch_accepted,
        old_generation_commits,
        news_that_is_passed_over,
        tombstones_leave_the_disk_early,
        cleans_what_is_not_committed,
        damaged_batches_appended,
    )
)
OF_COMPACTION = frozenset({"tombstones leave the disk early", "cleans what is not committed"})
"""Bugs that only a run with a compacted topic can show."""
OF_LIES = frozenset({"damaged batches appended"})
"""Bugs that only a run with damaged answers can show."""
OF_THE_TIER = frozenset({"archiver not fenced", "tombstones leave the disk early"})
"""Bugs that only a run with a bucket can show."""


def planted(name: str) -> AbstractContextManager[None]:
    """Plant one bug in every node."""
    return planting(BUGS[name])
