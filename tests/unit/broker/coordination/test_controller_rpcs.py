"""Goal: a broker's requests to the controller survive Kafka's messages. Method: over the wire, in every version."""

from functools import partial
from typing import Any
from uuid import UUID

import msgspec
import pytest
from msgspec.structs import replace

from stratalog.broker.coordination import controller_rpcs as rpcs
from stratalog.broker.coordination.controller_registration_rpc import (
    check_registered,
    controller_of,
    controller_request,
)
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
from stratalog.wire.apis import APIS
from stratalog.wire.budget import DecodeBudget
from stratalog.wire.envelope import (
    decode_request,
    decode_response,
    encode_request,
    encode_response,
)
from stratalog.wire.ids import TopicIdPartition
from stratalog.wire.internal.metadata_records import (
    ControllerEndpoint,
    ControllerFeature,
    RegisterControllerRecord,
)
from stratalog.wire.messages import Request
from stratalog.wire.messages.allocate_producer_ids import AllocateProducerIdsResponse
from stratalog.wire.messages.alter_partition import AlterPartitionResponse
from stratalog.wire.messages.assign_replicas_to_dirs import AssignReplicasToDirsResponse
from stratalog.wire.messages.broker_heartbeat import BrokerHeartbeatResponse
from stratalog.wire.messages.broker_registration import BrokerRegistrationResponse
from stratalog.wire.messages.controller_registration import ControllerRegistrationResponse
from stratalog.wire.messages.create_topics import CreatableTopicResult, CreateTopicsResponse

TOPIC, OTHER = UUID(int=1000), UUID(int=1001)
HERE, THERE = UUID(int=2000), UUID(int=2001)
KEYS = [TopicIdPartition(TOPIC, 0), TopicIdPartition(TOPIC, 3), TopicIdPartition(OTHER, 1)]

REGISTRATION = BrokerRegistration(
    id=7,
    incarnation_id=UUID(int=5),
    endpoints=(Endpoint("PLAINTEXT", "host", 9092), Endpoint("INNER", "h", 1, 3)),
    rack="r1",
    directories=(HERE, THERE),
    features=(FeatureRange("metadata.version", 7, 30),),
    previous_epoch=41,
)
HEARTBEAT = BrokerHeartbeat(7, 41, 900, True, True, (HERE,), (THERE,))
CHANGES = [IsrChange(key, 4, 9, ((7, 41), (8, 42)), 1) for key in KEYS]


def sent(request: Request[Any], version: int) -> Any:
    """Return the request as the controller reads it."""
    frame = b"".join(bytes(piece) for piece in encode_request(version, 1, "c", request))[4:]
    served = {request.KEY: (APIS[request.KEY].oldest, APIS[request.KEY].newest)}
    return decode_request(memoryview(frame), served, DecodeBudget(1 << 20)).body


def answered(api_key: int, response: Any) -> Any:
    version = APIS[api_key].newest
    pieces = encode_response(api_key, version, 1, response)
    assert pieces is not None
    frame = b"".join(bytes(piece) for piece in pieces)[4:]
    return decode_response(api_key, version, memoryview(frame))[1]


def test_a_registration_arrives_as_it_was_sent() -> None:
    request = rpcs.registration_request(REGISTRATION, "cluster")
    body = sent(request, 4)
    assert body.cluster_id == "cluster"
    assert rpcs.registration_of(body) == REGISTRATION
    assert rpcs.registration_of(sent(request, 2)) == replace(REGISTRATION, previous_epoch=-1)
    response = BrokerRegistrationResponse(error_code=0, broker_epoch=77)
    assert rpcs.registered_epoch(answered(62, response)) == 77


def test_a_controller_registers_as_it_was_sent() -> None:
    record = RegisterControllerRecord(
        controller_id=7,
        incarnation_id=UUID(int=5),
        zk_migration_ready=False,
        end_points=(ControllerEndpoint(name="C", host="h", port=9, security_protocol=0),),
        features=(ControllerFeature(name="f", min_supported_version=1, max_supported_version=2),),
    )
    assert controller_of(sent(controller_request(record), 0)) == record
    refused = ControllerRegistrationResponse(error_code=41, error_message="elsewhere")
    with pytest.raises(Rejected) as raised:
        check_registered(answered(70, refused))
    assert raised.value.code is ErrorCode.not_controller


