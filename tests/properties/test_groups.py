"""Goal: for any clients, a group has one generation at a time, answers every request, and keeps its offsets.

Method: random clients, some static, some silent, use one shard, while time passes, appends fail and the shard
restarts. A model holds what the answers promised; the group's own invariants are checked after every step.
"""

from collections import Counter

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from tests.golden.group_script import Client, CountingEntropy

from stratalog.coordinators.groups import GroupShard
from stratalog.coordinators.messages import (
    Assignment,
    CommitPartition,
    CommitTopic,
    DeleteGroup,
    Heartbeat,
    JoinGroup,
    LeaveGroup,
    LeavingMember,
    OffsetCommit,
    OffsetFetch,
    Protocol,
    SyncGroup,
)
from stratalog.coordinators.states import GroupState
from stratalog.coordinators.turn import GroupSettings, TimerKey, TimerKind
from stratalog.errors import ErrorCode
from stratalog.statemachine import Now

OK = ErrorCode.none
NAMES = ("ann", "ben", "cat", "dan")
STATIC = {"cat": "c", "dan": "c"}
"""Cat and Dan dispute one instance id."""
PROTOCOLS = (("range",), ("range", "sticky"), ("sticky", "range"), ("range",), ("other",))
SETTINGS = GroupSettings(
    initial_rebalance_delay_ms=300,
    session_timeout_ms_min=100,
    size_max=4,
    new_member_join_timeout_ms=3000,
)

names = st.sampled_from(NAMES)


