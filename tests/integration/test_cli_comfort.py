"""What makes the command pleasant: the last records, times as people write them, the environment, -h, NO_COLOR."""

import os
import subprocess
import time
from collections.abc import Iterator

import pytest
from tests.integration.server_process import STRATA, Server, strata

LINES = 30


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("comfort")) as started:
        for topic in ("t", "few"):
            assert strata("topic", "create", topic, "-b", started.address).returncode == 0
        lines = "".join(f"line {number}\n" for number in range(LINES))
        assert strata("produce", "t", "-b", started.address, stdin=lines).returncode == 0
        assert strata("produce", "few", "-b", started.address, stdin="only\n").returncode == 0
        yield started


def consumed(server: Server, *words: str) -> list[str]:
    done = strata("consume", *words, "--until-end", "-b", server.address)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_the_last_records_and_fewer_where_there_are_no_more(server: Server) -> None:
    last = [f"line {number}" for number in range(LINES - 4, LINES)]
    assert consumed(server, "t", "--last", "4") == last
    assert consumed(server, "few", "--last", "4") == ["only"]


def test_times_as_people_write_them(server: Server) -> None:
    assert len(consumed(server, "t", "--from", "1 hour ago")) == LINES
    assert (
        len(
            consumed(
                server, "t", "--from", time.strftime("%Y-%m-%d", time.gmtime(time.time() - 86400))
            )
        )
        == LINES
    )
    assert (
        consumed(
            server, "t", "--from", time.strftime("%Y-%m-%dT%H:%MZ", time.gmtime(time.time() + 7200))
        )
        == []
    )
    done = strata("consume", "t", "--from", "soon", "-b", server.address)
    assert (done.returncode, "'soon' is not accepted; accepted: beginning" in done.stderr) == (
        2,
        True,
    )


def test_the_environment_names_the_brokers_and_a_server_takes_it_for_no_setting(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STRATA_BOOTSTRAP_SERVER", server.address)
    done = strata("topic", "list")
    assert (done.returncode, "few" in done.stdout) == (0, True), done.stderr
    done = strata("server", "--override", "log.dirs=/dev/null/nowhere")
    assert "bootstrap" not in done.stderr


@pytest.mark.parametrize("words", [["-h"], ["topic", "-h"], ["consume", "-h"], ["server", "-h"]])
def test_h_is_help(words: list[str]) -> None:
    done = strata(*words)
    assert (done.returncode, done.stdout) == (0, strata(*words[:-1], "--help").stdout)
    assert done.stdout.startswith("Usage: strata")


@pytest.mark.parametrize(("no_color", "has_escapes"), [("", True), ("1", False)])
def test_no_color_means_no_escape_sequences(
    server: Server, no_color: str, has_escapes: bool
) -> None:
    """A pseudo-terminal, for a pipe has none in any case."""
    command = " ".join([*STRATA, "topic", "list", "-b", server.address])
    done = subprocess.run(
        ["script", "-qec", command, "/dev/null"],
        env={**os.environ, "TERM": "xterm", "NO_COLOR": no_color},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=60,
        check=True,
    )
    assert b"few" in done.stdout
    assert (b"\x1b[" in done.stdout) == has_escapes
