"""Create and delete topics: refuse, or return records.

In: requests, the image. Out: records and one result per topic. It never changes an image.

Refusals, their order and their codes are Kafka's (ReplicationControlManager, Topic.validate); the messages are this
project's.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final
from uuid import UUID

from msgspec import Struct, field

from stratalog.errors import ErrorCode, Rejected
from stratalog.metadata.image import (
    DIRECTORY_UNASSIGNED,
    Broker,
    Image,
    Partition,
    ResourceType,
    Topic,
)
from stratalog.metadata.snapshot import topic_records
from stratalog.ports import Entropy
from stratalog.quorum.electorate import ElectionDefaults
from stratalog.quorum.metadata_batches import METADATA_TOPIC
from stratalog.quorum.placement import Replicas, default_directory, place
from stratalog.wire.ids import ZERO_ID, name_fault, topic_id_text
from stratalog.wire.internal.metadata_records import ConfigRecord, RemoveTopicRecord

DEFAULT: Final = -1
SETTINGS_MAX: Final = 1000
"""Most settings of one resource in one request; a broker, which has most, has some 300."""
PARTITIONS_PER_REQUEST_MAX: Final = 10_000
"""Kafka: MAX_PARTITIONS_PER_BATCH."""
RECORDS_PER_REQUEST_MAX: Final = 10_000
"""Kafka: MAX_RECORDS_PER_USER_OP. One decision is one batch, and a batch must not grow without bound."""
TOO_MANY_RECORDS: Final = "Unable to perform excessively large batch operation."
"""Kafka's messages, like those below: clients show and compare them."""
_TOO_MANY_PARTITIONS: Final = "Excessively large number of partitions per request."

_REPLICAS_MAX: Final = 1000
"""Most replicas of one partition. A refusal names all of them."""
_TWICE: Final = "topic {} is asked for twice"


class NewTopic(Struct, frozen=True):
    """A requested topic; -1 partitions or replicas means the default, and is required with `assignments`."""

    name: str
    partitions: int = DEFAULT
    replication_factor: int = DEFAULT
    assignments: Mapping[int, Replicas] = field(default_factory=dict)
    configs: Mapping[str, str] = field(default_factory=dict)


class Created(Struct, frozen=True):
    """The answer for one NewTopic; only `name`, `error` and `message` count where `error` is not none."""

    name: str
    topic_id: UUID = ZERO_ID
    error: ErrorCode = ErrorCode.none
    message: str | None = None
    partitions: int = -1
    replication_factor: int = -1
    configs: Mapping[str, str] = field(default_factory=dict)


class Deleted(Struct, frozen=True):
    """The answer for one topic to delete, with the requested name or id, and the other one if known."""

    name: str | None = None
    topic_id: UUID = ZERO_ID
    error: ErrorCode = ErrorCode.none
    message: str | None = None


class TopicRules(Struct, frozen=True):
    """A cluster's defaults for topics, and a check of their settings that raises Rejected(INVALID_CONFIG).

    `elections` returns the defaults of today: they may change while the controller runs.
    """

    partitions_default: int = 1
    replication_factor_default: int = 1
    check_configs: Callable[[Mapping[str, str]], None] = lambda _configs: None
    elections: Callable[[], ElectionDefaults] = ElectionDefaults


Charge = Callable[[int], None]
"""Charges a client for partitions that it creates or deletes. Raises Rejected(THROTTLING_QUOTA_EXCEEDED), KIP-599."""


def free(_partitions: int) -> None:
    """Charge nothing."""


def check_topic_name(name: str) -> None:
    """Raise Rejected(INVALID_TOPIC_EXCEPTION) for a name that no topic may have."""
    reason = name_fault(name)
    if reason:
        raise Rejected(ErrorCode.invalid_topic_exception, f"topic name {name!r}: {reason}")


