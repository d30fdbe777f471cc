"""Faults of real processes while groups consume: kill -9, SIGSTOP, a full drive, a lost drive, a changed clock.

Method: a real `strata server`, and librdkafka's idempotent producer and group members. Each acknowledged record must be
in the log at its acknowledged offset, in order and once. Each member's records must equal the log's. Committed offsets
never go back. A full disk needs a mount, which needs privileges. Instead the system refuses files beyond a size
(RLIMIT_FSIZE): any user may set that limit for own processes, and the broker sees it in the same system call.
`tests/sim/test_log_directories.py` has the error number of a full disk.

`FAULTS_KILLS` and `FAULTS_STOPPED_S` make it longer (`CONTRIBUTING.md`).
"""

import asyncio
import os
import random
import resource
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import pytest
from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewTopic
from tests.broker_process import BrokerProcess, broker_process
from tests.integration.group_member import SESSION_MS, Member, member

from stratalog.adapters.network import TcpNetwork
from stratalog.client.aio import Client
from stratalog.wire.batch import scan
from stratalog.wire.records import read_records

KILLS = int(os.environ.get("FAULTS_KILLS", "1"))
STOPPED_S = float(os.environ.get("FAULTS_STOPPED_S", str(2 * SESSION_MS / 1000)))
WAIT_S = 60 + 4 * STOPPED_S
TOPIC = "orders"
PARTITIONS = 3
SIZE = 50_000
QUICK_GROUPS = {"group__min__session__timeout__ms": "500"}


def until(condition: Callable[[], bool], what: str) -> None:
    """Wait for `what` for a bounded time."""
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, f"never: {what}"
        time.sleep(0.05)


def create(broker: BrokerProcess, topic: str, partitions: int, **configs: str) -> None:
    named = {name.replace("__", "."): value for name, value in configs.items()}
    admin = AdminClient({"bootstrap.servers": broker.address})
    admin.create_topics([NewTopic(topic, partitions, 1, config=named)])[topic].result(30)


class Load:
    """An idempotent producer that numbers its records for each partition and keeps each delivery report."""

    def __init__(self, address: str, topic: str = TOPIC, size: int = 100) -> None:
        self.acknowledged: list[dict[int, str]] = [{} for _ in range(PARTITIONS)]
        self.refused: list[str] = []
        self.times: list[int] = []
        """The timestamps of the records, from the broker's acknowledgements."""
        self.topic = topic
        self._size = size
        self._sent = [0] * PARTITIONS
        self._producer = Producer(
            {
                "bootstrap.servers": address,
                "enable.idempotence": True,
                "linger.ms": 2,
                "message.timeout.ms": int(WAIT_S * 1000),
                "reconnect.backoff.max.ms": 200,
                "log_level": 2,
            }
        )
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _delivered(self, error: object, message: Message) -> None:
        if error is not None:
            self.refused.append(str(error))
            return
        value = message.value().decode().split(" ")[0]
        self.acknowledged[message.partition()][message.offset()] = value
        self.times.append(message.timestamp()[1])

    def send(self, partition: int) -> None:
        number = self._sent[partition]
        self._sent[partition] += 1
        value = f"{partition}:{number} ".ljust(self._size, ".")
        self._producer.produce(
            self.topic, value.encode(), partition=partition, on_delivery=self._delivered
        )

    def _run(self) -> None:
        while not self._ended.is_set():
            for partition in range(PARTITIONS):
                self.send(partition)
            self._producer.poll(0.01)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self.end()

    def end(self) -> None:
        """Stop sending, and wait for the records in flight."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join(WAIT_S)
        assert self._producer.flush(WAIT_S) == 0, "a record has no delivery report"

    @property
    def count(self) -> int:
        return sum(len(one) for one in self.acknowledged)


async def _read(address: str, topic: str, partition: int) -> list[str]:
    client = await Client.connect(TcpNetwork(), address)
    try:
        found: list[str] = []
        while True:
            fetched = await client.fetch(topic, partition, len(found), max_wait_ms=0)
            view = memoryview(fetched.records)
            new = [
                record
                for position, header in scan(view)
                for record in read_records(view[position : position + header.size])
                if record.offset >= len(found)
            ]
            if not new:
                assert len(found) == fetched.high_watermark
                return found
            for record in new:
                assert record.offset == len(found), "the acknowledged offsets have a gap"
                assert record.value is not None
                found.append(record.value.decode().split(" ")[0])
    finally:
        await client.close()


def read_log(broker: BrokerProcess, partition: int, topic: str = TOPIC) -> list[str]:
    return asyncio.run(_read(broker.address, topic, partition))


def committed(broker: BrokerProcess, topic: str = TOPIC) -> dict[int, int]:
    """Return the offsets that a topic's group has committed; retry until the coordinator answers."""
    admin = AdminClient({"bootstrap.servers": broker.address})
    asked = ConsumerGroupTopicPartitions(group_of(topic))
    result = admin.list_consumer_group_offsets([asked])[asked.group_id].result(WAIT_S)
    return {one.partition: one.offset for one in result.topic_partitions if one.offset >= 0}


