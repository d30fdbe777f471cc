"""Stories of transactions for both brokers: ends, fences, refusals, offsets, lists, markers.

In: a broker of either kind. Out: its answers in the broker's trace. Waits are untraced: how long a coordinator loads or
writes markers is no answer.
"""

from time import sleep
from typing import Any
from uuid import UUID

from tests.compat.differential import GONE, Broker, Connection
from tests.compat.differential_groups import Member, find
from tests.compat.differential_records import TIMESTAMP_MS, fetch
from tests.compat.differential_stories import Story, topic

from stratalog.errors import ErrorCode
from stratalog.wire.records import Record, build_batch

TRANSACTION_STORIES: list[Story] = []
PASSING = {
    ErrorCode.concurrent_transactions,
    ErrorCode.coordinator_load_in_progress,
    ErrorCode.coordinator_not_available,
    ErrorCode.not_coordinator,
}
TRANSACTIONAL_ID_TYPE = 1
READ_COMMITTED = 1


def story(function: Story) -> Story:
    TRANSACTION_STORIES.append(function)
    return function


class Producer:
    """A transactional producer that sends what the story says. `name` is its transactional id, of this pass."""

    def __init__(self, connection: Connection, name: str) -> None:
        self.connection = connection
        self.broker = connection.broker
        self.name = self.broker.name(name)
        self.id, self.epoch, self.sequence = -1, -1, 0

    def ask_until_final(self, api: str, **values: Any) -> Any:
        """Repeat a request while its error asks for that; trace the last answer."""
        for _ in range(400):
            self.connection.send(api, **values)
            answer = self.connection.receive(traced=False)
            found = getattr(answer, "error_code", None)
            codes = (
                [found] if found is not None else [one.error_code for one in answer.coordinators]
            )
            if ErrorCode(int(codes[0])) not in PASSING:
                break
            sleep(0.02)
        self.broker.add(api, answer)
        return answer

    def begin(self, *, timeout_ms: int = 60_000, again: bool = False) -> None:
        self.find()
        producer = (self.id, self.epoch) if again else (-1, -1)
        answer = self.ask_until_final(
            "InitProducerId",
            transactional_id=self.name,
            transaction_timeout=timeout_ms,
            producer_id=producer[0],
            producer_epoch=producer[1],
        )
        self.id, self.epoch, self.sequence = answer.producer_id, answer.producer_epoch, 0

    def find(self, key: str | None = None, key_type: int = TRANSACTIONAL_ID_TYPE) -> None:
        """Find a coordinator, whose topic may have to be created first; its address is no part of the trace."""
        depth, self.broker.depth = self.broker.depth, 0
        for _ in range(400):
            self.connection.send(
                "FindCoordinator", key_type=key_type, coordinator_keys=[key or self.name]
            )
            (found,) = self.connection.receive(traced=False).coordinators
            if not int(found.error_code):
                break
            sleep(0.02)
        self.broker.depth = depth

    def of(self, **more: Any) -> dict[str, Any]:
        return {
            "transactional_id": self.name,
            "producer_id": self.id,
            "producer_epoch": self.epoch,
            **more,
        }

    def add(self, topic_name: str, *partitions: int, verify_only: bool = False) -> None:
        topics = [{"name": self.broker.name(topic_name), "partitions": list(partitions)}]
        self.connection.ask(
            "AddPartitionsToTxn",
            transactions=[self.of(verify_only=verify_only, topics=topics)],
            v3_and_below_transactional_id=self.name,
            v3_and_below_producer_id=self.id,
            v3_and_below_producer_epoch=self.epoch,
            v3_and_below_topics=topics,
        )

    def write(
        self,
        topic_name: str,
        topic_id: UUID | None,
        value: bytes,
        *,
        partition: int = 0,
        transactional: bool = True,
        named: bool = True,
    ) -> None:
        one = build_batch(
            [Record(0, TIMESTAMP_MS, b"k", value)],
            producer_id=self.id,
            producer_epoch=self.epoch,
            base_sequence=self.sequence,
            transactional=transactional,
        )
        wanted = {
            "name": self.broker.name(topic_name),
            "topic_id": topic_id or GONE,
            "partitions": [(partition, bytes(one))],
        }
        name = self.name if named else None
        self.connection.ask("Produce", transactional_id=name, topics=[wanted], acks=-1)
        self.sequence += 1

    def end(self, *, commit: bool) -> None:
        answer = self.ask_until_final("EndTxn", **self.of(committed=commit))
        if getattr(answer, "producer_epoch", -1) >= 0:
            self.id, self.epoch, self.sequence = answer.producer_id, answer.producer_epoch, 0
        self.wait_for_markers()

    def wait_for_markers(self) -> None:
        for _ in range(400):
            self.connection.send("DescribeTransactions", transactional_ids=[self.name])
            (found,) = self.connection.receive(traced=False).transaction_states
            if not found.transaction_state.startswith("Prepare"):
                return
            sleep(0.02)

    def wait_for_state(self, wanted: str) -> None:
        for _ in range(1000):
            self.connection.send("DescribeTransactions", transactional_ids=[self.name])
            (found,) = self.connection.receive(traced=False).transaction_states
            if found.transaction_state == wanted:
                return
            sleep(0.02)

    def describe(self) -> None:
        """Trace the transaction without its times."""
        self.connection.send("DescribeTransactions", transactional_ids=[self.name])
        (found,) = self.connection.receive(traced=False).transaction_states
        shown = {
            "error": ErrorCode(int(found.error_code)).name,
            "state": found.transaction_state,
            "epoch": found.producer_epoch,
            "has begun": found.transaction_start_time_ms is not None,
            "topics": sorted((one.topic, sorted(one.partitions)) for one in found.topics),
        }
        self.broker.add("DescribeTransactions", sorted(shown.items(), key=lambda one: one[0]))

    def list_own(self, **filters: Any) -> None:
        """Trace which of this pass's ids are listed, and their states."""
        wanted = {"state_filters": [], "producer_id_filters": [], "duration_filter": -1, **filters}
        self.connection.send("ListTransactions", **wanted)
        answer = self.connection.receive(traced=False)
        listed = sorted(
            (one.transactional_id.removeprefix(self.broker.prefix), one.transaction_state)
            for one in answer.transaction_states
            if one.transactional_id.startswith(self.broker.prefix)
        )
        unknown = sorted(answer.unknown_state_filters)
        error = ErrorCode(int(answer.error_code)).name
        self.broker.add("ListTransactions", [error, unknown, *map(list, listed)])