def test_a_heartbeat_arrives_as_it_was_sent() -> None:
    request = rpcs.heartbeat_request(HEARTBEAT)
    assert rpcs.heartbeat_of(sent(request, 2)) == HEARTBEAT
    uncordoned = replace(HEARTBEAT, cordoned=None)
    assert rpcs.heartbeat_of(sent(rpcs.heartbeat_request(uncordoned), 1)) == uncordoned
    for answer in (HeartbeatAnswer(True, False, True), HeartbeatAnswer(False, True, False)):
        assert rpcs.heartbeat_answer(answered(63, rpcs.heartbeat_response(answer))) == answer


def test_changes_of_isrs_arrive_as_they_were_sent() -> None:
    body = sent(rpcs.isr_request(7, 41, CHANGES), 3)
    assert (body.broker_id, body.broker_epoch) == (7, 41)
    assert rpcs.isr_changes_of(body, 3) == CHANGES
    row = body.topics[0].partitions[0]
    without = msgspec.structs.replace(row, new_isr=[7, 8], new_isr_with_epochs=[])
    topic = msgspec.structs.replace(body.topics[0], partitions=[without])
    old = sent(msgspec.structs.replace(body, topics=[topic]), 2)
    assert rpcs.isr_changes_of(old, 2) == [
        replace(CHANGES[0], members=((7, ANY_EPOCH), (8, ANY_EPOCH)))
    ]
    answers = [
        IsrAnswer(KEYS[0], partition=Partition((), (7, 8), 7, 4, 10)),
        IsrAnswer(KEYS[1], ErrorCode.fenced_leader_epoch),
        IsrAnswer(KEYS[2], partition=Partition((), (7,), 7, 4, 11, leader_recovery_state=1)),
    ]
    assert rpcs.isr_answers(answered(56, rpcs.isr_response(answers)), CHANGES) == answers


def test_directories_of_replicas_arrive_as_they_were_sent() -> None:
    assigned = {KEYS[0]: HERE, KEYS[2]: THERE, KEYS[1]: HERE}
    body = sent(rpcs.assignment_request(7, 41, assigned), 0)
    assert (body.broker_id, body.broker_epoch) == (7, 41)
    assert rpcs.assignment_of(body) == assigned
    codes = {
        KEYS[0]: ErrorCode.none,
        KEYS[1]: ErrorCode.not_leader_or_follower,
        KEYS[2]: ErrorCode.unknown_topic_id,
    }
    found = answered(73, rpcs.assignment_response(body, codes))
    assert rpcs.assignment_codes(found, assigned) == codes


def test_producer_ids_arrive_as_they_were_sent() -> None:
    body = sent(rpcs.producer_ids_request(7, 41), 0)
    assert (body.broker_id, body.broker_epoch) == (7, 41)
    block = range(3000, 4000)
    assert rpcs.producer_ids(answered(67, rpcs.producer_ids_response(block))) == block


def test_topics_to_create_arrive_as_they_were_sent() -> None:
    topics = [NewTopic("a", -1, -1, {0: (1, 2), 1: (2, 1)}, {"x": "y"}), NewTopic("b", 5, 3)]
    body = sent(rpcs.creation_request(topics, validate_only=True), 7)
    assert body.validate_only
    assert [(one.name, one.num_partitions, one.replication_factor) for one in body.topics] == [
        ("a", -1, -1),
        ("b", 5, 3),
    ]
    assert {one.partition_index: tuple(one.broker_ids) for one in body.topics[0].assignments} == {
        0: (1, 2),
        1: (2, 1),
    }
    assert [(one.name, one.value) for one in body.topics[0].configs] == [("x", "y")]
    rows = [
        result("a", topic_id=TOPIC, num_partitions=2, replication_factor=2),
        result("b", error_code=ErrorCode.invalid_replication_factor, error_message="why"),
    ]
    assert rpcs.topics_created(answered(19, CreateTopicsResponse(topics=rows)), ["a", "b"]) == [
        Created("a", TOPIC, partitions=2, replication_factor=2),
        Created("b", error=ErrorCode.invalid_replication_factor, message="why"),
    ]


def result(name: str, **fields: Any) -> CreatableTopicResult:
    return CreatableTopicResult(**({"name": name, "error_code": 0, "error_message": None} | fields))


