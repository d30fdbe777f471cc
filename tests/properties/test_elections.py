"""Goal: no clean election loses a committed record, and partitions keep their invariants.

Method: the real controller on a log in memory; brokers register, heartbeat, fall silent, shut down and join the ISR as
Hypothesis chooses. A model beside it knows which brokers surely have every committed record (`safe`). A leader outside
of it may only come from an election that the record marks as unclean (RECOVERING).
"""

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.quorum.metadata_log import MetadataLog

from stratalog.metadata.image import NO_LEADER, Endpoint, Partition
from stratalog.quorum.brokers import BrokerRegistration
from stratalog.quorum.controller import NewTopic
from stratalog.quorum.elections import RECOVERING, Target
from stratalog.quorum.electorate import ElectionDefaults, Electorate, has_elr
from stratalog.quorum.partition_index import PartitionIndex
from stratalog.quorum.single import Voter
from stratalog.statemachine import Decision
from stratalog.wire.ids import TopicIdPartition
from stratalog.wire.internal.metadata_records import FeatureLevelRecord

BROKERS = (1, 2, 3, 4)
brokers = st.sampled_from(BROKERS)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("crash"), brokers),
        st.tuples(st.just("stop"), brokers),
        st.tuples(st.just("beat"), brokers),
        st.tuples(st.just("fence"), brokers),
        st.tuples(st.just("shutdown"), brokers),
        st.tuples(st.just("silence"), brokers),
        st.tuples(st.just("join"), brokers),
        st.tuples(st.just("lag"), brokers),
        st.tuples(st.just("unregister"), brokers),
    ),
    max_size=40,
)


@dataclass
class World:
    """The controller, and what the model knows of each partition."""

    log: MetadataLog = field(default_factory=MetadataLog)
    safe: dict[TopicIdPartition, set[int]] = field(default_factory=dict)
    min_isr: int = 2

    def partitions(self) -> dict[TopicIdPartition, Partition]:
        return {
            TopicIdPartition(topic.id, index): partition
            for topic in self.log.image.topics_by_id.values()
            for index, partition in topic.partitions.items()
        }

    def register(self, broker_id: int, *, clean: bool) -> None:
        known = self.log.image.brokers.get(broker_id)
        asked = BrokerRegistration(
            broker_id,
            self.log.entropy.uuid(),
            (Endpoint("PLAINTEXT", "127.0.0.1", 9092),),
            None,
            (self.log.entropy.uuid(),) if known is None else known.directories,
            previous_epoch=known.epoch if clean and known is not None else -1,
        )
        self.log.now_ms += 60_000
        self.log.run(self.log.controller.register_broker(asked, self.log.now_ms))

    def change(self, key: TopicIdPartition, target: Target) -> None:
        electorate = Electorate(self.log.image, ElectionDefaults)
        record = electorate.change(key, target)
        self.log.run(Decision([] if record is None else [record], None))


def world(*, elr: bool, unclean: bool) -> World:
    made = World()
    log = made.log
    log.lead(Voter(100, log.entropy.uuid()))
    log.run(log.controller.bootstrap())
    if elr:
        feature = FeatureLevelRecord(name="eligible.leader.replicas.version", feature_level=1)
        log.run(Decision([feature], None))
    for broker in BROKERS:
        log.broker(broker)
    configs = {"min.insync.replicas": "2", "unclean.leader.election.enable": str(unclean).lower()}
    assignments = {0: (1, 2, 3), 1: (2, 3, 4), 2: (4, 1, 2)}
    topics = [NewTopic("t", assignments=assignments, configs=configs)]
    log.run(log.controller.create_topics(topics, log.entropy))
    made.safe = {key: set(one.isr) for key, one in made.partitions().items()}
    return made


def act(made: World, step: str, broker: int) -> None:
    log = made.log
    registered = broker in log.image.brokers
    match step:
        case "crash":
            if has_elr(log.image):
                # Records that were not on its disk are gone.
                for safe in made.safe.values():
                    safe.discard(broker)
            made.register(broker, clean=False)
        case "stop":
            made.register(broker, clean=True)
        case "beat" | "fence" | "shutdown" if registered:
            log.heartbeat(broker, want_fence=step == "fence", want_shutdown=step == "shutdown")
        case "silence" if registered:
            for other in log.image.brokers.values():
                if other.id != broker and not other.fenced:
                    log.heartbeat(other.id)
            log.run(log.controller.fence_stale_broker(log.now_ms + 9_001))
        case "unregister" if registered:
            log.run(log.controller.unregister_broker(broker))
        case "join" | "lag":
            in_sync(made, step, broker)


def in_sync(made: World, step: str, broker: int) -> None:
    """The leader lets a follower join its ISR, which then has all that the leader has, or leave it."""
    active = broker in made.log.image.brokers and made.log.image.brokers[broker].is_active
    for key, one in made.partitions().items():
        if one.leader in (NO_LEADER, broker) or broker not in one.replicas:
            continue
        if step == "join" and active and broker not in one.isr:
            if one.leader in made.safe[key]:
                made.safe[key].add(broker)
            made.change(key, Target(isr=(*one.isr, broker), recovery_state=0))
        elif step == "lag" and broker in one.isr:
            made.change(key, Target(isr=tuple(b for b in one.isr if b != broker)))


def check(made: World, before: dict[TopicIdPartition, Partition], *, elr: bool) -> None:
    for key, now in made.partitions().items():
        old = before[key]
        eligible = set(now.eligible_leader_replicas)
        assert set(now.isr) <= set(now.replicas)
        assert eligible <= set(now.replicas)
        assert not eligible & set(now.isr)
        assert now.leader == NO_LEADER or now.leader in now.isr
        assert not eligible or (elr and len(now.isr) < made.min_isr)
        assert now.isr or elr
        assert now.partition_epoch - old.partition_epoch >= now.leader_epoch - old.leader_epoch >= 0
        if now.leader != old.leader:
            assert now.leader_epoch > old.leader_epoch
        if now == old:
            continue
        safe = made.safe[key]
        if now.leader not in (NO_LEADER, old.leader):
            if now.leader_recovery_state == RECOVERING and now.leader not in safe:
                safe.clear()
                safe.update(now.isr)  # the committed records are now those of that leader
            assert now.leader in safe, (old, now)
        if now.leader != NO_LEADER and (not elr or len(now.isr) >= made.min_isr):
            # The high watermark moves: a replica that is not in sync lacks a record from here on.
            safe.clear()
            safe.update(now.isr)


@pytest.mark.parametrize("elr", [True, False])
@pytest.mark.parametrize("unclean", [True, False])
@settings(max_examples=60, deadline=None)
@given(steps)
def test_a_clean_election_loses_nothing(elr, unclean, chosen):
    made = world(elr=elr, unclean=unclean)
    for step, broker in chosen:
        before = made.partitions()
        act(made, step, broker)
        check(made, before, elr=elr)
    index = PartitionIndex(made.log.image)
    followed = made.log.controller._cluster().index
    for broker in BROKERS:
        assert set(index.members(broker)) == set(followed.members(broker))
        assert index.leads(broker) == followed.leads(broker)
    assert index.leaderless.keys() == followed.leaderless.keys()