@story
def transactions_end(broker: Broker) -> None:
    ask = broker.connect()
    topic_id = topic(ask, "ends", 2)
    one = Producer(ask, "ends")
    one.begin()
    one.describe()
    for commit in (True, False, True):
        one.add("ends", 0, 1)
        one.write("ends", topic_id, b"a")
        one.write("ends", topic_id, b"b")
        one.describe()
        for isolation in (0, READ_COMMITTED):
            fetch(ask, "ends", topic_id, 0, isolation_level=isolation)
        one.end(commit=commit)
        one.describe()
        for isolation in (0, READ_COMMITTED):
            fetch(ask, "ends", topic_id, 0, isolation_level=isolation)
        fetch(ask, "ends", topic_id, 0, isolation_level=READ_COMMITTED, partition=1)
    one.end(commit=True)
    one.end(commit=False)


@story
def transactions_of_the_second_protocol_end(broker: Broker) -> None:
    """Leaders add the partitions, where Produce is of version 12 or newer."""
    ask = broker.connect()
    topic_id = topic(ask, "raised", 2)
    one = Producer(ask, "raised")
    one.begin()
    for commit in (True, False, False):
        one.write("raised", topic_id, b"a")
        one.describe()
        one.end(commit=commit)
        one.describe()
    one.end(commit=False)
    one.end(commit=True)
    fetch(ask, "raised", topic_id, 0, isolation_level=READ_COMMITTED)


