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
from stratalog.coordinators import groups, transactions
from stratalog.coordinators.offsets import Offsets
from stratalog.coordinators.transactions import TransactionShard
from stratalog.errors import ErrorCode, Rejected
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


def last_epoch_given_out() -> Iterator[Patch]:
    """A fence uses the last epoch up, which the client gets, and no marker ends what it writes then."""
    real = ProducerStates.check_raised

    def fenced(found: Any, _fresh_id: Any, now: Any) -> Any:
        epoch = min(found.producer_epoch + 1, 2**15 - 1)
        prepared = transactions.State.PREPARE_ABORT
        return replace(found, state=prepared, producer_epoch=epoch, updated_ms=now.wall_ms)

    def check_raised(self: Any, producer_id: int, epoch: int) -> None:
        state = self.get(producer_id)
        if state is not None and epoch <= state.epoch:
            raise Rejected(ErrorCode.invalid_producer_epoch, "no epoch is above it")
        real(self, producer_id, epoch)

    yield transactions, "fenced", fenced
    yield transactions, "needs_id_to_fence", lambda _found: False
    yield transactions, "EPOCH_MAX", 2**15
    yield ProducerStates, "check_raised", check_raised


def staged_offset_expires() -> Iterator[Patch]:
    """Expiry does not look at what open transactions have staged."""
    real = groups.expire

    class Committed:
        def __init__(self, offsets: Any) -> None:
            self.of_group = offsets.of_group

        def staged(self, _group_id: str) -> tuple[()]:
            return ()

    def expire(turn: Any, group_id: str, group: Any, offsets: Any) -> int:
        return real(turn, group_id, group, Committed(offsets))  # type: ignore[arg-type]

    yield groups, "expire", expire


def staged_offset_outlives_topic() -> Iterator[Patch]:
    """The deletion of a topic forgets committed offsets alone."""
    yield Offsets, "_staged_of", lambda *_: iter(())


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
    "last epoch given out": last_epoch_given_out,
    "staged offset expires": staged_offset_expires,
    "staged offset outlives its topic": staged_offset_outlives_topic,
}


def planted(name: str) -> AbstractContextManager[None]:
    """Plant one bug in the node."""
    return planting(BUGS[name])
