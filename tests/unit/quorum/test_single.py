"""A quorum of one: what it saves, and what opens its epochs."""

from uuid import UUID

import pytest

from stratalog.errors import Corrupt
from stratalog.metadata.image import Endpoint
from stratalog.quorum.metadata_batches import decode_record, encode_batch, encode_control_batch
from stratalog.quorum.single import (
    QuorumState,
    Voter,
    become_leader,
    decode_quorum_state,
    encode_quorum_state,
    snapshot_control,
    voters_record,
)
from stratalog.wire.batch import parse_header
from stratalog.wire.internal.control_records import (
    KRaftVersionRecord,
    LeaderChangeMessage,
    VotersRecord,
)
from stratalog.wire.internal.metadata_records import FeatureLevelRecord
from stratalog.wire.records import Record, read_records

VOTER = Voter(1, UUID(int=77), (Endpoint("CONTROLLER", "127.0.0.1", 9093),))
KAFKAS_FILE = (
    b'{"leaderId":1,"leaderEpoch":2,"votedId":-1,'
    b'"votedDirectoryId":"AAAAAAAAAAAAAAAAAAAAAA","data_version":1}'
)


def test_the_file_is_kafkas_byte_for_byte():
    state = QuorumState(leader_epoch=2, leader_id=1)
    assert encode_quorum_state(state) == KAFKAS_FILE
    assert decode_quorum_state(KAFKAS_FILE) == state


def test_a_vote_is_remembered():
    state = QuorumState(leader_epoch=9, voted_id=3, voted_directory_id=UUID(int=5))
    assert decode_quorum_state(encode_quorum_state(state)) == state


def test_the_older_version_is_read():
    older = (
        b'{"clusterId":"x","leaderId":1,"leaderEpoch":4,"votedId":-1,"appliedOffset":0,'
        b'"currentVoters":[{"voterId":1}],"data_version":0}'
    )
    assert decode_quorum_state(older) == QuorumState(leader_epoch=4, leader_id=1)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        KAFKAS_FILE[:-1],
        b"[]",
        b"null",
        b"\xff",
        KAFKAS_FILE.replace(b'"data_version":1', b'"data_version":2'),
        KAFKAS_FILE.replace(b'"leaderEpoch":2', b'"leaderEpoch":"2"'),
        KAFKAS_FILE.replace(b'"leaderEpoch":2', b'"leaderEpoch":true'),
        KAFKAS_FILE.replace(b"AAAA", b"A"),
        b'{"data_version":1}',
    ],
)
def test_a_damaged_file_is_corrupt(data):
    with pytest.raises(Corrupt, match="quorum-state"):
        decode_quorum_state(data)


def test_the_first_epoch_opens_with_leader_version_and_voters():
    state, records = become_leader(QuorumState(), VOTER)
    assert state == QuorumState(leader_epoch=1, leader_id=1)
    assert [type(r) for r in records] == [LeaderChangeMessage, KRaftVersionRecord, VotersRecord]
    assert records[0].leader_id == records[0].voters[0].voter_id == 1


def test_a_later_epoch_opens_with_its_leader_only():
    first, _ = become_leader(QuorumState(), VOTER)
    second, records = become_leader(first, VOTER, voters=voters_record(VOTER))
    assert second.leader_epoch == 2
    assert [type(r) for r in records] == [LeaderChangeMessage]


def test_a_voter_that_moved_says_so():
    moved = Voter(1, VOTER.directory_id, (Endpoint("CONTROLLER", "127.0.0.1", 9999),))
    _, records = become_leader(QuorumState(leader_epoch=4), moved, voters=voters_record(VOTER))
    assert records[-1] == voters_record(moved)


def test_an_epoch_of_the_log_is_never_used_again():
    state, _ = become_leader(QuorumState(leader_epoch=2), VOTER, log_epoch=7)
    assert state.leader_epoch == 8


def test_a_snapshot_carries_the_voters():
    assert snapshot_control(None) == []
    assert snapshot_control(voters_record(VOTER))[-1] == voters_record(VOTER)


def test_batches_hold_what_they_were_given():
    _, control = become_leader(QuorumState(), VOTER)
    batch = encode_control_batch(control, 5)
    assert parse_header(batch).is_control
    assert [decode_record(r, is_control=True) for r in read_records(batch)] == control
    records = [FeatureLevelRecord(name="metadata.version", feature_level=30)]
    batch = encode_batch(records, 5)
    assert not parse_header(batch).is_control
    assert [decode_record(r, is_control=False) for r in read_records(batch)] == records


@pytest.mark.parametrize(
    ("key", "value", "is_control"),
    [
        (None, None, False),
        (None, b"", False),
        (None, b"x", True),
        (b"\0\0\0\x02", b"", True),
        (b"\0\0\0\0", b"\0\0\0\0\0\0", True),
    ],
)
def test_what_is_no_metadata_record_is_corrupt(key, value, is_control):
    with pytest.raises(Corrupt):
        decode_record(Record(7, 0, key, value), is_control=is_control)
