"""A cluster of brokers and its controller: each request, and its changes of brokers and partitions.

In: commands. Out: the answer or refusal if it has content, then a line for each changed broker and partition.

elr                       the feature eligible.leader.replicas.version at level 1
brokers 1 2               register and unfence these, each with one directory
topic t 1,2 2,1 k=v       a topic with these replicas and settings
register 1 [clean] [dirs=2]   a new incarnation, after 60 s; `clean`: with the broker epoch of its clean shutdown
beat 1 [fence] [shutdown] [behind] [failed=0] [cordoned=0]   a heartbeat; directories by their places
time 9001                 milliseconds pass, and the controller looks for expired sessions
unregister 1              the broker
isr t-0 1,2 [by=1] [leader=0] [partition=0] [member=5] [recovering]   the leader asks for this ISR; `by`, and the
                          epochs of leader, partition and first member, where they are not those of now
elect preferred t-0 t-1   or `unclean`; without partitions: all
reassign t-0 1,4 [keep]   new replicas; `keep`: the replication factor must not change
cancel t-0                the reassignment in progress
list [t-0]                what is being reassigned
assign 1 t-0 0            broker 1 has the partition in its directory 0
"""

from uuid import UUID

from tests.unit.quorum.metadata_log import MetadataLog

from stratalog.errors import Rejected
from stratalog.metadata.image import NO_LEADER, Endpoint, Partition
from stratalog.quorum.brokers import BrokerHeartbeat, BrokerRegistration
from stratalog.quorum.controller import NewTopic
from stratalog.quorum.isr import IsrChange
from stratalog.quorum.reassignment import Reassignment
from stratalog.quorum.voters import Voter
from stratalog.statemachine import Decision
from stratalog.wire.ids import TopicIdPartition, TopicPartition
from stratalog.wire.internal.metadata_records import FeatureLevelRecord

ABSENT = Partition((), (), 1)
HOST = (Endpoint("PLAINTEXT", "127.0.0.1", 9092),)


