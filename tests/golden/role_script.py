"""A cluster's metadata, record by record, and the roles of broker 1 for its replicas.

In: commands, one change of metadata each; `a; b` is one change of several records. Out: a line for each role.

create t 1,2 3,1   a topic with two partitions on these brokers; the first leads, all are in sync
extend t 1         one more partition
change t-0 k=v     replicas, isr, leader, adding, removing, dirs (`lost` or a name for each replica)
delete t           the topic
config t k=v       a setting of the topic
"""

from uuid import UUID

from stratalog.metadata.delta import Delta
from stratalog.metadata.image import DIRECTORY_LOST, EMPTY
from stratalog.replication.roles import Delete, Follow, Lead, Stop, roles
from stratalog.wire.internal.metadata_records import (
    ConfigRecord,
    PartitionChangeRecord,
    PartitionRecord,
    RemoveTopicRecord,
    TopicRecord,
)

NODE = 1
FIELDS = {"adding": "adding_replicas", "removing": "removing_replicas", "dirs": "directories"}


class Story:
    def __init__(self):
        self.image = EMPTY
        self.created = 0
        self.names = {}

    def run(self, command):
        delta = Delta(self.image)
        for one in command.split(";"):
            verb, *words = one.split()
            for record in getattr(self, f"_{verb}")(delta, *words):
                delta.replay(delta.offset + 1, record)
        self.image = delta.image()
        found = roles(delta, self.image, NODE)
        return [
            f"{self.names[key.topic_id]}-{key.partition} {line_of(role)}"
            for key, role in found.items()
        ]

    def _create(self, delta, name, *partitions):
        self.created += 1
        topic_id = UUID(int=self.created + 1000)
        self.names[topic_id] = f"{name}#{self.created}"
        yield TopicRecord(name=name, topic_id=topic_id)
        yield from self._extend(delta, name, *partitions)

    def _extend(self, delta, name, *partitions):
        topic = delta.image().topic(name)
        for index, replicas in enumerate(partitions, len(topic.partitions)):
            yield PartitionRecord(
                partition_id=index,
                topic_id=topic.id,
                replicas=numbers(replicas),
                isr=numbers(replicas),
                removing_replicas=(),
                adding_replicas=(),
                leader=numbers(replicas)[0],
                leader_epoch=0,
                partition_epoch=0,
                directories=tuple(UUID(int=100 + one) for one in numbers(replicas)),
            )

    def _change(self, delta, partition, *settings):
        name, _, index = partition.rpartition("-")
        values = dict(one.split("=") for one in settings)
        changed = {FIELDS.get(key, key): numbers(value) for key, value in values.items()}
        if "leader" in changed:
            (changed["leader"],) = changed["leader"]
        yield PartitionChangeRecord(
            partition_id=int(index), topic_id=delta.image().topic(name).id, **changed
        )

    def _delete(self, delta, name):
        yield RemoveTopicRecord(topic_id=delta.image().topic(name).id)

    def _config(self, _delta, name, setting):
        key, value = setting.split("=")
        yield ConfigRecord(resource_type=2, resource_name=name, name=key, value=value)


def numbers(text):
    """`1,2` as numbers; `lost` and `d5` as ids of directories."""
    ids = {"lost": DIRECTORY_LOST}
    parts = text.split(",") if text else []
    return tuple(
        ids.get(one) or (UUID(int=100 + int(one[1:])) if one[0] == "d" else int(one))
        for one in parts
    )


def line_of(role):
    match role:
        case Lead(epoch, _, replicas, isr, is_new):
            return f"lead epoch={epoch} replicas={joined(replicas)} isr={joined(isr)}{new(is_new)}"
        case Follow(leader, epoch, replicas, isr, is_new):
            return f"follow {leader} epoch={epoch} replicas={joined(replicas)} isr={joined(isr)}{new(is_new)}"
        case Stop(epoch):
            return f"stop epoch={epoch}"
        case Delete(topic_is_deleted):
            return f"delete, {'topic deleted' if topic_is_deleted else 'replica reassigned'}"


def joined(values):
    return ",".join(map(str, values))


def new(is_new):
    return " new" if is_new else ""
