"""Stories of requests about groups; see `differential_stories`.

In: a `Broker`. Out: its trace. Timeouts are so long that none passes by chance.
"""

from time import sleep
from typing import Any

from tests.compat.differential import Broker, Connection
from tests.compat.differential_stories import Story, topic
from tests.integration.waiting import wait_for

from stratalog.client.calls import error_of

GROUP_STORIES: list[Story] = []


def story(function: Story) -> Story:
    GROUP_STORIES.append(function)
    return function


def find(connection: Connection, *groups: str) -> None:
    """Wait until the groups have a coordinator that answers."""
    for _ in range(200):
        connection.send("FindCoordinator", key_type=0, key=groups[0], coordinator_keys=list(groups))
        answer = connection.receive(traced=False)
        codes = [one.error_code for one in answer.coordinators] or [answer.error_code]
        if not any(codes):
            connection.send("DescribeGroups", groups=list(groups))
            described = connection.receive(traced=False)
            if all(
                error_of(one.error_code).name in ("none", "group_id_not_found")
                for one in described.groups
            ):
                return
        sleep(0.05)  # Kafka is creating the offsets topic
    raise AssertionError(f"{groups} have no coordinator")


class Member:
    """One member with its own connection."""

    def __init__(
        self, broker: Broker, group: str, client_id: str, instance: str | None = None
    ) -> None:
        self.connection = broker.connect(client_id)
        self.broker = broker
        self.group = broker.name(group)
        self.instance = instance if broker.version(11) >= 5 else None
        self.member_id = ""
        self.generation = -1

    def join(self, protocols: Any = (("range", b"r"),), *, wait: bool = True, **more: Any) -> Any:
        self.connection.send(
            "JoinGroup",
            group_id=self.group,
            session_timeout=more.get("session", 30_000),
            rebalance_timeout=more.get("rebalance", 30_000),
            member_id=more.get("member_id", self.member_id),
            group_instance_id=more.get("instance", self.instance),
            protocol_type=more.get("kind", "consumer"),
            protocols=[{"name": name, "metadata": metadata} for name, metadata in protocols],
        )
        if wait:
            return self.joined()
        self.until_it_is_parked()
        return None

    def until_it_is_parked(self) -> None:
        """Wait until the group has the member's waiting request: answers on other connections depend on it."""
        asker = self.broker.connect()

        def is_parked() -> bool:
            asker.send("DescribeGroups", groups=[self.group])
            (described,) = asker.receive(traced=False).groups
            return described.group_state not in ("Stable", "Empty", "Dead")

        wait_for(is_parked, f"a member that joins {self.group}")
        asker.close()

    def joined(self) -> Any:
        """Join; return the answer, or the answer to the second request if the first only assigned an id."""
        answer = self.connection.receive()
        if answer.member_id:
            self.member_id = answer.member_id
        self.generation = max(answer.generation_id, self.generation)
        return answer

    def sync(self, assignments: Any = None, *, wait: bool = True, **more: Any) -> Any:
        given = assignments or {}
        self.connection.send(
            "SyncGroup",
            group_id=self.group,
            generation_id=more.get("generation", self.generation),
            member_id=more.get("member_id", self.member_id),
            group_instance_id=more.get("instance", self.instance),
            protocol_type=more.get("kind", "consumer"),
            protocol_name=more.get("protocol", "range"),
            assignments=[{"member_id": one, "assignment": data} for one, data in given.items()],
        )
        return self.connection.receive() if wait else None

    def beat(self, **more: Any) -> Any:
        return self.connection.ask(
            "Heartbeat",
            group_id=self.group,
            generation_id=more.get("generation", self.generation),
            member_id=more.get("member_id", self.member_id),
            group_instance_id=more.get("instance", self.instance),
        )

    def leave(self, *members: tuple[str, str | None]) -> Any:
        leaving = members or ((self.member_id, self.instance),)
        listed = [{"member_id": one, "group_instance_id": instance} for one, instance in leaving]
        return self.connection.ask(
            "LeaveGroup", group_id=self.group, member_id=leaving[0][0], members=listed
        )

    def commit(self, name: str, offset: int = 5, *, partition: int = 0, **more: Any) -> Any:
        one = {
            "partition_index": partition,
            "committed_offset": offset,
            "committed_leader_epoch": -1,
            "committed_metadata": more.get("metadata", "m"),
        }
        generation = more.get("generation", self.generation)
        topics = [
            {
                "name": self.broker.name(name),
                "topic_id": self.broker.id_of(name),
                "partitions": [one],
            }
        ]
        return self.connection.ask(
            "OffsetCommit",
            group_id=self.group,
            generation_id_or_member_epoch=generation,
            member_id=more.get("member_id", self.member_id),
            group_instance_id=more.get("instance", self.instance),
            retention_time=-1,
            topics=topics,
        )


