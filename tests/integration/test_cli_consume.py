"""`strata consume` as a member of a group, beside other members and third-party clients; and its output formats."""

import asyncio
import json
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition
from tests.integration.server_process import STRATA, Server, strata

from stratalog.adapters.network import TcpNetwork
from stratalog.client.aio import Client
from stratalog.client.membership import leave_group

PATIENCE_S = 60


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    quick = ("group.initial.rebalance.delay.ms=0", "offsets.topic.num.partitions=1")
    with Server(tmp_path_factory.mktemp("consume"), quick) as started:
        yield started


def ok(server: Server, *words: str, stdin: str | bytes = b"") -> str:
    done = strata(*words, "-b", server.address, stdin=stdin)
    assert done.returncode == 0, done.stderr
    return done.stdout


class Reader:
    """`strata consume --group` in its own process."""

    def __init__(self, server: Server, place: Path, topic: str, group: str) -> None:
        self.out, self.err = place.with_suffix(".out"), place.with_suffix(".err")
        words = ("consume", topic, "--group", group, "--from", "beginning", "--json")
        with self.out.open("wb") as out, self.err.open("wb") as err:
            self.process = subprocess.Popen(
                [*STRATA, *words, "-b", server.address], stdout=out, stderr=err
            )

    def generations(self) -> list[tuple[int, set[int]]]:
        """Return (generation, partitions) of each assignment so far."""
        lines = re.findall(r"generation (\d+): partitions (.*)", self.err.read_text())
        return [
            (int(number), set() if some == "none" else set(map(int, some.split(", "))))
            for number, some in lines
        ]

    @property
    def assigned(self) -> set[int]:
        generations = self.generations()
        return generations[-1][1] if generations else set()

    def records(self) -> list[tuple[int, int]]:
        lines = self.out.read_text().splitlines()
        return [(r["partition"], r["offset"]) for r in map(json.loads, lines)]

    def end(self, number: int = signal.SIGINT) -> None:
        """Interrupt the process, and check that it prints one line."""
        self.process.send_signal(number)
        assert self.process.wait(PATIENCE_S) == 0, self.err.read_text()
        assert "Traceback" not in self.err.read_text()
        assert self.err.read_text().rstrip().endswith("record(s)")


@contextmanager
def reader(server: Server, place: Path, topic: str, group: str) -> Iterator[Reader]:
    made = Reader(server, place, topic, group)
    try:
        yield made
    finally:
        made.process.kill()
        made.process.wait(PATIENCE_S)


