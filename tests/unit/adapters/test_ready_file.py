"""A ready file in a directory where others write: no link is followed."""

import os
from pathlib import Path

import pytest

from stratalog.adapters.system import write_ready_file
from stratalog.cli.node.cluster import check_place
from stratalog.errors import UserError


def test_links_at_the_ready_file_are_replaced(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.write_text("kept")
    ready = tmp_path / "ready"
    for link in (ready, tmp_path / "ready.tmp", tmp_path / f"ready.{os.getpid()}.tmp"):
        link.symlink_to(kept)
    write_ready_file(str(ready), "line")
    assert ready.read_text() == "line\n"
    assert not ready.is_symlink()
    assert kept.read_text() == "kept"
    assert not (tmp_path / f"ready.{os.getpid()}.tmp").exists()


def test_the_probe_of_a_place_creates_no_file_through_a_link(tmp_path: Path) -> None:
    made = tmp_path / "made"
    (tmp_path / f"ready.{os.getpid()}.tmp").symlink_to(made)
    with pytest.raises(UserError, match="--ready-file"):
        check_place(tmp_path / "ready")
    assert not made.exists()
    check_place(tmp_path / "other")
    assert not list(tmp_path.glob("other*"))
