"""A broker's requests to the controller as Kafka's messages, both ways.

In: a request or an answer of `quorum/`, or its message. Out: the other one. It never sends anything.

Reading a response raises Rejected with the error that the whole response carries. NOT_CONTROLLER in one topic of a
response counts for the whole, as in NodeToControllerRequestThread. Corrupt means that no sound controller sends it.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import groupby
from typing import Final
from uuid import UUID

from stratalog.errors import Corrupt, ErrorCode, Rejected
from stratalog.metadata.image import Endpoint, FeatureRange, Partition
from stratalog.quorum.controller import (
    BrokerHeartbeat,
    BrokerRegistration,
    Created,
    HeartbeatAnswer,
    NewTopic,
)
from stratalog.quorum.isr import ANY_EPOCH, IsrAnswer, IsrChange
from stratalog.wire.ids import TopicIdPartition
from stratalog.wire.messages import (
    allocate_producer_ids,
    alter_partition,
    assign_replicas_to_dirs,
    broker_heartbeat,
    broker_registration,
    create_topics,
)

__all__ = [
    "REPLICAS_MAX",
    "assignment_codes",
    "assignment_of",
    "assignment_request",
    "assignment_response",
    "creation_request",
    "heartbeat_answer",
    "heartbeat_of",
    "heartbeat_request",
    "heartbeat_response",
    "isr_answers",
    "isr_changes_of",
    "isr_request",
    "isr_response",
    "producer_ids",
    "producer_ids_request",
    "producer_ids_response",
    "registered_epoch",
    "registration_of",
    "registration_request",
    "topics_created",
]

REPLICAS_MAX: Final = 2250
"""Most replicas of one AssignReplicasToDirs request (Kafka: MAX_ASSIGNMENTS_PER_REQUEST)."""
_NONE: Final = 0
_EPOCHS_FROM: Final = 3
"""The first version of AlterPartition that has the broker epochs of the ISR's members (KIP-903)."""


def _check(error_code: int, request: str) -> None:
    if error_code:
        code = ErrorCode(error_code)
        raise Rejected(code, f"the controller answers {request} with {code.name}")


# BrokerRegistration


def registration_request(
    registration: BrokerRegistration, cluster_id: str
) -> broker_registration.BrokerRegistrationRequest:
    """Return the request of a broker that registers with the cluster of this id."""
    return broker_registration.BrokerRegistrationRequest(
        broker_id=registration.id,
        cluster_id=cluster_id,
        incarnation_id=registration.incarnation_id,
        listeners=[
            broker_registration.Listener(
                name=one.name,
                host=one.host,
                port=one.port,
                security_protocol=one.security_protocol,
            )
            for one in registration.endpoints
        ],
        features=[
            broker_registration.Feature(
                name=one.name,
                min_supported_version=one.min_level,
                max_supported_version=one.max_level,
            )
            for one in registration.features
        ],
        rack=registration.rack,
        log_dirs=registration.directories,
        previous_broker_epoch=registration.previous_epoch,
    )


def registration_of(body: broker_registration.BrokerRegistrationRequest) -> BrokerRegistration:
    """Return the registration in a broker's request."""
    return BrokerRegistration(
        id=body.broker_id,
        incarnation_id=body.incarnation_id,
        endpoints=tuple(
            Endpoint(one.name, one.host, one.port, one.security_protocol) for one in body.listeners
        ),
        rack=body.rack,
        directories=tuple(body.log_dirs),
        features=tuple(
            FeatureRange(one.name, one.min_supported_version, one.max_supported_version)
            for one in body.features
        ),
        previous_epoch=body.previous_broker_epoch,
    )


def registered_epoch(body: broker_registration.BrokerRegistrationResponse) -> int:
    """Return the broker's epoch."""
    _check(body.error_code, "BrokerRegistration")
    if body.broker_epoch < 0:
        raise Corrupt(f"broker epoch {body.broker_epoch}")
    return body.broker_epoch


# BrokerHeartbeat


