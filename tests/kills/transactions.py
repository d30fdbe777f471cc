"""Rounds of kills of real nodes under a transactional producer: committed records are there once, aborted ones never.

In: a cluster's directory, how many rounds. Out: how many transactions ended how, and the seconds from each kill to the
next commit; AssertionError where a reader of committed records sees something else.

Each round kills one node with `kill -9` and starts it again after another leads: the node that coordinates the
transactions, or the leader of a partition with data.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Final

from confluent_kafka import Consumer, IsolationLevel, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec
from tests.cluster_processes import QUICK, ClusterProcesses

from stratalog.coordinators.placement import partition_for

TOPIC = "in-transactions"
ID = "kills"
PARTITIONS = 3
RECORDS = 2
"""Records of one transaction in each partition."""
STATES = "__transaction_state"
STATE_PARTITIONS = 3
SETTINGS = {"transaction.state.log.num.partitions": str(STATE_PARTITIONS)}
SESSION_S = int(QUICK["broker.session.timeout.ms"]) / 1000
WAIT_S = 60
EVERY: Final = 3
"""One transaction of so many is aborted."""


class Transactional:
    """librdkafka's producer runs one transaction after another. `outcomes` grows meanwhile: number -> outcome."""

    def __init__(self, address: str) -> None:
        self.outcomes: dict[int, str] = {}
        self.failure: BaseException | None = None
        self._address = address
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def end(self) -> None:
        """Stop after the transaction that is open. Raises the failure that ended the producer before."""
        self._ended.set()
        self._thread.join()
        if self.failure is not None:
            raise self.failure

    def _run(self) -> None:
        try:
            producer = self._connected()
            number = 0
            while not self._ended.is_set():
                producer = self._one(producer, number)
                number += 1
        except BaseException as error:  # noqa: BLE001 - carried to `end`
            self.failure = error

    def _connected(self) -> Producer:
        producer = Producer(
            {
                "bootstrap.servers": self._address,
                "transactional.id": ID,
                "linger.ms": 1,
                "reconnect.backoff.max.ms": 200,
                "topic.metadata.refresh.fast.interval.ms": 50,
                "log_level": 2,
            }
        )
        repeated(producer.init_transactions)
        return producer

    def _one(self, producer: Producer, number: int) -> Producer:
        """Carry out one transaction; return the producer for the next one."""
        try:
            producer.begin_transaction()
            for partition in range(PARTITIONS):
                for _ in range(RECORDS):
                    producer.produce(TOPIC, b"%d" % number, partition=partition)
            producer.flush(WAIT_S)  # an abort would drop the records that are not sent
            if number % EVERY:
                repeated(producer.commit_transaction)
                self.outcomes[number] = "committed"
                return producer
        except KafkaException as failure:
            error = failure.args[0]
            if not error.txn_requires_abort():
                self.outcomes[number] = "unknown"
                return self._connected()
        repeated(producer.abort_transaction)
        self.outcomes[number] = "aborted"
        return producer


def repeated(step: Callable[[float], object]) -> None:
    """Repeat a step of a transaction while its error asks for that."""
    deadline = time.monotonic() + WAIT_S
    while True:
        try:
            step(10)
        except KafkaException as failure:
            if not failure.args[0].retriable() or time.monotonic() > deadline:
                raise
        else:
            return


