"""Goal: fetch sessions begin, end, are evicted, and refuse wrong epochs, as KIP-227 says."""

import uuid

import pytest
from tests.golden.group_script import CountingEntropy

from stratalog.errors import ErrorCode, Rejected
from stratalog.replication.fetch_sessions import (
    EVICTION_MS,
    LAST_FETCH,
    SESSION_PARTITIONS_MAX,
    FetchSessions,
)
from stratalog.wire.messages.fetch import EpochEndOffset, PartitionData

ZERO = [("t", 0)]
TOPIC_ID = uuid.UUID(int=7)


def found(index=0, high_watermark=1, **more):
    values = {"error_code": 0, "log_start_offset": 0, "records": ()} | more
    return PartitionData(
        partition_index=index, high_watermark=high_watermark, aborted_transactions=None, **values
    )


def sessions(slots=2):
    return FetchSessions(slots, CountingEntropy())


def begin(cache, session_id, epoch, keys=(), forgotten=(), now_ms=0, **options):
    wanted = [(key, None) for key in keys]
    options = {"by_id": False} | options
    return cache.begin(session_id, epoch, wanted, forgotten, now_ms=now_ms, **options)


def opened(cache, keys=ZERO, now_ms=0, holder=""):
    """Return the id of a new session of `keys`, each with high watermark 1."""
    fetch = begin(cache, 0, 0, keys, now_ms=now_ms, holder=holder)
    return fetch.answer([found(index) for _, index in keys], now_ms).session_id


def refusal(*arguments, **options):
    with pytest.raises(Rejected) as raised:
        begin(*arguments, **options)
    return raised.value.code


def test_a_fetch_answers_only_changed_partitions():
    cache = sessions()
    keys = [("t", 0), ("t", 1)]
    session_id = opened(cache, keys)
    answered = begin(cache, session_id, 1).answer([found(0), found(1, 2)], 0)
    assert (answered.session_id, list(answered.places)) == (session_id, [1])
    assert begin(cache, session_id, 2).answer([found(0), found(1, 2)], 0).places == []


@pytest.mark.parametrize(
    "news",
    [
        {"high_watermark": 2},
        {"records": [b"r"]},
        {"preferred_read_replica": 3},
        {"diverging_epoch": EpochEndOffset(epoch=1, end_offset=2)},
    ],
)
def test_each_kind_of_change_is_answered(news):
    cache = sessions()
    session_id = opened(cache)
    assert begin(cache, session_id, 1).answer([found(**news)], 0).places == [0]


def test_an_error_is_answered_in_each_fetch_and_its_end_once():
    cache = sessions()
    session_id = opened(cache)
    failed = found(error_code=ErrorCode.kafka_storage_error)
    for epoch in (1, 2):
        assert begin(cache, session_id, epoch).answer([failed], 0).places == [0]
    assert begin(cache, session_id, 3).answer([found()], 0).places == [0]
    assert begin(cache, session_id, 4).answer([found()], 0).places == []


def test_a_partition_that_returned_records_is_read_last_in_the_next_fetch():
    cache = sessions()
    session_id = opened(cache, [("t", 0), ("t", 1), ("t", 2)])
    first = begin(cache, session_id, 1)
    first.answer([found(0, records=[b"r"]), found(1), found(2)], 0)
    assert [key[1] for key, _ in begin(cache, session_id, 2).requested] == [1, 2, 0]


def test_partitions_are_added_changed_and_forgotten():
    cache = sessions()
    session_id = opened(cache, [("t", 0), ("t", 1)])
    fetch = cache.begin(
        session_id, 1, [(("t", 1), "new"), (("u", 0), "u")], [("t", 0)], by_id=False, now_ms=0
    )
    assert fetch.requested == ((("t", 1), "new"), (("u", 0), "u"))
    assert cache.partitions == 2


def test_an_empty_session_ends():
    cache = sessions()
    session_id = opened(cache)
    fetch = begin(cache, session_id, 1, forgotten=ZERO)
    assert fetch.requested == ()
    assert fetch.answer([], 0).session_id == 0
    assert refusal(cache, session_id, 2) is ErrorCode.fetch_session_id_not_found
    assert cache.partitions == 0


def test_a_wrong_session_epoch_is_an_error():
    cache = sessions()
    session_id = opened(cache)
    assert refusal(cache, session_id, 2) is ErrorCode.invalid_fetch_session_epoch
    assert refusal(cache, session_id + 1, 1) is ErrorCode.fetch_session_id_not_found
    assert refusal(cache, session_id, 1, by_id=True) is ErrorCode.fetch_session_topic_id_error
    begin(cache, session_id, 1)


def test_a_pipelined_fetch_has_a_wrong_session_epoch():
    cache = sessions()
    session_id = opened(cache)
    first, second = begin(cache, session_id, 1), begin(cache, session_id, 2, forgotten=ZERO[:0])
    answered = first.answer([found()], 0)
    assert (answered.error, answered.places) == (ErrorCode.invalid_fetch_session_epoch, ())
    assert second.answer([found()], 0).error is ErrorCode.none


def test_a_running_fetch_survives_the_end_of_its_session():
    cache = sessions()
    session_id = opened(cache)
    fetch = begin(cache, session_id, 1)
    begin(cache, session_id, LAST_FETCH)
    assert fetch.answer([found(0, 2)], 0).places == [0]
    again = opened(cache)
    fetch = begin(cache, again, 1)
    begin(cache, again, 2, forgotten=ZERO)
    assert fetch.answer([found(0, 2)], 0).error is ErrorCode.invalid_fetch_session_epoch


