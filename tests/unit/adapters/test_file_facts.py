"""What the system knows of a file, beside what Python's `os.stat` says."""

import os
import time
from pathlib import Path

from stratalog.adapters import file_facts
from stratalog.adapters.file_facts import facts_of, facts_of_open


def test_the_facts_of_a_file_are_those_of_stat_and_its_birth(tmp_path: Path) -> None:
    before_ns = time.time_ns()
    file = tmp_path / "app.log"
    file.write_text("abc")
    os.utime(file, (1, 1))
    facts, known = facts_of(str(file)), file.stat()
    assert facts is not None
    assert (facts.device, facts.inode) == (known.st_dev, known.st_ino)
    assert (facts.size, facts.modified_ns) == (3, 1_000_000_000)
    assert facts.is_regular
    assert facts.born_ns == 0 or facts.born_ns >= before_ns - 2_000_000_000
    with file.open() as opened:
        assert facts_of_open(opened.fileno()) == facts


def test_a_link_is_followed_or_not(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "app.log")
    assert facts_of(str(tmp_path / "link")) is None
    (tmp_path / "app.log").touch()
    followed = facts_of(str(tmp_path / "link"))
    itself = facts_of(str(tmp_path / "link"), follows_links=False)
    assert followed is not None
    assert itself is not None
    assert (followed.is_regular, followed.is_link) == (True, False)
    assert (itself.is_regular, itself.is_link) == (False, True)


def test_without_statx_a_birth_is_unknown(tmp_path: Path, monkeypatch) -> None:
    with_birth = facts_of(str(tmp_path))
    monkeypatch.setattr(file_facts, "_statx", None)
    without = facts_of(str(tmp_path))
    assert with_birth is not None
    assert without == with_birth._replace(born_ns=0)