@story
def a_producer_of_the_second_protocol_is_fenced(broker: Broker) -> None:
    ask = broker.connect()
    topic_id = topic(ask, "raised-fence")
    old, new = Producer(ask, "raised-fence"), Producer(ask, "raised-fence")
    old.begin()
    old.write("raised-fence", topic_id, b"a")
    new.begin()
    new.describe()
    old.write("raised-fence", topic_id, b"b")
    old.end(commit=True)
    old.end(commit=False)
    old.begin(again=True)
    new.write("raised-fence", topic_id, b"c")
    new.begin(again=True)
    new.describe()
    fetch(ask, "raised-fence", topic_id, 0, isolation_level=READ_COMMITTED)


@story
def a_time_out_ends_a_transaction(broker: Broker) -> None:
    ask = broker.connect()
    topic_id = topic(ask, "late")
    one = Producer(ask, "late")
    one.begin(timeout_ms=3000)  # long enough for the write on a busy machine
    one.add("late", 0)
    one.write("late", topic_id, b"a")
    one.wait_for_state("CompleteAbort")
    one.describe()
    one.write("late", topic_id, b"b")
    one.end(commit=True)
    one.end(commit=False)
    one.begin(again=True)


@story
def fenced_producers_are_refused(broker: Broker) -> None:
    ask = broker.connect()
    topic_id = topic(ask, "fenced")
    old, new = Producer(ask, "fenced"), Producer(ask, "fenced")
    old.begin()
    old.add("fenced", 0)
    old.write("fenced", topic_id, b"a")
    new.begin()
    new.describe()
    old.add("fenced", 0)
    old.write("fenced", topic_id, b"b")
    old.end(commit=True)
    old.end(commit=False)
    old.begin(again=True)
    new.add("fenced", 0)
    new.write("fenced", topic_id, b"c")
    new.end(commit=True)
    new.begin(again=True)
    new.describe()
    fetch(ask, "fenced", topic_id, 0, isolation_level=READ_COMMITTED)


@story
def transactions_that_are_wrong_are_refused(broker: Broker) -> None:
    ask = broker.connect()
    topic_id = topic(ask, "wrong")
    stranger = Producer(ask, "stranger")
    stranger.find()
    stranger.id, stranger.epoch = 12_345_678, 0
    stranger.describe()
    stranger.end(commit=True)
    stranger.add("wrong", 0)
    ask.ask("AddOffsetsToTxn", **stranger.of(group_id=broker.name("g")))
    stranger.write("wrong", topic_id, b"x")
    for timeout_ms in (0, -1, 900_001):
        stranger.begin(timeout_ms=timeout_ms)
    one = Producer(ask, "wrong")
    one.begin()
    one.end(commit=True)
    one.end(commit=False)
    one.begin()
    one.add("absent", 0)
    one.write("wrong", topic_id, b"not named", named=False)
    one.write("wrong", topic_id, b"not in a transaction", transactional=False)
    one.add("wrong", 0, verify_only=True)
    one.add("wrong", 0)
    one.add("wrong", 0, verify_only=True)
    one.describe()
    real, one.epoch = one.epoch, one.epoch + 1
    one.end(commit=True)
    one.add("wrong", 0)
    one.epoch = real
    one.end(commit=False)