@pytest.mark.parametrize(
    ("read", "response"),
    [
        (rpcs.registered_epoch, BrokerRegistrationResponse(error_code=41)),
        (rpcs.heartbeat_answer, BrokerHeartbeatResponse(error_code=41, should_shut_down=False)),
        (partial(rpcs.isr_answers, changes=()), AlterPartitionResponse(error_code=41, topics=())),
        (
            partial(rpcs.assignment_codes, assigned=()),
            AssignReplicasToDirsResponse(error_code=41, directories=()),
        ),
        (
            rpcs.producer_ids,
            AllocateProducerIdsResponse(error_code=41, producer_id_start=0, producer_id_len=0),
        ),
        (
            partial(rpcs.topics_created, names=("a", "b")),
            CreateTopicsResponse(topics=[result("a"), result("b", error_code=41)]),
        ),
    ],
    ids=lambda value: getattr(value, "__name__", "answer"),
)
def test_an_error_of_the_whole_response_is_raised(read: Any, response: Any) -> None:
    with pytest.raises(Rejected) as refused:
        read(response)
    assert refused.value.code is ErrorCode.not_controller


ISR = Partition((), (7, 8), 7, 4, 10)
REFUSED = [IsrAnswer(key, ErrorCode.fenced_leader_epoch) for key in KEYS]
NO_CODES = dict.fromkeys(KEYS, ErrorCode.none)


def isrs(*answers: IsrAnswer) -> AlterPartitionResponse:
    return rpcs.isr_response(answers)


def assigned_codes(codes: dict[Any, ErrorCode]) -> AssignReplicasToDirsResponse:
    return rpcs.assignment_response(
        rpcs.assignment_request(7, 41, dict.fromkeys(codes, HERE)), codes
    )


@pytest.mark.parametrize(
    ("read", "response"),
    [
        (rpcs.registered_epoch, BrokerRegistrationResponse(error_code=0, broker_epoch=-1)),
        (
            rpcs.producer_ids,
            AllocateProducerIdsResponse(error_code=0, producer_id_start=-1, producer_id_len=10),
        ),
        (
            rpcs.producer_ids,
            AllocateProducerIdsResponse(error_code=0, producer_id_start=5, producer_id_len=0),
        ),
        (
            rpcs.producer_ids,
            AllocateProducerIdsResponse(error_code=0, producer_id_start=5, producer_id_len=-7),
        ),
        (partial(rpcs.isr_answers, changes=CHANGES), isrs(*REFUSED[:2])),
        (partial(rpcs.isr_answers, changes=CHANGES[:2]), isrs(*REFUSED)),
        (partial(rpcs.isr_answers, changes=CHANGES[:1]), isrs(REFUSED[0], REFUSED[0])),
        (
            partial(rpcs.isr_answers, changes=CHANGES[:1]),
            isrs(IsrAnswer(KEYS[0], partition=replace(ISR, isr=()))),
        ),
        (
            partial(rpcs.isr_answers, changes=CHANGES[:1]),
            isrs(IsrAnswer(KEYS[0], partition=replace(ISR, isr=(7, 9)))),
        ),
        (partial(rpcs.assignment_codes, assigned=KEYS[:2]), assigned_codes(NO_CODES)),
        (
            partial(rpcs.assignment_codes, assigned=[*KEYS, KEYS[0]._replace(partition=99)]),
            assigned_codes(NO_CODES),
        ),
        (
            partial(rpcs.topics_created, names=("a", "b")),
            CreateTopicsResponse(topics=[result("a"), result("c")]),
        ),
        (partial(rpcs.topics_created, names=("a",)), CreateTopicsResponse(topics=[])),
    ],
    ids=lambda value: getattr(value, "__name__", "answer"),
)
def test_an_answer_that_no_sound_controller_sends_is_damaged(read: Any, response: Any) -> None:
    with pytest.raises(Corrupt):
        read(response)


def test_a_code_that_is_newer_than_ours_refuses_as_an_unknown_error() -> None:
    with pytest.raises(Rejected) as refused:
        rpcs.registered_epoch(BrokerRegistrationResponse(error_code=9999, broker_epoch=1))
    assert refused.value.code is ErrorCode.unknown_server_error