def heartbeat_request(heartbeat: BrokerHeartbeat) -> broker_heartbeat.BrokerHeartbeatRequest:
    """Return the request of a heartbeat."""
    return broker_heartbeat.BrokerHeartbeatRequest(
        broker_id=heartbeat.broker_id,
        broker_epoch=heartbeat.broker_epoch,
        current_metadata_offset=heartbeat.metadata_offset,
        want_fence=heartbeat.want_fence,
        want_shut_down=heartbeat.want_shutdown,
        offline_log_dirs=heartbeat.offline_directories,
        cordoned_log_dirs=heartbeat.cordoned,
    )


def heartbeat_of(body: broker_heartbeat.BrokerHeartbeatRequest) -> BrokerHeartbeat:
    """Return the heartbeat that a broker sends."""
    cordoned = body.cordoned_log_dirs
    return BrokerHeartbeat(
        broker_id=body.broker_id,
        broker_epoch=body.broker_epoch,
        metadata_offset=body.current_metadata_offset,
        want_fence=body.want_fence,
        want_shutdown=body.want_shut_down,
        offline_directories=tuple(body.offline_log_dirs),
        cordoned=None if cordoned is None else tuple(cordoned),
    )


def heartbeat_response(answer: HeartbeatAnswer) -> broker_heartbeat.BrokerHeartbeatResponse:
    """Return the response to a heartbeat."""
    return broker_heartbeat.BrokerHeartbeatResponse(
        error_code=ErrorCode.none,
        is_caught_up=answer.is_caught_up,
        is_fenced=answer.is_fenced,
        should_shut_down=answer.should_shut_down,
    )


def heartbeat_answer(body: broker_heartbeat.BrokerHeartbeatResponse) -> HeartbeatAnswer:
    """Return the broker's state on the controller."""
    _check(body.error_code, "BrokerHeartbeat")
    return HeartbeatAnswer(body.is_caught_up, body.is_fenced, body.should_shut_down)


# AlterPartition


def isr_request(
    broker_id: int, broker_epoch: int, changes: Sequence[IsrChange]
) -> alter_partition.AlterPartitionRequest:
    """Return the request of a leader that changes ISRs, for version 3; changes of one topic stand together."""
    return alter_partition.AlterPartitionRequest(
        broker_id=broker_id,
        broker_epoch=broker_epoch,
        topics=[
            alter_partition.AlterPartitionRequestTopicData(
                topic_id=topic_id, partitions=[_change(one) for one in of]
            )
            for topic_id, of in groupby(changes, key=lambda one: one.key.topic_id)
        ],
    )


def _change(change: IsrChange) -> alter_partition.AlterPartitionRequestPartitionData:
    return alter_partition.AlterPartitionRequestPartitionData(
        partition_index=change.key.partition,
        leader_epoch=change.leader_epoch,
        new_isr_with_epochs=[
            alter_partition.BrokerState(broker_id=broker, broker_epoch=epoch)
            for broker, epoch in change.members
        ],
        leader_recovery_state=change.recovery_state,
        partition_epoch=change.partition_epoch,
    )


def isr_changes_of(body: alter_partition.AlterPartitionRequest, version: int) -> list[IsrChange]:
    """Return the changes in a leader's request."""
    return [
        IsrChange(
            TopicIdPartition(topic.topic_id, one.partition_index),
            one.leader_epoch,
            one.partition_epoch,
            _members(version, one),
            one.leader_recovery_state,
        )
        for topic in body.topics
        for one in topic.partitions
    ]


def _members(
    version: int, requested: alter_partition.AlterPartitionRequestPartitionData
) -> tuple[tuple[int, int], ...]:
    if version < _EPOCHS_FROM:
        return tuple((broker, ANY_EPOCH) for broker in requested.new_isr)
    return tuple((one.broker_id, one.broker_epoch) for one in requested.new_isr_with_epochs)


def isr_response(answers: Iterable[IsrAnswer]) -> alter_partition.AlterPartitionResponse:
    """Return the response with each partition after its change, or with its error."""
    by_topic = groupby(answers, key=lambda answer: answer.key.topic_id)
    return alter_partition.AlterPartitionResponse(
        error_code=ErrorCode.none,
        topics=[
            alter_partition.AlterPartitionResponseTopicData(
                topic_id=topic_id, partitions=[_partition_row(one) for one in of]
            )
            for topic_id, of in by_topic
        ],
    )