def collision_key(name: str) -> str | None:
    """Return the key that colliding names share in metrics; None for a name without '.' and '_'."""
    return name.replace(".", "_") if "." in name or "_" in name else None


def create_records(
    image: Image,
    topics: Sequence[NewTopic],
    rules: TopicRules,
    entropy: Entropy,
    colliding: Callable[[str], str | None],
    charge: Charge = free,
) -> tuple[list[Any], list[Created]]:
    """Return records that create the valid topics, and one result per requested name, in order.

    `colliding(name)` is an existing topic whose name collides with this one. `charge` counts each valid topic's
    partitions.
    """
    wanted = sum(max(0, _partition_count(topic, rules)) for topic in topics)
    if wanted > PARTITIONS_PER_REQUEST_MAX:
        return [], too_many_partitions(topic.name for topic in topics)
    counts = Counter(topic.name for topic in topics)
    records: list[Any] = []
    results: list[Created] = []
    accepted: dict[str | None, str] = {}
    checked: set[frozenset[tuple[str, str]]] = (
        set()
    )  # topics of one request often have the same settings
    for topic in {topic.name: topic for topic in topics}.values():
        try:
            if counts[topic.name] > 1:
                raise Rejected(ErrorCode.invalid_request, _TWICE.format(topic.name))
            clash = colliding(topic.name) or _clash(accepted, topic.name)
            _check_new_name(image, topic.name, clash)
            if len(topic.configs) > SETTINGS_MAX:
                raise Rejected(ErrorCode.invalid_config, f"more than {SETTINGS_MAX} settings")
            settings = frozenset(topic.configs.items())
            if settings not in checked:
                rules.check_configs(topic.configs)
                checked.add(settings)
            created = _new_topic(image, topic, rules, entropy)
            charge(len(created.partitions))
        except Rejected as refusal:
            results.append(Created(topic.name, error=refusal.code, message=refusal.message))
            continue
        accepted[collision_key(topic.name)] = topic.name
        records += _records(created, topic.configs)
        if len(records) > RECORDS_PER_REQUEST_MAX:
            return [], _all_refused((topic.name for topic in topics), TOO_MANY_RECORDS)
        factors = {len(partition.replicas) for partition in created.partitions.values()}
        results.append(
            Created(
                topic.name,
                created.id,
                partitions=len(created.partitions),
                replication_factor=max(factors),
                configs=topic.configs,
            )
        )
    return records, results


def too_many_partitions(names: Iterable[str]) -> list[Created]:
    """Refuse every topic of a request that asks for more than PARTITIONS_PER_REQUEST_MAX partitions in all."""
    return _all_refused(names, _TOO_MANY_PARTITIONS)


def _all_refused(names: Iterable[str], reason: str) -> list[Created]:
    return [
        Created(name, error=ErrorCode.invalid_request, message=_TWICE.format(name))
        if times > 1
        else Created(name, error=ErrorCode.policy_violation, message=reason)
        for name, times in Counter(names).items()
    ]


def delete_records(
    image: Image, wanted: Sequence[str | UUID], charge: Charge = free
) -> tuple[list[RemoveTopicRecord], list[Deleted]]:
    """Return records that delete the existing topics, and one result for each topic by name or id, in order.

    A topic that is named twice is not deleted, and gets one result.
    """
    resolved = [_find(image, name_or_id) for name_or_id in wanted]
    counts = Counter(topic.id for topic in resolved if topic is not None)
    records = []
    results = []
    times = Counter(wanted)
    for name_or_id, topic in dict(zip(wanted, resolved, strict=True)).items():
        if times[name_or_id] > 1:
            results.append(_twice(name_or_id))
        elif topic is None:
            results.append(_not_found(name_or_id))
        elif counts[topic.id] == 1:
            try:
                charge(len(topic.partitions))
            except Rejected as refusal:
                results.append(Deleted(topic.name, topic.id, refusal.code, refusal.message))
                continue
            records.append(RemoveTopicRecord(topic_id=topic.id))
            results.append(Deleted(topic.name, topic.id))
        elif not isinstance(name_or_id, UUID):  # this topic gets its answer with its name
            results.append(Deleted(topic.name, topic.id, ErrorCode.invalid_request, "named twice"))
    return records, results


