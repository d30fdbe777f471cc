"""Real nodes on damaged disks: the node names the damage, and keeps everything intact.

Method: a node is stopped (or killed), a file of its log directory is damaged as a drive or a person may damage it, and
the node is started again. `tests/sim/test_flipped_bytes.py` flips every byte; this module has typical damage.
"""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.integration.monitor_scrape import get
from tests.integration.server_process import Server, strata, strata_process

METADATA = "__cluster_metadata-0/00000000000000000000.log"
TOPIC_B = b"\x01\x02\x00\x02b"
"""A TopicRecord's frame, type and version, and its name: two bytes alone also lie in a random id now and then."""
OFFSETS = "__consumer_offsets-0/00000000000000000000.log"
TOPICS = ("a", "b", "c")
GROUP = "readers"


SETTINGS = ("offsets.topic.num.partitions=1", "monitor.listener=127.0.0.1:0")


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The log directory of a node that was stopped cleanly, with a record in each topic."""
    with Server(tmp_path_factory.mktemp("sound"), SETTINGS) as server:
        for topic in TOPICS:
            ok(strata("topic", "create", topic, "-b", server.address))
            ok(strata("produce", topic, "-b", server.address, stdin=f"of {topic}\n"))
            commit(server, topic)
        assert server.stop() == 0
        return server.data


@pytest.fixture
def server(stopped: Path, tmp_path: Path) -> Server:
    """Return a node for a start on a copy of that directory."""
    server = Server(tmp_path, SETTINGS)
    shutil.copytree(stopped, server.data)
    return server


def ok(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, done.stderr
    return done.stdout


def commit(server: Server, topic: str) -> None:
    words = ("--group", GROUP, "--from", "beginning", "--until-end")
    ok(strata("consume", topic, *words, "-b", server.address))


def committed(server: Server) -> dict[str, int]:
    rows = json.loads(ok(strata("group", "describe", GROUP, "--json", "-b", server.address)))
    return {row["topic"]: row["offset"] for row in rows["partitions"]}


def flip(file: Path, at: int) -> None:
    data = bytearray(file.read_bytes())
    data[at] ^= 0xFF
    file.write_bytes(data)


def contents(directory: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file()
    }


def refusal(server: Server) -> str:
    """Return the single line with which a start ends."""
    done = strata_process("server", *(f"--override={one}" for one in server.overrides))
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    return line


def repair(server: Server, *words: str) -> tuple[int, str]:
    done = strata("storage", "repair", f"--override=log.dirs={server.data}", *words)
    return done.returncode, done.stdout + done.stderr


def records(server: Server, topic: str) -> str:
    return ok(strata("consume", topic, "--from", "beginning", "--until-end", "-b", server.address))


@pytest.mark.parametrize("place", ["the middle", "the last batch"])
def test_a_damaged_metadata_log_is_refused_with_file_and_byte_and_nothing_is_touched(
    server: Server, place: str
) -> None:
    log = server.data / METADATA
    flip(log, log.stat().st_size // 2 if place == "the middle" else -1)
    before = contents(server.data)
    line = refusal(server)
    assert re.search(
        rf"^strata: {log}: byte \d+, offset \d+: the batch there is damaged, and ", line
    )
    assert "docs/recovery.md" in line
    assert "strata storage repair --accept-loss" in line
    assert contents(server.data) == before
    flip(log, log.stat().st_size // 2 if place == "the middle" else -1)
    with server:
        assert [records(server, topic) for topic in TOPICS] == [f"of {topic}\n" for topic in TOPICS]


def test_the_torn_tail_of_a_killed_metadata_log_is_cut_with_a_warning(server: Server) -> None:
    log = server.data / METADATA
    with server:
        server.kill()
        with log.open("ab") as opened:
            opened.write(log.read_bytes()[-100:-30])
        server.start()
        assert [records(server, topic) for topic in TOPICS] == [f"of {topic}\n" for topic in TOPICS]
    cut = [line for line in server.said().splitlines() if "torn tail cut" in line]
    assert len(cut) == 1
    assert "bytes=70" in cut[0]
    assert "__cluster_metadata-0" in cut[0]


def test_a_missing_metadata_log_is_not_created_again(server: Server) -> None:
    log = server.data / METADATA
    kept = log.rename(server.place / "kept.log")
    assert "there is no .log file, but quorum-state" in refusal(server)
    log.touch()
    assert f"{log}: byte 0, offset 0: the file ends there" in refusal(server)
    log.unlink()
    (log.parent / "quorum-state").rename(server.place / "quorum-state")
    assert "there is no .log file, but partition" in refusal(server)
    kept.rename(log)
    with server:
        assert records(server, "a") == "of a\n"


def test_repair_prints_removed_records_keeps_a_copy_and_moves_no_partition(
    server: Server,
) -> None:
    log = server.data / METADATA
    whole = log.read_bytes()
    flip(log, whole.index(TOPIC_B) + len(TOPIC_B) - 1)
    damaged = contents(server.data)
    code, said = repair(server)
    assert code == 1
    assert "TopicRecord(name='c'" in said
    assert "nothing was changed" in said
    assert contents(server.data) == damaged
    code, said = repair(server, "--accept-loss")
    assert code == 0
    copy = log.with_name(log.name + ".damaged")
    assert f"cut; what it was is in {copy}" in said
    assert copy.read_bytes() == damaged[METADATA]
    assert whole.startswith(log.read_bytes())
    assert repair(server) == (0, "sound: there is nothing to repair\n")
    partitions = {name: data for name, data in damaged.items() if name.startswith(("b-0/", "c-0/"))}
    with server:
        assert records(server, "a") == "of a\n"
        said = server.said()
        for topic in ("b", "c"):
            assert re.search(rf"warning .*stray partition.*partition={topic}-0", said)
    after = contents(server.data)
    assert {name: after.get(name) for name in partitions} == partitions
    # The earlier metadata log brings the topics back: nothing else was lost.
    log.write_bytes(whole)
    with server:
        assert [records(server, topic) for topic in TOPICS] == [f"of {topic}\n" for topic in TOPICS]


def test_a_new_topic_with_a_lost_topics_name_keeps_the_old_records(server: Server) -> None:
    log = server.data / METADATA
    flip(log, log.read_bytes().index(TOPIC_B) + len(TOPIC_B) - 1)
    assert repair(server, "--accept-loss")[0] == 0
    segment = "00000000000000000000.log"
    before = (server.data / "b-0" / segment).read_bytes()
    with server:
        ok(strata("topic", "create", "b", "-b", server.address))
        ok(strata("produce", "b", "-b", server.address, stdin="new\n"))
        assert records(server, "b") == "new\n"
    (aside,) = server.data.glob("b-0.*-stray")
    assert (aside / segment).read_bytes() == before


def test_a_partition_with_a_damaged_identity_is_offline_until_its_repair(server: Server) -> None:
    file = server.data / "b-0/partition.metadata"
    sound = file.read_bytes()
    file.write_bytes(b"junk")
    with server:
        assert records(server, "a") == "of a\n"
        status, text = get(monitor_port(server), "/readyz")
        assert status == 503
        assert str(file) in text
        assert [
            line for line in server.said().splitlines() if "error" in line and str(file) in line
        ]
        assert server.stop() == 0
    file.write_bytes(sound)
    with server:
        assert records(server, "b") == "of b\n"
        assert get(monitor_port(server), "/readyz") == (200, "ready\n")


def monitor_port(server: Server) -> int:
    return int(json.loads((server.place / "ready.json").read_text())["monitor_port"])


def test_damaged_offsets_are_logged_once_and_their_groups_have_no_coordinator(
    server: Server,
) -> None:
    log = server.data / OFFSETS
    data = log.read_bytes()
    place = data.rindex(b"\x01b")  # the topic in a committed offset's key
    flip(log, place + 1)
    with server:
        assert records(server, "a") == "of a\n"
        refused = strata("group", "describe", GROUP, "-b", server.address)
        assert refused.returncode == 2
        assert "NOT_COORDINATOR" in refused.stderr
        status, text = get(monitor_port(server), "/readyz")
        assert status == 503
        assert f"groups of __consumer_offsets-0 are not loaded: {log}: the batch of offset" in text
        errors = [line for line in server.said().splitlines() if "[error" in line]
        assert len(errors) == 1
        assert str(log) in errors[0]
        assert server.stop() == 0
    code, said = repair(server)
    assert code == 1
    assert re.search(
        rf"^{log}: byte \d+, offsets from \d+ (on|up to \d+): damaged$", said, re.MULTILINE
    )
    assert repair(server, "--accept-loss")[0] == 0
    assert log.with_name(log.name + ".damaged").read_bytes()[:place] == data[:place]
    with server:
        found = committed(server)
        assert {topic: found[topic] for topic in ("a", "c")} == {"a": 1, "c": 1}
        assert get(monitor_port(server), "/readyz") == (200, "ready\n")
