"""A metadata log in memory, and a controller that runs on it, for tests."""

import uuid
from collections.abc import Sequence
from random import Random
from types import SimpleNamespace
from typing import Any

from msgspec.structs import replace

from stratalog.metadata.image import Endpoint, Image
from stratalog.metadata.replay import Replay
from stratalog.quorum.brokers import BrokerHeartbeat, BrokerRegistration, HeartbeatAnswer
from stratalog.quorum.configurations import Alteration, Change, Operation
from stratalog.quorum.controller import Controller, TopicRules
from stratalog.quorum.member import Member
from stratalog.quorum.messages import AppendControl, Persist
from stratalog.quorum.metadata_batches import decode_record, encode_batch, encode_control_batch
from stratalog.quorum.raft import Raft
from stratalog.quorum.saved_state import QuorumState
from stratalog.quorum.states import Timeouts
from stratalog.quorum.voters import (
    KRAFT_VERSION,
    Voter,
    VoterHistory,
    VoterSet,
    voter_set,
    voters_record,
)
from stratalog.statemachine import Decision
from stratalog.wire.batch import assign, parse_header, scan
from stratalog.wire.internal.control_records import VotersRecord
from stratalog.wire.records import read_records

NOW_MS = 1_700_000_000_000


class SeededEntropy:
    """Entropy from a seed."""

    def __init__(self, seed: int = 1) -> None:
        self._random = Random(seed)

    def uuid(self) -> uuid.UUID:
        return uuid.UUID(int=self._random.getrandbits(128), version=4)

    def uniform(self, low: float, high: float) -> float:
        return self._random.uniform(low, high)


def elected(
    state: QuorumState,
    voter: Voter,
    *,
    log_epoch: int = 0,
    voters: VotersRecord | None = None,
) -> tuple[QuorumState, Sequence[Any]]:
    """Return the state that a sole voter saves, and the records that it appends, when it starts on such a log."""
    view: Any = SimpleNamespace(
        start_offset=0, start_epoch=0, end_offset=9, last_epoch=log_epoch, snapshot=None
    )
    alone = VoterSet((voter,))
    logged = [(1, alone)] if voters is not None and voter_set(voters) == alone else []
    history = VoterHistory(alone, logged, kraft_version=KRAFT_VERSION)
    member = Member(
        voter.key,
        view,
        history,
        saved=state,
        timeouts=Timeouts(),
        entropy=SeededEntropy(),
    )
    saved, appended = Raft(member).start(0)
    assert isinstance(saved, Persist)
    assert isinstance(appended, AppendControl)
    return saved.state, appended.records


class MetadataLog:
    """A log that runs decisions as the broker does: append one batch, then replay it."""

    def __init__(self, rules: TopicRules | None = None, seed: int = 1) -> None:
        self.entropy = SeededEntropy(seed)
        self.rules = rules
        self.controller = Controller(rules)
        self.voters: VotersRecord | None = None
        self.data = bytearray()
        self.next_offset = 0
        self.epoch = 0
        self.now_ms = 0
        self.state = QuorumState()

    @property
    def image(self) -> Image:
        return self.controller.image

    def lead(self, voter: Voter) -> None:
        self.state, records = elected(self.state, voter, log_epoch=self.epoch, voters=self.voters)
        self.epoch = self.state.leader_epoch
        self.voters = voters_record(VoterSet((voter,)))
        self.controller = Controller(self.rules, replace(self.image, epoch=self.epoch))
        self.append(encode_control_batch(records, NOW_MS), records)

    def run(self, decision: Decision[Any, Any]) -> Any:
        if decision.records:
            self.append(encode_batch(decision.records, NOW_MS), decision.records)
        return decision.answer

    def append(self, batch: bytearray, records: Sequence[Any]) -> None:
        assign(memoryview(batch), 0, self.next_offset, self.epoch)
        self.data += batch
        self.controller.replay_batch(self.next_offset, records)
        self.next_offset = parse_header(batch).next_offset

    def broker(self, broker_id: int = 1, rack: str | None = None, *, fenced: bool = False) -> int:
        """Register a broker in a new incarnation, unfence it, and return its epoch."""
        registration = BrokerRegistration(
            broker_id,
            self.entropy.uuid(),
            (Endpoint("PLAINTEXT", "127.0.0.1", 9092),),
            rack,
            (self.entropy.uuid(),),
        )
        self.now_ms += 60_000  # the session of an earlier incarnation is over
        epoch = self.run(self.controller.register_broker(registration, self.now_ms))
        if not fenced:
            self.heartbeat(broker_id)
        return epoch

    def heartbeat(self, broker_id: int, **asked: Any) -> HeartbeatAnswer:
        """Send one heartbeat of a broker that has applied all metadata."""
        epoch = self.image.brokers[broker_id].epoch
        beat = BrokerHeartbeat(broker_id, epoch, self.image.offset)
        decision = self.controller.heartbeat(replace(beat, **asked), self.now_ms)
        answer: HeartbeatAnswer = self.run(decision)
        return answer

    def replayed(self) -> Replay:
        """Replay the log as a start does."""
        replay = Replay()
        for position, header in scan(self.data):
            for record in read_records(memoryview(self.data)[position : position + header.size]):
                decoded = decode_record(record, is_control=header.is_control)
                replay.replay(record.offset, header.leader_epoch, decoded)
        return replay


def started(rules: TopicRules | None = None, seed: int = 1) -> MetadataLog:
    """Return a bootstrapped log that node 1 leads, with broker 1 registered."""
    log = MetadataLog(rules, seed)
    log.lead(Voter(1, log.entropy.uuid(), (Endpoint("CONTROLLER", "127.0.0.1", 9093),)))
    log.run(log.controller.bootstrap())
    log.broker()
    return log


class NoRules:
    """Rules that accept any setting; settings whose names begin with `list` are lists."""

    def check(self, resource_type, resource_name, before, after):
        """Refuse nothing."""

    def default_items(self, resource_type, name):
        return ("d",) if name.startswith("list") else None


def configure(controller, resource_type, name, values, rules=None):
    """Return the decision to set values of one resource, or to remove them (None)."""
    changes = tuple(
        Change(key, Operation.DELETE if value is None else Operation.SET, value)
        for key, value in values.items()
    )
    return controller.alter_configs([Alteration(resource_type, name, changes)], rules or NoRules())
