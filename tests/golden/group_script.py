"""Play a group story: commands in, the full trace out.

In: lines such as `join alice`, `wait 3000`. Out: each logged record, each answer and each change of state. It is a
miniature of the broker's shell: it appends a decision's records, replays them, delivers the answers, and calls `tick`
when a deadline comes. If the log refuses, it drops the shard and loads another from the log. It never touches the
shard's inner state.
"""

import re
import uuid
from dataclasses import dataclass

from stratalog.coordinators.groups import GroupShard
from stratalog.coordinators.messages import (
    Assignment,
    CommitPartition,
    CommitTopic,
    DeleteGroup,
    FetchTopic,
    Heartbeat,
    JoinGroup,
    LeaveGroup,
    LeavingMember,
    OffsetCommit,
    OffsetDelete,
    OffsetFetch,
    Protocol,
    SyncGroup,
)
from stratalog.coordinators.turn import GroupSettings
from stratalog.errors import ErrorCode
from stratalog.statemachine import Now
from stratalog.wire.internal.offsets import (
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitValue,
    decode_key,
    decode_value,
)


class CountingEntropy:
    def __init__(self):
        self.count = 0

    def uuid(self):
        self.count += 1
        return uuid.UUID(int=self.count)

    def uniform(self, low, high):
        return low


@dataclass
class Client:
    name: str
    member_id: str = ""
    generation_id: int = -1