def formed(broker: Broker, group: str, *clients: str) -> list[Member]:
    """Form a stable group of dynamic members, outside the trace."""
    members = [Member(broker, group, client) for client in clients]
    find(members[0].connection, broker.name(group))
    mark = len(broker.trace)
    for member in members:
        answer = member.join()
        if error_of(answer.error_code).name == "member_id_required":
            member.join(wait=False)
        else:
            raise AssertionError(f"{answer}: needs a version that asks for the member id")
        if member is members[0]:
            member.joined()
            member.sync({member.member_id: b"all"})
        else:
            for other in members[: members.index(member)]:
                other.beat()
                other.join(wait=False)
            for other in members[: members.index(member) + 1]:
                other.joined()
            for other in members[1 : members.index(member) + 1]:
                other.sync(wait=False)
            joined_members = members[: members.index(member) + 1]
            members[0].sync(
                {one.member_id: one.connection.client_id.encode() for one in joined_members}
            )
            for other in members[1 : members.index(member) + 1]:
                other.connection.receive()
    del broker.trace[mark:]
    return members


def describe(connection: Connection, *groups: str) -> None:
    names = [connection.broker.name(one) for one in groups]
    connection.ask("DescribeGroups", groups=names, include_authorized_operations=True)


def offsets(connection: Connection, group: str, topics: Any, *, stable: bool = False) -> None:
    broker = connection.broker
    listed = (
        None
        if topics is None
        else [
            {"name": broker.name(name), "partition_indexes": list(indexes)}
            for name, indexes in topics
        ]
    )
    by_id = listed and [
        {**one, "topic_id": broker.id_of(name)}
        for one, (name, _) in zip(listed, topics, strict=True)
    ]
    full = broker.name(group)
    connection.ask(
        "OffsetFetch",
        group_id=full,
        topics=listed if listed is not None or broker.version(9) >= 2 else [],
        groups=[{"group_id": full, "topics": by_id, "member_epoch": -1}],
        require_stable=stable,
    )


@story
def coordinators_are_found(broker: Broker) -> None:
    ask = broker.connect()
    find(ask, broker.name("some"))
    ask.ask(
        "FindCoordinator",
        key_type=0,
        key=broker.name("some"),
        coordinator_keys=[broker.name("some"), broker.name("other")],
    )
    ask.ask("FindCoordinator", key_type=0, key="", coordinator_keys=[""])
    if broker.version(10) >= 1:
        ask.ask("FindCoordinator", key_type=9, key="x", coordinator_keys=["x"])
    if broker.version(10) >= 4:
        ask.ask("FindCoordinator", key_type=0, coordinator_keys=[])


@story
def a_group_is_formed(broker: Broker) -> None:
    one = Member(broker, "formed", "one")
    find(one.connection, broker.name("formed"))
    describe(one.connection, "formed")
    if error_of(one.join().error_code).name == "member_id_required":
        one.join()
    one.beat()
    one.commit("absent")
    describe(one.connection, "formed")
    one.sync({one.member_id: b"all"})
    one.beat()
    describe(one.connection, "formed")
    one.sync()
    one.join()
    one.sync({one.member_id: b"again"})
    one.beat()
    one.leave()
    one.beat()
    describe(one.connection, "formed")


