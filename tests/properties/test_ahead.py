"""Goal: decisions ahead of the commit give the answers and state of decisions one by one, wherever leadership ends.

Method: the real runtime and the real group coordinator on a log whose commits, refusals and losses Hypothesis chooses;
beside it a coordinator that commits each decision before the next. Each sent answer must equal the reference's, and
must not leave before the records that its decision saw are committed. After a loss both load the committed records.
"""

import asyncio
from collections import deque
from types import SimpleNamespace

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.golden.group_script import CountingEntropy

from stratalog.broker.coordination.runtime import Runtime
from stratalog.coordinators.groups import GroupShard
from stratalog.coordinators.messages import (
    CommitPartition,
    CommitTopic,
    DeleteGroup,
    JoinGroup,
    LeaveGroup,
    LeavingMember,
    OffsetCommit,
    OffsetFetch,
    Protocol,
    SyncGroup,
)
from stratalog.coordinators.turn import GroupSettings, records_bytes
from stratalog.errors import ErrorCode, Rejected
from stratalog.statemachine import Decision, Now
from stratalog.wire.records import Record, build_batch

SETTINGS = GroupSettings(initial_rebalance_delay_ms=0, session_timeout_ms_min=100)
GROUPS = ("g", "h")
groups = st.sampled_from(GROUPS)

commands = st.one_of(
    st.tuples(st.just("commit"), groups, st.integers(0, 2), st.integers(0, 9)),
    st.tuples(st.just("fetch"), groups),
    st.tuples(st.just("describe"), groups),
    st.tuples(st.just("delete"), groups),
    st.tuples(st.just("join"), groups),
    st.tuples(st.just("sync"), groups),
    st.tuples(st.just("leave"), groups),
    st.tuples(st.just("tick"), st.sampled_from([1, 200])),
    st.tuples(st.just("turn")),
    st.tuples(st.just("commit log")),
    st.tuples(st.just("commit log")),
    st.tuples(st.just("quick"), st.booleans()),
    st.tuples(st.just("refuse")),
    st.tuples(st.just("resign")),
)


class ControlledLog:
    """A partition whose commits and failures the test triggers."""

    def __init__(self, records):
        self.records = list(records)
        self.log = SimpleNamespace(next_offset=len(self.records))
        self.name = "controlled"
        self.uncommitted = deque()
        self.refuses = False
        self.decided = []
        self.is_quick = False
        """Whether a batch with nothing before it is committed before `append` returns."""

    def append(self, _batch, header, _wall_ms, then, **_options):
        if self.refuses:
            raise Rejected(ErrorCode.not_enough_replicas, "refused")
        base = self.log.next_offset
        self.log.next_offset += header.record_count
        self.uncommitted.append((header.record_count, then))
        if self.is_quick and len(self.uncommitted) == 1:
            self.commit()
        return SimpleNamespace(base_offset=base)

    def commit(self):
        if self.uncommitted:
            count, then = self.uncommitted.popleft()
            self.records.extend(self.decided[len(self.records) : len(self.records) + count])
            then(None)


class Coordinator:
    """The group coordinator as the runtime's machine."""

    lost = ErrorCode.not_coordinator
    flush = False

    def __init__(self, shard):
        self.shard = shard
        self.decided = []

    def apply(self, base_offset, records):
        assert base_offset == len(self.decided)
        for key, value in records:
            self.shard.replay(len(self.decided), key, value)
            self.decided.append((key, value))

    def publish(self, change):
        return None

    def encode(self, records, wall_ms):
        return build_batch(Record(0, wall_ms, key, value, ()) for key, value in records)

    def bytes_of(self, records):
        return records_bytes(records)


def loaded(log, entropy, now):
    shard = GroupShard(SETTINGS, entropy)
    for offset, (key, value) in enumerate(log):
        shard.replay(offset, key, value)
    list(shard.load_complete(now))
    return shard


def decide(shard, command, token, members, now):
    """Return one command as a decision; `members` has the member ids that its client knows."""
    match command:
        case ("commit", group, index, offset):
            topics = (CommitTopic("t", (CommitPartition(index, offset),)),)
            return shard.commit(OffsetCommit(group, topics, -1, ""), token, now)
        case ("fetch", group):
            return Decision((), shard.fetch_offsets(OffsetFetch(group)))
        case ("describe", group):
            return Decision((), shard.describe(group))
        case ("delete", group):
            return shard.delete(DeleteGroup(group), token, now)
        case ("join", group):
            protocols = (Protocol("range", b""),)
            request = JoinGroup(
                group, members.get(group, ""), "c", "h", 1000, 500, "consumer", protocols
            )
            return shard.join(request, token, now)
        case ("sync", group):
            request = SyncGroup(group, 1, members.get(group, ""))
            return shard.sync(request, token, now)
        case ("leave", group):
            left = (LeavingMember(members.get(group, "")),)
            return shard.leave(LeaveGroup(group, left), token, now)
        case _:
            return shard.tick(now)


