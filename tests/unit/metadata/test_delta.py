"""Each record changes the image, and the delta lists the change."""

from uuid import UUID

import pytest
from msgspec.structs import replace

from stratalog.errors import Corrupt
from stratalog.metadata.delta import Delta, apply
from stratalog.metadata.image import EMPTY, Endpoint, ResourceType
from stratalog.wire.internal.marker_records import (
    AbortTransactionRecord,
    BeginTransactionRecord,
    EndTransactionRecord,
    NoOpRecord,
)
from stratalog.wire.internal.metadata_records import (
    BrokerEndpoint,
    BrokerRegistrationChangeRecord,
    ClearElrRecord,
    ConfigRecord,
    FeatureLevelRecord,
    FenceBrokerRecord,
    PartitionChangeRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RegisterBrokerRecord,
    RemoveTopicRecord,
    TopicRecord,
    UnfenceBrokerRecord,
    UnregisterBrokerRecord,
)
from stratalog.wire.internal.security_records import (
    AccessControlEntryRecord,
    ClientQuotaRecord,
    DelegationTokenRecord,
    EntityData,
    RemoveAccessControlEntryRecord,
    RemoveDelegationTokenRecord,
    RemoveUserScramCredentialRecord,
    UserScramCredentialRecord,
)

A, B = UUID(int=0xA), UUID(int=0xB)
TOPIC_A = TopicRecord(name="a", topic_id=A)


def partition(topic_id=A, index=0, **changes):
    fields = {
        "partition_id": index,
        "topic_id": topic_id,
        "replicas": (1, 2),
        "isr": (1, 2),
        "removing_replicas": (),
        "adding_replicas": (),
        "leader": 1,
        "leader_epoch": 0,
        "partition_epoch": 0,
        "directories": (UUID(int=11), UUID(int=12)),
    }
    return PartitionRecord(**fields | changes)


def config(name, value, topic="a"):
    return ConfigRecord(resource_type=2, resource_name=topic, name=name, value=value)


def broker(epoch=5):
    return RegisterBrokerRecord(
        broker_id=1,
        incarnation_id=B,
        broker_epoch=epoch,
        end_points=(BrokerEndpoint(name="PLAINTEXT", host="h", port=1, security_protocol=0),),
        features=(),
        rack="r",
        log_dirs=(UUID(int=11),),
    )


def replayed(*records, base=EMPTY):
    delta = Delta(base)
    delta.replay_all(base.offset + 1, records)
    return delta


def changed(**fields):
    return PartitionChangeRecord(partition_id=0, topic_id=A, **fields)


def test_a_new_topic_its_partitions_and_configuration_are_in_the_image():
    delta = replayed(TOPIC_A, config("retention.ms", "5"), partition(), partition(index=1))
    image = delta.image()
    assert image.offset == 3
    assert image.topic("a").id == A
    assert sorted(image.topics_by_id[A].partitions) == [0, 1]
    assert image.topic_configs("a") == {"retention.ms": "5"}
    assert delta.created_topics == {A}
    assert delta.changed_partitions == {A: {0, 1}}
    assert delta.changed_configs == {(ResourceType.TOPIC, "a")}


def test_a_record_with_a_leader_starts_an_epoch_even_for_the_same_leader():
    image = replayed(TOPIC_A, partition()).image()
    again = replayed(changed(leader=1), base=image).image().partition(A, 0)
    assert (again.leader, again.leader_epoch, again.partition_epoch) == (1, 1, 1)
    lost = replayed(changed(leader=-1, isr=()), base=image).image().partition(A, 0)
    assert (lost.leader, lost.leader_epoch, lost.isr) == (-1, 1, ())


def test_a_change_that_names_no_leader_keeps_the_epoch():
    image = replayed(TOPIC_A, partition(), changed(isr=(1,))).image()
    after = image.partition(A, 0)
    assert (after.isr, after.leader_epoch, after.partition_epoch) == ((1,), 0, 1)
    assert after.replicas == (1, 2)


