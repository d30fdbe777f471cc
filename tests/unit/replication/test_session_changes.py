"""A follower's fetch looks only at the partitions of its session that changed since they were answered."""

import uuid

import pytest
from tests.unit.replication.test_fetch_sessions import CountingEntropy

from stratalog.replication.fetch_sessions import FetchSessions
from stratalog.replication.session_changes import Changes
from stratalog.wire.ids import TopicIdPartition
from stratalog.wire.messages.fetch import PartitionData

KEYS = [TopicIdPartition(uuid.UUID(int=7), index) for index in range(4)]


def answer(high_watermark=0, records=()):
    return PartitionData(
        partition_index=0,
        error_code=0,
        high_watermark=high_watermark,
        log_start_offset=0,
        aborted_transactions=None,
        records=records,
    )


def test_marked_partitions_are_looked_at_until_they_are_unmarked():
    changes = Changes(KEYS)
    assert changes.mark(KEYS[1])
    number = changes.marked()[KEYS[1]]
    assert list(changes.marked()) == [KEYS[1]]
    changes.unmark(KEYS[1], number)
    assert not changes.marked()


def test_a_change_after_the_look_is_not_lost():
    changes = Changes(KEYS)
    changes.mark(KEYS[1])
    number = changes.marked()[KEYS[1]]
    changes.mark(KEYS[1])
    changes.unmark(KEYS[1], number)
    assert list(changes.marked()) == [KEYS[1]]


def test_partitions_that_miss_a_full_answer_come_first_in_the_next_one():
    changes = Changes(KEYS)
    changes.mark_all()
    changes.mark(KEYS[0])
    assert list(changes.marked()) == [*KEYS[1:], KEYS[0]]


def test_a_partition_that_left_the_session_is_marked_no_more():
    members = dict.fromkeys(KEYS)
    changes = Changes(members)
    changes.mark(KEYS[2])
    del members[KEYS[2]]
    assert not changes.has(KEYS[2])
    assert not changes.mark(KEYS[2])
    assert not changes.marked()


def test_a_session_that_ended_marks_nothing():
    changes = Changes(KEYS)
    changes.mark_all()
    changes.end()
    assert changes.is_over
    assert not changes.mark(KEYS[0])
    assert not changes.marked()


@pytest.fixture
def sessions():
    return FetchSessions(2, CountingEntropy())


def begin(sessions, epoch, requested=(), session_id=0, **more):
    return sessions.begin(session_id, epoch, requested, (), by_id=True, now_ms=0, **more)


def session_of(sessions):
    """Begin a follower's session of all partitions; return its id."""
    first = begin(sessions, 0, [(key, "first") for key in KEYS], is_follower=True)
    return first.answer([answer() for _ in KEYS], 0).session_id


def test_the_second_fetch_of_a_session_looks_at_all_and_later_ones_at_changes(sessions):
    session_id = session_of(sessions)
    second = begin(sessions, 1, session_id=session_id)
    assert [key for key, _ in second.requested] == KEYS
    assert second.answer([answer() for _ in KEYS], 0, lambda *_: True).places == []
    third = begin(sessions, 2, [(KEYS[3], "moved")], session_id)
    assert third.requested == ((KEYS[3], "moved"),)
    third.changes.mark(KEYS[1])
    third.look()
    assert third.requested == ((KEYS[3], "moved"), (KEYS[1], "first"))
    found = [answer(), answer(high_watermark=5)]
    unmarked = {KEYS[1]}
    assert third.answer(found, 0, lambda key, *_: key in unmarked).places == [1]
    assert begin(sessions, 3, session_id=session_id).requested == ((KEYS[3], "moved"),)


def test_a_consumers_session_looks_at_all_partitions(sessions):
    first = begin(sessions, 0, [(key, "first") for key in KEYS])
    session_id = first.answer([answer() for _ in KEYS], 0).session_id
    for epoch in (1, 2):
        fetch = begin(sessions, epoch, session_id=session_id)
        assert fetch.changes is None
        assert len(fetch.requested) == len(KEYS)
        fetch.answer([answer() for _ in KEYS], 0, lambda *_: True)
    assert len(begin(sessions, 3, session_id=session_id).requested) == len(KEYS)


def test_the_changes_of_an_evicted_session_are_over(sessions):
    session_id = session_of(sessions)
    changes = begin(sessions, 1, session_id=session_id).changes
    begin(sessions, 0, [(KEYS[0], "first")], session_id, is_follower=True)
    assert changes.is_over