class Offsets:
    """A group's offset of partition 0 of one topic, committed in transactions."""

    def __init__(self, ask: Connection, name: str, topic_id: UUID | None) -> None:
        self.ask, self.broker, self.name, self.topic_id = ask, ask.broker, name, topic_id
        self.group = self.broker.name(name)

    def commit(self, producer: Producer, offset: int, **more: Any) -> None:
        wanted = {"partition_index": 0, "committed_offset": offset, "committed_leader_epoch": -1}
        partitions = [{**wanted, "committed_metadata": "m"}]
        topics = [{"name": self.broker.name(self.name), "partitions": partitions}]
        member = {"generation_id": -1, "member_id": "", "group_instance_id": None, **more}
        values = producer.of(group_id=self.group, topics=topics, **member)
        self.ask.ask("TxnOffsetCommit", **values)

    def look(self, *, stable: bool) -> None:
        name = self.broker.name(self.name)
        topics = [{"name": name, "topic_id": self.topic_id, "partition_indexes": [0]}]
        one = {"group_id": self.group, "member_id": None, "member_epoch": -1, "topics": topics}
        self.ask.ask(
            "OffsetFetch",
            groups=[one],
            group_id=self.group,
            topics=topics,
            require_stable=stable,
        )

    def wait_until_loaded(self) -> None:
        for _ in range(400):
            groups = [{"group_id": self.group, "topics": []}]
            self.ask.send("OffsetFetch", groups=groups, group_id=self.group)
            answer = self.ask.receive(traced=False)
            if not any(int(one.error_code) for one in getattr(answer, "groups", ()) or [answer]):
                return
            sleep(0.02)


@story
def offsets_are_committed_in_transactions(broker: Broker) -> None:
    ask = broker.connect()
    offsets = Offsets(ask, "offsets-of", topic(ask, "offsets-of"))
    one = Producer(ask, "offsets-of")
    one.begin()
    one.find(offsets.group, key_type=0)
    offsets.wait_until_loaded()
    for offset, commits in ((5, True), (7, False)):
        ask.ask("AddOffsetsToTxn", **one.of(group_id=offsets.group))
        offsets.commit(one, offset)
        offsets.look(stable=True)
        offsets.look(stable=False)
        one.describe()
        one.end(commit=commits)
        offsets.look(stable=True)
    ask.ask("AddOffsetsToTxn", **one.of(group_id=offsets.group))
    offsets.commit(one, 9, generation_id=3, member_id="no-member")
    offsets.commit(one, 9, generation_id=3)
    one.end(commit=False)


@story
def the_newest_offset_of_two_transactions_counts(broker: Broker) -> None:
    """Not the offset of the transaction that ends last."""
    ask = broker.connect()
    offsets = Offsets(ask, "newest-of", topic(ask, "newest-of"))
    older, newer = Producer(ask, "older-of"), Producer(ask, "newer-of")
    for one in (older, newer):
        one.begin()
    newer.find(offsets.group, key_type=0)
    offsets.wait_until_loaded()
    for one, offset in ((older, 9), (newer, 5)):
        ask.ask("AddOffsetsToTxn", **one.of(group_id=offsets.group))
        offsets.commit(one, offset)
    for one in (newer, older):
        one.end(commit=True)
        offsets.look(stable=True)
        offsets.look(stable=False)


@story
def deletions_take_what_a_transaction_has_staged(broker: Broker) -> None:
    ask = broker.connect()
    offsets = Offsets(ask, "deleted-of", topic(ask, "deleted-of"))
    one = Producer(ask, "deleted-of")
    one.begin()
    one.find(offsets.group, key_type=0)
    offsets.wait_until_loaded()
    deleted = {"name": broker.name("deleted-of"), "partitions": [{"partition_index": 0}]}
    for delete in ("OffsetDelete", "DeleteGroups"):
        ask.ask("AddOffsetsToTxn", **one.of(group_id=offsets.group))
        offsets.commit(one, 5)
        ask.ask("DescribeGroups", groups=[offsets.group])
        wanted: dict[str, Any] = {"group_id": offsets.group, "topics": [deleted]}
        if delete == "DeleteGroups":
            wanted = {"groups_names": [offsets.group]}
        ask.ask(delete, **wanted)
        offsets.look(stable=True)
        one.end(commit=True)
        offsets.look(stable=True)