class Story:
    def __init__(self):
        self.log = MetadataLog()
        self.log.lead(Voter(100, self.log.entropy.uuid()))
        self.log.run(self.log.controller.bootstrap())
        self.incarnations = 0

    def run(self, command):
        verb, *words = command.split()
        before = self.log.image
        try:
            said = getattr(self, f"_{verb}")(*words)
        except Rejected as refusal:
            said = [refusal.code.name]
        return [*(said or ()), *self._changes(before)]

    def _older(self):
        """Make the cluster as one that was formatted before eligible leader replicas."""
        record = FeatureLevelRecord(name="eligible.leader.replicas.version", feature_level=0)
        self.log.run(Decision([record], None))

    def _brokers(self, *ids):
        for id_ in ids:
            self._register(id_)
            self._beat(id_)

    def _topic(self, name, *words):
        placed = [numbers(word) for word in words if "=" not in word]
        configs = dict(word.split("=") for word in words if "=" in word)
        topic = NewTopic(name, assignments=dict(enumerate(placed)), configs=configs)
        (created,) = self.log.run(self.log.controller.create_topics([topic], self.log.entropy))
        return [] if created.error == 0 else [created.error.name]

    def _register(self, id_, *words):
        self.incarnations += 1
        known = self.log.image.brokers.get(int(id_))
        count = next((int(word[5:]) for word in words if word.startswith("dirs=")), 1)
        asked = BrokerRegistration(
            int(id_),
            UUID(int=self.incarnations),
            HOST,
            directories=tuple(UUID(int=1000 * int(id_) + one) for one in range(count)),
            previous_epoch=known.epoch if known is not None and "clean" in words else -1,
        )
        self.log.run(self.log.controller.register_broker(asked, self.log.now_ms))

    def _beat(self, id_, *words):
        broker = self.log.image.brokers[int(id_)]
        given = dict(word.split("=") for word in words if "=" in word)
        places = {
            key: tuple(broker.directories[one] for one in numbers(value))
            for key, value in given.items()
        }
        asked = BrokerHeartbeat(
            broker.id,
            broker.epoch,
            -1 if "behind" in words else self.log.image.offset,
            want_fence="fence" in words,
            want_shutdown="shutdown" in words,
            offline_directories=places.get("failed", ()),
            cordoned=places.get("cordoned"),
        )
        answer = self.log.run(self.log.controller.heartbeat(asked, self.log.now_ms))
        states = {
            "not caught up": not answer.is_caught_up,
            "fenced": answer.is_fenced,
            "may stop": answer.should_shut_down,
        }
        return [", ".join(name for name, holds in states.items() if holds) or "unfenced"]

    def _time(self, passed):
        self.log.now_ms += int(passed)
        fenced = self.log.run(self.log.controller.fence_stale_broker(self.log.now_ms))
        return [] if fenced is None else [f"session of {fenced} timed out"]

    def _unregister(self, id_):
        self.log.run(self.log.controller.unregister_broker(int(id_)))

    def _isr(self, name, members, *words):
        given = dict(word.split("=") for word in words if "=" in word)
        key, partition = self._find(name)
        image = self.log.image
        leader = int(given.get("by", partition.leader))
        epochs = [
            (one, image.brokers[one].epoch if one in image.brokers else 0)
            for one in numbers(members)
        ]
        if "member" in given:
            epochs[0] = (epochs[0][0], int(given["member"]))
        asked = IsrChange(
            key,
            int(given.get("leader", partition.leader_epoch)),
            int(given.get("partition", partition.partition_epoch)),
            tuple(epochs),
            int("recovering" in words),
        )
        decision = self.log.controller.alter_isrs(leader, image.brokers[leader].epoch, [asked])
        (answer,) = self.log.run(decision)
        return [] if answer.error == 0 else [answer.error.name]

    def _elect(self, kind, *names):
        number = {"preferred": 0, "unclean": 1}.get(kind, 9)
        asked = [topic_partition(name) for name in names] or None
        results = self.log.run(self.log.controller.elect_leaders(number, asked))
        return [line(one.partition, one.error) for one in results if asked is None or one.error]

    def _reassign(self, name, replicas, *words):
        asked = [Reassignment(topic_partition(name), numbers(replicas))]
        return self._reassigned(asked, keep="keep" in words)

    def _cancel(self, name):
        return self._reassigned([Reassignment(topic_partition(name), None)], keep=True)

    def _reassigned(self, asked, *, keep):
        decision = self.log.controller.alter_reassignments(asked, may_change_factor=not keep)
        return [one.error.name for one in self.log.run(decision) if one.error]

    def _list(self, *names):
        asked = [topic_partition(name) for name in names] or None
        found = self.log.run(self.log.controller.reassignments(asked))
        return [line(one, "in progress") for one, _ in found] or ["nothing"]

    def _assign(self, id_, name, place):
        broker = self.log.image.brokers[int(id_)]
        key, _ = self._find(name)
        assigned = {key: UUID(int=1000 * broker.id + int(place))}
        decision = self.log.controller.assign_directories(broker.id, broker.epoch, assigned)
        (code,) = self.log.run(decision).values()
        return [] if code == 0 else [code.name]

    def _find(self, name):
        topic, index = topic_partition(name)
        topic_id = self.log.image.topic_ids_by_name.get(topic, UUID(int=999))
        return TopicIdPartition(topic_id, index), self.log.image.partition(
            topic_id, index
        ) or ABSENT

    def _changes(self, before):
        image = self.log.image
        for id_ in sorted({*before.brokers, *image.brokers}):
            now = image.brokers.get(id_)
            if now != before.brokers.get(id_):
                yield f"broker {id_} {'gone' if now is None else broker_line(now)}"
        for topic in image.topics_by_id.values():
            for index, partition in topic.partitions.items():
                if partition != before.partition(topic.id, index):
                    yield f"{topic.name}-{index} {partition_line(partition)}"


def topic_partition(name):
    topic, _, index = name.rpartition("-")
    return TopicPartition(topic, int(index))


def line(partition, what):
    return f"{partition.topic}-{partition.partition} {getattr(what, 'name', what)}"


def numbers(text):
    return tuple(int(one) for one in text.split(",") if one)


def broker_line(broker):
    states = {
        "fenced": broker.fenced,
        "unfenced": not broker.fenced,
        "shutting down": broker.in_controlled_shutdown,
        f"cordoned {places(broker.cordoned_directories)}": broker.cordoned_directories,
    }
    return f"directories {places(broker.directories)}, " + ", ".join(
        name for name, holds in states.items() if holds
    )


def places(directories):
    return ",".join(str(one.int % 1000) for one in directories or ())


def partition_line(partition):
    fields = {
        "leader": "none" if partition.leader == NO_LEADER else partition.leader,
        "epoch": f"{partition.leader_epoch}/{partition.partition_epoch}",
        "replicas": joined(partition.replicas),
        "isr": joined(partition.isr),
        "elr": joined(partition.eligible_leader_replicas),
        "last": joined(partition.last_known_elr),
        "adding": joined(partition.adding_replicas),
        "removing": joined(partition.removing_replicas),
        "recovering": "yes" if partition.leader_recovery_state else "",
    }
    always = ("leader", "epoch", "isr")
    return " ".join(
        f"{key}={value}" for key, value in fields.items() if value != "" or key in always
    )


def joined(values):
    return ",".join(map(str, values))
