"""A cluster of brokers and its controller: requests, and what each changes of brokers and partitions.

In: commands. Out: the answer or refusal where it says something, then a line for each changed broker and partition.

elr                       the feature eligible.leader.replicas.version at level 1
brokers 1 2               register and unfence these, each with one directory
topic t 1,2 2,1 k=v       a topic with these replicas and settings
register 1 [clean] [dirs=2]   a new incarnation, after 60 s; `clean`: with the broker epoch of its clean shutdown
beat 1 [fence] [shutdown] [behind] [failed=0] [cordoned=0]   a heartbeat; directories by their places
time 9001                 milliseconds pass, and the controller looks for expired sessions
unregister 1              the broker
"""

from uuid import UUID

from tests.unit.quorum.metadata_log import MetadataLog

from stratalog.errors import Rejected
from stratalog.metadata.image import NO_LEADER, Endpoint
from stratalog.quorum.brokers import BrokerHeartbeat, BrokerRegistration
from stratalog.quorum.controller import NewTopic
from stratalog.quorum.single import Voter
from stratalog.statemachine import Decision
from stratalog.wire.internal.metadata_records import FeatureLevelRecord

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

    def _elr(self):
        record = FeatureLevelRecord(name="eligible.leader.replicas.version", feature_level=1)
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
