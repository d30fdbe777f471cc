"""`strata broker`, `strata partition` and `strata quorum` on one broker; a user's mistake is one line."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from tests.integration.server_process import Server, strata


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("placing"), ("node.id=1", "broker.rack=a")) as started:
        ok(started, "topic", "create", "orders", "--partitions", "2")
        ok(started, "produce", "orders", "--partition", "1", stdin="x\ny\n")
        yield started


def ok(server: Server, *words: str, stdin: str = "") -> str:
    done = strata(*words, "-b", server.address, stdin=stdin)
    assert done.returncode == 0, done.stderr
    return done.stdout


def json_of(server: Server, *words: str) -> Any:
    return json.loads(ok(server, *words, "--json"))


def test_a_broker_is_listed_with_its_partitions(one: Server) -> None:
    (row,) = json_of(one, "broker", "list")
    assert (row["id"], row["port"], row["rack"], row["state"]) == (1, one.port, "a", "serving")
    assert (row["leaders"], row["replicas"]) == (2, 2)
    assert row["bytes"] > 0


def test_partitions_are_listed_and_filtered(one: Server) -> None:
    rows = json_of(one, "partition", "list", "orders")
    assert [row["partition"] for row in rows] == [0, 1]
    assert all(row["replicas"] == row["isr"] == [1] and row["leader"] == 1 for row in rows)
    assert {row["state"] for row in rows} == {"in sync"}
    assert json_of(one, "partition", "list", "--under-replicated") == []
    assert json_of(one, "partition", "list", "--unavailable") == []


def test_an_election_that_is_not_needed_says_so(one: Server) -> None:
    rows = json_of(one, "partition", "elect", "orders", "--partition", "1")
    assert rows == [{"partition": "orders-1", "result": "led already"}]
    assert json_of(one, "partition", "elect") == []


def test_the_quorum_has_one_voter_that_leads(one: Server) -> None:
    found = json_of(one, "quorum", "describe")
    assert found["leader"] == 1
    (row,) = found["nodes"]
    assert (row["id"], row["role"], row["lag"], row["lag_ms"]) == (1, "leader", 0, 0)
    assert found["high_watermark"] == row["log_end"] > 0


def test_replicas_that_are_in_their_place_do_not_move(one: Server) -> None:
    found = json_of(one, "partition", "reassign", "orders", "--replicas", "1")
    assert found == {"partitions": [], "bytes": 0, "seconds": None, "brokers": []}
    assert json_of(one, "partition", "reassign", "--brokers", "1", "--dry-run")["bytes"] == 0
    assert strata("partition", "reassign", "--cancel", "-b", one.address).stderr == (
        "cancelled 0 move(s)\n"
    )


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["broker", "drain", "1"], "needs 1 replicas, and 0 broker(s) may hold one (none)"),
        (["config", "describe", "--broker", "9"], "--broker: '9' is not accepted; accepted: 1"),
        (["broker", "drain", "7"], "broker 7 is not registered; the cluster has 1"),
        (["partition", "list", "lost"], "topic lost does not exist"),
        (["partition", "elect", "lost"], "topic lost does not exist"),
        (["partition", "elect", "orders", "--partition", "9"], "has no partition 9; it has 2"),
        (["partition", "elect", "--partition", "1"], "--partition: name its topic too"),
        (["partition", "reassign", "orders"], "nothing to change"),
        (["partition", "reassign", "lost", "--replicas", "1"], "topic lost does not exist"),
        (["partition", "reassign", "orders", "--replicas", "1,1"], "--replicas: '1,1'"),
        (["partition", "reassign", "orders", "--replicas", "one"], "--replicas: 'one'"),
        (["partition", "reassign", "orders", "--brokers", "1,4"], "broker 4 is not registered"),
        (
            ["partition", "reassign", "orders", "--replication-factor", "2"],
            "orders-0 needs 2 replicas, and 1 broker(s) may hold one (1)",
        ),
        (["broker", "undrain", "7"], "broker 7 is not registered; the cluster has 1"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, list) else "",
)
def test_a_mistake_is_one_line(one: Server, words: list[str], reason: str) -> None:
    done = strata(*words, "-b", one.address)
    assert done.returncode == 2, done.stdout
    (line,) = done.stderr.splitlines()
    assert reason in line
