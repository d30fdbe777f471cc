"""Raft's properties on the metadata logs of a cluster's nodes, at every append, commit and election.

In: what the nodes' metadata logs and quorum drivers do, by patches that call the product and look. Out: `Broken` by
the checks of the simulated quorum (`tests/raft/checks.py`): ElectionSafety, LeaderCompleteness, LogMatching,
StateMachineSafety, CommittedIsDurable. It changes nothing.

Each node has a copy of its log here, of what the node appended and of what is durable. The copy of a dead node stays
as it was durable, and each new life reads it from the disk.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

from tests.cluster.checks import Broken
from tests.raft import checks
from tests.raft.log import Log
from tests.sim.process import current

from stratalog.broker.coordination.metadata_log import MetadataLog
from stratalog.broker.coordination.quorum_driver import QuorumDriver
from stratalog.errors import Rejected
from stratalog.metadata.snapshot import SnapshotId
from stratalog.quorum.messages import AppendControl, Committed
from stratalog.wire.internal.control_records import LeaderChangeMessage


@dataclass
class Copy:
    """One life of a node's metadata log. All below `applied` is committed there."""

    node: str
    log: Log = field(default_factory=Log)
    applied: int = 0


class QuorumChecks:
    """`with QuorumChecks(counts).watching(): …`; `raise_found` has what a patch inside a node has found."""

    def __init__(self, counts: Counter[str]) -> None:
        self._counts = counts
        self._checks = checks.Checks()
        self._copies: dict[int, Copy] = {}
        """By the identity of the MetadataLog, which lives as long as its copy."""
        self._alive: list[MetadataLog] = []
        self._latest: dict[str, Copy] = {}
        """Each host's latest life."""
        self._found: Broken | None = None

    def raise_found(self) -> None:
        """Raise the first broken property."""
        if self._found is not None:
            raise self._found

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Look at every node that starts in this context."""
        with ExitStack() as stack:
            for owner, name, around in (
                (MetadataLog, "__init__", self._around_init),
                (MetadataLog, "_write", self._around_write),
                (MetadataLog, "truncate", self._around_truncate),
                (MetadataLog, "begin_with", self._around_begin_with),
                (MetadataLog, "take_snapshot", self._around_take_snapshot),
                (QuorumDriver, "_perform", self._around_perform),
            ):
                real = getattr(owner, name)
                stack.enter_context(patch.object(owner, name, around(real)))
            yield

    @contextmanager
    def _noting(self) -> Iterator[None]:
        """Keep a broken property for `raise_found`: the node would take the error for one of its own."""
        try:
            yield
        except checks.Broken as broken:
            self._found = self._found or Broken(f"metadata log: {broken}")

    # What a log does

    def _around_init(self, real: Callable[..., None]) -> Callable[..., None]:
        def init(log: MetadataLog, *given: Any) -> None:
            real(log, *given)
            process = current()
            assert process is not None, "a node's process opens its log"
            copy = Copy(process.host)
            if log.snapshot is not None:
                copy.log.begin_at(log.snapshot, b"")
            disk = log.directory.disk
            for segment in log.log.segments:
                copy.log.append(bytes(disk.read(segment.path, 0, segment.size)))
            start = log.start_offset
            copy.log.batches = [one for one in copy.log.batches if one.end > start]
            copy.log.durable_offset = copy.log.end_offset
            copy.applied = start
            self._copies[id(log)] = self._latest[copy.node] = copy
            self._alive.append(log)

        return init

    def _around_write(self, real: Callable[..., None]) -> Callable[..., None]:
        def write(log: MetadataLog, appended: Any, then: Callable[[Any], None]) -> None:
            copy = self._copies[id(log)].log
            before, generation = (copy.end_offset, copy.last_epoch), copy.generation
            with self._noting():
                self._checks.appended(
                    before, copy.append(b"".join(bytes(one) for *_, one in appended.batches))
                )

            def durable(error: Any) -> None:
                if error is None and copy.generation == generation:
                    copy.durable_offset = max(copy.durable_offset, appended.last_offset + 1)
                then(error)

            real(log, appended, durable)

        return write

    def _around_truncate(self, real: Callable[..., Any]) -> Callable[..., Any]:
        async def truncate(log: MetadataLog, offset: int) -> None:
            copy = self._copies[id(log)]
            with self._noting():
                checks.hold(offset >= copy.applied, f"{copy.node} truncates below {copy.applied}")
            self._counts["truncations of the metadata log"] += 1
            await real(log, offset)
            copy.log.truncate(offset)

        return truncate

    def _around_begin_with(self, real: Callable[..., Any]) -> Callable[..., Any]:
        async def begin_with(log: MetadataLog, snapshot: SnapshotId) -> Any:
            replay = await real(log, snapshot)
            copy = self._copies[id(log)]
            copy.log.begin_at(snapshot, b"")
            copy.applied = snapshot.end_offset
            self._counts["snapshots fetched"] += 1
            return replay

        return begin_with

    def _around_take_snapshot(self, real: Callable[..., bool]) -> Callable[..., bool]:
        def take_snapshot(log: MetadataLog, snapshot: SnapshotId, size: int) -> bool:
            taken = real(log, snapshot, size)
            if taken:
                copy = self._copies[id(log)].log
                with self._noting():
                    ends = {one.end for one in copy.batches}
                    where = (
                        f"{self._copies[id(log)].node}: a snapshot ends at {snapshot.end_offset}"
                    )
                    checks.hold(snapshot.end_offset in ends, f"{where}, inside of a batch")
                copy.take_snapshot(snapshot, b"", 0)
                self._counts["snapshots"] += 1
            return taken

        return take_snapshot

    # What a driver does

    def _around_perform(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def perform(driver: Any, output: Any) -> Any:
            copy = self._copies[id(driver._log)]
            with self._noting():
                match output:
                    case AppendControl(epoch, records):
                        if isinstance(records[0], LeaderChangeMessage):
                            self._counts["elections of controllers"] += 1
                            self._checks.leads(copy.node, epoch, copy.log)  # type: ignore[arg-type]
                    case Committed(high_watermark):
                        self._commits(copy, driver._raft, high_watermark)
            return real(driver, output)

        return perform

    def _commits(self, copy: Copy, raft: Any, high_watermark: int) -> None:
        log = copy.log
        checks.hold(
            high_watermark >= copy.applied, f"HighWatermarkNeverFalls: {copy.node} {high_watermark}"
        )
        if raft.is_leader and high_watermark > self._checks.committed_end:
            epoch = next((b.epoch for b in reversed(log.batches) if b.end <= high_watermark), None)
            if epoch is not None:
                self._checks.on_majority(self._voters(raft), high_watermark, epoch)
        batches = log.between(copy.applied, high_watermark)
        for batch in batches:
            known = self._checks.committed.setdefault(batch.base, batch)
            self._checks.committed_in.setdefault(batch.base, raft.epoch)
            checks.hold(
                known.epoch == batch.epoch and known.data == batch.data,
                f"StateMachineSafety: {copy.node} applies offset {batch.base} of epoch {batch.epoch}, "
                f"epoch {known.epoch} was committed, or the records differ",
            )
            self._checks.committed_end = max(self._checks.committed_end, batch.end)
        copy.applied = max(copy.applied, high_watermark)

    def _voters(self, raft: Any) -> list[Log]:
        """Return the copies of the voters' logs; an empty one for a voter whose disk is another by now."""
        found = []
        for voter in raft.voters.voters:
            log = Log()
            with suppress(KeyError, Rejected):
                log = self._latest[f"10.0.0.{voter.id}"].log
            found.append(log)
        return found
