"""Goal: groups are written in Kafka's bytes, and loaded unchanged."""

from uuid import UUID

from msgspec.structs import replace
from tests.golden.group_script import CountingEntropy

from stratalog.coordinators.group import Group, Member
from stratalog.coordinators.groups import GroupShard
from stratalog.coordinators.messages import FetchTopic, OffsetFetch
from stratalog.coordinators.records import (
    KeptOffset,
    group_of,
    group_record,
    offset_record,
    offset_tombstone,
)
from stratalog.coordinators.states import GroupState
from stratalog.coordinators.turn import GroupSettings
from stratalog.statemachine import Now
from stratalog.wire.batch import HEADER_SIZE
from stratalog.wire.internal.offsets import (
    GroupMetadataKey,
    GroupMetadataValue,
    MemberMetadata,
    decode_value,
    encode_key,
    encode_value,
)
from stratalog.wire.records import Record, build_batch

TOPIC_ID = UUID(int=7)


def member(name, instance_id=None):
    protocols = {"range": name.encode(), "sticky": b"s"}
    return Member(name, instance_id, "client", "/1.2.3.4", 300_000, 45_000, protocols)


def loaded(*records):
    shard = GroupShard(GroupSettings(), CountingEntropy())
    for offset, (key, value) in enumerate(records):
        shard.replay(offset, key, value)
    list(shard.load_complete(Now(0, 0)))
    return shard


def test_a_group_comes_back_as_it_was_written():
    group = Group("g", state_timestamp_ms=5, generation_id=3, protocol_name="range")
    group.add(member("one"), "consumer")
    group.add(member("two", "instance"), "consumer")
    group.leader_id = "two"
    key, value = group_record(group, {"one": b"p0"})
    back = group_of("g", decode_value(GroupMetadataKey(group="g"), value))
    assert (back.state, back.generation_id, back.leader_id) == (GroupState.STABLE, 3, "two")
    assert back.members["one"] == replace(
        member("one"), protocols={"range": b"one"}, assignment=b"p0"
    )
    assert back.instances == {"instance": "two"}
    assert back.supports("consumer", ["range"])
    assert not back.supports("consumer", ["sticky"])
    assert key == bytes.fromhex("0002") + bytes.fromhex("0001") + b"g"
    assert value[:2] == bytes.fromhex("0003")


def test_an_empty_group_keeps_its_generation_and_type():
    group = Group("g", generation_id=9, protocol_type="consumer")
    _, value = group_record(group, {})
    back = group_of("g", decode_value(GroupMetadataKey(group="g"), value))
    assert (back.state, back.generation_id, back.members) == (GroupState.EMPTY, 9, {})
    assert back.protocol_type == "consumer"


def test_a_record_of_an_old_broker_has_no_rebalance_timeout():
    value = GroupMetadataValue(
        protocol_type="consumer",
        generation=1,
        protocol="range",
        leader="gone",
        members=(
            MemberMetadata(
                member_id="m",
                client_id="c",
                client_host="h",
                session_timeout=9_000,
                subscription=b"",
                assignment=b"",
            ),
        ),
    )
    data = encode_value(value, 0)
    back = group_of("g", decode_value(GroupMetadataKey(group="g"), data))
    assert back.members["m"].rebalance_timeout_ms == 9_000
    assert back.leader_id == "m"


def test_only_the_last_record_of_a_key_counts():
    first = offset_record("g", "t", 0, KeptOffset(1, 2, "note", 10, topic_id=TOPIC_ID))
    second = offset_record("g", "t", 1, KeptOffset(5))
    later = offset_record("g", "t", 0, KeptOffset(4, 3, "", 11, topic_id=TOPIC_ID))
    shard = loaded(first, second, later, offset_tombstone("g", "t", 1))
    [topic] = shard.fetch_offsets(OffsetFetch("g")).topics
    [one] = topic.partitions
    assert (one.index, one.offset, one.leader_epoch, topic.topic_id) == (0, 4, 3, TOPIC_ID)


def restored(*records):
    batch = build_batch([Record(0, 0, key, value) for key, value in records])
    return bytes(batch[HEADER_SIZE:]), len(records)


