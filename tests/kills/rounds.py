"""Rounds of faults on real processes under load, and the check that no acknowledged record is lost, moved or repeated.

In: how many rounds, a seed, how many nodes, which producers. Out: counts of what happened; AssertionError where a
record is wrong. Each round is one fault; afterwards every partition acknowledges again, and every ISR is whole.

A record that was read once must stay: each check continues where the last one ended. At the end the files of all
replicas must be the same, byte for byte, and a read from the beginning must equal all that was read before.
"""

import random
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from typing import Final

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from tests.cluster_processes import QUICK, ClusterProcesses
from tests.kills.cuts import CUTS, TOXICS
from tests.kills.machines import Machines
from tests.kills.producers import PARTITIONS, Numbered
from tests.kills.proxied import Proxied

FACTOR = 3
ELECTING = {
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.OFFSET_NOT_AVAILABLE,
}
"""Answers about a watermark while its partition changes leaders: librdkafka passes them on."""
WAIT_S = 60
SESSION_S = int(QUICK["broker.session.timeout.ms"]) / 1000
SETTINGS = {"segment.bytes": str(1 << 20), "min.insync.replicas": "2", "retention.ms": "-1"}


class Rounds:
    """A cluster, its producers, and the records read from their topics so far: each partition's numbers in order."""

    def __init__(
        self, nodes: ClusterProcesses, starts: Sequence[type[Numbered]], chance: random.Random
    ) -> None:
        self.nodes = nodes
        self.chance = chance
        self.counts: Counter[str] = Counter()
        self.read: dict[tuple[str, int], list[int]] = defaultdict(list)
        self._admin = AdminClient({"bootstrap.servers": nodes.address, "log_level": 2})
        self.producers = [start(nodes.address, nodes.place) for start in starts]

    def round(self, fault: "Fault") -> None:
        """Apply one fault to the cluster under load; wait until the cluster is whole again; check all new records."""
        begun = time.monotonic()
        self._go_on("before the fault")
        fault(self)
        self._go_on(fault.__name__)
        self._wait_for_whole(fault.__name__)
        self.check()
        self.counts[fault.__name__] += 1
        records = sum(self._acknowledged().values())
        took = time.monotonic() - begun
        print(f"{fault.__name__}: {took:.1f} s, {records:,} records acknowledged", flush=True)

    def leader(self) -> int:
        """Return the leader of any partition of the producers' topics."""
        topic, partition = (
            self.chance.choice(self.producers).topic,
            self.chance.randrange(PARTITIONS),
        )
        found = self._admin.list_topics(topic, timeout=WAIT_S).topics[topic].partitions[partition]
        return (
            found.leader if found.leader in self.nodes.ids else self.chance.choice(self.nodes.ids)
        )

    def a_while(self, most_s: float) -> None:
        """Sleep for a random time: the moment of a fault, or how long one lasts."""
        time.sleep(self.chance.uniform(0, most_s))

    def _go_on(self, when: str) -> None:
        """Wait until each partition of each producer has a new acknowledged record."""
        before = self._acknowledged()
        self._until(
            lambda: all(n > before[at] for at, n in self._acknowledged().items()),
            f"{when}: every partition acknowledges",
        )

    def _acknowledged(self) -> dict[tuple[str, int], int]:
        return {
            (one.topic, partition): len(one.acknowledged[partition])
            for one in self.producers
            for partition in range(PARTITIONS)
        }

    def _wait_for_whole(self, when: str) -> None:
        def is_whole() -> bool:
            topics = self._admin.list_topics(timeout=WAIT_S).topics
            partitions = [
                one for made in self.producers for one in topics[made.topic].partitions.values()
            ]
            return all(len(one.isrs) == FACTOR for one in partitions)

        self._until(is_whole, f"{when}: every ISR is whole")

    def _until(self, there: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + WAIT_S
        while not there():
            for one in self.producers:
                assert not one.errors, f"{what}: {one.topic}: {one.errors[:3]}"
            assert time.monotonic() < deadline, f"never: {what}"
            time.sleep(0.05)

    def check(self) -> None:
        """Read the new records: each acknowledged one must be at its offset, and numbers must only rise."""
        for one in self.producers:
            acknowledged = {at: dict(one.acknowledged[at]) for at in range(PARTITIONS)}
            unplaced = {at: set(one.unplaced.get(at, ())) for at in range(PARTITIONS)}
            assert not one.errors, f"{one.topic}: {one.errors[:3]}"
            for partition, by_offset in acknowledged.items():
                numbers = self.read[one.topic, partition]
                known = len(numbers)
                numbers += self._numbers(one.topic, partition, known)
                for offset, number in by_offset.items():
                    where = f"{one.topic}-{partition}, offset {offset}"
                    assert offset < len(numbers), f"{where}: lost; the log ends at {len(numbers)}"
                    assert numbers[offset] == number, f"{where}: {numbers[offset]}, sent: {number}"
                lost = unplaced[partition] - set(numbers)
                assert not lost, f"{one.topic}-{partition}: lost: {sorted(lost)[:5]}"
                for before, after in pairwise(numbers[max(0, known - 1) :]):
                    assert before < after, f"{one.topic}-{partition}: {after} follows {before}"

    def _numbers(self, topic: str, partition: int, begin: int) -> list[int]:
        """Read the numbers of a partition's records from offset `begin` to its high watermark."""
        settings = {
            "bootstrap.servers": self.nodes.address,
            "group.id": "checks",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "log_level": 2,
        }
        consumer = Consumer(settings)
        numbers: list[int] = []
        try:
            end = self._end(consumer, topic, partition)
            consumer.assign([TopicPartition(topic, partition, begin)])
            while begin + len(numbers) < end:  # the load never pauses: the log grows meanwhile
                message = consumer.poll(WAIT_S)
                assert message is not None, (
                    f"{topic}-{partition}: nothing at {begin + len(numbers)}"
                )
                assert message.error() is None, f"{topic}-{partition}: {message.error()}"
                assert message.offset() == begin + len(numbers), "the log has a hole"
                numbers.append(int(message.value().split(b" ")[0]))
            return numbers
        finally:
            consumer.close()

    def _end(self, consumer: Consumer, topic: str, partition: int) -> int:
        """Return a partition's high watermark; ask again during an election."""
        deadline = time.monotonic() + WAIT_S
        while True:
            try:
                at = TopicPartition(topic, partition)
                return int(consumer.get_watermark_offsets(at, WAIT_S)[1])
            except KafkaException as error:
                if error.args[0].code() not in ELECTING or time.monotonic() > deadline:
                    raise
            time.sleep(0.05)

    def end(self) -> None:
        """Stop the load, read everything again, and compare the replicas' files."""
        for one in self.producers:
            one.end()
        self.check()
        self._wait_for_whole("the end")
        for one in self.producers:
            self.counts[f"records {one.topic}"] = sum(map(len, one.acknowledged.values()))
            for partition in range(PARTITIONS):
                again = self._numbers(one.topic, partition, 0)
                assert again == self.read[one.topic, partition], f"{one.topic}-{partition} changed"
        self.nodes.stop()
        for one in self.producers:
            for partition in range(PARTITIONS):
                self._compare_files(f"{one.topic}-{partition}")

    def _compare_files(self, partition: str) -> None:
        logs = {}
        for node in self.nodes.ids:
            files = sorted((self.nodes.data(node) / partition).glob("*.log"))
            if files:
                whole = sha256()
                for file in files:
                    whole.update(file.read_bytes())
                logs[node] = whole.hexdigest()
        assert len(logs) == FACTOR, f"{partition}: replicas on {sorted(logs)}"
        assert len(set(logs.values())) == 1, f"{partition}: the replicas differ"


Fault = Callable[[Rounds], None]


def killed_leader(rounds: Rounds) -> None:
    """Kill -9 a leader; start it again at once, or after another leader was elected."""
    node = rounds.leader()
    rounds.nodes.kill(node)
    rounds.a_while(2 * SESSION_S)
    rounds.nodes.start([node])


def late_leader(rounds: Rounds) -> None:
    """Pause a leader for longer than its session: it wakes up as a leader that is one no longer."""
    node = rounds.leader()
    rounds.nodes.pause(node)
    time.sleep(SESSION_S + rounds.chance.uniform(0.5, 2))
    rounds.nodes.wake(node)


def short_pause(rounds: Rounds) -> None:
    """Pause a leader for less than its session."""
    node = rounds.leader()
    rounds.nodes.pause(node)
    rounds.a_while(SESSION_S / 2)
    rounds.nodes.wake(node)


def two_killed(rounds: Rounds) -> None:
    """Kill -9 two nodes: of three, no quorum and no partition is left until they start."""
    killed = rounds.chance.sample(rounds.nodes.ids, 2)
    for node in killed:
        rounds.nodes.kill(node)
        rounds.a_while(0.3)
    rounds.a_while(SESSION_S)
    rounds.nodes.start(killed)


def all_killed(rounds: Rounds) -> None:
    """Kill -9 every node, one after the other, and start them."""
    for node in rounds.chance.sample(rounds.nodes.ids, len(rounds.nodes.ids)):
        rounds.nodes.kill(node)
        rounds.a_while(0.1)
    rounds.nodes.start()


def full_stop(rounds: Rounds) -> None:
    """Stop every node at the same time, and start them."""
    rounds.nodes.stop()
    rounds.nodes.start()


def stopped_node(rounds: Rounds) -> None:
    """Stop one node cleanly under load, and start it."""
    node = rounds.leader()
    rounds.nodes.stop([node])
    rounds.a_while(1)
    rounds.nodes.start([node])


FAULTS: Final = (
    killed_leader,
    late_leader,
    full_stop,
    two_killed,
    short_pause,
    stopped_node,
    all_killed,
)


FAULTS_OF: Final[dict[str, tuple[type[ClusterProcesses], tuple[Fault, ...]]]] = {
    "processes": (ClusterProcesses, FAULTS),
    "machines": (Machines, (*CUTS, *FAULTS)),
    "proxied": (Proxied, (*TOXICS, *FAULTS)),
}
"""What the nodes run on, and the faults that it knows."""


def run(
    place: Path,
    rounds: int,
    seed: int,
    starts: Sequence[type[Numbered]],
    nodes: int = 3,
    *,
    on: str = "processes",
) -> Counter[str]:
    """Run rounds: first each fault once, then faults drawn at random. Return the counts."""
    chance = random.Random(seed)
    kind, faults = FAULTS_OF[on]
    with kind(place / "cluster", nodes) as cluster:
        create_topics(cluster.address, starts)
        story = Rounds(cluster, starts, chance)
        try:
            for number in range(rounds):
                story.round(faults[number] if number < len(faults) else chance.choice(faults))
        except BaseException:  # an interrupt too: the producers' processes must not stay
            for one in story.producers:
                one.kill()
            raise
        story.end()
    return story.counts


def create_topics(address: str, starts: Sequence[type[Numbered]]) -> None:
    topics = [NewTopic(one.topic, PARTITIONS, FACTOR, config=SETTINGS) for one in starts]
    admin = AdminClient({"bootstrap.servers": address})
    for future in admin.create_topics(topics).values():
        future.result(WAIT_S)