def check_log(broker: BrokerProcess, load: Load) -> list[list[str]]:
    """Check that the log has each acknowledged record, in order and once."""
    logs = [read_log(broker, partition, load.topic) for partition in range(PARTITIONS)]
    for partition, log in enumerate(logs):
        for offset, value in load.acknowledged[partition].items():
            assert log[offset] == value, f"{partition}: {offset}"
        numbers = [int(value.split(":")[1]) for value in log]
        assert numbers == sorted(set(numbers)), "out of order or repeated"
    return logs


def check_members(members: list[Member], logs: list[list[str]]) -> None:
    """Check that the members together read every record, and that each read the log's records in order."""
    seen: set[tuple[int, int]] = set()
    for one in members:
        ends: dict[int, int] = {}
        for line in one.lines():
            if "assigned" in line:
                ends = {}
            if "record" in line:
                partition, offset, value = line["record"]
                assert logs[partition][offset] == value.split(" ")[0]
                assert offset > ends.get(partition, -1), "a member went back within an assignment"
                ends[partition] = offset
                seen.add((partition, offset))
    everything = {(at, offset) for at, log in enumerate(logs) for offset in range(len(log))}
    assert seen == everything


def never_back(before: dict[int, int], after: dict[int, int]) -> None:
    for partition, offset in before.items():
        assert after.get(partition, -1) >= offset, f"{partition}: {before} became {after}"


def acknowledged_commits(members: list[Member]) -> dict[int, int]:
    found: dict[int, int] = {}
    for one in members:
        for partition, offset in one.committed().items():
            found[partition] = max(found.get(partition, 0), offset)
    return found


def shared_out(members: list[Member]) -> list[int]:
    """Return the partitions of the members' last assignments."""
    return sorted(at for one in members for at in (one.assignments() or [[]])[-1])


def group_of(topic: str) -> str:
    return f"readers-of-{topic}"


@contextmanager
def group(
    broker: BrokerProcess, place: Path, count: int, topic: str = TOPIC
) -> Iterator[list[Member]]:
    name = group_of(topic)
    with ExitStack() as stack:
        yield [
            stack.enter_context(member(broker.address, name, topic, place / f"member-{at}"))
            for at in range(count)
        ]


def nothing_is_lost(broker: BrokerProcess, load: Load, members: list[Member]) -> None:
    """End the load; check that the log has each acknowledged record once and in order, and that the group read all."""
    load.end()
    assert not load.refused
    logs = check_log(broker, load)
    until(lambda: caught_up(broker, load.topic, logs), "the group reads all")
    check_members(members, logs)
    for one in members:
        one.stop()


def caught_up(broker: BrokerProcess, topic: str, logs: list[list[str]]) -> bool:
    return committed(broker, topic) == {at: len(log) for at, log in enumerate(logs)}


def test_kill_9_under_load_while_a_group_consumes(tmp_path: Path) -> None:
    chance = random.Random()
    with broker_process(tmp_path, **QUICK_GROUPS) as broker:
        create(broker, TOPIC, PARTITIONS, segment__bytes="1048576")
        with group(broker, tmp_path, 2) as members, Load(broker.address) as load:
            until(lambda: bool(acknowledged_commits(members)), "the group commits")
            for _ in range(KILLS):
                made, commits = load.count, acknowledged_commits(members)
                until(lambda made=made: load.count > made, "produced")  # type: ignore[misc]
                until(
                    lambda commits=commits: acknowledged_commits(members) != commits,  # type: ignore[misc]
                    "the group goes on",
                )
                time.sleep(
                    chance.uniform(0, 0.3)
                )  # a random moment: the test does not depend on it
                broker.kill()
                before = acknowledged_commits(members)
                broker.start()
                never_back(before, committed(broker))
            nothing_is_lost(broker, load, members)


SET_CLOCK = """\
import pathlib, time

_step, _now_ns = pathlib.Path(__file__).with_name("step"), time.time_ns
time.time_ns = lambda: _now_ns() + int(_step.read_text()) * 10**9
"""
"""A `sitecustomize` that shifts a process's clock by the seconds in a file beside it.

Setting the machine's own clock needs privileges, and would change it for every process.
"""