def _twice(name_or_id: str | UUID) -> Deleted:
    name, topic_id = (name_or_id, ZERO_ID) if isinstance(name_or_id, str) else (None, name_or_id)
    return Deleted(name, topic_id, ErrorCode.invalid_request, "named twice")


def _not_found(name_or_id: str | UUID) -> Deleted:
    if isinstance(name_or_id, str):
        message = f"there is no topic {name_or_id}"
        return Deleted(name_or_id, ZERO_ID, ErrorCode.unknown_topic_or_partition, message)
    if name_or_id == ZERO_ID:
        return Deleted(None, ZERO_ID, ErrorCode.invalid_request, "neither a name nor an id")
    message = f"there is no topic with id {topic_id_text(name_or_id)}"
    return Deleted(None, name_or_id, ErrorCode.unknown_topic_id, message)


def _find(image: Image, name_or_id: str | UUID) -> Topic | None:
    if isinstance(name_or_id, str):
        return image.topic(name_or_id)
    return image.topics_by_id.get(name_or_id)


def _clash(accepted: Mapping[str | None, str], name: str) -> str | None:
    key = collision_key(name)
    return None if key is None else accepted.get(key)


def _check_new_name(image: Image, name: str, collides_with: str | None) -> None:
    if name == METADATA_TOPIC:
        # Kafka's messages: clients show and compare them.
        raise Rejected(
            ErrorCode.invalid_request, f"Creation of internal topic {METADATA_TOPIC} is prohibited."
        )
    check_topic_name(name)
    if name in image.topic_ids_by_name:
        raise Rejected(ErrorCode.topic_already_exists, f"topic {name} exists")
    if collides_with is not None:
        raise Rejected(
            ErrorCode.invalid_topic_exception,
            f"topic {name} and the existing {collides_with} would share metric names",
        )


def _partition_count(topic: NewTopic, rules: TopicRules) -> int:
    if topic.assignments:
        return len(topic.assignments)
    return rules.partitions_default if topic.partitions == DEFAULT else topic.partitions


def _new_topic(image: Image, topic: NewTopic, rules: TopicRules, entropy: Entropy) -> Topic:
    """Return the topic with its partitions placed; raises Rejected for an invalid request."""
    chosen = bool(topic.assignments)
    placed = _assigned(image, topic) if chosen else _placed(image, topic, rules, entropy)
    partitions = dict(enumerate(new_partitions(image.brokers, placed)))
    return Topic(fresh_topic_id(image, entropy), topic.name, partitions)


def _placed(image: Image, topic: NewTopic, rules: TopicRules, entropy: Entropy) -> list[Replicas]:
    if topic.replication_factor != DEFAULT and topic.replication_factor < 1:
        raise Rejected(
            ErrorCode.invalid_replication_factor,
            f"replication factor {topic.replication_factor}: at least 1, or -1 for the default",
        )
    if topic.partitions != DEFAULT and topic.partitions < 1:
        raise Rejected(
            ErrorCode.invalid_partitions,
            f"{topic.partitions} partitions: at least 1, or -1 for the default",
        )
    factor = topic.replication_factor
    if factor == DEFAULT:
        factor = rules.replication_factor_default
    brokers = list(image.brokers.values())
    start = int(entropy.uniform(0, len(brokers))) if len(brokers) > 1 else 0
    return place(brokers, _partition_count(topic, rules), factor, start)


