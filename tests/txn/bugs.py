"""Bugs that transactions may have, each as a patch of the product, for `python -m tests.txn --bugs`.

In: the name of a bug. Out: a context in which the node has that bug. Some seed must find each.
"""

import asyncio
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

from msgspec.structs import replace
from tests.planting import Bug, Patch, planting

from stratalog.broker.coordination import transactions as shell
from stratalog.broker.coordination.markers import Markers
from stratalog.broker.coordination.verification import Verification
from stratalog.broker.tier import reads
from stratalog.coordinators import transactions
from stratalog.coordinators.transactions import TransactionShard
from stratalog.log.producers import ProducerStates
from stratalog.replication.partition import PartitionReplica


def abort_seen() -> Iterator[Patch]:
    """The log notes no aborted transaction."""
    real = ProducerStates._end

    def end(self: Any, *args: Any) -> None:
        real(self, *args)

    yield ProducerStates, "_end", end


def commit_lost() -> Iterator[Patch]:
    """A marker that commits is written as one that aborts, in one partition of three."""
    real = Markers._begin

    def begin(self: Any, ended: Any, one: Any, batch: Any, header: Any, wall_ms: int) -> Any:
        if one.partition == 1:
            ended = ended._replace(marker=ended.marker._replace(is_commit=False))
            batch = ended.batch(wall_ms)
        return real(self, ended, one, batch, header, wall_ms)

    yield Markers, "_begin", begin


def marker_twice() -> Iterator[Patch]:
    """The markers of an end are written again a little later."""
    real = shell._Shard._finish

    async def finish(self: Any, transactional_id: str, ended: Any) -> None:
        await real(self, transactional_id, ended)
        await asyncio.sleep(0.3)
        await real(self, transactional_id, ended)

    async def complete(self: Any, transactional_id: str, ended: Any) -> None:
        await finish(self, transactional_id, ended)

    yield shell._Shard, "_finish", complete


def unstable_read() -> Iterator[Patch]:
    """The last stable offset is the high watermark."""
    yield PartitionReplica, "last_stable_offset", lambda self, _unstable: self.high_watermark


def fenced_producer_writes() -> Iterator[Patch]:
    """No batch is verified with the coordinator."""
    yield Verification, "is_needed", lambda *_, **__: False


def expired_stays_open() -> Iterator[Patch]:
    """Time ends no transaction."""
    yield TransactionShard, "_overdue", lambda *_: iter(())


def nothing_added() -> Iterator[Patch]:
    """A leader adds no partition to the transactions of the second protocol."""
    real = Verification.is_needed

    def is_needed(self: Any, hosted: Any, producer: Any, *, adds: bool = False) -> bool:
        return not adds and real(self, hosted, producer)

    yield Verification, "is_needed", is_needed


def abort_index_missing() -> Iterator[Patch]:
    """A fetch of committed records lists no aborted transaction."""
    yield reads, "overlapping", lambda *_: []


def end_without_epoch() -> Iterator[Patch]:
    """An end of the second protocol does not raise the epoch, and the leaders take its markers."""
    real = transactions.raised

    def raised(found: Any, *args: Any) -> Any:
        return replace(real(found, *args), producer_epoch=found.producer_epoch)

    yield transactions, "raised", raised


def fence_without_epoch() -> Iterator[Patch]:
    """A newer producer does not fence the older ones of its id."""
    real = TransactionShard._begin

    def begin(self: Any, key: str, producer_id: int, epoch: int, *args: Any) -> Any:
        return real(self, key, producer_id, max(0, epoch - 1), *args)

    yield TransactionShard, "_begin", begin


def old_marker_accepted() -> Iterator[Patch]:
    """A marker that comes late is accepted, whatever its epoch."""
    yield from marker_twice()
    yield ProducerStates, "check_marker", lambda *_: None
    yield ProducerStates, "check_raised", lambda *_: None


BUGS: dict[str, Bug] = {
    "abort seen": abort_seen,
    "commit lost": commit_lost,
    "marker twice": marker_twice,
    "read beyond an open transaction": unstable_read,
    "fenced producer writes": fenced_producer_writes,
    "expired transaction stays open": expired_stays_open,
    "partition not added": nothing_added,
    "abort index missing": abort_index_missing,
    "end without a raised epoch": end_without_epoch,
    "fence without a raised epoch": fence_without_epoch,
    "marker of an old epoch accepted": old_marker_accepted,
}


def planted(name: str) -> AbstractContextManager[None]:
    """Plant one bug in the node."""
    return planting(BUGS[name])