def test_a_batch_is_replayed_at_once_with_the_same_result():
    records = (
        offset_record("g", "t", 0, KeptOffset(1)),
        offset_record("g", "t", 1, KeptOffset(2)),
        offset_record("g", "t", 0, KeptOffset(3, 4, "note", 10)),
        offset_tombstone("g", "t", 1),
    )
    shard = GroupShard(GroupSettings(), CountingEntropy())
    assert shard.replay_batch(*restored(*records[:2]))
    assert shard.replay_batch(*restored(*records[2:]))
    list(shard.load_complete(Now(0, 0)))
    assert shard.fetch_offsets(OffsetFetch("g")) == loaded(*records).fetch_offsets(OffsetFetch("g"))


def test_plain_batches_are_replayed_at_once_with_the_same_result():
    records = (
        offset_record("g", "t", 0, KeptOffset(1)),
        offset_record("g", "t", 1, KeptOffset(2)),
        offset_record("g", "t", 0, KeptOffset(3, 4, "note", 10)),
        offset_tombstone("g", "t", 1),
    )
    log = bytes(b"".join(build_batch([Record(0, 0, *one)]) for one in records))
    shard = GroupShard(GroupSettings(), CountingEntropy())
    assert shard.replay_plain(log, 0, len(log)) == len(log)
    list(shard.load_complete(Now(0, 0)))
    assert shard.fetch_offsets(OffsetFetch("g")) == loaded(*records).fetch_offsets(OffsetFetch("g"))
    assert shard.replay_plain(log, 0, len(log)) == 0, "it is loaded: each record counts"


def test_plain_batches_wait_for_the_end_of_an_open_transaction():
    log = bytes(build_batch([Record(0, 0, *offset_record("g", "t", 0, KeptOffset(2)))]))
    shard = GroupShard(GroupSettings(), CountingEntropy())
    shard.replay(0, *offset_record("g", "t", 0, KeptOffset(1)), 7)
    assert shard.replay_plain(log, 0, len(log)) == 0
    shard.end_transaction(7, commit=True)
    assert shard.replay_plain(log, 0, len(log)) == len(log)


def test_beside_an_open_transaction_and_after_the_load_records_are_replayed_one_by_one():
    batch = restored(offset_record("g", "t", 0, KeptOffset(2)))
    shard = GroupShard(GroupSettings(), CountingEntropy())
    shard.replay(0, *offset_record("g", "t", 0, KeptOffset(1)), 7)
    assert not shard.replay_batch(*batch)
    shard.end_transaction(7, commit=True)
    assert shard.replay_batch(*batch)
    list(shard.load_complete(Now(0, 0)))
    [topic] = shard.fetch_offsets(OffsetFetch("g")).topics
    assert [one.offset for one in topic.partitions] == [2]
    assert not shard.replay_batch(*batch)


def test_a_group_ends_when_its_last_offset_is_removed():
    shard = loaded(offset_record("g", "t", 0, KeptOffset(1)))
    assert [one.group_id for one in shard.list_groups()] == ["g"]
    shard.replay(1, *offset_tombstone("g", "t", 0))
    assert shard.list_groups() == []


def test_a_group_whose_last_record_is_a_tombstone_does_not_exist():
    group = Group("g", generation_id=1, protocol_type="consumer")
    key, value = group_record(group, {})
    assert loaded((key, value), (key, None)).list_groups() == []
    shard = loaded((key, value))
    shard.replay(1, key, None)
    assert shard.list_groups() == []


def test_offsets_of_an_earlier_topic_of_that_name_do_not_count():
    shard = loaded(offset_record("g", "t", 0, KeptOffset(1, topic_id=TOPIC_ID)))
    for topic_id, offset in ((TOPIC_ID, 1), (UUID(int=0), 1), (UUID(int=8), -1)):
        asked = OffsetFetch("g", (FetchTopic("t", (0,), topic_id),))
        [topic] = shard.fetch_offsets(asked).topics
        assert topic.partitions[0].offset == offset
    assert shard.forget_offsets("g", lambda _, known: known == UUID(int=8), Now(0, 0)).records == ()
    assert (
        len(shard.forget_offsets("g", lambda _, known: known == TOPIC_ID, Now(0, 0)).records) == 1
    )


def test_records_of_unknown_kinds_are_ignored():
    key = encode_key(GroupMetadataKey(group="g"))
    assert loaded((b"\x00\x05" + key[2:], b"\x00\x00rest")).list_groups() == []
