"""The saved state of a quorum member: Kafka's file, byte for byte, and damaged files."""

from uuid import UUID

import pytest

from stratalog.errors import Corrupt
from stratalog.quorum.saved_state import (
    QuorumState,
    decode_quorum_state,
    encode_quorum_state,
)

KAFKAS_FILE = (
    b'{"leaderId":1,"leaderEpoch":2,"votedId":-1,'
    b'"votedDirectoryId":"AAAAAAAAAAAAAAAAAAAAAA","data_version":1}'
)


def test_the_file_equals_kafkas_byte_for_byte():
    state = QuorumState(leader_epoch=2, leader_id=1)
    assert encode_quorum_state(state) == KAFKAS_FILE
    assert decode_quorum_state(KAFKAS_FILE) == state


def test_a_vote_is_read_as_it_was_saved():
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
