"""Goal: no clean election loses a committed record, and partitions keep their invariants.

Method: the real controller on a log in memory. Brokers register, heartbeat, fall silent, shut down and join the ISR,
and partitions move, as a seed chooses. A model beside it knows which brokers surely have every committed record
(`safe`). A leader outside of it may only come from an election that the record marks as unclean (RECOVERING).
"""

from dataclasses import dataclass, field
from random import Random

import pytest
from tests.unit.quorum.metadata_log import MetadataLog

from stratalog.errors import ErrorCode
from stratalog.metadata.image import NO_LEADER, RECOVERING, Endpoint, Partition
from stratalog.quorum.brokers import BrokerRegistration
from stratalog.quorum.controller import NewTopic
from stratalog.quorum.electorate import has_elr
from stratalog.quorum.isr import IsrChange
from stratalog.quorum.partition_index import Origin, PartitionIndex, is_alone
from stratalog.quorum.reassignment import Reassignment
from stratalog.quorum.voters import Voter
from stratalog.statemachine import Decision
from stratalog.wire.ids import TopicIdPartition, TopicPartition
from stratalog.wire.internal.metadata_records import FeatureLevelRecord

BROKERS = (1, 2, 3, 4)
STEPS = (
    *(
        "crash",
        "stop",
        "beat",
        "beat",
        "beat",
        "fence",
        "shutdown",
        "silence",
        "join",
        "join",
        "join",
    ),
    *("lag", "lag", "unregister", "move", "cancel", "prefer", "balance"),
)
SEEDS = 12
STEPS_PER_SEED = 80


@dataclass
class World:
    """The controller, and the model's state of each partition."""

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

    def ask(self, key: TopicIdPartition, isr: tuple[int, ...]) -> ErrorCode:
        """The leader asks for this ISR, and reports that it has recovered."""
        image = self.log.image
        one = image.topics_by_id[key.topic_id].partitions[key.partition]
        members = tuple((id_, image.brokers[id_].epoch) for id_ in isr if id_ in image.brokers)
        change = IsrChange(key, one.leader_epoch, one.partition_epoch, members)
        leader = image.brokers[one.leader]
        decision = self.log.controller.alter_isrs(leader.id, leader.epoch, [change])
        (answer,) = self.log.run(decision)
        return answer.error


def world(*, elr: bool, unclean: bool) -> World:
    made = World()
    log = made.log
    log.lead(Voter(100, log.entropy.uuid()))
    log.run(log.controller.bootstrap())
    if not elr:
        feature = FeatureLevelRecord(name="eligible.leader.replicas.version", feature_level=0)
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
                # Records that were not on the broker's disk are lost.
                for safe in made.safe.values():
                    safe.discard(broker)
            made.register(broker, clean=False)
        case "stop":
            made.register(broker, clean=True)
        case "beat" | "fence" | "shutdown" if registered:
            wants = {"want_fence": step == "fence", "want_shutdown": step == "shutdown"}
            log.heartbeat(broker, **wants)
        case "silence":
            log.run(log.controller.fence_stale_broker(log.now_ms + 9_001))
        case "unregister" if registered:
            log.run(log.controller.unregister_broker(broker))
        case "move" | "cancel":
            reassign(made, step, broker)
        case "prefer":
            log.run(log.controller.elect_leaders(0, None))
        case "balance":
            balance(made)
        case "join" | "lag":
            in_sync(made, step, broker)


def balance(made: World) -> None:
    """Give leaderships back; afterwards no other replica leads where the first one may."""
    log = made.log
    log.run(log.controller.balance(list(log.controller.index.imbalanced)))
    for key in log.controller.index.imbalanced:
        partition = log.image.partition(*key)
        assert partition is not None
        first = log.image.brokers.get(partition.replicas[0])
        assert first is None or not first.is_active or first.id not in partition.isr


def reassign(made: World, step: str, broker: int) -> None:
    """Move two partitions to all brokers but one, or back again."""
    image = made.log.image
    replicas = tuple(id_ for id_ in BROKERS if id_ != broker and id_ in image.brokers)
    asked = []
    for key, one in made.partitions().items():
        # A move back to replicas that are not in sync loses records; the request accepts that.
        goes_back_uncleanly = set(one.isr) <= set(one.adding_replicas)
        if key.partition != 1 and (step == "move" or not goes_back_uncleanly):
            wanted = replicas if step == "move" and replicas else None
            asked.append(Reassignment(TopicPartition("t", key.partition), wanted))
    made.log.run(made.log.controller.alter_reassignments(asked, may_change_factor=True))


def in_sync(made: World, step: str, broker: int) -> None:
    """The leader lets a follower join its ISR, which then has all that the leader has, or leave it."""
    active = broker in made.log.image.brokers and made.log.image.brokers[broker].is_active
    for key, one in made.partitions().items():
        if one.leader in (NO_LEADER, broker) or broker not in one.replicas:
            continue
        if step == "join" and active and broker not in one.isr:
            if one.leader in made.safe[key]:
                made.safe[key].add(broker)
            assert made.ask(key, (*one.isr, broker)) in (0, ErrorCode.new_leader_elected)
        elif step == "lag" and broker in one.isr:
            isr = tuple(member for member in one.isr if member != broker)
            assert made.ask(key, isr) in (0, ErrorCode.new_leader_elected)


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
        assert set(now.removing_replicas) | set(now.adding_replicas) <= set(now.replicas)
        assert now.partition_epoch - old.partition_epoch >= now.leader_epoch - old.leader_epoch >= 0
        if now.leader != old.leader:
            assert now.leader_epoch > old.leader_epoch
        if not set(old.replicas) <= set(now.replicas):
            assert now.leader_epoch > old.leader_epoch, (
                "a removed replica may still follow an old leader"
            )
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
@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_clean_election_loses_no_record(elr, unclean, seed):
    made = world(elr=elr, unclean=unclean)
    random = Random(seed)
    for _ in range(STEPS_PER_SEED):
        before = made.partitions()
        act(made, random.choice(STEPS), random.choice(BROKERS))
        check(made, before, elr=elr)
    index = PartitionIndex(made.log.image.topics_by_id.values())
    followed = made.log.controller._cluster().index
    for broker in BROKERS:
        in_sync = set(index.in_sync(broker))
        assert in_sync == set(followed.in_sync(broker))
        assert set(index.eligible(broker)) == set(followed.eligible(broker))
        to_decide = set(index.in_sync(broker, alone=False))
        assert to_decide == set(followed.in_sync(broker, alone=False))
        partition = made.log.image.partition
        assert all(is_alone(partition(*key)) for key in in_sync - to_decide)
        assert all(broker in partition(*key).isr for key in in_sync)
        assert index.leads(broker) == followed.leads(broker)
    assert index.reassigning.keys() == followed.reassigning.keys()
    assert index.leaderless.keys() == followed.leaderless.keys()
    assert index.imbalanced.keys() == followed.imbalanced.keys()
    if not unclean:
        assert elr or not followed.elections[Origin.UNCLEAN]