def _partition_row(answer: IsrAnswer) -> alter_partition.AlterPartitionResponsePartitionData:
    now = answer.partition
    if now is None:
        return alter_partition.AlterPartitionResponsePartitionData(
            partition_index=answer.key.partition,
            error_code=answer.error,
            leader_id=_NONE,
            leader_epoch=_NONE,
            isr=(),
            partition_epoch=_NONE,
        )
    return alter_partition.AlterPartitionResponsePartitionData(
        partition_index=answer.key.partition,
        error_code=answer.error,
        leader_id=now.leader,
        leader_epoch=now.leader_epoch,
        isr=now.isr,
        leader_recovery_state=now.leader_recovery_state,
        partition_epoch=now.partition_epoch,
    )


def isr_answers(
    body: alter_partition.AlterPartitionResponse, changes: Sequence[IsrChange]
) -> list[IsrAnswer]:
    """Return one answer for each change. The message has no replicas: `Partition.replicas` is empty.

    An ISR may be smaller than the proposed one, where the change ends a reassignment.
    """
    _check(body.error_code, "AlterPartition")
    answers = _isr_answers(body)
    changes_by_key = {one.key: one for one in changes}
    keys = {one.key for one in answers}
    if len(answers) != len(keys) or keys != changes_by_key.keys():
        raise Corrupt(
            f"ISRs of {len(answers)} partitions, others than the {len(changes)} asked for"
        )
    for one in answers:
        now = one.partition
        if now is not None:
            proposed = {broker for broker, _ in changes_by_key[one.key].members}
            if not now.isr or not proposed.issuperset(now.isr):
                raise Corrupt(f"ISR {now.isr} where {sorted(proposed)} was proposed")
    return answers


def _isr_answers(body: alter_partition.AlterPartitionResponse) -> list[IsrAnswer]:
    return [
        IsrAnswer(key, ErrorCode(one.error_code))
        if one.error_code
        else IsrAnswer(
            key,
            partition=Partition(
                replicas=(),
                isr=tuple(one.isr),
                leader=one.leader_id,
                leader_epoch=one.leader_epoch,
                partition_epoch=one.partition_epoch,
                leader_recovery_state=one.leader_recovery_state,
            ),
        )
        for topic in body.topics
        for one in topic.partitions
        for key in (TopicIdPartition(topic.topic_id, one.partition_index),)
    ]


# AssignReplicasToDirs


def assignment_request(
    broker_id: int, broker_epoch: int, assigned: Mapping[TopicIdPartition, UUID]
) -> assign_replicas_to_dirs.AssignReplicasToDirsRequest:
    """Return the request of a broker that has these partitions in these directories."""
    directories: dict[UUID, dict[UUID, list[int]]] = {}
    for key, directory in assigned.items():
        directories.setdefault(directory, {}).setdefault(key.topic_id, []).append(key.partition)
    return assign_replicas_to_dirs.AssignReplicasToDirsRequest(
        broker_id=broker_id,
        broker_epoch=broker_epoch,
        directories=[
            assign_replicas_to_dirs.AssignReplicasToDirsRequestDirectoryData(
                id=directory,
                topics=[
                    assign_replicas_to_dirs.AssignReplicasToDirsRequestTopicData(
                        topic_id=topic_id,
                        partitions=[
                            assign_replicas_to_dirs.AssignReplicasToDirsRequestPartitionData(
                                partition_index=index
                            )
                            for index in indexes
                        ],
                    )
                    for topic_id, indexes in topics.items()
                ],
            )
            for directory, topics in directories.items()
        ],
    )


def assignment_of(
    body: assign_replicas_to_dirs.AssignReplicasToDirsRequest,
) -> dict[TopicIdPartition, UUID]:
    """Return the directory of each partition."""
    return {
        TopicIdPartition(topic.topic_id, partition.partition_index): directory.id
        for directory in body.directories
        for topic in directory.topics
        for partition in topic.partitions
    }


