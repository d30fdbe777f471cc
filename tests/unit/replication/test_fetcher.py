"""Fetches from one broker: one is in flight, in one session, and no partition delays another."""

import uuid
from dataclasses import dataclass, field
from math import inf

import pytest
from msgspec.structs import replace
from tests.golden.group_script import CountingEntropy

from stratalog.errors import ErrorCode, Rejected
from stratalog.log.epochs import LeaderEpochs
from stratalog.replication.fetch_sessions import FetchSessions
from stratalog.replication.fetcher import Fetcher, FetchLimits
from stratalog.replication.following import Append
from stratalog.wire.ids import TopicIdPartition
from stratalog.wire.messages.fetch import FetchableTopicResponse, FetchResponse, PartitionData

TOPICS = [uuid.UUID(int=7), uuid.UUID(int=8)]
KEYS = [TopicIdPartition(topic, index) for topic in TOPICS for index in range(2)]
EPOCH = 4


@dataclass
class Log:
    log_end_offset: int = 0
    log_start_offset: int = 0
    epochs: LeaderEpochs = field(default_factory=LeaderEpochs)


class Leader:
    """A leader whose sessions are the broker's; its partitions end at `ends`, or answer with `errors`."""

    def __init__(self):
        self.sessions = FetchSessions(2, CountingEntropy())
        self.ends = dict.fromkeys(KEYS, 0)
        self.errors = {}
        self.read = []
        """The partitions of each fetch, as the leader's session has them."""

    def answer(self, request):
        named = [
            (TopicIdPartition(topic.topic_id, one.partition), one)
            for topic in request.topics
            for one in topic.partitions
        ]
        forgotten = [
            TopicIdPartition(topic.topic_id, index)
            for topic in request.forgotten_topics_data
            for index in topic.partitions
        ]
        try:
            fetch = self.sessions.begin(
                request.session_id,
                request.session_epoch,
                named,
                forgotten,
                by_id=True,
                now_ms=0,
            )
        except Rejected as refused:
            return FetchResponse(error_code=refused.code, responses=[])
        self.read.append({key: one.fetch_offset for key, one in fetch.requested})
        found = [self._found(key, one) for key, one in fetch.requested]
        answered = fetch.answer(found, 0)
        keys = [key for key, _ in fetch.requested]
        return FetchResponse(
            session_id=answered.session_id,
            responses=[
                FetchableTopicResponse(topic_id=keys[place].topic_id, partitions=[found[place]])
                for place in answered.places
            ],
        )

    def _found(self, key, asked):
        more = self.ends[key] - asked.fetch_offset
        return PartitionData(
            partition_index=key.partition,
            error_code=self.errors.get(key, ErrorCode.none),
            high_watermark=self.ends[key],
            log_start_offset=0,
            aborted_transactions=None,
            records=memoryview(bytes(more)) if more else None,
        )


@pytest.fixture
def leader():
    return Leader()


@pytest.fixture
def logs():
    return {key: Log() for key in KEYS}


@pytest.fixture
def fetcher(logs):
    fetcher = Fetcher(2, 9, FetchLimits(backoff_ms=100))
    for key, log in logs.items():
        fetcher.follow(key, log, EPOCH)
    return fetcher


def fetch(fetcher, leader, logs, now_ms=0):
    """Run one fetch and its appends; return the partitions that got records."""
    request = fetcher.request(now_ms)
    assert request is not None
    grown = []
    for key, epoch, taken in fetcher.on_response(leader.answer(request), now_ms):
        assert isinstance(taken, Append)
        logs[key].log_end_offset += len(taken.records)
        if taken.records:
            grown.append(key)
        fetcher.resume(key, epoch)
    return grown


def test_a_session_names_only_partitions_whose_offset_changed(fetcher, leader, logs):
    leader.ends.update({KEYS[0]: 5, KEYS[3]: 2})
    assert fetch(fetcher, leader, logs) == [KEYS[0], KEYS[3]]
    request = fetcher.request(0)
    assert request.session_epoch == 1
    named = [
        (topic.topic_id, one.partition, one.fetch_offset)
        for topic in request.topics
        for one in topic.partitions
    ]
    assert named == [(*KEYS[0], 5), (*KEYS[3], 2)]
    assert not request.forgotten_topics_data
    assert fetcher.on_response(leader.answer(request), 0) == []
    assert leader.read[-1] == {key: log.log_end_offset for key, log in logs.items()}


def test_only_one_fetch_is_in_flight(fetcher, leader, logs):
    request = fetcher.request(0)
    assert fetcher.request(0) is None
    assert fetcher.due_ms == inf
    for key, epoch, _ in fetcher.on_response(leader.answer(request), 0):
        fetcher.resume(key, epoch)
    assert fetcher.due_ms == -inf
    assert fetch(fetcher, leader, logs) == []


def test_a_partition_with_an_unfinished_step_is_not_fetched(fetcher, leader, logs):
    fetch(fetcher, leader, logs)
    leader.ends[KEYS[1]] = 3
    ((key, epoch, _),) = fetcher.on_response(leader.answer(fetcher.request(0)), 0)
    assert fetch(fetcher, leader, logs) == []
    assert KEYS[1] not in leader.read[-1], "a second fetch would get the same records again"
    logs[key].log_end_offset = 3
    fetcher.resume(key, epoch)
    fetch(fetcher, leader, logs)
    assert leader.read[-1][KEYS[1]] == 3