class Story:
    """A cluster, its producer, and an admin client."""

    def __init__(self, nodes: ClusterProcesses) -> None:
        self.nodes = nodes
        self._admin = AdminClient({"bootstrap.servers": nodes.address, "log_level": 2})
        topic = NewTopic(TOPIC, PARTITIONS, 3, config={"min.insync.replicas": "2"})
        self._admin.create_topics([topic])[TOPIC].result(WAIT_S)
        self.producer = Transactional(nodes.address)

    def leader(self, topic: str, partition: int) -> int:
        """Return the node that leads a partition; wait until one does."""
        deadline = time.monotonic() + WAIT_S
        while True:
            found = self._admin.list_topics(topic, timeout=WAIT_S).topics[topic].partitions
            if partition in found and found[partition].leader in self.nodes.ids:
                return int(found[partition].leader)
            assert time.monotonic() < deadline, f"{topic}-{partition} has no leader"
            time.sleep(0.05)

    def wait_for_commit(self) -> float:
        """Wait until one more transaction is committed; return the seconds."""
        begun, before = time.monotonic(), self._committed()
        while self._committed() == before:
            assert self.producer.failure is None, self.producer.failure
            assert time.monotonic() - begun < WAIT_S, "no transaction was committed"
            time.sleep(0.01)
        return time.monotonic() - begun

    def _committed(self) -> int:
        return Counter(dict(self.producer.outcomes).values())["committed"]

    def wait_for_whole(self) -> None:
        """Wait until every replica is in sync."""
        deadline = time.monotonic() + WAIT_S
        while True:
            topics = self._admin.list_topics(timeout=WAIT_S).topics
            partitions = [
                one for name in (TOPIC, STATES) for one in topics[name].partitions.values()
            ]
            if all(len(one.isrs) == 3 for one in partitions):
                return
            assert time.monotonic() < deadline, "not every replica is in sync"
            time.sleep(0.05)

    def wait_for_markers(self) -> None:
        """Wait until no transaction is open: a commit is answered before its markers are in every partition."""
        places = {TopicPartition(TOPIC, one): OffsetSpec.latest() for one in range(PARTITIONS)}
        deadline = time.monotonic() + WAIT_S
        while True:
            ends = [
                [one.result().offset for one in answer.values()]
                for level in (IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED)
                for answer in [self._admin.list_offsets(places, isolation_level=level)]
            ]
            if ends[0] == ends[1]:
                return
            assert time.monotonic() < deadline, (
                f"last stable offsets {ends[0]} stay below {ends[1]}"
            )
            time.sleep(0.05)

    def check(self) -> None:
        """Read all committed records; compare them with the outcomes."""
        read = [numbers(self.nodes.address, partition) for partition in range(PARTITIONS)]
        assert len({tuple(sorted(one)) for one in read}) == 1, "a transaction is there in part"
        found = Counter(read[0])
        for number, outcome in self.producer.outcomes.items():
            wanted = {"committed": (RECORDS,), "aborted": (0,), "unknown": (0, RECORDS)}[outcome]
            assert found[number] in wanted, (
                f"{number} is {outcome}, and there {found[number]} times"
            )


def numbers(address: str, partition: int) -> list[int]:
    """Return the values that a reader of committed records sees, up to the last stable offset."""
    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "checks",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "log_level": 2,
        }
    )
    consumer.assign([TopicPartition(TOPIC, partition, 0)])
    found = []
    try:
        while True:
            message = consumer.poll(WAIT_S)
            assert message is not None, f"{TOPIC}-{partition}: neither a record nor the end"
            error = message.error()
            if error is not None:
                assert error.name() == "_PARTITION_EOF", error
                return found
            found.append(int(message.value()))
    finally:
        consumer.close()


def coordinator(story: Story) -> int:
    return story.leader(STATES, partition_for(ID, STATE_PARTITIONS))


def data_leader(story: Story) -> int:
    """Return the leader of a partition with data; not the coordinator's, where there is another."""
    leaders = [story.leader(TOPIC, one) for one in range(PARTITIONS)]
    return next((one for one in leaders if one != coordinator(story)), leaders[0])


VICTIMS: Final = (coordinator, data_leader)


def run(place: Path, rounds: int) -> tuple[Counter[str], list[float]]:
    """Run rounds of kills; return the transactions by outcome, and each round's seconds to the next commit."""
    seconds = []
    with ClusterProcesses(place / "cluster", 3, SETTINGS) as nodes:
        story = Story(nodes)
        try:
            for number in range(rounds):
                story.wait_for_commit()
                story.wait_for_whole()
                victim = VICTIMS[number % len(VICTIMS)](story)
                nodes.kill(victim)
                seconds.append(story.wait_for_commit())
                print(f"{VICTIMS[number % len(VICTIMS)].__name__}: {seconds[-1]:.1f} s", flush=True)
                nodes.start([victim])
            story.wait_for_commit()
        finally:
            story.producer.end()
        story.wait_for_whole()
        story.wait_for_markers()
        story.check()
    return Counter(story.producer.outcomes.values()), seconds