@story
def offsets_of_a_replaced_static_member_are_refused(broker: Broker) -> None:
    """A member's second process takes its place: what the first one commits in a transaction is refused."""
    if broker.version(11) < 5:
        return
    first = Member(broker, "static-of-tx", "one", "instance")
    ask = first.connection
    topic_id = topic(ask, "static-of-tx")
    find(ask, first.group)
    first.join()
    first.sync({first.member_id: b"all"})
    second = Member(broker, "static-of-tx", "one", "instance")
    second.join()
    second.sync()
    one = Producer(ask, "static-of-tx")
    one.begin()
    wanted = {"partition_index": 0, "committed_offset": 5, "committed_leader_epoch": -1}
    topics = [
        {
            "name": broker.name("static-of-tx"),
            "partitions": [{**wanted, "committed_metadata": "m"}],
        }
    ]

    def commit(member: Member, **more: Any) -> None:
        given = {
            "generation_id": member.generation,
            "member_id": member.member_id,
            "group_instance_id": member.instance,
            **more,
        }
        ask.ask("TxnOffsetCommit", **one.of(group_id=member.group, topics=topics, **given))

    ask.ask("AddOffsetsToTxn", **one.of(group_id=first.group))
    commit(first)
    commit(first, group_instance_id=None)
    commit(second, group_instance_id="no such instance")
    commit(second, generation_id=second.generation + 1)
    commit(first, generation_id=-1)
    commit(second)
    one.end(commit=True)
    looked = [{"name": broker.name("static-of-tx"), "topic_id": topic_id, "partition_indexes": [0]}]
    groups = [{"group_id": first.group, "member_id": None, "member_epoch": -1, "topics": looked}]
    ask.ask("OffsetFetch", groups=groups, group_id=first.group, topics=looked, require_stable=True)


@story
def transactions_are_listed(broker: Broker) -> None:
    ask = broker.connect()
    topic_id = topic(ask, "listed")
    one, other = Producer(ask, "list-open"), Producer(ask, "list-empty")
    one.begin()
    other.begin()
    one.add("listed", 0)
    one.write("listed", topic_id, b"a")
    one.list_own(state_filters=["Ongoing"])
    one.list_own(state_filters=["Ongoing", "NoSuchState"])
    one.list_own(producer_id_filters=[other.id])
    one.list_own(duration_filter=3_600_000)
    one.list_own(state_filters=["Empty"], producer_id_filters=[one.id])
    for pattern in (".*list-o.*", "list-open", f"{broker.prefix}list-(open|empty)", ""):
        one.list_own(producer_id_filters=[one.id, other.id], transactional_id_pattern=pattern)
    one.list_own(producer_id_filters=[one.id], transactional_id_pattern="(")
    one.end(commit=False)
    one.list_own(producer_id_filters=[one.id])


@story
def markers_are_written(broker: Broker) -> None:
    ask = broker.connect()
    topic_id = topic(ask, "markers")
    one = Producer(ask, "markers")
    one.begin()
    one.begin()
    one.add("markers", 0)
    one.write("markers", topic_id, b"a")

    def mark(*, name: str = "markers", index: int = 0, epoch: int = 0, of: int = 0) -> None:
        ask.ask(
            "WriteTxnMarkers",
            markers=[
                {
                    "producer_id": one.id,
                    "producer_epoch": one.epoch + epoch,
                    "transaction_result": False,
                    "topics": [{"name": broker.name(name), "partition_indexes": [index]}],
                    "coordinator_epoch": of,
                }
            ],
        )

    mark(name="absent")
    mark(index=7)
    mark(epoch=-1)
    fetch(ask, "markers", topic_id, 0, isolation_level=READ_COMMITTED)
    mark(of=5)
    fetch(ask, "markers", topic_id, 0, isolation_level=READ_COMMITTED)
    mark(of=4)
    mark(of=5)
    fetch(ask, "markers", topic_id, 0)
