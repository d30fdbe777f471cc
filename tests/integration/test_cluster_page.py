"""The shell blocks of docs/cluster.md work when they are pasted into one shell, on three real nodes."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.doc_blocks import TOP, blocks
from tests.integration.server_process import strata

PAGE = TOP / "docs" / "cluster.md"

pytestmark = pytest.mark.timeout(240)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    directory = str(tmp_path / "strata-cluster")
    for node in ("1", "2", "3"):
        strata("cluster", "kill", node, "--directory", directory)


def test_the_page_works_when_pasted(place: Path) -> None:
    mine = f"run by {Path(__file__).relative_to(TOP)}"
    text = "".join(block.text for block in blocks(PAGE) if block.marker == mine)
    assert "strata cluster start" in text
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-e", "-c", text],
        cwd=place,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    assert "created topic orders with 6 partition(s)" in said, said
    assert "book\n" in said, said
    assert "under-replicated" in said, said
    assert "node 1 serves on port" in said, said
    assert "strata: " not in said, said
