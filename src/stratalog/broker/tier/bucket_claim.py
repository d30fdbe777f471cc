"""The cluster's claim on its bucket: made before the first upload, checked later, lost after a takeover.

In: a store, the cluster's id and its incarnation, manifests beside this node's logs. Out: a claim in the bucket, or the
error. It uploads nothing else.
"""

from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import Final

import structlog

from stratalog.broker.tier.threads import TierThreads
from stratalog.errors import Fenced, UserError
from stratalog.ports import Clock, ObjectStore
from stratalog.tier.bucket.commit import is_pruned, load_latest, run
from stratalog.tier.bucket.identity import claim_bucket, read_claim
from stratalog.tier.bucket.incarnation import check_incarnation
from stratalog.tier.formats.manifest import Manifest
from stratalog.tier.formats.paths import manifest_path

SUPERSEDED: Final = (
    "its clients belong to the new one; what only this node's disk has can be read without tier.url"
)


class BucketClaim:
    """One cluster's claim on one bucket. `claim` before any upload.

    `is_held`: uploads are allowed. `is_fenced`: the cluster was taken over, and `on_fenced` was called with the reason.
    `times`: how many claims this process made; a new one finds a bucket without anything of this cluster.
    `manifests` returns some of those beside this node's logs, which are read as they are iterated: the bucket of the
    first claim must have them.
    """

    def __init__(
        self,
        store: ObjectStore,
        cluster_id: str,
        incarnation: int,
        clock: Clock,
        threads: TierThreads,
        on_fenced: Callable[[str], None],
    ) -> None:
        self.cluster_id = cluster_id
        self.incarnation = incarnation
        self.is_held = False
        self.is_fenced = False
        self.times = 0
        self.manifests: Callable[[], Iterable[Manifest]] = list
        self._store = store
        self._clock = clock
        self._threads = threads
        self._on_fenced = on_fenced
        self._versions = 0
        self._log = structlog.get_logger()

    async def claim(self) -> None:
        """Claim the bucket, unless the claim is held.

        Raises UserError (another cluster has the bucket, or that of the first claim lacks history of this node), Fenced
        (the cluster was taken over), Unavailable, Corrupt.
        """
        if self.is_held:
            return
        now_ms = self._clock.now_ms()
        store, cluster_id = self._store, self.cluster_id
        manifests = () if self.times else self.manifests()

        def claim() -> None:
            check_history(store, cluster_id, manifests)
            claim_bucket(store, cluster_id, now_ms)
            check_incarnation(store, cluster_id, self.incarnation)

        await self._threads.expirer.submit(claim)
        self.is_held = True
        self.times += 1

    async def is_lost(self, versions: int) -> bool:
        """Return whether the bucket was emptied or recreated since it was claimed; the claim is no longer held then.

        `versions`: the sum of all manifests' versions. The claim is read only once that changed. Raises Unavailable,
        Corrupt.
        """
        if not self.is_held or versions == self._versions:
            return False
        owner = await self._threads.expirer.submit(partial(read_claim, self._store))
        self._versions = versions
        self.is_held = owner is not None and owner.cluster_id == self.cluster_id
        return not self.is_held

    async def check_incarnation(self) -> None:
        """Raise Fenced, and stop the node, if the cluster was taken over. Raises Unavailable, Corrupt."""
        store, cluster_id = self._store, self.cluster_id
        try:
            await self._threads.expirer.submit(
                lambda: check_incarnation(store, cluster_id, self.incarnation)
            )
        except Fenced as error:
            self.fence(error)
            raise

    def fence(self, error: Fenced) -> None:
        """Stop the node, once: no reader would see the records that it acknowledges from here on."""
        if not self.is_fenced:
            self.is_fenced = True
            self._log.error("fenced: the cluster was taken over", reason=str(error))
            self._on_fenced(f"{error}; {SUPERSEDED}")


def check_history(store: ObjectStore, cluster_id: str, manifests: Iterable[Manifest]) -> None:
    """Raise UserError where the bucket lacks these manifests or has only older versions of them.

    Then it is another bucket, it was emptied, or it is an older copy. Versions only rise: while the bucket is the right
    one, each manifest costs one request, and some more where the bucket has pruned that version. Raises Unavailable,
    Corrupt.
    """
    for local in manifests:
        with suppress(FileNotFoundError):
            store.size(manifest_path(local.prefix, local.version))
            continue
        # No list decides whether it was pruned, for a list may be out of date.
        if run(store, is_pruned(local.prefix, local.version)):
            continue
        newest = run(store, load_latest(local.prefix))
        owner = read_claim(store)
        if owner is not None and owner.cluster_id != cluster_id:
            return  # the claim names the owner
        found = "none" if newest is None else f"version {newest.version}"
        raise UserError(
            f"bucket {store.url} lacks history of this node: beside the log of {local.topic}-{local.partition} lies "
            f"version {local.version} of its manifest, the bucket has {found}; name the right bucket, put its objects "
            "back, or give up what only it had: --override tier.accept.lost.history=true"
        )