@dataclass
class Shared:
    """A broker for the faults that leave it running; tests can set its clock."""

    broker: BrokerProcess
    step: Path

    def set_clock(self, seconds: int) -> None:
        """Set the broker's clock ahead by so many seconds."""
        whole = self.step.with_suffix(".new")
        whole.write_text(str(seconds))
        whole.replace(self.step)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared]:
    hooks = tmp_path_factory.mktemp("hooks")
    (hooks / "sitecustomize.py").write_text(SET_CLOCK)
    (hooks / "step").write_text("0")
    path = {"PYTHONPATH": f"{hooks}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    with broker_process(tmp_path_factory.mktemp("shared"), path, **QUICK_GROUPS) as broker:
        yield Shared(broker, hooks / "step")


def test_a_broker_stopped_by_a_signal_continues_afterwards(shared: Shared, tmp_path: Path) -> None:
    broker, topic = shared.broker, "stopped"
    create(broker, topic, PARTITIONS)
    assert broker.process is not None
    with group(broker, tmp_path, 2, topic) as members, Load(broker.address, topic) as load:
        until(lambda: bool(acknowledged_commits(members)), "the group commits")
        broker.process.send_signal(signal.SIGSTOP)
        before, made = acknowledged_commits(members), load.count
        time.sleep(STOPPED_S)  # the fault itself: longer than any session lasts
        broker.process.send_signal(signal.SIGCONT)
        until(lambda: load.count > made, "it goes on producing")
        never_back(before, committed(broker, topic))
        until(lambda: acknowledged_commits(members) != before, "the group goes on")
        nothing_is_lost(broker, load, members)


def test_a_member_that_is_stopped_loses_its_partitions_and_gets_some_back(
    shared: Shared, tmp_path: Path
) -> None:
    broker, topic = shared.broker, "slept"
    create(broker, topic, PARTITIONS)
    with group(broker, tmp_path, 2, topic) as members, Load(broker.address, topic) as load:
        sleeper, other = members

        def assigned(one: Member) -> list[int]:
            return (one.assignments() or [[]])[-1]

        until(lambda: bool(assigned(sleeper)) and bool(assigned(other)), "both have some")
        until(lambda: bool(sleeper.committed()), "it commits")
        sleeper.process.send_signal(signal.SIGSTOP)
        until(lambda: assigned(other) == list(range(PARTITIONS)), "the other has all")
        before = acknowledged_commits(members)
        sleeper.process.send_signal(signal.SIGCONT)
        until(lambda: len(assigned(other)) < PARTITIONS, "it gives some back")
        until(lambda: 0 < len(assigned(sleeper)) < PARTITIONS, "the sleeper has some again")
        never_back(before, committed(broker, topic))
        nothing_is_lost(broker, load, members)


def test_a_clock_set_by_hours_moves_no_session_and_loses_nothing(
    shared: Shared, tmp_path: Path
) -> None:
    broker, topic = shared.broker, "timed"
    create(broker, topic, PARTITIONS, message__timestamp__type="LogAppendTime")
    with group(broker, tmp_path, 2, topic) as members, Load(broker.address, topic) as load:
        until(lambda: all(one.committed() for one in members), "both have some, and commit")
        # A commit of the second member may come before the first one has noted its new share.
        until(
            lambda: shared_out(members) == list(range(PARTITIONS)), "each partition has one member"
        )
        assignments = [list(one.assignments()) for one in members]
        for seconds in (5 * 3600, -5 * 3600):
            shared.set_clock(seconds)
            made, before = load.count, acknowledged_commits(members)
            until(lambda made=made: load.count > made + 100, "produced")  # type: ignore[misc]
            time.sleep(1.2 * SESSION_MS / 1000)  # the fault itself: a session's end would show
            never_back(before, committed(broker, topic))
            after = acknowledged_commits(members)
            until(lambda after=after: acknowledged_commits(members) != after, "they go on")  # type: ignore[misc]
        assert [one.assignments() for one in members] == assignments, "a member lost its session"
        nothing_is_lost(broker, load, members)
    shared.set_clock(0)
    hours = {round((time_ms / 1000 - time.time()) / 3600) for time_ms in load.times}
    assert hours == {-5, 0, 5}, "the broker's clock was not set, so the run proves nothing"


# Drives


def limit_files(broker: BrokerProcess, size: int) -> None:
    """Make the system refuse this broker's files beyond `size` bytes from now on."""
    assert broker.process is not None
    _soft, hard = resource.prlimit(broker.process.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(broker.process.pid, resource.RLIMIT_FSIZE, (size, hard))


def produce_until_refused(broker: BrokerProcess, topic: str, partition: int) -> tuple[int, str]:
    """Return (how many records were acknowledged, the error of the next one)."""
    errors: list[object] = []
    settings = {"bootstrap.servers": broker.address, "retries": 0, "log_level": 2}
    producer = Producer(settings)
    while not errors or errors[-1] is None:
        assert len(errors) < 1000, "the broker refused no record"
        producer.produce(
            topic,
            (b"%d " % len(errors)).ljust(SIZE, b"."),
            partition=partition,
            on_delivery=lambda error, _message: errors.append(error),
        )
        assert producer.flush(WAIT_S) == 0
    return len(errors) - 1, str(errors[-1])


def two_directories(tmp_path: Path) -> dict[str, str]:
    return {"log__dirs": f"{tmp_path / 'first'},{tmp_path / 'second'}"}


def where(tmp_path: Path, topic: str, partitions: int) -> dict[str, int]:
    """Return one partition for each directory."""
    return {
        name: partition
        for partition in range(partitions)
        for name in ("first", "second")
        if (tmp_path / name / f"{topic}-{partition}").is_dir()
    }


def high_watermark(broker: BrokerProcess, topic: str, partition: int) -> int:
    consumer = Consumer({"bootstrap.servers": broker.address, "group.id": "looks"})
    try:
        return consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=30)[1]
    finally:
        consumer.close()


def test_a_full_drive_is_reported_and_after_a_restart_with_room_it_serves_again(
    tmp_path: Path,
) -> None:
    with broker_process(tmp_path, **two_directories(tmp_path)) as broker:
        create(broker, TOPIC, 2)
        places = where(tmp_path, TOPIC, 2)
        limit_files(broker, 300_000)
        count, reason = produce_until_refused(broker, TOPIC, places["second"])
        assert "disk error" in reason.lower(), reason
        assert 3 < count < 10
        assert high_watermark(broker, TOPIC, places["first"]) == 0, (
            "the other drive no longer serves"
        )
        broker.kill()
        broker.start()
        kept = read_log(broker, places["second"])
        assert kept[:count] == [str(number) for number in range(count)]
        producer = Producer({"bootstrap.servers": broker.address})
        producer.produce(TOPIC, f"{len(kept)} ".encode(), partition=places["second"])
        assert producer.flush(30) == 0
        assert len(read_log(broker, places["second"])) == len(kept) + 1
        assert broker.stop() == 0


def test_a_node_whose_only_drive_is_full_ends_with_a_line_and_can_restart(tmp_path: Path) -> None:
    with broker_process(tmp_path) as broker:
        create(broker, TOPIC, 1)
        limit_files(broker, 300_000)
        count, reason = produce_until_refused(broker, TOPIC, 0)
        assert reason
        assert broker.process is not None
        assert broker.process.wait(WAIT_S) == 2
        last = broker.log_text.strip().splitlines()[-1]
        assert last.startswith("strata: stopped: the metadata log's directory failed"), last
        assert "Traceback" not in broker.log_text
        broker.start()
        kept = read_log(broker, 0)
        assert kept[:count] == [str(number) for number in range(count)]
        assert broker.stop() == 0


def test_a_lost_drive_takes_only_its_own_partitions_offline(tmp_path: Path) -> None:
    with broker_process(tmp_path, **two_directories(tmp_path)) as broker:
        create(broker, TOPIC, 2, segment__bytes="1048576")
        places = where(tmp_path, TOPIC, 2)
        gone = tmp_path / "unmounted"
        (tmp_path / "second").rename(gone)
        count, reason = produce_until_refused(broker, TOPIC, places["second"])
        assert "disk error" in reason.lower(), reason
        producer = Producer({"bootstrap.servers": broker.address})
        producer.produce(TOPIC, b"0 ", partition=places["first"])
        assert producer.flush(30) == 0
        assert broker.stop() == 0
        broker.start()  # the mount point is an empty directory now
        assert read_log(broker, places["first"]) == ["0"]
        assert "log directory away" in broker.log_text
        create(broker, "new", 2)
        assert not (tmp_path / "second" / "new-0").exists()
        assert not (tmp_path / "second" / "new-1").exists()
        assert broker.stop() == 0
        (tmp_path / "second" / ".lock").unlink(missing_ok=True)
        (tmp_path / "second").rmdir()
        gone.rename(tmp_path / "second")
        broker.start()
        kept = read_log(broker, places["second"])
        assert kept[:count] == [str(number) for number in range(count)]
        assert broker.stop() == 0