def assignment_response(
    body: assign_replicas_to_dirs.AssignReplicasToDirsRequest,
    codes: Mapping[TopicIdPartition, ErrorCode],
) -> assign_replicas_to_dirs.AssignReplicasToDirsResponse:
    """Return the response with the code of each partition that the request names, in its order."""
    return assign_replicas_to_dirs.AssignReplicasToDirsResponse(
        error_code=ErrorCode.none,
        directories=[
            assign_replicas_to_dirs.AssignReplicasToDirsResponseDirectoryData(
                id=directory.id,
                topics=[
                    assign_replicas_to_dirs.AssignReplicasToDirsResponseTopicData(
                        topic_id=topic.topic_id,
                        partitions=[
                            assign_replicas_to_dirs.AssignReplicasToDirsResponsePartitionData(
                                partition_index=one.partition_index,
                                error_code=codes[
                                    TopicIdPartition(topic.topic_id, one.partition_index)
                                ],
                            )
                            for one in topic.partitions
                        ],
                    )
                    for topic in directory.topics
                ],
            )
            for directory in body.directories
        ],
    )


def assignment_codes(
    body: assign_replicas_to_dirs.AssignReplicasToDirsResponse,
    assigned: Collection[TopicIdPartition],
) -> dict[TopicIdPartition, ErrorCode]:
    """Return one code for each of the `assigned` partitions."""
    _check(body.error_code, "AssignReplicasToDirs")
    codes = {
        TopicIdPartition(topic.topic_id, one.partition_index): ErrorCode(one.error_code)
        for directory in body.directories
        for topic in directory.topics
        for one in topic.partitions
    }
    if codes.keys() != set(assigned):
        raise Corrupt(
            f"codes of {len(codes)} partitions, others than the {len(assigned)} asked for"
        )
    return codes


# AllocateProducerIds


def producer_ids_request(
    broker_id: int, broker_epoch: int
) -> allocate_producer_ids.AllocateProducerIdsRequest:
    """Return the request for a block of producer ids."""
    return allocate_producer_ids.AllocateProducerIdsRequest(
        broker_id=broker_id, broker_epoch=broker_epoch
    )


def producer_ids_response(block: range) -> allocate_producer_ids.AllocateProducerIdsResponse:
    """Return the response with a block."""
    return allocate_producer_ids.AllocateProducerIdsResponse(
        error_code=ErrorCode.none, producer_id_start=block.start, producer_id_len=len(block)
    )


def producer_ids(body: allocate_producer_ids.AllocateProducerIdsResponse) -> range:
    """Return the block."""
    _check(body.error_code, "AllocateProducerIds")
    start, size = body.producer_id_start, body.producer_id_len
    if start < 0 or size < 1:
        raise Corrupt(f"{size} producer ids from {start}")
    return range(start, start + size)


# CreateTopics


def creation_request(
    topics: Sequence[NewTopic], *, validate_only: bool
) -> create_topics.CreateTopicsRequest:
    """Return the request of a broker that creates topics itself."""
    return create_topics.CreateTopicsRequest(
        topics=[
            create_topics.CreatableTopic(
                name=one.name,
                num_partitions=one.partitions,
                replication_factor=one.replication_factor,
                assignments=[
                    create_topics.CreatableReplicaAssignment(
                        partition_index=index, broker_ids=brokers
                    )
                    for index, brokers in one.assignments.items()
                ],
                configs=[
                    create_topics.CreatableTopicConfig(name=name, value=value)
                    for name, value in one.configs.items()
                ],
            )
            for one in topics
        ],
        validate_only=validate_only,
    )


def topics_created(
    body: create_topics.CreateTopicsResponse, names: Collection[str]
) -> list[Created]:
    """Return one result for each of the topics with these names."""
    for one in body.topics:
        if one.error_code == ErrorCode.not_controller:
            _check(one.error_code, "CreateTopics")
    if {one.name for one in body.topics} != set(names):
        raise Corrupt(
            f"results of {len(body.topics)} topics, others than the {len(names)} asked for"
        )
    return [
        Created(
            one.name,
            one.topic_id,
            ErrorCode(one.error_code),
            one.error_message,
            one.num_partitions,
            one.replication_factor,
        )
        for one in body.topics
    ]
