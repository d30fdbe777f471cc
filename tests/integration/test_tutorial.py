"""docs/tutorial.md as it is written: its shell blocks pasted one after another, then its Python blocks."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.integration.test_readme import README, own_network

from stratalog.cli.pipeline import spark_environment

TUTORIAL = README.parent / "docs" / "tutorial.md"

pytestmark = [pytest.mark.serial, pytest.mark.timeout(900)]


def test_the_tutorial_works_when_pasted(tmp_path):
    text = TUTORIAL.read_text().replace("/tmp/tutorial", str(tmp_path))
    found = re.findall(r"^```(\w+)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    shell = "".join(block for language, block in found if language == "sh")
    assert shell.endswith("kill %1\nwait\n"), "it leaves a broker behind"
    ran = subprocess.run(
        [*own_network(), "bash", "-c", shell],
        env=os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    printed = ran.stdout
    assert "strata: " not in ran.stderr, ran.stderr
    assert "anna:book" not in printed
    for line in ("book", "lamp", "chair", "3 record(s)", "2 record(s)", "is sound"):
        assert line in printed + ran.stderr, (line, printed, ran.stderr)
    environment = spark_environment(tmp_path, master="local[1]")
    del environment["SPARK_REMOTE"], environment["SPARK_CONF_DIR"]
    program = "".join(block for language, block in found if language == "python")
    read = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert read.returncode == 0, read.stderr
    assert "b'anna' b'chair'" in read.stdout
    assert re.search(r"\|\[61 6E 6E 61\]\|\s*2\|", read.stdout), read.stdout
