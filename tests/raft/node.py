"""One node of a simulated quorum: a member, its log, and the driver that performs the member's outputs.

In: inputs of the member. Out: messages to send, and reports to the checks. A crash may come between any two outputs.
"""

from random import Random
from typing import Any
from uuid import UUID
from zlib import crc32

from msgspec.structs import replace
from tests.raft.checks import Checks, hold
from tests.raft.log import Log

from stratalog.metadata.snapshot import SnapshotId
from stratalog.quorum.member import Member
from stratalog.quorum.messages import (
    Answer,
    AppendControl,
    AppendFetched,
    Committed,
    Discarded,
    FetchResponse,
    FetchSnapshotResponse,
    LoadSnapshot,
    Output,
    Persist,
    Send,
    StoreSnapshot,
    Truncate,
)
from stratalog.quorum.metadata_batches import encode_control_batch
from stratalog.quorum.raft import Raft
from stratalog.quorum.saved_state import decode_quorum_state, encode_quorum_state
from stratalog.quorum.voters import ReplicaKey, Voter, VoterHistory, VoterSet
from stratalog.wire.batch import assign
from stratalog.wire.internal.control_records import LeaderChangeMessage
from stratalog.wire.records import Record, build_batch

SNAPSHOT_PART = 40


def voter(node_id: int) -> Voter:
    """A voter of a quorum whose log names the voters."""
    return Voter(node_id, UUID(int=node_id))


def voters_in(snapshot: bytes) -> VoterSet:
    return VoterSet.of(voter(int(one)) for one in snapshot.split()[1].split(b","))


def is_whole(snapshot: bytes) -> bool:
    data, _, crc = snapshot.removesuffix(b" end").rpartition(b" ")
    return snapshot.endswith(b" end") and crc == b"%08x" % crc32(data)


class Crash(Exception):
    """The node dies here."""


