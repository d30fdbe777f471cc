"""The shell block of docs/security.md works when it is pasted into one shell, on a real broker over TLS."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.doc_blocks import TOP, blocks

from stratalog.adapters.free_ports import free_ports

PAGE = TOP / "docs" / "security.md"

pytestmark = pytest.mark.timeout(120)


def test_the_page_works_when_pasted(tmp_path: Path) -> None:
    mine = f"run by {Path(__file__).relative_to(TOP)}"
    (text,) = (block.text for block in blocks(PAGE) if block.marker == mine)
    (port,) = free_ports(1)  # not one that another test may get meanwhile
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-e", "-c", f"trap 'kill %1; wait' EXIT\n{text.replace('9093', str(port))}"],
        cwd=tmp_path,
        env={**os.environ, "PATH": path, "XDG_CONFIG_HOME": str(tmp_path / "config")},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    for line in (
        "created topic orders with 1 partition(s)",
        "user 'alice' logs in with SCRAM-SHA-256",
        "\nbook\n",
        "quotas changed: 1",
        '"event": "user changed", "user": "alice"',
    ):
        assert line in said, said
    assert "permit it with: strata acl add --principal User:alice --operation read" in said, said
    assert said.count("strata: ") == 2, said  # the denial, and the old password
    assert "SASL_AUTHENTICATION_FAILED" in said, said
    assert "warning" not in said, said
    assert "secret-of" not in said, said
