"""`strata log dirs` and `strata topic move` on a broker with several log directories; lag in seconds."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.integration.server_process import Server, strata
from tests.integration.waiting import wait_for


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    place = tmp_path_factory.mktemp("drives")
    return [str(place / name) for name in ("first", "second")]


@pytest.fixture(scope="module")
def server(places: list[str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    settings = (f"log.dirs={','.join(places)}", "offsets.topic.num.partitions=1")
    with Server(tmp_path_factory.mktemp("directories"), settings) as started:
        yield started


def json_of(server: Server, *words: str) -> Any:
    """Run a command with `--json`; return its parsed output."""
    done = strata(*words, "-b", server.address, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def ok(server: Server, *words: str, stdin: str = "") -> str:
    done = strata(*words, "-b", server.address, stdin=stdin)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def refused(server: Server, *words: str) -> str:
    done = strata(*words, "-b", server.address)
    assert done.returncode == 2, done.stdout
    assert len(done.stderr.splitlines()) == 1
    return done.stderr


def where(server: Server, topic: str) -> dict[int, str]:
    rows = json_of(server, "log", "dirs", "--topic", topic)
    return {row["partition"]: row["directory"] for row in rows if row["state"] == "here"}


def test_topic_move_moves_a_partition_and_log_dirs_shows_it(
    server: Server, places: list[str]
) -> None:
    ok(server, "topic", "create", "orders", "--partitions", "2")
    ok(server, "produce", "orders", "--partition", "1", stdin="x\ny\n")
    before = where(server, "orders")
    assert set(before) == {0, 1}
    target = next(place for place in places if place != before[1])
    said = ok(server, "topic", "move", "orders", "--partition", "1", "--to", target)
    assert f"moving orders-1 to {target}" in said
    wait_for(lambda: where(server, "orders")[1] == target, "the move ends")
    assert where(server, "orders")[0] == before[0]
    assert (Path(target) / "orders-1").is_dir()
    read = ("consume", "orders", "--partition", "1", "--from", "beginning", "--until-end")
    assert ok(server, *read).splitlines()[:2] == ["x", "y"]
    (row,) = [r for r in json_of(server, "log", "dirs", "--topic", "orders") if r["partition"] == 1]
    assert (row["broker"], row["behind"], row["state"]) == (1, 0, "here")
    assert row["bytes"] > 0
    table = ok(server, "log", "dirs", "--topic", "orders")
    assert target in table
    assert "moving" not in table


def test_log_dirs_lists_directories_and_their_contents(server: Server, places: list[str]) -> None:
    rows = json_of(server, "log", "dirs")
    assert [row["directory"] for row in rows] == places
    for row in rows:
        assert row["state"] == "ok"
        assert 0 < row["free"] <= row["total"]
    ok(server, "topic", "create", "many", "--partitions", "6")
    more = json_of(server, "log", "dirs")
    assert sum(r["partitions"] for r in more) == sum(r["partitions"] for r in rows) + 6


def test_a_move_that_cannot_work_is_one_line(server: Server, places: list[str]) -> None:
    ok(server, "topic", "create", "stays")
    move = ("topic", "move", "stays", "--partition")
    assert f"is none of broker 1's log.dirs: {', '.join(places)}" in refused(
        server, *move, "0", "--to", "/nowhere"
    )
    assert "no partition 7; it has 1" in refused(server, *move, "7", "--to", places[0])
    gone = ("topic", "move", "gone", "--partition", "0", "--to", places[0])
    assert "topic gone does not exist" in refused(server, *gone)
    assert "topic gone does not exist" in refused(server, "log", "dirs", "--topic", "gone")


def test_lag_is_reported_in_seconds_too(server: Server) -> None:
    ok(server, "topic", "create", "slow", "--partitions", "3", "-c", "retention.ms=-1")
    now_ms = int(time.time() * 1000)
    for partition, age_s in ((0, 3600), (1, 60)):
        stamp = ("--timestamp", str(now_ms - age_s * 1000))
        ok(server, "produce", "slow", "--partition", str(partition), *stamp, stdin="a\nb\n")
    ok(server, "produce", "slow", "--partition", "0", stdin="new\n")
    reset = ("group", "reset-offsets", "late", "--topic", "slow")
    ok(server, *reset, "--to", "1")
    found = json_of(server, "group", "describe", "late")
    behind = [(row["lag"], row["seconds"]) for row in found["partitions"]]
    assert [lag for lag, _ in behind] == [2, 1, 0]
    assert 3600 <= behind[0][1] < 3900
    assert 60 <= behind[1][1] < 360
    assert behind[2][1] == 0
    assert (found["lag"], found["lag_seconds"]) == (3, behind[0][1])
    ok(server, *reset, "--to", "2", "--partition", "0")
    found = json_of(server, "group", "describe", "late")
    assert found["partitions"][0]["seconds"] < 300, (
        "the lag must count from the first unread record, which is new"
    )
    assert "seconds" in ok(server, "group", "describe", "late")