class Crowd(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.now_ms = 0
        self.entropy = CountingEntropy()
        self.log = []
        self.clients = {name: Client(name) for name in NAMES}
        self.waiting = {}
        self.count = 0
        self.committed = {}
        self.latest_generation = 0
        self.generations = {}
        self.assigned = {}
        self.shard = self.loaded()

    def loaded(self):
        shard = GroupShard(SETTINGS, self.entropy)
        for offset, (key, value) in enumerate(self.log):
            shard.replay(offset, key, value)
        list(shard.load_complete(self.now))
        return shard

    @property
    def now(self):
        return Now(self.now_ms, self.now_ms)

    def token(self, name, request):
        self.count += 1
        self.waiting[self.count] = (name, request)
        return self.count

    def take(self, decision, refuse=None):
        if decision.records and refuse is not None:
            self.restart()
            return
        for key, value in decision.records:
            self.log.append((key, value))
            self.shard.replay(len(self.log) - 1, key, value)
        for token, answer in decision.answer.answers:
            assert token in self.waiting, f"{token} was answered twice"
            name, request = self.waiting.pop(token)
            self.learn(self.clients[name], request, answer)

    def learn(self, client, request, answer):
        match request:
            case JoinGroup():
                if answer.error in (OK, ErrorCode.member_id_required):
                    client.member_id = answer.member_id
                elif answer.error in (ErrorCode.unknown_member_id, ErrorCode.fenced_instance_id):
                    client.member_id = ""
                if answer.error is OK:
                    self.learn_generation(client, answer)
            case SyncGroup() if answer.error is OK:
                assert request.generation_id == self.latest_generation
                assert answer.assignment == self.assigned_to(request.member_id)
            case OffsetCommit():
                self.learn_commit(request, answer)
            case DeleteGroup() if answer.error is OK:
                self.committed = {}
                self.forget_generations()

    def learn_generation(self, client, answer):
        assert answer.generation_id >= self.latest_generation, "an answer names an old generation"
        self.latest_generation = client.generation_id = answer.generation_id
        protocol = (answer.protocol_type, answer.protocol_name)
        assert self.generations.setdefault(answer.generation_id, protocol) == protocol
        if answer.members and not answer.skip_assignment:
            assert answer.leader == client.member_id, (
                "a member that does not lead received the list of members"
            )

    def assigned_to(self, member_id):
        """Return the member's assignment as the log has it."""
        group = self.shard.describe("g")
        return {one.member_id: one.assignment for one in group.members}[member_id]

    def learn_commit(self, request, answer):
        [topic], [asked] = answer.topics, request.topics
        for done, one in zip(topic.partitions, asked.partitions, strict=True):
            if done.error is OK:
                self.committed[one.index] = one.offset
                if request.generation_id >= 0:
                    assert request.generation_id == self.latest_generation, (
                        "a member of an old generation committed"
                    )

    @rule(
        name=names,
        protocols=st.sampled_from(PROTOCOLS),
        fresh=st.sampled_from((False, False, True)),
        version=st.sampled_from((3, 5, 9)),
        rebalance_ms=st.sampled_from((0, 500, 2000)),
        session_ms=st.sampled_from((100, 1000, 4000)),
    )
    def join(self, name, protocols, fresh, version, rebalance_ms, session_ms):
        client = self.clients[name]
        request = JoinGroup(
            "g",
            "" if fresh else client.member_id,
            name,
            "host",
            session_ms,
            rebalance_ms,
            "consumer",
            tuple(Protocol(one, b"") for one in protocols),
            STATIC.get(name) if version >= 5 else None,
            member_id_required=version >= 4,
            supports_skip_assignment=version >= 9,
        )
        self.take(self.shard.join(request, self.token(name, request), self.now))

    @rule(
        clients=st.lists(names, min_size=1, unique=True),
        version=st.sampled_from((5, 9)),
        protocols=st.sampled_from(PROTOCOLS[:3]),
        session_ms=st.sampled_from((1000, 4000)),
        and_sync=st.booleans(),
    )
    def gather(self, clients, version, protocols, session_ms, and_sync):
        """Join as well-behaved clients do, and perhaps sync."""
        for name in clients:
            self.join(name, protocols, not self.clients[name].member_id, version, 500, session_ms)
            if self.clients[name].member_id in (self.group().pending if self.group() else ()):
                self.join(name, protocols, False, version, 500, session_ms)
        self.wait(701)
        if and_sync:
            self.sync_all(None)

    @rule(refuse=st.sampled_from((None, None, None, ErrorCode.kafka_storage_error)))
    def sync_all(self, refuse):
        """Each client, the leader included, asks for its assignment."""
        for name in NAMES:
            self.sync(name, False, refuse)

    @rule(
        name=names,
        stale=st.booleans(),
        refuse=st.sampled_from((None, None, ErrorCode.kafka_storage_error)),
    )
    def sync(self, name, stale, refuse):
        client = self.clients[name]
        members = [one.member_id for one in self.shard.describe("g").members]
        request = SyncGroup(
            "g",
            client.generation_id - stale,
            client.member_id,
            assignments=tuple(
                Assignment(one, f"{client.generation_id}/{one}".encode()) for one in members[1:]
            ),
        )
        self.take(self.shard.sync(request, self.token(name, request), self.now), refuse)

    @rule(name=names)
    def beat(self, name):
        client = self.clients[name]
        request = Heartbeat("g", client.generation_id, client.member_id)
        self.take(self.shard.heartbeat(request, self.token(name, request), self.now))

    @rule(clients=st.lists(names, min_size=1, max_size=2), by_instance=st.booleans())
    def leave(self, clients, by_instance):
        members = tuple(
            LeavingMember("", STATIC[name])
            if by_instance and name in STATIC
            else LeavingMember(self.clients[name].member_id)
            for name in clients
        )
        request = LeaveGroup("g", members)
        self.take(self.shard.leave(request, self.token(clients[0], request), self.now))

    @rule(
        name=names,
        index=st.integers(0, 2),
        offset=st.integers(0, 99),
        alone=st.booleans(),
        refuse=st.sampled_from((None, None, ErrorCode.not_enough_replicas)),
    )
    def commit(self, name, index, offset, alone, refuse):
        client = self.clients[name]
        topics = (CommitTopic("t", (CommitPartition(index, offset),)),)
        member_id = "" if alone else client.member_id
        generation_id = -1 if alone else client.generation_id
        request = OffsetCommit("g", topics, generation_id, member_id)
        self.take(self.shard.commit(request, self.token(name, request), self.now), refuse)

    @rule(refuse=st.sampled_from((None, None, ErrorCode.not_enough_replicas)))
    def delete(self, refuse):
        request = DeleteGroup("g")
        before = self.shard.describe("g")
        decision = self.shard.delete(request, self.token("ann", request), self.now)
        assert before.state in ("Empty", "Dead") or self.shard.describe("g") == before
        self.take(decision, refuse)

    @rule(delay_ms=st.sampled_from((1, 90, 301, 301, 1100, 5000)))
    def wait(self, delay_ms):
        until_ms = self.now_ms + delay_ms
        self.pass_time(until_ms)

    def pass_time(self, until_ms):
        for _ in range(1000):
            deadline_ms = self.shard.next_deadline_ms()
            if deadline_ms is None or deadline_ms > until_ms:
                break
            self.now_ms = max(self.now_ms, deadline_ms)
            self.take(self.shard.tick(self.now))
        else:
            raise AssertionError("time stands still")
        self.now_ms = until_ms

    @rule()
    def restart(self):
        """The broker loses leadership and gets it back: every waiting request is answered with NOT_COORDINATOR."""
        before = self.shard.describe("g")
        self.waiting = {}
        self.shard = self.loaded()
        self.forget_generations()
        if before.state == GroupState.STABLE.value:
            assert self.shard.describe("g") == before

    def forget_generations(self):
        """Forget the generations that the log does not have: later ones may use their numbers."""
        group = self.group()
        # A deleted group lives on, not persisted, while a client may join with the member id that it got.
        self.latest_generation = group.generation_id if group and group.persisted else 0
        self.generations = {
            number: protocol
            for number, protocol in self.generations.items()
            if number <= self.latest_generation
        }

    def group(self):
        return self.shard._groups.get("g")

    @invariant()
    def offsets_are_those_committed(self):
        found = self.shard.fetch_offsets(OffsetFetch("g")).topics
        assert {
            one.index: one.offset for topic in found for one in topic.partitions
        } == self.committed

    @invariant()
    def group_is_consistent(self):
        group = self.group()
        if group is None:
            return
        members = group.members
        assert all(one.member_id == key for key, one in members.items())
        assert (group.leader_id is None) == (not members)
        assert group.leader_id is None or group.leader_id in members
        assert group.awaiting_join == sum(one.join_token is not None for one in members.values())
        supported = Counter(name for one in members.values() for name in one.protocols)
        assert +group.support == supported
        assert not members or len(members) in supported.values(), (
            "the members have no common protocol"
        )
        assert group.instances == {
            one.group_instance_id: one.member_id
            for one in members.values()
            if one.group_instance_id
        }
        assert group.unsynced <= members.keys()
        assert not group.pending & members.keys()
        assert (group.state is GroupState.EMPTY) <= (not members)
        assert group.generation_id >= self.latest_generation

    @invariant()
    def every_member_has_a_deadline(self):
        """Each member, pending id and phase has a deadline: nothing can get stuck."""
        group, timers = self.group(), self.shard._timers
        if group is None:
            assert len(timers) == 1, "an empty shard may have only the timer that expires offsets"
            return
        sessions = {
            one
            for one in (*group.members, *group.pending)
            if timers.deadline(TimerKey(TimerKind.SESSION, "g", one)) is not None
        }
        excused = {one.member_id for one in group.members.values() if one.is_excused()}
        assert sessions | excused == set(group.members) | group.pending.keys()
        joining = timers.deadline(TimerKey(TimerKind.JOIN, "g")) is not None
        assert joining == (group.state is GroupState.PREPARING_REBALANCE)
        syncing = timers.deadline(TimerKey(TimerKind.SYNC, "g")) is not None
        assert syncing == bool(group.unsynced)
        phases = joining + syncing
        assert len(timers) == len(sessions) + phases + 1, (
            "a deadline that belongs to no member or phase"
        )

    @invariant()
    def every_waiting_request_is_in_the_group(self):
        group = self.group()
        members = group.members.values() if group else ()
        tokens = {one.join_token for one in members} | {one.sync_token for one in members}
        assert tokens - {None} == set(self.waiting), "a waiting request has no caller"

    def teardown(self):
        self.pass_time(self.now_ms + 10_000_000)
        assert not self.waiting, "a request never gets its answer"


TestCrowd = Crowd.TestCase
TestCrowd.settings = settings(
    max_examples=200,
    stateful_step_count=50,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
