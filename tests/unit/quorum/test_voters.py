"""Voter sets, their history in the log, and the records that open an epoch."""

from uuid import UUID

import pytest
from tests.unit.quorum.metadata_log import elected

from stratalog.errors import Corrupt
from stratalog.metadata.image import Endpoint
from stratalog.quorum.metadata_batches import decode_record, encode_batch, encode_control_batch
from stratalog.quorum.saved_state import QuorumState
from stratalog.quorum.voters import (
    ReplicaKey,
    Voter,
    VoterHistory,
    VoterSet,
    voter_set,
    voters_control,
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
ALONE = VoterSet((VOTER,))
OTHER = Voter(2, UUID(int=78))


def test_the_first_epoch_opens_with_leader_version_and_voters():
    state, records = elected(QuorumState(), VOTER)
    assert state == QuorumState(leader_epoch=1, leader_id=1)
    assert [type(r) for r in records] == [LeaderChangeMessage, KRaftVersionRecord, VotersRecord]
    assert records[0].leader_id == records[0].voters[0].voter_id == 1


def test_a_later_epoch_opens_with_its_leader_only():
    first, _ = elected(QuorumState(), VOTER)
    second, records = elected(first, VOTER, voters=voters_record(ALONE))
    assert second.leader_epoch == 2
    assert [type(r) for r in records] == [LeaderChangeMessage]


def test_a_voter_with_a_new_address_writes_its_voters_record():
    moved = Voter(1, VOTER.directory_id, (Endpoint("CONTROLLER", "127.0.0.1", 9999),))
    _, records = elected(QuorumState(leader_epoch=4), moved, voters=voters_record(ALONE))
    assert records[-1] == voters_record(VoterSet((moved,)))


def test_an_epoch_of_the_log_is_never_used_again():
    state, _ = elected(QuorumState(leader_epoch=2), VOTER, log_epoch=7)
    assert state.leader_epoch == 8


def test_a_snapshot_holds_the_voters():
    assert voters_control(None) == []
    assert voters_control(voters_record(ALONE))[-1] == voters_record(ALONE)


def test_a_voters_record_is_read_back_as_its_set():
    both = VoterSet.of([OTHER, VOTER])
    assert both.ids == (1, 2)
    assert voter_set(voters_record(both)) == both


def test_a_voter_with_another_directory_is_not_in_the_set():
    assert ALONE.has(VOTER.key)
    assert not ALONE.has(ReplicaKey(1, UUID(int=5)))
    assert not ALONE.has(ReplicaKey(2, UUID(int=77)))
    assert VoterSet((Voter(1),)).has(ReplicaKey(1, UUID(int=5))), "a static voter has any directory"


@pytest.mark.parametrize(("voters", "majority"), [(1, 1), (2, 2), (3, 2), (4, 3), (5, 3)])
def test_two_majorities_share_a_voter(voters, majority):
    assert VoterSet.of(Voter(one) for one in range(voters)).majority == majority


def test_a_truncation_brings_the_earlier_set_back():
    both = VoterSet((VOTER, OTHER))
    history = VoterHistory(ALONE, kraft_version=1)
    history.add(5, both)
    assert history.latest == both
    history.truncate_end(6)
    assert history.latest_offset == 5
    history.truncate_end(5)
    assert (history.latest, history.latest_offset) == (ALONE, -1)


def test_batches_of_the_metadata_log_are_read_as_they_were_written():
    _, control = elected(QuorumState(), VOTER)
    batch = encode_control_batch(control, 5)
    assert parse_header(batch).is_control
    assert tuple(decode_record(r, is_control=True) for r in read_records(batch)) == control
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
def test_a_malformed_metadata_record_is_corrupt(key, value, is_control):
    with pytest.raises(Corrupt):
        decode_record(Record(7, 0, key, value), is_control=is_control)
