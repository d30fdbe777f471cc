"""Goal: of offsets that are committed, staged in transactions and deleted, a reader sees what Apache Kafka shows.

Method: random requests, markers and restarts on one shard, beside a model that has each key's last record and what each
open transaction has staged. A shard that replays the log has the state of the one that wrote it.
"""

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.golden.group_script import CountingEntropy

from stratalog.coordinators.groups import GroupShard
from stratalog.coordinators.messages import (
    CommitPartition,
    CommitTopic,
    DeleteGroup,
    FetchTopic,
    OffsetCommit,
    OffsetDelete,
    OffsetFetch,
)
from stratalog.coordinators.turn import GroupSettings
from stratalog.errors import ErrorCode
from stratalog.statemachine import Now

MINUTE_MS = 60_000
SETTINGS = GroupSettings(offsets_retention_minutes=2, offsets_retention_check_interval_ms=MINUTE_MS)
GROUPS, TOPICS, PRODUCERS = ("g", "h"), ("t", "u"), (7, 8, 9)
groups, topics, producers = map(st.sampled_from, (GROUPS, TOPICS, PRODUCERS))
COMMANDS = st.one_of(
    st.tuples(st.just("write"), groups, topics),
    st.tuples(st.just("write"), groups, topics, producers),
    st.tuples(st.just("write"), groups, topics, producers),
    st.tuples(st.just("end"), producers, st.booleans()),
    st.tuples(st.just("delete offset"), groups, topics),
    st.tuples(st.just("delete group"), groups),
    st.tuples(st.just("delete topic"), topics),
    st.tuples(st.just("wait"), st.integers(1, 4)),
    st.tuples(st.just("load")),
)


class Model:
    """What Kafka keeps: `OffsetMetadataManager`. A place is a group and a topic."""

    def __init__(self):
        self.committed = {}
        """Place -> offset, position in the log, time."""
        self.staged = {}
        """Producer -> place -> offset, position in the log, time."""

    def open_places(self):
        return {place for places in self.staged.values() for place in places}

    def drop(self, place):
        self.committed.pop(place, None)
        for places in self.staged.values():
            places.pop(place, None)

    def end(self, producer, commit):
        for place, found in self.staged.pop(producer, {}).items():
            if commit and found[1] > self.committed.get(place, (0, -1))[1]:
                self.committed[place] = found

    def expire(self, now_ms):
        limit_ms = SETTINGS.offsets_retention_minutes * MINUTE_MS
        for place, (_, _, since_ms) in list(self.committed.items()):
            if now_ms - since_ms >= limit_ms and place not in self.open_places():
                del self.committed[place]


class Pair:
    """The shard with its log, and the model."""

    def __init__(self):
        self.now_ms = 0
        self.log = []
        self.model = Model()
        self.next_offset = 0
        self.load()

    @property
    def now(self):
        return Now(self.now_ms, self.now_ms)

    def load(self):
        self.shard = GroupShard(SETTINGS, CountingEntropy())
        for at, (producer, key, value) in enumerate(self.log):
            if key is None:
                self.shard.end_transaction(producer, commit=value)
            else:
                self.shard.replay(at, key, value, producer)
        list(self.shard.load_complete(self.now))

    def take(self, decision, producer=-1):
        for key, value in decision.records:
            self.log.append((producer, key, value))
            self.shard.replay(len(self.log) - 1, key, value, producer)

    def write(self, group, topic, producer=-1):
        self.next_offset += 1
        wanted = (CommitTopic(topic, (CommitPartition(0, self.next_offset),)),)
        request = OffsetCommit(group, wanted, -1, "", in_transaction=producer >= 0)
        self.take(self.shard.commit(request, "token", self.now), producer)
        kept = (self.next_offset, len(self.log) - 1, self.now_ms)
        places = self.model.committed
        if producer >= 0:
            places = self.model.staged.setdefault(producer, {})
        places[group, topic] = kept

    def step(self, command):
        name, *arguments = command
        getattr(self, name.replace(" ", "_"))(*arguments)
        self.check()

    def end(self, producer, commit):
        self.log.append((producer, None, commit))
        self.shard.end_transaction(producer, commit=commit)
        self.model.end(producer, commit)

    def delete_offset(self, group, topic):
        request = OffsetDelete(group, (FetchTopic(topic, (0,)),))
        self.take(self.shard.delete_offsets(request, "token", self.now))
        self.model.drop((group, topic))

    def delete_group(self, group):
        self.take(self.shard.delete(DeleteGroup(group), "token", self.now))
        for topic in TOPICS:
            self.model.drop((group, topic))

    def delete_topic(self, topic):
        for group in dict(self.shard.topics()):
            gone = self.shard.forget_offsets(group, lambda name, _: name == topic, self.now)
            self.take(gone)
        for group in GROUPS:
            self.model.drop((group, topic))

    def wait(self, minutes):
        for _ in range(minutes):
            self.now_ms += MINUTE_MS
            while self.shard.next_deadline_ms() <= self.now_ms:
                self.take(self.shard.tick(self.now))
            self.model.expire(self.now_ms)

    def check(self):
        open_places = self.model.open_places()
        for group in GROUPS:
            wanted = OffsetFetch(group, tuple(FetchTopic(one, (0,)) for one in TOPICS), True)
            for topic in self.shard.fetch_offsets(wanted).topics:
                place = (group, topic.name)
                (found,) = topic.partitions
                if place in open_places:
                    assert found.error is ErrorCode.unstable_offset_commit, place
                    continue
                assert found.error is ErrorCode.none, place
                assert found.offset == self.model.committed.get(place, (-1,))[0], place
            has_offsets = any(
                (group, one) in {*self.model.committed, *open_places} for one in TOPICS
            )
            state = self.shard.describe(group).state
            assert state == ("Empty" if has_offsets else "Dead"), group


@settings(max_examples=300)
@given(st.lists(COMMANDS, min_size=5, max_size=60))
def test_readers_see_what_kafka_shows(commands):
    pair = Pair()
    for command in commands:
        pair.step(command)
    pair.load()
    pair.check()