@story
def members_come_and_go(broker: Broker) -> None:
    if broker.version(11) < 4:
        return
    one, two = formed(broker, "crowd", "one", "two")
    three = Member(broker, "crowd", "three")
    three.join()
    three.join(wait=False)
    one.beat()
    one.join([("range", b"new")], wait=False)
    two.beat()
    two.sync()
    two.commit("absent")
    two.join(wait=False)
    for member in (one, two, three):
        member.joined()
    two.sync(wait=False)
    three.beat()
    one.sync({one.member_id: b"1", two.member_id: b"2", three.member_id: b"3"})
    two.connection.receive()
    three.sync()
    describe(one.connection, "crowd")
    two.join()
    two.leave()
    one.beat()
    one.join(wait=False)
    three.join(wait=False)
    one.joined()
    three.joined()


@story
def unknown_members_are_refused(broker: Broker) -> None:
    if broker.version(11) < 4:
        return
    (one,) = formed(broker, "closed", "one")
    other = Member(broker, "closed", "other")
    other.join(member_id="unknown")
    other.join([("roundrobin", b"")])
    other.join(kind="connect")
    other.join([])
    other.join(kind="")
    other.join(session=10)
    other.join(session=3_600_000)
    other.sync(member_id="unknown", generation=1)
    other.sync(member_id=one.member_id, generation=9)
    other.sync(member_id=one.member_id, generation=1, protocol="sticky")
    other.sync(member_id=one.member_id, generation=1, kind="connect")
    other.beat(member_id="unknown", generation=1)
    other.beat(member_id=one.member_id, generation=9)
    other.leave(("unknown", None))
    if broker.version(13) >= 3:
        other.leave(("", "no such instance"), ("unknown", None))
        other.leave()
    topic(other.connection, "closed")
    other.commit("closed", member_id="unknown", generation=1)
    other.commit("closed", member_id=one.member_id, generation=9)
    other.commit("closed", member_id="", generation=-1)
    other.commit("closed", member_id=one.member_id, generation=1)
    other.group = ""
    other.join()
    other.sync(member_id="x", generation=1)
    other.beat(member_id="x", generation=1)
    other.leave(("x", None))
    other.commit("closed", member_id="", generation=-1)
    other.group = broker.name("unknown")
    other.join(member_id="x")
    other.sync(member_id="x", generation=1)
    other.beat(member_id="x", generation=1)
    other.leave(("x", None))
    other.commit("closed", member_id="x", generation=1)


@story
def static_members_are_fenced(broker: Broker) -> None:
    if min(broker.version(11), broker.version(12) + 2, broker.version(14) + 2) < 5:
        return
    one = Member(broker, "static", "one", "first")
    find(one.connection, broker.name("static"))
    one.join()
    one.sync({one.member_id: b"all"})
    again = Member(broker, "static", "one", "first")
    again.join()
    again.sync()
    one.beat()
    one.sync()
    one.join()
    one.commit("absent")
    again.beat()
    describe(again.connection, "static")
    two = Member(broker, "static", "two", "second")
    two.join(wait=False)
    again.beat()
    again.join(wait=False)
    again.joined()
    two.joined()
    two.sync(wait=False)
    again.sync({again.member_id: b"1", two.member_id: b"2"})
    two.connection.receive()
    changed = Member(broker, "static", "two", "second")
    changed.join([("range", b"changed")])
    changed.beat()
    two.beat()
    if broker.version(13) >= 3:
        again.leave((one.member_id, "first"))
        again.leave(("", "second"), ("", "third"))
        again.beat()