class Story:
    def __init__(self):
        self.now_ms = 0
        self.clients = {}
        self.log = []
        self.trace = []
        self.beats = {}
        self.refuse = None
        self.waiting = {}
        self.settings = {}
        self.entropy = CountingEntropy()
        self.shard = self.new_shard()

    def new_shard(self):
        shard = GroupShard(GroupSettings(**self.settings), self.entropy)
        for offset, (producer_id, key, value) in enumerate(self.log):
            if key is None:
                shard.end_transaction(producer_id, commit=value)
            else:
                shard.replay(offset, key, value, producer_id)
        list(shard.load_complete(self.now))
        return shard

    @property
    def now(self):
        return Now(self.now_ms, self.now_ms)

    def token(self, name, api):
        self.waiting[name, api] = self.waiting.get((name, api), 0) + 1
        return name, api

    def run(self, line):
        """Run one command; return its trace."""
        self.trace = []
        words = line.split()
        command, arguments = words[0], words[1:]
        options = dict(word.split("=", 1) for word in arguments if "=" in word)
        plain = [word for word in arguments if "=" not in word]
        before = self.states()
        getattr(self, command)(plain, options)
        if command != "wait":  # `wait` traces every change at its own time
            self.note_states(before)
        return [short(line) for line in self.trace]

    # --- commands ---

    def set(self, plain, options):
        self.settings = {name: int(value) for name, value in options.items()}
        self.shard = self.new_shard()

    def join(self, plain, options):
        client = self.client(plain[0])
        names = [one.partition(":") for one in options.get("protocols", "range").split(",")]
        if "reads" in options:
            topics = options["reads"].encode()
            names = [("range", ":", f"\0\0\0\0\0\1\0{chr(len(topics))}{options['reads']}")]
        version = int(options.get("v", 9))
        request = JoinGroup(
            group_id=options.get("group", "g"),
            member_id=self.member_id(client, options),
            client_id=client.name,
            client_host="/10.0.0.1",
            session_timeout_ms=int(options.get("session", 10_000)),
            rebalance_timeout_ms=int(options.get("rebalance", 60_000)),
            protocol_type=options.get("type", "consumer"),
            protocols=tuple(Protocol(a, (b or client.name).encode()) for a, _, b in names if a),
            group_instance_id=options.get("instance"),
            member_id_required=version >= 4,
            supports_skip_assignment=version >= 9,
        )
        self.take(self.shard.join(request, self.token(client.name, "JoinGroup"), self.now))

    def sync(self, plain, options):
        client = self.client(plain[0])
        assign = [one.split(":") for one in options.get("assign", "").split(",") if one]
        request = SyncGroup(
            options.get("group", "g"),
            int(options.get("generation", client.generation_id)),
            self.member_id(client, options),
            options.get("instance"),
            options.get("type"),
            options.get("protocol"),
            tuple(Assignment(self.client(name).member_id, part.encode()) for name, part in assign),
        )
        self.take(self.shard.sync(request, self.token(client.name, "SyncGroup"), self.now))

    def heartbeat(self, plain, options):
        for name in plain:
            client = self.client(name)
            request = Heartbeat(
                options.get("group", "g"),
                int(options.get("generation", client.generation_id)),
                self.member_id(client, options),
                options.get("instance"),
            )
            self.take(self.shard.heartbeat(request, self.token(name, "Heartbeat"), self.now))

    def leave(self, plain, options):
        members = [LeavingMember(self.client(name).member_id) for name in plain]
        members += [
            LeavingMember("", one) for one in options.get("instances", "").split(",") if one
        ]
        request = LeaveGroup(options.get("group", "g"), tuple(members))
        self.take(
            self.shard.leave(
                request, self.token(plain[0] if plain else "admin", "LeaveGroup"), self.now
            )
        )

    def commit(self, plain, options, producer_id=-1):
        client = self.client(plain[0])
        alone = plain[0] == "admin"
        topics = {}
        for word, offset in options.items():
            topic, dash, index = word.rpartition("-")
            if dash:
                one = CommitPartition(int(index), int(offset), metadata=options.get("metadata"))
                topics.setdefault(topic, []).append(one)
        request = OffsetCommit(
            options.get("group", "g"),
            tuple(
                CommitTopic(name, tuple(parts), topic_id(name)) for name, parts in topics.items()
            ),
            -1 if alone else int(options.get("generation", client.generation_id)),
            "" if alone else self.member_id(client, options),
            supports_group_not_found=options.get("v") == "9",
            retention_ms=int(options.get("retention", -1)),
            in_transaction=producer_id >= 0,
        )
        token = self.token(client.name, "OffsetCommit")
        self.take(self.shard.commit(request, token, self.now), producer_id)

    def stage(self, plain, options):
        """Commit offsets in the open transaction of a producer: `stage admin producer=7 t-0=5`."""
        self.commit(plain, options, int(options.pop("producer")))

    def ends(self, plain, options):
        """A marker ends the transaction of a producer: `ends 7 commit`."""
        producer_id, commit = int(plain[0]), plain[1] == "commit"
        self.log.append((producer_id, None, commit))
        self.shard.end_transaction(producer_id, commit=commit)

    def fetch(self, plain, options):
        topics = [word.rpartition("-") for word in plain]
        wanted = tuple(FetchTopic(name, (int(index),), topic_id(name)) for name, _, index in topics)
        stable = options.get("stable") == "yes"
        answer = self.shard.fetch_offsets(
            OffsetFetch(options.get("group", "g"), wanted or None, require_stable=stable)
        )
        for topic in answer.topics:
            for one in topic.partitions:
                about = f" {one.metadata!r}" if one.metadata else ""
                code = "" if one.error is ErrorCode.none else f" {one.error.name}"
                self.trace.append(f"{topic.name}-{one.index} = {one.offset}{about}{code}")
        if not any(topic.partitions for topic in answer.topics):
            self.trace.append("nothing")

    def wait(self, plain, options):
        """Let time pass. The clients `beating` send a heartbeat every second; a new answer goes into the trace."""
        until_ms = self.now_ms + int(plain[0])
        self.beats = {}
        beating = [name for name in options.get("beating", "").split(",") if name]
        while self.now_ms < until_ms:
            beat_ms = (self.now_ms // 1000 + 1) * 1000 if beating else until_ms
            deadline_ms = self.shard.next_deadline_ms()
            due_ms = until_ms if deadline_ms is None else max(deadline_ms, self.now_ms)
            self.now_ms = min(until_ms, beat_ms, due_ms)
            if self.now_ms == due_ms:
                before, length = self.states(), len(self.trace)
                self.take(self.shard.tick(self.now))
                self.note_states(before)
                if len(self.trace) > length:
                    self.trace.insert(length, f"at {self.now_ms} ms")
            if self.now_ms == beat_ms:
                for name in beating:
                    self.heartbeat_quietly(self.client(name))

    def heartbeat_quietly(self, client):
        request = Heartbeat("g", client.generation_id, client.member_id)
        decision = self.shard.heartbeat(request, (client.name, "Heartbeat"), self.now)
        for _, answer in decision.answer.answers:
            if answer.error is not self.beats.get(client.name, ErrorCode.none):
                self.trace.append(
                    f"at {self.now_ms} ms {client.name} <- Heartbeat {answer.error.name}"
                )
            self.beats[client.name] = answer.error

    def describe(self, plain, options):
        found = self.shard.describe(options.get("group", "g"))
        error = "" if found.error is ErrorCode.none else f" {found.error.name}"
        self.trace.append(
            f"{found.state}{error} {found.protocol_type}/{found.protocol_name}".rstrip(" /")
        )
        for one in found.members:
            self.trace.append(
                f"  {one.member_id} instance={one.group_instance_id} {one.client_host}"
                f" metadata={readable(one.metadata)} assignment={one.assignment.decode()}"
            )

    def list(self, plain, options):
        for one in self.shard.list_groups(plain):
            self.trace.append(f"{one.group_id} {one.state} {one.protocol_type}".rstrip())

    def delete(self, plain, options):
        request = DeleteGroup(options.get("group", "g"))
        self.take(self.shard.delete(request, self.token("admin", "DeleteGroups"), self.now))

    def delete_offsets(self, plain, options):
        topics = [word.rpartition("-") for word in plain]
        wanted = tuple(FetchTopic(name, (int(index),), topic_id(name)) for name, _, index in topics)
        request = OffsetDelete(options.get("group", "g"), wanted)
        self.take(self.shard.delete_offsets(request, self.token("admin", "OffsetDelete"), self.now))

    def restart(self, plain, options):
        """Restart the broker: only the log remains."""
        for (name, api), count in self.waiting.items():
            self.trace += [f"{name} <- {api} not_coordinator"] * count
        self.waiting = {}
        self.shard = self.new_shard()

    def batch_bytes_max(self, plain, options):
        self.shard.batch_bytes_max = int(plain[0])

    def refuse_append(self, plain, options):
        self.refuse = ErrorCode[plain[0]]

    def delete_topic(self, plain, options):
        deleted = {name: topic_id(name) for name in plain}
        for group in dict(self.shard.topics()):
            decision = self.shard.forget_offsets(
                group, lambda name, known: known == deleted.get(name), self.now
            )
            self.take(decision)

    # --- the shell ---

    def take(self, decision, producer_id=-1):
        if decision.records and self.refuse is not None:
            error, self.refuse = self.refuse, None
            self.trace.append(f"log: refused, {error.name}")
            self.restart([], {})
            return
        for key, value in decision.records:
            self.log.append((producer_id, key, value))
            of = "" if producer_id < 0 else f"of producer {producer_id}: "
            self.trace.append("log: " + of + record_in_words(key, value))
            self.shard.replay(len(self.log) - 1, key, value, producer_id)
        for (name, api), answer in decision.answer.answers:
            self.trace.append(f"{name} <- {api} {self.answer_in_words(api, answer)}")
            self.learn(self.client(name), api, answer)
            self.waiting[name, api] -= 1

    def learn(self, client, api, answer):
        """Keep the ids that a client learns from an answer."""
        if api == "JoinGroup":
            if answer.error in (ErrorCode.none, ErrorCode.member_id_required):
                client.member_id = answer.member_id
            if answer.error is ErrorCode.none:
                client.generation_id = answer.generation_id

    def answer_in_words(self, api, answer):
        if api in ("OffsetCommit", "OffsetDelete") and answer.topics:
            return " ".join(
                f"{topic.name}-{one.index}:{one.error.name}"
                for topic in answer.topics
                for one in topic.partitions
            )
        words = ["ok" if answer.error is ErrorCode.none else answer.error.name]
        if api == "JoinGroup":
            if answer.member_id:
                words.append(answer.member_id)
            if answer.error is ErrorCode.none:
                words.append(
                    f"generation={answer.generation_id} {answer.protocol_type}/{answer.protocol_name}"
                )
                words.append(f"leader={answer.leader}")
            if answer.members:
                said = (f"{one.member_id}:{readable(one.metadata)}" for one in answer.members)
                words.append(f"members={','.join(said)}")
            if answer.skip_assignment:
                words.append("skip-assignment")
        elif api == "SyncGroup" and answer.error is ErrorCode.none:
            words.append(
                f"{answer.protocol_type}/{answer.protocol_name} {answer.assignment.decode() or '(empty)'}"
            )
        elif api == "LeaveGroup":
            words += [
                f"{one.member_id or one.group_instance_id}:{one.error.name}"
                for one in answer.members
            ]
        return " ".join(words)

    # --- the trace ---

    def states(self):
        return {one.group_id: one.state for one in self.shard.list_groups()}

    def note_states(self, before):
        after = self.states()
        for group_id in sorted(before.keys() | after.keys()):
            old, new = before.get(group_id, "(none)"), after.get(group_id, "(none)")
            line = f"{group_id}: {old} -> {new}"
            if old != new and line not in self.trace:
                self.trace.append(line)

    def client(self, name):
        return self.clients.setdefault(name, Client(name))

    def member_id(self, client, options):
        wanted = options.get("member", client.name)
        if wanted == "none":
            return ""
        return self.clients[wanted].member_id if wanted in self.clients else wanted


def readable(metadata):
    """Return a member's metadata as text; of a subscription (`reads=`), its topic."""
    return metadata[8:].decode() if metadata.startswith(b"\0") else metadata.decode()


def topic_id(name):
    return uuid.uuid5(uuid.NAMESPACE_DNS, name)


def record_in_words(key, value):
    """Return one record as text."""
    key = decode_key(key)
    about = "" if isinstance(key, GroupMetadataKey) else f" {key.topic}-{key.partition}"
    opening = f"{key.group}{about}"
    if value is None:
        return f"{opening} tombstone"
    value = decode_value(key, value)
    if isinstance(value, OffsetCommitValue):
        expiry = f" until {value.expire_timestamp}" if value.expire_timestamp >= 0 else ""
        return f"{opening} = {value.offset}{expiry}"
    assert isinstance(value, GroupMetadataValue)
    members = (f"{one.member_id}={one.assignment.decode()}" for one in value.members)
    return " ".join((opening, f"generation={value.generation} leader={value.leader}", *members))


def short(text):
    """Shorten member ids to the small number at their end, which the counting entropy made."""
    return re.sub(
        r"-([0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})",
        lambda match: f"-{uuid.UUID(match[1]).int}",
        text,
    )