def until(true: Callable[[], object], why: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < deadline, why
        time.sleep(0.05)


def committed(server: Server, group: str, topic: str, partitions: int) -> list[int]:
    consumer = Consumer({"bootstrap.servers": server.address, "group.id": group})
    try:
        wanted = [TopicPartition(topic, index) for index in range(partitions)]
        return [one.offset for one in consumer.committed(wanted, 20)]
    finally:
        consumer.close()


def fill(server: Server, topic: str, each: int, partitions: int = 4) -> None:
    for index in range(partitions):
        ok(server, "produce", topic, "--partition", str(index), stdin="x\n" * each)


def test_two_members_share_the_partitions_and_one_takes_over_both_shares(
    server: Server, tmp_path: Path
) -> None:
    ok(server, "topic", "create", "shared", "--partitions", "4")
    fill(server, "shared", 5)
    with reader(server, tmp_path / "one", "shared", "pair") as one:
        until(lambda: one.assigned == {0, 1, 2, 3}, "one alone has all")
        until(lambda: len(one.records()) == 20, "everything is printed")
        with reader(server, tmp_path / "two", "shared", "pair") as two:
            until(lambda: two.assigned and len(one.assigned) == 2, "each has two")
            assert one.assigned | two.assigned == {0, 1, 2, 3}
            fill(server, "shared", 5)
            until(lambda: len(one.records()) + len(two.records()) == 40, "shared work")
            described = json.loads(ok(server, "group", "describe", "pair", "--json"))
            assert (described["state"], described["protocol"]) == ("Stable", "range")
            assert described["members"] == 2
            two.end()
            # The member left: the other need not wait for the end of its session.
            until(lambda: one.assigned == {0, 1, 2, 3}, "one has all again")
        fill(server, "shared", 1)
        until(lambda: len(one.records()) + len(two.records()) == 44, "one goes on for both")
        one.end(signal.SIGTERM)
    each = one.records() + two.records()
    # After two rebalances and an interrupt no record is repeated or missing: each member committed before.
    assert sorted(each) == [(index, offset) for index in range(4) for offset in range(11)]
    assert committed(server, "pair", "shared", 4) == [11] * 4
    assert json.loads(ok(server, "group", "describe", "pair", "--json"))["members"] == 0


@pytest.mark.parametrize("ours_first", [True, False])
def test_consume_shares_a_group_with_a_third_party_client(
    server: Server, tmp_path: Path, ours_first: bool
) -> None:
    topic = f"mixed-{ours_first}".lower()
    ok(server, "topic", "create", topic, "--partitions", "4")
    fill(server, topic, 3)
    consumer = Consumer(
        {
            "bootstrap.servers": server.address,
            "group.id": topic,
            "partition.assignment.strategy": "range",
            "auto.offset.reset": "earliest",
            "heartbeat.interval.ms": 500,
        }
    )
    theirs: list[tuple[int, int]] = []

    def poll() -> int:
        for message in consumer.consume(100, timeout=0.1):
            assert message.error() is None
            theirs.append((message.partition(), message.offset()))
        return len(consumer.assignment())

    try:
        if not ours_first:
            consumer.subscribe([topic])
            until(lambda: poll() == 4, "theirs alone has all")
        with reader(server, tmp_path / "ours", topic, topic) as ours:
            if ours_first:
                until(lambda: len(ours.assigned) == 4, "ours alone has all")
                consumer.subscribe([topic])
            until(lambda: (poll(), len(ours.assigned)) == (2, 2), "each has two")
            assert ours.assigned | {p.partition for p in consumer.assignment()} == {0, 1, 2, 3}
            fill(server, topic, 3)
            everything = {(index, offset) for index in range(4) for offset in range(6)}
            until(lambda: poll() and {*theirs, *ours.records()} == everything, "all is read")
            ours.end()
            until(lambda: poll() == 4, "theirs has all again")
    finally:
        consumer.close()


def test_a_member_beyond_the_partitions_waits_and_takes_over(
    server: Server, tmp_path: Path
) -> None:
    ok(server, "topic", "create", "single")
    with reader(server, tmp_path / "one", "single", "line") as one:
        until(lambda: one.assigned == {0}, "one has it")
        with reader(server, tmp_path / "two", "single", "line") as two:
            until(lambda: two.generations() and one.generations()[-1][0] == 2, "both are in")
            busy, idle = (one, two) if one.assigned else (two, one)
            assert (busy.assigned, idle.assigned) == ({0}, set())
            busy.end()
            until(lambda: idle.assigned == {0}, "the other takes over")
            ok(server, "produce", "single", stdin="x\n")
            until(lambda: idle.records() == [(0, 0)], "and reads on")
            idle.end()


def test_a_removed_member_joins_again(server: Server, tmp_path: Path) -> None:
    ok(server, "topic", "create", "frozen", "--partitions", "2")
    with reader(server, tmp_path / "one", "frozen", "cold") as one:
        until(lambda: one.assigned == {0, 1}, "it has both")
        admin_words = ("group", "describe", "cold", "--json")
        (member,) = {row["member"] for row in json.loads(ok(server, *admin_words))["partitions"]}
        remove(server, "cold", member)
        until(lambda: len(one.generations()) == 2, "it joins again")
        ok(server, "produce", "frozen", stdin="x\n")
        until(lambda: len(one.records()) == 1, "and reads on")
        one.end()


def remove(server: Server, group: str, member: str) -> None:
    """Remove a member from the group, as an administrator does."""

    async def leave() -> None:
        async with await Client.connect(TcpNetwork(), server.address) as client:
            await client.on_coordinator(group, leave_group(group, member))

    asyncio.run(leave())


def test_each_output_format_prints_the_records(server: Server) -> None:
    ok(server, "topic", "create", "forms")
    ok(
        server,
        *("produce", "forms", "--key-separator", "=", "-H", "a=1", "-H", "b=2"),
        *("--timestamp", "1700000000000"),
        stdin="k=välue\nnokey\n",
    )
    ok(server, "produce", "forms", "--from-json", stdin='{"key": "gone", "value": null}\n')
    read = ("consume", "forms", "--from", "beginning", "--until-end")
    lines = ok(server, *read, "--format", r"%t-%p@%o %T %K:%k %S:%s %h 100%%\n").splitlines()
    assert lines[0] == "forms-0@0 1700000000000 1:k 6:välue a=1,b=2 100%"
    assert lines[1] == "forms-0@1 1700000000000 -1: 5:nokey a=1,b=2 100%"
    assert re.fullmatch(r"forms-0@2 \d+ 4:gone -1:  100%", lines[2])
    assert ok(server, *read, "--format", r"%s\0") == "välue\0nokey\0\0"
    for wrong, said in (("%x", "%x is not accepted; accepted: %t"), (r"\q", r"\q is not accepted")):
        refused = strata(*read, "--format", wrong, "-b", server.address)
        assert refused.returncode == 2
        assert said in refused.stderr
    both = strata(*read, "--format", "%s", "--json", "-b", server.address)
    assert "leave --json" in both.stderr


def test_consume_ends_after_its_timeout_without_records(server: Server) -> None:
    ok(server, "topic", "create", "quiet", "--partitions", "2")
    ok(server, "produce", "quiet", "--partition", "1", stdin="x\n")
    read = ("consume", "quiet", "--from", "beginning", "--timeout", "0.2")
    assert ok(server, *read) == "x\n"
    assert ok(server, *read, "--group", "patient") == "x\n"
    assert ok(server, *read, "--group", "patient") == ""
    assert committed(server, "patient", "quiet", 2)[1] == 1


def test_an_interrupted_reader_has_committed_what_it_printed(
    server: Server, tmp_path: Path
) -> None:
    ok(server, "topic", "create", "broken")
    ok(server, "produce", "broken", stdin="".join(f"{n}\n" for n in range(1000)))
    first = ok(
        server, "consume", "broken", "--group", "b", "--from", "beginning", "--max-messages", "7"
    )
    assert first.splitlines() == [str(n) for n in range(7)]
    with reader(server, tmp_path / "rest", "broken", "b") as rest:
        until(lambda: len(rest.records()) == 993, "the rest")
        rest.end()
    assert rest.records() == [(0, n) for n in range(7, 1000)]
    assert committed(server, "b", "broken", 1) == [1000]


def test_consume_reads_several_topics_and_those_that_match_a_pattern(server: Server) -> None:
    for topic in ("web-one", "web-two", "other"):
        ok(server, "topic", "create", topic, "--partitions", "2")
        ok(server, "produce", topic, "--partition", "1", stdin=f"{topic} a\n{topic} b\n")
    read = ("--from", "beginning", "--until-end", "--format", r"%t-%p@%o %s\n")
    two = ok(server, "consume", "web-one", "other", "web-one", *read).splitlines()
    assert sorted(two) == [
        "other-1@0 other a",
        "other-1@1 other b",
        "web-one-1@0 web-one a",
        "web-one-1@1 web-one b",
    ]
    matched = ok(server, "consume", "--regex", "web-.*", *read).splitlines()
    assert {line.split("@")[0] for line in matched} == {"web-one-1", "web-two-1"}
    # A pattern is for the whole name, and Kafka's own topics are left out.
    everything = ok(server, "consume", "-r", ".*", *read, "--last", "1").splitlines()
    assert {"web-one-1@1 web-one b", "other-1@1 other b"} <= set(everything)
    assert not any(line.startswith("__") for line in everything)
    for wrong, said in (("web", "no topic matches web"), ("(", "'(' is not accepted")):
        refused = strata("consume", "--regex", wrong, *read, "-b", server.address)
        assert (refused.returncode, said in refused.stderr) == (2, True), refused.stderr
    missing = strata("consume", "web-one", "absent", *read, "-b", server.address)
    assert (missing.returncode, "topic absent does not exist" in missing.stderr) == (2, True)


def test_a_group_reads_several_topics_and_commits_each(server: Server) -> None:
    for topic in ("left", "right"):
        ok(server, "topic", "create", topic)
        ok(server, "produce", topic, stdin=f"{topic}\n")
    words = ("consume", "left", "right", "--group", "both", "--from", "beginning")
    assert sorted(ok(server, *words, "--max-messages", "2").split()) == ["left", "right"]
    assert [committed(server, "both", topic, 1) for topic in ("left", "right")] == [[1], [1]]
    ok(server, "produce", "right", stdin="more\n")
    assert ok(server, *words, "--max-messages", "1") == "more\n"