@story
def offsets_are_committed(broker: Broker) -> None:
    alone = Member(broker, "alone", "alone")
    find(alone.connection, broker.name("alone"))
    topic(alone.connection, "kept", 2)
    more = {"generation": -1, "member_id": ""}
    offsets(alone.connection, "alone", [("kept", [0])])
    offsets(alone.connection, "alone", None)
    alone.commit("kept", 5, **more)
    alone.commit("kept", 6, metadata=None, **more)
    alone.commit("kept", -1, partition=1, **more)
    alone.commit("kept", 7, partition=1, metadata="x" * 5000, **more)
    alone.commit("kept", 7, partition=9, **more)
    alone.commit("absent", 7, generation=-1, member_id="")
    offsets(alone.connection, "alone", [("kept", [0, 1, 9]), ("absent", [0])])
    offsets(alone.connection, "alone", None, stable=True)
    offsets(alone.connection, "alone", [])
    describe(alone.connection, "alone", "nowhere")
    if broker.version(9) >= 8:
        groups = [
            {"group_id": broker.name(one), "topics": None, "member_epoch": -1}
            for one in ("alone", "nowhere")
        ]
        alone.connection.ask("OffsetFetch", groups=groups, require_stable=True)
    alone.connection.ask(
        "OffsetDelete",
        group_id=broker.name("alone"),
        topics=[
            {
                "name": broker.name("kept"),
                "partitions": [{"partition_index": 0}, {"partition_index": 9}],
            }
        ],
    )
    alone.connection.ask(
        "OffsetDelete",
        group_id=broker.name("alone"),
        topics=[{"name": broker.name("absent"), "partitions": [{"partition_index": 0}]}],
    )
    alone.connection.ask("OffsetDelete", group_id=broker.name("nowhere"), topics=[])
    offsets(alone.connection, "alone", None)
    alone.connection.ask(
        "DeleteGroups", groups_names=[broker.name("alone"), broker.name("nowhere"), ""]
    )
    describe(alone.connection, "alone")


@story
def groups_are_listed_and_deleted(broker: Broker) -> None:
    if broker.version(11) < 4:
        return
    (one,) = formed(broker, "listed", "one")
    name = broker.name("listed")
    for states in ([], ["Stable"], ["stable"], ["Empty"], ["NoSuch"]):
        one.connection.send("ListGroups", states_filter=states, types_filter=[])
        answer = one.connection.receive(traced=False)
        broker.add(
            "ListGroups", [answer.error_code, [g for g in answer.groups if g.group_id == name]]
        )
    if broker.version(16) >= 5:
        for kind in ("classic", "Consumer", "odd"):
            one.connection.send("ListGroups", states_filter=[], types_filter=[kind])
            answer = one.connection.receive(traced=False)
            broker.add(
                "ListGroups", [answer.error_code, [g for g in answer.groups if g.group_id == name]]
            )
    one.connection.ask("DeleteGroups", groups_names=[name])
    one.connection.ask(
        "OffsetDelete",
        group_id=name,
        topics=[{"name": broker.name("absent"), "partitions": [{"partition_index": 0}]}],
    )
    one.leave()
    one.connection.ask("DeleteGroups", groups_names=[name])
    one.connection.ask("DeleteGroups", groups_names=[name])
    describe(one.connection, "listed")
    describe(one.connection, "")


@story
def a_group_is_described_while_it_rebalances(broker: Broker) -> None:
    """It shows what each member had to read."""
    if broker.version(11) < 4:
        return
    one, two = formed(broker, "moving", "one", "two")
    three = Member(broker, "moving", "three")
    three.join()
    three.join(wait=False)
    describe(one.connection, "moving")
    one.join(wait=False)
    two.join(wait=False)
    for member in (one, two, three):
        member.joined()
    describe(one.connection, "moving")


@story
def a_group_is_deleted_that_waits_for_a_member(broker: Broker) -> None:
    if broker.version(11) < 4:
        return
    (one,) = formed(broker, "waiting", "one")
    one.leave()
    two = Member(broker, "waiting", "two")
    two.join()
    name = broker.name("waiting")
    for _ in range(2):
        one.connection.ask("DeleteGroups", groups_names=[name])
        describe(one.connection, "waiting")
    two.join()