def test_every_field_of_a_partition_can_change():
    fields = {
        "replicas": (3,),
        "removing_replicas": (1,),
        "adding_replicas": (3,),
        "leader_recovery_state": 1,
        "directories": (UUID(int=13),),
        "eligible_leader_replicas": (3,),
        "last_known_elr": (2,),
    }
    image = replayed(TOPIC_A, partition(), changed(**fields)).image()
    after = image.partition(A, 0)
    assert {name: getattr(after, name) for name in fields} == fields
    cleared = replayed(ClearElrRecord(topic_name=""), base=image).image().partition(A, 0)
    assert cleared == replace(after, eligible_leader_replicas=(), last_known_elr=())


def test_a_removed_topic_takes_its_configuration_with_it():
    image = replayed(TOPIC_A, partition(), config("retention.ms", "5")).image()
    delta = replayed(RemoveTopicRecord(topic_id=A), base=image)
    assert delta.image() == replace(EMPTY, offset=3)
    assert delta.deleted_topics == {A: image.topics_by_id[A]}
    assert delta.changed_configs == {(ResourceType.TOPIC, "a")}


def test_a_topic_created_and_removed_in_one_batch_is_not_in_the_delta():
    delta = replayed(TOPIC_A, partition(), RemoveTopicRecord(topic_id=A))
    assert (delta.created_topics, delta.deleted_topics, delta.changed_partitions) == (set(), {}, {})
    assert delta.image() == replace(EMPTY, offset=2)


def test_a_name_created_again_is_another_topic():
    image = replayed(TOPIC_A, partition(), config("retention.ms", "5")).image()
    again = TopicRecord(name="a", topic_id=B)
    delta = replayed(RemoveTopicRecord(topic_id=A), again, partition(B), base=image)
    assert delta.image().topic("a").id == B
    assert delta.image().topic_configs("a") == {}
    assert (set(delta.deleted_topics), delta.created_topics) == ({A}, {B})


def test_a_null_value_unsets_a_setting():
    image = replayed(TOPIC_A, config("x", "1"), config("y", "2"), config("x", None)).image()
    assert image.topic_configs("a") == {"y": "2"}
    assert replayed(config("y", None), base=image).image().configs == {}


def test_a_broker_registers_is_fenced_and_unregisters():
    image = replayed(broker()).image()
    one = image.brokers[1]
    assert (one.epoch, one.rack, one.fenced) == (5, "r", True)
    assert one.endpoints == (Endpoint("PLAINTEXT", "h", 1),)

    def after(**fields):
        change = BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=5, **fields)
        return apply(image, 1, change).brokers[1]

    assert after(fenced=-1) == replace(one, fenced=False)
    assert after(fenced=-1).is_active
    assert after(in_controlled_shutdown=1) == replace(one, in_controlled_shutdown=True)
    assert after(log_dirs=(A,)) == replace(one, directories=(A,))
    assert after(cordoned_log_dirs=()) == replace(one, cordoned_directories=())
    assert apply(image, 1, UnfenceBrokerRecord(id=1, epoch=5)).brokers[1] == replace(
        one, fenced=False
    )
    assert apply(image, 1, FenceBrokerRecord(id=1, epoch=5)).brokers[1] == one
    assert apply(image, 1, UnregisterBrokerRecord(broker_id=1, broker_epoch=5)).brokers == {}


def test_features_and_producer_ids_are_in_the_image():
    image = replayed(
        FeatureLevelRecord(name="metadata.version", feature_level=30),
        FeatureLevelRecord(name="group.version", feature_level=1),
        FeatureLevelRecord(name="group.version", feature_level=0),
        ProducerIdsRecord(broker_id=1, broker_epoch=5, next_producer_id=2000),
        NoOpRecord(),
    ).image()
    assert image.features == {"metadata.version": 30}
    assert (image.next_producer_id, image.offset) == (2000, 4)


@pytest.mark.parametrize(
    "record",
    [
        RemoveTopicRecord(topic_id=B),
        partition(B),
        PartitionChangeRecord(partition_id=9, topic_id=A),
        TOPIC_A,
        TopicRecord(name="b", topic_id=A),
        BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=4, fenced=-1),
        UnfenceBrokerRecord(id=2, epoch=5),
        ClearElrRecord(topic_name="b"),
        AbortTransactionRecord(),
        EndTransactionRecord(),
        RemoveAccessControlEntryRecord(id=A),
    ],
    ids=lambda record: type(record).__name__,
)
def test_a_record_that_does_not_fit_is_corrupt(record):
    with pytest.raises(Corrupt):
        replayed(TOPIC_A, partition(), broker(), record)