def test_the_epoch_wraps_to_one():
    cache = sessions()
    session_id = opened(cache)
    cache._sessions[session_id].epoch = 2**31 - 1
    begin(cache, session_id, 2**31 - 1)
    begin(cache, session_id, 1)


def test_a_full_fetch_ends_the_session_it_names():
    cache = sessions()
    session_id = opened(cache)
    begin(cache, session_id, 0, ZERO)
    assert len(cache) == 0


def test_stale_or_small_old_sessions_are_evicted():
    cache = sessions()
    large, small = opened(cache, [("t", 0), ("t", 1)]), opened(cache)
    assert opened(cache) == 0, "both sessions are young"
    begin(cache, large, 1, now_ms=EVICTION_MS)
    begin(cache, small, 1, now_ms=EVICTION_MS)
    later_ms = EVICTION_MS + 1
    assert opened(cache, now_ms=later_ms) != 0, "the small session is old enough"
    assert refusal(cache, small, 2) is ErrorCode.fetch_session_id_not_found
    assert opened(cache, now_ms=later_ms) == 0, "the large session stays"
    begin(cache, large, 2, now_ms=later_ms)
    assert opened(cache, now_ms=2 * later_ms) != 0, "the third session is stale"
    assert begin(cache, large, 3, now_ms=2 * later_ms).requested


def test_without_slots_there_are_no_sessions():
    assert opened(sessions(0)) == 0


def test_memory_is_bounded_by_partitions_as_well():
    cache = FetchSessions(10, CountingEntropy(), partitions_max=2)
    assert opened(cache, [("t", 0), ("t", 1), ("t", 2)]) == 0
    session_id = opened(cache)
    grown = [("t", 1), ("t", 2)]
    assert refusal(cache, session_id, 1, grown) is ErrorCode.fetch_session_id_not_found
    assert (len(cache), cache.partitions) == (0, 0)


def many(count, first=0):
    return [("t", index) for index in range(first, first + count)]


def test_stale_sessions_give_way_to_partitions_as_to_slots():
    cache = FetchSessions(100, CountingEntropy(), partitions_max=10)
    large = opened(cache, many(9))
    assert opened(cache, many(2)) == 0, "the first session is young"
    assert opened(cache, many(2), now_ms=EVICTION_MS + 1) != 0
    assert refusal(cache, large, 1) is ErrorCode.fetch_session_id_not_found
    assert (len(cache), cache.partitions, cache.evictions) == (1, 2, 1)


def test_a_client_that_holds_most_gives_way_to_the_others():
    cache = FetchSessions(100, CountingEntropy(), partitions_max=10)
    first, second = (opened(cache, many(5), holder="greedy") for _ in range(2))
    assert opened(cache, holder="greedy") == 0, "its own sessions keep their room"
    assert opened(cache, many(4), holder="honest") != 0
    assert refusal(cache, first, 1) is ErrorCode.fetch_session_id_not_found
    begin(cache, second, 1)
    assert opened(cache, many(2), holder="greedy") == 0, "the other holds less"
    assert cache.evictions == 1


def test_slots_are_shared_fairly_too():
    cache = sessions(3)
    first, *others = [opened(cache, holder="greedy") for _ in range(3)]
    assert opened(cache, holder="honest") != 0
    assert refusal(cache, first, 1) is ErrorCode.fetch_session_id_not_found
    assert opened(cache, holder="greedy") == 0
    assert opened(cache, holder="greedy", now_ms=EVICTION_MS) == 0
    for session_id in others:
        begin(cache, session_id, 1)


def test_a_session_that_grows_takes_the_room_of_the_client_that_holds_most():
    cache = FetchSessions(100, CountingEntropy(), partitions_max=10)
    greedy, honest = opened(cache, many(9), holder="greedy"), opened(cache, holder="honest")
    assert len(begin(cache, honest, 1, many(2, first=1)).requested) == 3
    assert refusal(cache, greedy, 1) is ErrorCode.fetch_session_id_not_found


@pytest.mark.parametrize(
    ("code", "of_consumer", "of_follower"),
    [
        (ErrorCode.topic_authorization_failed, False, False),
        (ErrorCode.cluster_authorization_failed, False, False),
        (ErrorCode.unknown_topic_or_partition, False, True),
        (ErrorCode.unknown_topic_id, False, True),
        (ErrorCode.not_leader_or_follower, True, True),
    ],
)
def test_no_session_begins_with_a_refused_partition(code, of_consumer, of_follower):
    for is_follower, begins in ((False, of_consumer), (True, of_follower)):
        cache = sessions()
        keys = [(TOPIC_ID, 0), (TOPIC_ID, 1)]
        fetch = begin(cache, 0, 0, keys, by_id=True, is_follower=is_follower)
        answered = fetch.answer([found(), found(1, error_code=code)], 0)
        assert (answered.session_id != 0, len(answered.places)) == (begins, 2)
        assert len(cache) == begins


@pytest.mark.parametrize("epoch", [0, 1, LAST_FETCH], ids=["new", "session", "last"])
def test_forgotten_partitions_are_bounded_by_the_session_limit(epoch):
    """A request of 4 MB names a million forgotten partitions: a list of all of them takes 200 ms."""
    looked_at = 0

    def named():
        nonlocal looked_at
        for index in range(1_000_000):
            looked_at += 1
            yield "t", index

    cache = sessions()
    session_id = opened(cache)
    if epoch == 1:
        refused = refusal(cache, session_id, epoch, (), named())
        assert refused is ErrorCode.fetch_session_id_not_found
    else:
        begin(cache, session_id, epoch, (), named())
    assert looked_at <= SESSION_PARTITIONS_MAX + 1
    assert cache.partitions == 0
