"""Properties that hold after every step of a quorum, by the names of Raft's proofs.

In: appends, commits and leaders of all nodes. Out: `Broken` with the violated property. It knows the logs and nothing
of the members, but for a leader's voters.
"""

from collections.abc import Iterable
from zlib import crc32

from tests.raft.log import Batch, Log


class Broken(AssertionError):
    """A property does not hold."""


def hold(condition: bool, what: str) -> None:
    if not condition:
        raise Broken(what)


class Checks:
    def __init__(self) -> None:
        self._leaders: dict[int, int] = {}
        self._written: dict[tuple[int, int], tuple[bytes, int, int]] = {}
        """For each (offset, epoch): the batch, and the offset and epoch before it."""
        self.committed: dict[int, Batch] = {}
        self.committed_in: dict[int, int] = {}
        """For each committed batch: the epoch of the leader that committed it."""
        self.chains: dict[int, int] = {0: 0}
        """For each committed offset: a checksum of all committed records below it."""
        self.committed_end = 0

    def leads(self, node_id: int, epoch: int, log: Log) -> None:
        """ElectionSafety and LeaderCompleteness: each epoch has one leader, which has what earlier epochs committed.

        A leader with a slow disk may begin late, when a later epoch has committed more: its followers refuse it.
        """
        hold(
            self._leaders.setdefault(epoch, node_id) == node_id,
            f"ElectionSafety: {node_id} and {self._leaders[epoch]} lead epoch {epoch}",
        )
        own = {one.base: one for one in log.batches}
        for base, batch in self.committed.items():
            if base >= log.start_offset and self.committed_in[base] < epoch:
                found = own.get(base)
                hold(
                    found is not None and found.epoch == batch.epoch,
                    f"LeaderCompleteness: {node_id} leads epoch {epoch} without committed offset {base}: {found}",
                )

    def appended(self, before: tuple[int, int], batches: Iterable[Batch]) -> None:
        """LogMatching: the same offset and epoch mean the same record, and the same record before it."""
        offset, epoch = before
        for batch in batches:
            found = (batch.data, offset, epoch)
            known = self._written.setdefault((batch.base, batch.epoch), found)
            hold(
                known == found,
                f"LogMatching: offset {batch.base} of epoch {batch.epoch} follows {found[1:]} and {known[1:]}",
            )
            offset, epoch = batch.end, batch.epoch

    def commits(self, node_id: int, epoch: int, chain: int, batches: Iterable[Batch]) -> int:
        """StateMachineSafety: every node applies the same record at an offset. Return the chain after them."""
        for batch in batches:
            known = self.committed.setdefault(batch.base, batch)
            self.committed_in.setdefault(batch.base, epoch)
            hold(
                known.epoch == batch.epoch and known.data == batch.data,
                f"StateMachineSafety: {node_id} applies offset {batch.base} of epoch {batch.epoch}, "
                f"epoch {known.epoch} was committed",
            )
            chain = crc32(batch.data, chain)
            hold(self.chains.setdefault(batch.end, chain) == chain, f"chains differ at {batch.end}")
            self.committed_end = max(self.committed_end, batch.end)
        return chain

    def on_majority(self, voters: Iterable[Log], end: int, epoch: int) -> None:
        """CommittedIsDurable: a majority has a leader's committed records on disk."""
        logs = list(voters)
        having = sum(
            one.durable_offset >= end and (one.start_offset >= end or _epoch_at(one, end) == epoch)
            for one in logs
        )
        hold(
            having > len(logs) // 2,
            f"CommittedIsDurable: {having} of {len(logs)} have all below {end}",
        )


def _epoch_at(log: Log, end: int) -> int:
    """The epoch of the record before `end`."""
    found = next((one.epoch for one in reversed(log.batches) if one.end <= end), None)
    return log.last_epoch if found is None else found
