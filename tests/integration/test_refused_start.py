"""Refused starts of a server: one line names the problem and the remedy."""

from pathlib import Path

import pytest
from tests.integration.server_process import strata, strata_process

from stratalog.errors import UserError
from stratalog.testing.broker import TemporaryBroker

STATE = Path("__cluster_metadata-0") / "quorum-state"


def written_through_a_link(place: Path) -> str:
    (place / "data").mkdir()
    (place / "link").symlink_to(place / "data")
    return f"{place}/data,{place}/link"


def written_with_dots(place: Path) -> str:
    return f"{place}/data,{place}/data/../data"


@pytest.mark.parametrize("twice", [written_through_a_link, written_with_dots])
def test_one_log_directory_by_two_names_is_refused(twice, tmp_path: Path) -> None:
    directories = twice(tmp_path)
    named = f"log.dirs: {' and '.join(directories.split(','))} are the same directory"
    with pytest.raises(UserError, match=named):
        TemporaryBroker({"log.dirs": directories}).start()
    done = strata("storage", "format", "--override", f"log.dirs={directories}")
    assert done.returncode == 2
    assert done.stderr == f"strata: {named}; name it once\n"


@pytest.mark.parametrize("junk", [b"\xff\xfe junk", b"junk", b"[" * 100_000, b'{"data_version":1}'])
def test_a_malformed_quorum_state_is_one_line_with_the_remedy(junk: bytes, tmp_path: Path) -> None:
    broker = TemporaryBroker(directory=tmp_path)
    with broker:
        broker.stop()
        (tmp_path / STATE).write_bytes(junk)
        with pytest.raises(UserError) as refused:
            broker.start()
        line = str(refused.value)
        assert line.startswith(f"{tmp_path / STATE.parent} cannot be read: quorum-state is not as ")
        assert "remove the file" in line
        assert "Error" not in line
        assert "\n" not in line
        (tmp_path / STATE).unlink()
        broker.start()  # the remedy of the message works


def test_a_cordoned_directory_outside_of_log_dirs_is_refused(tmp_path: Path) -> None:
    words = ["--override", f"log.dirs={tmp_path}", "--override", "cordoned.log.dirs=/nowhere"]
    for done in (strata("storage", "format", *words), strata_process("server", *words)):
        assert done.returncode == 2
        assert done.stderr == (
            "strata: cordoned.log.dirs: '/nowhere' is not accepted; "
            f"accepted: *, or of log.dirs: {tmp_path}\n"
        )
    assert list(tmp_path.iterdir()) == []