class Node:
    def __init__(
        self,
        world: Any,
        node_id: int,
        voters: VoterSet,
        chance: Random,
        *,
        is_dynamic: bool = False,
    ) -> None:
        """`is_dynamic`: the log names the voters; `voters` are those that this node was formatted with."""
        self.id = node_id
        self.is_dynamic = is_dynamic
        self.world = world
        self.checks: Checks = world.checks
        self.counts = world.counts
        self.chance = chance
        self.log = Log()
        self.voters = voters
        self.rate = chance.choice([1.0, 1.0, 0.95, 1.05])
        self.skew_ms = chance.randint(0, 100_000)
        self.incarnation = 0
        self.paused_until = 0.0
        self.crash_chance = 0.0
        self.read_max = 4
        self.raft: Raft | None = None
        self.applied, self.chain = 0, 0
        self._fetched = bytearray()

    # The node's clock: its own rate and its own zero

    def now_ms(self) -> int:
        return self.skew_ms + int(self.world.now * self.rate)

    def world_ms(self, own_ms: int) -> float:
        return (own_ms - self.skew_ms) / self.rate

    # Lives

    def start(self) -> None:
        self.incarnation += 1
        log = self.log
        self.applied, self.chain = 0, 0
        if log.snapshot is not None:
            self.applied, self.chain = log.snapshot.end_offset, int(log.snapshot_data.split()[0])
        saved = decode_quorum_state(encode_quorum_state(log.saved))
        me = voter(self.id).key if self.is_dynamic else ReplicaKey(self.id)
        history = self._history()
        member = Member(me, log, history, saved=saved, timeouts=self.world.timeouts, entropy=self)
        self.raft = Raft(member)
        self.run(self.raft.start(self.now_ms()))

    def _history(self) -> VoterHistory:
        if not self.is_dynamic:
            return VoterHistory(self.voters, kraft_version=0)
        logged = self.log.voters()
        if self.log.snapshot is not None:
            end = self.log.snapshot.end_offset - 1
            first = (end, voters_in(self.log.snapshot_data))
            logged = [first, *(one for one in logged if one[0] > end)]
        return VoterHistory(self.voters, logged, kraft_version=1)

    def crash(self) -> None:
        self.raft = None
        self.incarnation += 1
        self.counts["batches lost"] += self.log.crash(self.chance)
        self.counts["crashes"] += 1
        self.world.broke(self.id)

    def uniform(self, low: float, high: float) -> float:
        return self.chance.uniform(low, high)

    # Outputs

    def run(self, outputs: list[Output]) -> None:
        assert self.raft is not None
        # The worst moment is beside a change of `quorum-state`.
        persists = any(isinstance(output, Persist) for output in outputs)
        crash_chance = self.crash_chance * (10 if persists else 1)
        try:
            for output in outputs:
                if crash_chance and self.chance.random() < crash_chance:
                    raise Crash
                self.world.trace(self.id, output)
                self._perform(output)
        except Crash:
            self.counts["crashes between outputs"] += 1
            self.crash()
            self.world.restart_later(self)
            return
        self.world.wake(self)

    def _perform(self, output: Output) -> None:  # noqa: C901, PLR0912 - one case for each output
        log = self.log
        match output:
            case Persist(state):
                hold(state.leader_epoch >= log.saved.leader_epoch, "the epoch fell")
                log.saved = state
            case Send(_, _, request):
                hold(request.epoch <= log.saved.leader_epoch, "PersistBeforeMessage: a request")
                self.world.request(self, output)
            case Answer(_, response):
                hold(
                    response.leader_epoch <= log.saved.leader_epoch,
                    "PersistBeforeMessage: an answer",
                )
                self._answer(output)
            case AppendControl(epoch, records):
                is_election = isinstance(records[0], LeaderChangeMessage)
                if is_election:
                    self.counts["elections"] += 1
                    self.checks.leads(self.id, epoch, log)
                else:
                    self._check_change()
                self.append(encode_control_batch(records, self.now_ms()), epoch)
                if is_election:
                    self.world.elected(self)
            case AppendFetched(records):
                before = (log.end_offset, log.last_epoch)
                self.checks.appended(before, log.append(bytes(records)))
                self.world.flush_later(self)
            case Truncate(offset):
                hold(offset >= self.applied, f"{self.id} truncates applied records at {offset}")
                self.counts["truncations"] += 1
                log.truncate(offset)
                self.world.flush_later(self)
            case StoreSnapshot(_, position, data):
                del self._fetched[position:]
                self._fetched += data
            case LoadSnapshot(snapshot):
                self._load(snapshot)
            case Committed(high_watermark):
                self._commit(high_watermark)
            case Discarded():
                self._discard(output)

    def _discard(self, output: Discarded) -> None:
        hold(self.world.lies, f"{self.id} discards a sound answer: {output.reason}")
        self.counts["answers discarded"] += 1

    def _check_change(self) -> None:
        """OneChangeAtATime: the set before is committed, and differs by one voter at most."""
        assert self.raft is not None
        earlier = self.log.voters()[-1:]
        before = earlier[0][1] if earlier else self.voters
        hold(
            not earlier or earlier[0][0] < max(self.raft.high_watermark, self.log.start_offset),
            f"OneChangeAtATime: the change at {earlier} is not committed",
        )
        changed = set(before.ids) ^ set(self.raft.voters.ids)
        hold(len(changed) <= 1 or not earlier, f"OneChangeAtATime: {changed} change together")

    def _answer(self, output: Answer) -> None:
        response = output.response
        if output.read_from is not None and isinstance(response, FetchResponse):
            records = self.log.read(output.read_from, self.chance.randint(1, self.read_max))
            response = replace(response, records=records)
        elif output.snapshot is not None and isinstance(response, FetchSnapshotResponse):
            at = response.position
            response = replace(response, data=self.log.snapshot_data[at : at + SNAPSHOT_PART])
        self.world.answer(self, output.token, response)

    def _commit(self, high_watermark: int) -> None:
        log = self.log
        hold(high_watermark > self.applied, f"HighWatermarkNeverFalls: {self.id} {high_watermark}")
        assert self.raft is not None
        if self.raft.leader_id != self.id:  # a leader that removed itself has resigned already
            hold(
                high_watermark <= log.durable_offset,
                f"{self.id} commits {high_watermark}, not durable",
            )
        if self.raft.leader_id == self.id and high_watermark > self.checks.committed_end:
            epoch = next(one.epoch for one in reversed(log.batches) if one.end <= high_watermark)
            logs = [self.world.nodes[one].log for one in self.raft.voters.ids]
            self.checks.on_majority(logs, high_watermark, epoch)
        batches = log.between(self.applied, high_watermark)
        hold(bool(batches) and batches[-1].end == high_watermark, "commits part of a batch")
        self.chain = self.checks.commits(self.id, self.raft.epoch, self.chain, batches)
        self.applied = high_watermark

    def _load(self, snapshot: SnapshotId) -> None:
        data = bytes(self._fetched)
        hold(data.endswith(b"end") or self.world.lies, f"{self.id} loads a part of a snapshot")
        if not is_whole(data):
            hold(self.world.lies, f"{self.id} loads a damaged snapshot")
            self.counts["snapshots discarded"] += 1
            self.world.later(0, self, lambda raft, now: raft.on_snapshot_damaged("damaged", now))
            return
        chain = int(data.split()[0])
        hold(self.checks.chains[snapshot.end_offset] == chain, "a snapshot of another state")
        self.counts["snapshots loaded"] += 1
        self.log.begin_at(snapshot, data)
        self.applied, self.chain = snapshot.end_offset, chain
        voters = voters_in(data) if self.is_dynamic else None
        self.world.later(0, self, lambda raft, now: raft.on_snapshot_loaded(voters, now))

    # The part of a state machine and its runtime

    def append(self, data: bytearray, epoch: int) -> None:
        log = self.log
        assign(memoryview(data), 0, log.end_offset, epoch)
        before = (log.end_offset, log.last_epoch)
        self.checks.appended(before, log.append(bytes(data)))
        self.world.flush_later(self)

    def write(self, value: bytes) -> None:
        """Append as the state machine of the leader does."""
        if self.raft is not None and self.raft.is_leader:
            self.append(build_batch([Record(0, self.now_ms(), None, value)]), self.raft.epoch)
            self.counts["appends"] += 1

    def take_snapshot(self, keep: int | None = None) -> None:
        """Take one, and keep so many batches below its end; by chance without `keep`."""
        log = self.log
        if self.raft is None or not self.applied or self.applied == log.start_offset:
            return
        epoch = next(one.epoch for one in reversed(log.batches) if one.end <= self.applied)
        voters = self.raft.voters_at(self.applied - 1).ids
        named = ",".join(map(str, voters)).encode()
        data = b"%d %s %s" % (self.chain, named, b"." * self.chance.randint(1, 100))
        data += b" %08x end" % crc32(data)
        if keep is None:
            keep = self.chance.choice([0, 0, 1, 5])
        log.take_snapshot(SnapshotId(self.applied, epoch), data, keep)
        self.counts["snapshots"] += 1