class Race:
    """The runtime and the reference, side by side."""

    def __init__(self):
        self.now_ms = 0
        self.log = ControlledLog([])
        self.reference_log = []
        self.entropies = CountingEntropy(), CountingEntropy()
        self.expected = {}
        self.seen = {}
        self.released = {}
        self.members = {}
        self.count = 0
        self.problems = []
        self.load()

    def load(self):
        """Load both from the committed records."""
        now = Now(self.now_ms, self.now_ms)
        committed = self.log.records
        self.log = ControlledLog(committed)
        self.machine = Coordinator(loaded(committed, self.entropies[0], now))
        self.machine.decided = self.log.decided = list(committed)
        clock = SimpleNamespace(steady_ms=lambda: self.now_ms, now_ms=lambda: self.now_ms)
        self.runtime = Runtime(self.log, clock, self.machine)
        self.reference_log = list(committed)
        self.reference = loaded(committed, self.entropies[1], now)
        self.members = {}

    def ask(self, command):
        if command[0] == "tick":
            self.now_ms += command[1]
        self.count += 1
        token, now = self.count, Now(self.now_ms, self.now_ms)
        decision = decide(self.reference, command, token, self.members, now)
        for key, value in decision.records:
            self.reference.replay(len(self.reference_log), key, value)
            self.reference_log.append((key, value))
        self.expected[token] = decision.answer
        self.seen[token] = len(self.reference_log)
        log, members = self.log, dict(self.members)

        def then(answer, error):
            # The runtime logs an exception raised here, so the test collects problems in a list.
            if token in self.released:
                self.problems.append(f"{command} was answered twice")
            self.released[token] = error
            if error is not None:
                if error.code is not ErrorCode.not_coordinator:
                    self.problems.append(f"{command} failed with {error}")
            elif answer != self.expected[token]:
                self.problems.append(f"{command}: {answer} and not {self.expected[token]}")
            elif self.seen[token] > len(log.records):
                self.problems.append(f"{command} was answered before its records were committed")

        shard = self.machine.shard
        self.runtime.run(lambda at: decide(shard, command, token, members, at), then)
        for _, answer in getattr(decision.answer, "answers", ()):
            if command[0] == "join" and getattr(answer, "member_id", ""):
                self.members[command[1]] = answer.member_id

    async def step(self, command):
        match command[0]:
            case "turn":
                await asyncio.sleep(0)
            case "commit log":
                self.log.commit()
            case "quick":
                self.log.is_quick = command[1]
            case "refuse":
                self.log.refuses = True
                self.runtime.append_open()
                self.lose()
            case "resign":
                self.lose()
            case _:
                self.ask(command)

    def lose(self):
        late = list(self.log.uncommitted)
        self.runtime.resign()
        for _, then in late:
            then(None)  # the old log may report a commit after the loss
        assert self.runtime.is_idle
        assert len(self.released) == self.count, "a caller got no answer"
        self.load()

    async def end(self):
        """Commit all remaining decisions; then both must be equal."""
        await asyncio.sleep(0)
        while self.log.uncommitted:
            self.log.commit()
        await asyncio.sleep(0)
        assert self.problems == []
        assert len(self.released) == self.count
        assert self.log.records == self.machine.decided == self.reference_log
        for group in GROUPS:
            ours, theirs = self.machine.shard, self.reference
            assert ours.describe(group) == theirs.describe(group)
            assert ours.fetch_offsets(OffsetFetch(group)) == theirs.fetch_offsets(
                OffsetFetch(group)
            )


async def run(script):
    race = Race()
    for command in script:
        await race.step(command)
    await race.end()


@given(st.lists(commands, max_size=60))
@settings(max_examples=300)
def test_decisions_ahead_equal_decisions_one_by_one(script):
    asyncio.run(run(script))


def test_decisions_of_one_turn_are_one_batch_and_later_ones_do_not_wait():
    async def story():
        race = Race()
        for offset in range(10):
            race.ask(("commit", "g", 0, offset))
        await asyncio.sleep(0)
        assert [count for count, _ in race.log.uncommitted] == [10]
        race.ask(("commit", "g", 0, 10))
        await asyncio.sleep(0)
        assert [count for count, _ in race.log.uncommitted] == [10, 1]
        race.ask(("fetch", "g"))
        assert not race.released
        race.log.commit()
        assert len(race.released) == 10
        await race.end()
        assert len(race.released) == 12

    asyncio.run(story())


def test_a_batch_that_is_committed_at_once_answers_after_the_append():
    async def story():
        race = Race()
        race.log.is_quick = True
        answered = []

        def again(_answer, error):
            answered.append(error)
            if len(answered) == 1:  # an answer may begin the next decision
                race.ask(("commit", "g", 1, 1))

        race.ask(("commit", "g", 0, 0))
        race.runtime.run(lambda _now: Decision((), None), again)
        race.runtime.append_open()
        assert not race.released, "the caller of append_open is at work"
        await asyncio.sleep(0)
        assert list(race.released) == [1]
        assert answered == [None]
        assert race.runtime.is_committed is False
        await asyncio.sleep(0)
        assert list(race.released) == [1, 2]
        assert race.runtime.is_committed
        await race.end()

    asyncio.run(story())
