"""One replica of the world of `test_replication.py`: its log, its view of the partition, and its answers as a leader.

In: fetches of followers, the time. Out: answers, as Kafka's `Partition.fetchRecords` gives them. It never decides which
node leads.
"""

import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random

from msgspec.structs import replace as changed
from tests.log_steps import TOPIC_ID, Steps

from stratalog.errors import ErrorCode, Rejected
from stratalog.ports import Entropy
from stratalog.replication.fetch_sessions import FetchSessions
from stratalog.replication.fetcher import Fetcher
from stratalog.replication.following import diverging_epoch
from stratalog.replication.partition import PartitionReplica
from stratalog.wire.batch import scan
from stratalog.wire.ids import TopicIdPartition
from stratalog.wire.messages.fetch import (
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    PartitionData,
    ReplicaState,
)

NODES = (1, 2, 3)
LAG_MS = 1_000


@dataclass(frozen=True)
class Decided:
    """The controller's partition, as metadata carries it."""

    leader: int
    leader_epoch: int
    partition_epoch: int
    isr: tuple[int, ...]


@dataclass
class Proposal:
    """An AlterPartition request, or its answer."""

    leader: int
    seen: Decided
    isr: dict[int, int]
    """Broker epoch of each member."""
    answer: "Decided | ErrorCode | None" = None


@dataclass
class Fetching:
    """A fetch, or its answer."""

    leader: int
    leader_run: int
    follower_run: int
    fetcher: Fetcher
    request: FetchRequest
    answer: FetchResponse | None = None


class FollowerLog:
    """A node's log as a fetcher sees it."""

    def __init__(self, node: "Node") -> None:
        self.log = node.steps.log

    log_start_offset = property(lambda self: self.log.log_start_offset)
    log_end_offset = property(lambda self: self.log.log_end_offset)
    epochs = property(lambda self: self.log.epochs)


class SeededEntropy(Entropy):
    def __init__(self, seed: int) -> None:
        self._chance = Random(seed)

    def uuid(self):
        return uuid.UUID(int=self._chance.getrandbits(128))


@dataclass
class Node:
    id: int
    steps: Steps
    run: int = 0
    """Counts its starts."""
    broker_epoch: int = 0
    up: bool = True
    fenced: bool = False
    """The controller gets no heartbeats from it. The node may not know that yet."""
    seen: Decided | None = None
    replica: PartitionReplica = field(init=False)
    sessions: FetchSessions[FetchPartition] = field(init=False)
    fetcher: Fetcher | None = None
    fetching: Fetching | None = None

    @property
    def is_active(self) -> bool:
        return self.up and not self.fenced

    def begin(self, decided: Decided, high_watermark: int = 0) -> None:
        self.run += 1
        self.up = True
        self.fenced = False
        self.broker_epoch += 1
        self.seen = None
        self.replica = PartitionReplica(
            node_id=self.id,
            replicas=NODES,
            isr=decided.isr,
            leader_epoch=max(self.steps.log.epochs.latest, -1),
            high_watermark=min(high_watermark, self.steps.log.log_end_offset),
            min_isr=1,
        )
        self.sessions = FetchSessions(10, SeededEntropy(self.run * 10 + self.id))
        self.fetcher = self.fetching = None

    def batches(self) -> Iterator[tuple[int, bytes]]:
        """Yield (base offset, bytes) of each batch of the log."""
        data = memoryview(self.steps.read_all(cold=False))
        for position, header in scan(data):
            yield header.base_offset, bytes(data[position : position + header.size])

    def answer(self, request: FetchRequest, now_ms: int) -> FetchResponse:
        """Answer a follower's fetch, in its session."""
        named = [
            (TopicIdPartition(topic.topic_id, one.partition), one)
            for topic in request.topics
            for one in topic.partitions
        ]
        forgotten = [
            TopicIdPartition(topic.topic_id, index)
            for topic in request.forgotten_topics_data
            for index in topic.partitions
        ]
        try:
            fetch = self.sessions.begin(
                request.session_id,
                request.session_epoch,
                named,
                forgotten,
                by_id=True,
                now_ms=now_ms,
            )
        except Rejected as refused:
            return FetchResponse(error_code=refused.code, responses=[])
        found = [self._read(request.replica_state, one, now_ms) for _, one in fetch.requested]
        answered = fetch.answer(found, now_ms)
        sent = [found[place] for place in answered.places]
        return FetchResponse(
            session_id=answered.session_id,
            responses=[FetchableTopicResponse(topic_id=TOPIC_ID, partitions=sent)] if sent else [],
        )

    def _read(self, follower: ReplicaState, asked: FetchPartition, now_ms: int) -> PartitionData:
        """Answer for one partition (Kafka: Partition.fetchRecords)."""
        replica, log = self.replica, self.steps.log
        data = PartitionData(
            partition_index=0,
            error_code=0,
            high_watermark=-1,
            aborted_transactions=None,
            records=None,
        )
        try:
            replica.check_leader(asked.current_leader_epoch)
            diverging = diverging_epoch(log, asked.last_fetched_epoch, asked.fetch_offset)
            if diverging is None:
                if not log.log_start_offset <= asked.fetch_offset <= log.log_end_offset:
                    raise Rejected(ErrorCode.offset_out_of_range, "")
                replica.on_follower_fetch(
                    follower.replica_id,
                    asked.fetch_offset,
                    now_ms,
                    log_start_offset=asked.log_start_offset,
                    lag_ms_max=LAG_MS,
                    broker_epoch=follower.replica_epoch,
                    may_join=True,
                )
        except Rejected as refused:
            return changed(data, error_code=refused.code)
        data = changed(
            data,
            high_watermark=replica.high_watermark,
            log_start_offset=log.log_start_offset,
        )
        if diverging is not None:
            return changed(data, diverging_epoch=diverging)
        if asked.fetch_offset == log.log_end_offset:
            return data
        read = self.steps.read(
            asked.fetch_offset, asked.partition_max_bytes, end_offset=log.log_end_offset
        )
        return changed(data, records=memoryview(b"".join(read.buffers)))
