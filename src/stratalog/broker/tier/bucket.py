"""The bucket of one broker: its store, the claim on it, and the threads, pace and caches that its users share.

In: settings, ports, the cluster's id and incarnation. Out: a bucket that this cluster claims, or an error with its
remedy. It uploads no record.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import structlog

from stratalog.broker.coordination.cluster_image import ClusterImage
from stratalog.broker.partitions.pace import Pace, RateNames
from stratalog.broker.tier.bucket_claim import SUPERSEDED, BucketClaim
from stratalog.broker.tier.threads import TierThreads
from stratalog.config import BrokerConfig
from stratalog.errors import Corrupt, Fenced, Unavailable, UserError
from stratalog.metadata.image import Image
from stratalog.ports import ObjectStore, Outside
from stratalog.tier.bucket.leases import Leases
from stratalog.tier.reading.archives import ArchiveManifests
from stratalog.tier.writing.backoff import Backoff

_COPIES: Final = RateNames(
    "remote.log.manager.copy.max.bytes.per.second",
    "remote.log.manager.copy.quota.window.num",
    "remote.log.manager.copy.quota.window.size.seconds",
)


@dataclass(frozen=True, slots=True)
class ClaimedBucket:
    """The bucket as the partitions of one broker share it. `pace` decides when the next upload may start."""

    config: BrokerConfig
    outside: Outside
    store: ObjectStore
    claim: BucketClaim
    threads: TierThreads
    image: Callable[[], Image]
    pace: Pace
    archives: ArchiveManifests
    leases: Leases

    @property
    def cluster_id(self) -> str:
        """The cluster that claims the bucket."""
        return self.claim.cluster_id

    def backoff(self) -> Backoff:
        """Return a backoff for one caller of the bucket."""
        return Backoff(
            self.config.int("remote.log.manager.task.retry.backoff.ms"),
            self.config.int("remote.log.manager.task.retry.backoff.max.ms"),
            self.config.float("remote.log.manager.task.retry.jitter"),
            self.outside.entropy,
        )


async def open_bucket(
    config: BrokerConfig,
    outside: Outside,
    metadata: ClusterImage,
    *,
    incarnation: int,
    on_fenced: Callable[[str], None],
) -> ClaimedBucket:
    """Open the bucket for `incarnation`, the life of the cluster that this node belongs to. `claim_first` comes next.

    `on_fenced` is called once, with the reason, if the cluster is taken over: the node must stop. Raises UserError, and
    leaves nothing open, where the URL is wrong.
    """
    threads = TierThreads(config, outside.workers)
    try:
        store = await threads.expirer.submit(lambda: outside.object_store(config.tier_url))
    except UserError as error:
        await threads.expirer.close()
        raise UserError(f"tier.url: {error}") from error.__cause__
    claim = BucketClaim(store, metadata.cluster_id, incarnation, outside.clock, threads, on_fenced)
    return ClaimedBucket(
        config,
        outside,
        store,
        claim,
        threads,
        lambda: metadata.image,
        Pace(_COPIES, config, outside.clock),
        ArchiveManifests(store),
        Leases(store, metadata.cluster_id),
    )


async def claim_first(bucket: ClaimedBucket) -> None:
    """Claim the bucket at the start of the node, with the manifests beside its logs.

    Raises UserError where another cluster or a later life owns the bucket, or the bucket lacks history of this node. On
    a first start it also raises UserError for an unusable bucket: a mistake is more likely than an outage. Later, a
    bucket that cannot be reached is claimed when it can.
    """
    url = bucket.config.tier_url
    try:
        await bucket.claim.claim()
    except UserError as error:
        raise UserError(f"tier.url: {error}") from error.__cause__
    except Fenced as error:
        raise UserError(f"tier.url: {error}; {SUPERSEDED}") from error
    except Unavailable as error:
        if not bucket.image().brokers:
            raise UserError(f"tier.url: {error}") from None
        structlog.get_logger().warning("bucket not reached yet", url=url, reason=str(error))
    except Corrupt as error:
        raise UserError(f"tier.url: bucket {url} cannot be used: {error}") from error