def test_an_image_never_changes():
    delta = replayed(TOPIC_A, partition(), broker())
    before = delta.image()
    held = before.topics_by_id[A]
    delta.replay_all(3, [changed(leader=2), partition(index=1), config("x", "1")])
    later = delta.image()
    assert before.topics_by_id[A] is held
    assert (set(held.partitions), before.configs) == ({0}, {})
    assert (later.partition(A, 0).leader, set(later.topics_by_id[A].partitions)) == (2, {0, 1})
    assert later.brokers is before.brokers, "an untouched map is shared"


BEGIN, END, ABORT = BeginTransactionRecord(), EndTransactionRecord(), AbortTransactionRecord()


def test_records_of_a_transaction_count_once_it_ends():
    delta = replayed(BEGIN, TOPIC_A, partition())
    before = delta.image()
    assert (dict(before.topics_by_id), before.offset, delta.created_topics) == ({}, 2, set())
    delta.replay_all(3, [config("retention.ms", "5"), END])
    image = delta.image()
    assert (set(image.topics_by_id[A].partitions), image.offset) == ({0}, 4)
    assert image.topic_configs("a") == {"retention.ms": "5"}
    assert delta.created_topics == {A}


def test_a_transaction_goes_on_in_the_next_image():
    later = replayed(TOPIC_A, END, base=replayed(BEGIN).image())
    assert set(later.image().topics_by_id) == {A}
    assert later.image().open_transaction is None


def test_an_aborted_transaction_changes_nothing():
    before = replayed(TOPIC_A, partition()).image()
    delta = replayed(BEGIN, RemoveTopicRecord(topic_id=A), ABORT, NoOpRecord(), base=before)
    assert delta.image() == replace(before, offset=before.offset + 4)
    assert (delta.deleted_topics, delta.removed_topics) == ({}, set())


def test_a_transaction_in_a_transaction_is_corrupt():
    with pytest.raises(Corrupt, match="in a transaction"):
        replayed(BEGIN, BEGIN)


RIGHT = AccessControlEntryRecord(
    id=A,
    resource_type=2,
    resource_name="t",
    pattern_type=3,
    principal="User:u",
    host="*",
    operation=3,
    permission_type=3,
)
USER = UserScramCredentialRecord(
    name="u", mechanism=1, salt=b"s", stored_key=b"k", server_key=b"v", iterations=4096
)
TOKEN = DelegationTokenRecord(
    owner="User:u",
    requester="User:u",
    renewers=(),
    issue_timestamp=1,
    max_timestamp=3,
    expiration_timestamp=2,
    token_id="t",
)


def quota(name, value, *, remove=False):
    entity = (EntityData(entity_type="user", entity_name=name),)
    return ClientQuotaRecord(entity=entity, key="producer_byte_rate", value=value, remove=remove)


@pytest.mark.parametrize(
    ("kept", "removed"),
    [
        (RIGHT, RemoveAccessControlEntryRecord(id=A)),
        (USER, RemoveUserScramCredentialRecord(name="u", mechanism=1)),
        (TOKEN, RemoveDelegationTokenRecord(token_id="t")),
        (quota(None, 5.0), quota(None, 0.0, remove=True)),
    ],
    ids=lambda record: type(record).__name__,
)
def test_users_rights_and_quotas_of_kafka_stay_until_they_are_removed(kept, removed):
    delta = replayed(kept)
    assert list(delta.image().foreign.values()) == [kept]
    delta.replay(1, removed)
    assert delta.image().foreign == {}


def test_the_quota_of_every_user_is_not_that_of_a_user_without_a_name():
    assert len(replayed(quota(None, 1.0), quota("", 2.0), quota("", 3.0)).image().foreign) == 2


@pytest.mark.parametrize("name", ["", "..", "../outside/x", "a/b", "x" * 250, "__cluster_metadata"])
def test_a_topic_whose_name_could_leave_its_directory_is_corrupt(name):
    with pytest.raises(Corrupt, match="topic name"):
        replayed(TopicRecord(name=name, topic_id=A))