def _assigned(image: Image, topic: NewTopic) -> list[Replicas]:
    """Return the replicas that the client chose, checked."""
    if topic.replication_factor != DEFAULT or topic.partitions != DEFAULT:
        raise Rejected(
            ErrorCode.invalid_request,
            "with assignments given, partitions and replication factor must be -1",
        )
    count = len(topic.assignments)
    if set(topic.assignments) != set(range(count)):
        raise Rejected(
            ErrorCode.invalid_replica_assignment, "assigned partitions must be 0, 1, 2 and so on"
        )
    placed = [tuple(topic.assignments[index]) for index in range(count)]
    for replicas in placed:
        check_replicas(image, replicas, len(placed[0]))
    return placed


def check_replicas(image: Image, replicas: Replicas, factor: int) -> None:
    """Raise Rejected(INVALID_REPLICA_ASSIGNMENT) where a new partition of `factor` replicas cannot begin there."""
    check_assignment(image, replicas, replicas)
    reason = None
    if len(replicas) != factor:
        reason = f"replicas {list(replicas)}: all partitions of a topic have as many, here {factor}"
    elif not any(image.brokers[broker].is_active for broker in replicas):
        reason = f"replicas {list(replicas)}: all of these brokers are fenced or shutting down"
    if reason is not None:
        raise Rejected(ErrorCode.invalid_replica_assignment, reason)


def check_assignment(image: Image, replicas: Replicas, added: Iterable[int]) -> None:
    """Raise Rejected(INVALID_REPLICA_ASSIGNMENT) for replicas that no partition can have. `added`: the new ones."""
    if len(replicas) > _REPLICAS_MAX:
        raise Rejected(
            ErrorCode.invalid_replica_assignment,
            f"{len(replicas)} replicas: there are {len(image.brokers)} brokers",
        )
    unknown = [broker for broker in replicas if broker not in image.brokers]
    reason = None
    if not replicas or len(set(replicas)) < len(replicas):
        reason = f"replicas {list(replicas)}: at least one, and none twice"
    elif unknown:
        reason = f"replicas {list(replicas)}: broker {unknown[0]} is not registered"
    elif cordoned := [broker for broker in added if image.brokers[broker].is_cordoned]:
        reason = f"replicas {list(replicas)}: broker {cordoned[0]} is cordoned (cordoned.log.dirs)"
    if reason is not None:
        raise Rejected(ErrorCode.invalid_replica_assignment, reason)


def new_partitions(brokers: Mapping[int, Broker], placed: Sequence[Replicas]) -> list[Partition]:
    """Return partitions that begin on these brokers. Those with the same replicas are one object: it never changes."""
    made = {replicas: _new_partition(brokers, replicas) for replicas in set(placed)}
    return [made[replicas] for replicas in placed]


def _new_partition(brokers: Mapping[int, Broker], replicas: Replicas) -> Partition:
    """Return a partition that begins on these brokers, of which one at least is active."""
    isr = tuple(broker for broker in replicas if brokers[broker].is_active)
    assert isr, f"no active broker among {replicas}"
    return Partition(
        replicas=replicas,
        isr=isr,
        leader=isr[0],
        directories=tuple(default_directory(brokers[broker]) for broker in replicas),
    )


def _records(topic: Topic, configs: Mapping[str, str]) -> list[Any]:
    """Return the records in Kafka's order: the topic, its configuration, its partitions."""
    head, *partitions = topic_records(topic)
    settings = [
        ConfigRecord(
            resource_type=ResourceType.TOPIC, resource_name=topic.name, name=name, value=value
        )
        for name, value in configs.items()
    ]
    return [head, *settings, *partitions]


def fresh_topic_id(image: Image, entropy: Entropy) -> UUID:
    """Return an id that no topic has, that means nothing special and that reads as no option on a command line."""
    while True:
        topic_id = entropy.uuid()
        reserved = topic_id.int <= DIRECTORY_UNASSIGNED.int
        if not (reserved or topic_id in image.topics_by_id or topic_id_text(topic_id)[0] == "-"):
            return topic_id