def test_a_partition_that_fails_waits_alone(fetcher, leader, logs):
    leader.errors[KEYS[2]] = ErrorCode.not_leader_or_follower
    leader.ends.update(dict.fromkeys(KEYS, 1))
    assert KEYS[2] not in fetch(fetcher, leader, logs, now_ms=10)
    del leader.errors[KEYS[2]]
    assert fetch(fetcher, leader, logs, now_ms=109) == []
    assert fetch(fetcher, leader, logs, now_ms=110) == [KEYS[2]]


def test_a_fenced_partition_is_fetched_again_because_the_answer_may_be_damaged(
    fetcher, leader, logs
):
    leader.errors[KEYS[2]] = ErrorCode.fenced_leader_epoch
    fetch(fetcher, leader, logs)
    del leader.errors[KEYS[2]]
    fetch(fetcher, leader, logs, now_ms=99)
    assert KEYS[2] not in leader.read[-1]
    fetch(fetcher, leader, logs, now_ms=100)
    assert KEYS[2] in leader.read[-1]


def test_a_code_of_a_newer_leader_waits_as_an_unknown_error(fetcher, leader, logs):
    leader.errors[KEYS[2]] = 9999
    assert KEYS[2] not in fetch(fetcher, leader, logs)
    assert fetcher.due_ms == -inf, "the others go on"


def test_a_partition_that_is_answered_twice_gets_one_step(fetcher, leader):
    leader.ends[KEYS[1]] = 3
    answer = leader.answer(fetcher.request(0))
    answer.responses.extend(answer.responses)
    steps = fetcher.on_response(answer, 0)
    assert [key for key, _, _ in steps].count(KEYS[1]) == 1


def test_an_answer_for_other_partitions_changes_nothing(fetcher, leader):
    answer = leader.answer(fetcher.request(0))
    rows = [replace(row, topic_id=uuid.UUID(int=99)) for row in answer.responses]
    assert fetcher.on_response(replace(answer, responses=rows), 0) == []


def test_a_failed_connection_begins_a_new_session_after_the_backoff(fetcher, leader, logs):
    fetch(fetcher, leader, logs)
    leader.answer(fetcher.request(0))
    fetcher.on_failure(0)
    assert fetcher.request(99) is None
    assert fetcher.due_ms == 100
    fetch(fetcher, leader, logs, now_ms=100)
    assert set(leader.read[-1]) == set(KEYS)
    assert len(leader.sessions) == 1, "the new session takes the place of the old one"


def test_after_a_lost_session_a_new_one_begins_at_once(fetcher, leader, logs):
    fetch(fetcher, leader, logs)
    leader.sessions = FetchSessions(2, CountingEntropy())
    assert fetch(fetcher, leader, logs) == []
    fetch(fetcher, leader, logs)
    assert set(leader.read[-1]) == set(KEYS)


def test_any_other_error_of_the_whole_fetch_waits_for_the_backoff(fetcher):
    fetcher.request(0)
    refused = FetchResponse(error_code=ErrorCode.cluster_authorization_failed, responses=[])
    assert fetcher.on_response(refused, 0) == []
    assert fetcher.due_ms == 100


def test_an_answer_for_a_partition_that_is_no_longer_followed_is_ignored(fetcher, leader, logs):
    leader.ends.update(dict.fromkeys(KEYS, 1))
    request = fetcher.request(0)
    fetcher.unfollow(KEYS[0])
    fetcher.follow(KEYS[1], logs[KEYS[1]], EPOCH + 1)
    logs[KEYS[2]].log_end_offset = 1
    steps = fetcher.on_response(leader.answer(request), 0)
    assert [key for key, _, _ in steps] == [KEYS[3]]
    assert len(fetcher) == 3


def test_a_step_of_an_older_leader_epoch_resumes_nothing(fetcher, leader, logs):
    fetcher.follow(KEYS[0], logs[KEYS[0]], EPOCH + 1)
    leader.errors[KEYS[0]] = ErrorCode.fenced_leader_epoch
    fetch(fetcher, leader, logs)
    fetcher.resume(KEYS[0], EPOCH)
    fetch(fetcher, leader, logs)
    assert KEYS[0] not in leader.read[-1]


def test_a_fetch_looks_only_at_partitions_that_changed(leader):
    class Watched(Log):
        looks = 0

        @property
        def log_end_offset(self):
            Watched.looks += 1
            return self.end

        @log_end_offset.setter
        def log_end_offset(self, end):
            self.end = end

    keys = [TopicIdPartition(TOPICS[0], index) for index in range(1000)]
    logs = {key: Watched() for key in keys}
    leader.ends = dict.fromkeys(keys, 0)
    fetcher = Fetcher(2, 9, FetchLimits())
    for key, log in logs.items():
        fetcher.follow(key, log, EPOCH)
    fetch(fetcher, leader, logs)
    fetch(fetcher, leader, logs)
    leader.ends[keys[500]] = 1
    Watched.looks = 0
    assert fetch(fetcher, leader, logs) == [keys[500]]
    assert len(leader.read[-1]) == 1000
    assert fetch(fetcher, leader, logs) == []
    assert Watched.looks < 10
