"""Let a leader that was elected uncleanly continue where the bucket's history ends.

In: the roles of partitions, before they are taken. Out: the same roles, for a log that continues the bucket's history.
It elects no leader, and uploads no segment.

All that the bucket has was committed. The log of such a leader (KIP-704: its recovery state) may lack the end of that
history, or contradict it. So before it leads, the leader commits a manifest version of its epoch: no earlier leader
uploads anything from then on. A log that lacks or contradicts a tiered record begins anew at the bucket's end.

Until the bucket answers, the partition is not led, and clients get NOT_LEADER_OR_FOLLOWER: a record at an offset that
the bucket has would hide a committed one.
"""

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import structlog

from stratalog.broker.partitions.hosting import Hosting
from stratalog.broker.partitions.partition import HostedPartition
from stratalog.broker.tier.activation import activate
from stratalog.broker.tier.bucket import ClaimedBucket
from stratalog.errors import Corrupt, Fenced, Rejected, Unavailable
from stratalog.log.partition_log import PartitionLog
from stratalog.log.values import TieredHistory
from stratalog.replication.roles import Lead, Role
from stratalog.tier.formats.manifest import Manifest
from stratalog.tier.reading.tiered_history import history_at_end

__all__ = ["UncleanLeaders", "continues"]


class UncleanLeaders:
    """The partitions of one broker that wait for the bucket before they lead."""

    def __init__(
        self,
        bucket: ClaimedBucket,
        hosting: Hosting,
        spawn: Callable[[Coroutine[Any, Any, None]], object],
    ) -> None:
        self._bucket = bucket
        self._hosting = hosting
        self._spawn = spawn
        self._waiting: dict[HostedPartition, Lead] = {}
        self._rewriting: set[asyncio.Task[None]] = set()
        self._log = structlog.get_logger()

    async def close(self) -> None:
        """Let logs that begin anew become whole."""
        if self._rewriting:
            await asyncio.wait(self._rewriting)

    def defers(self, hosted: HostedPartition, role: Role) -> bool:
        """Return whether a role waits for the bucket. A role that does not wait replaces one that does."""
        if not (isinstance(role, Lead) and self._must_look(hosted, role)):
            self._waiting.pop(hosted, None)
            return False
        if hosted not in self._waiting:
            self._hosting.stop(hosted)
            self._spawn(self._continue(hosted))
        self._waiting[hosted] = role
        return True

    def _must_look(self, hosted: HostedPartition, role: Lead) -> bool:
        is_tiered = hosted.log.config.remote_storage_enable
        begins = role.leader_epoch > hosted.replica.leader_epoch
        # The only replica counts as recovering after each crash. It synced what it uploaded, so its log has that.
        # If its disk was replaced, its log is empty.
        may_lack = len(role.replicas) > 1 or hosted.log.log_end_offset == 0
        return role.is_recovering and begins and is_tiered and may_lack

    async def _continue(self, hosted: HostedPartition) -> None:
        """Lead once the log continues the bucket's history, unless another role comes first."""
        backoff = self._bucket.backoff()
        name = str(hosted.name)
        while (role := self._waiting.get(hosted)) is not None and not hosted.deleted:
            try:
                await self._prepare(hosted, role)
            except (Unavailable, Corrupt, Fenced) as error:
                self._log.warning("leader waits for the bucket", partition=name, reason=str(error))
                await asyncio.sleep(backoff.failed())
            except Rejected:
                break  # deleted, or its directory has failed, which has its own line
            else:
                if self._waiting.get(hosted) is role:
                    del self._waiting[hosted]
                    self._hosting.take(hosted, role)
        self._waiting.pop(hosted, None)

    async def _prepare(self, hosted: HostedPartition, role: Lead) -> None:
        """Fence earlier leaders. If the log does not continue the bucket's history, begin it at that end."""
        bucket, log = self._bucket, hosted.log
        if not bucket.claim.is_held:
            raise Unavailable("the bucket is not claimed yet")
        manifest = (await activate(bucket, hosted, role.leader_epoch)).manifest
        if continues(log, manifest):
            return
        find = partial(history_at_end, bucket.store, bucket.archives, manifest)
        history = await bucket.threads.expirer.submit(find)
        if self._waiting.get(hosted) is not role:
            return
        start = max(log.log_start_offset, manifest.start_offset)
        self._log.warning(
            "log continues at the bucket's end", partition=str(hosted.name), end=log.log_end_offset
        )
        rewriting = asyncio.get_running_loop().create_task(_rewrite(hosted, history, start))
        self._rewriting.add(rewriting)
        rewriting.add_done_callback(self._rewriting.discard)
        await asyncio.shield(rewriting)  # a stop must not leave the log in pieces


async def _rewrite(hosted: HostedPartition, history: TieredHistory, start: int) -> None:
    if hosted.log.log_end_offset >= history.end_offset:
        await hosted.truncate(history.end_offset - 1)
    await hosted.restart_after(history, start)


def continues(log: PartitionLog, manifest: Manifest) -> bool:
    """Return whether a log has the last record of the bucket, and so every record before it, or need not have it.

    A leader epoch has one leader, so the same offset in the same epoch is the same record.
    """
    end = manifest.archived_end
    if log.log_end_offset < end:
        return False
    segments = list(manifest.recent())
    if not segments or log.log_start_offset >= end:
        return True
    return log.epochs.epoch_of(end - 1) == segments[-1].entry.leader_epochs[-1][0]
