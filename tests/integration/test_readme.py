"""README's blocks as they are written: pasted whole into a shell, then into Python.

The block's server listens on Kafka's port, 9092. Where the system permits, the shell has a network of its own, so that
another server on that port does not matter.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from stratalog.cli.pipeline import spark_environment
from stratalog.errors import UserError

README = Path(__file__).parent.parent.parent / "README.md"
NETWORK = ("unshare", "--map-root-user", "--net")
LOOPBACK_UP = """
import fcntl, os, socket, struct, sys
with socket.socket() as any_socket:
    fcntl.ioctl(any_socket, 0x8914, struct.pack("16sh", b"lo", 1))  # SIOCSIFFLAGS, IFF_UP
os.execvp(sys.argv[1], sys.argv[1:])
"""

pytestmark = [pytest.mark.serial, pytest.mark.timeout(900)]


def blocks(place: Path) -> dict[str, str]:
    """The shell's and Python's block of the section about a broker, with `place` for /tmp."""
    section = README.read_text().partition("## A broker of your own")[2].partition("\n## ")[0]
    found = re.findall(r"^```(\w+)\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    return {language: text.replace("/tmp/", f"{place}/") for language, text in found}


def activated() -> dict[str, str]:
    """The environment of a person who has activated this Python's."""
    return os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}


def own_network() -> list[str]:
    """What runs a command in a network of its own, whose loopback is up; nothing where the system forbids it."""
    if shutil.which(NETWORK[0]) is None:
        return []
    prefix = [*NETWORK, sys.executable, "-c", LOOPBACK_UP]
    permitted = subprocess.run([*prefix, "true"], capture_output=True, check=False).returncode == 0
    return prefix if permitted else []


def pasted(block: str, place: Path) -> str:
    """What a shell prints for the block. At its end the record is in the bucket and the block's server is stopped."""
    tiered = f"strata tier list {(place / 'bucket').as_uri()} --json | grep -q '\"records\": 1,'"
    looking = f"for _ in {{1..30}}; do {tiered} && echo tiered && break; sleep 0.2; done"
    process = subprocess.Popen(
        [*own_network(), "bash", "-c", f"{block}\n{looking}; kill %1; wait"],
        cwd=place,
        env=activated(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        return process.communicate(timeout=300)[0]
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


def test_the_blocks_work_when_pasted(tmp_path):
    block = blocks(tmp_path)
    said = pasted(block["sh"], tmp_path)
    assert "created topic events with 1 partition(s)\n" in said, said
    assert "hello\n1 record(s)\n" in said, said
    assert "is sound" in said, said
    assert "\ntiered\n" in said, said
    assert "strata: " not in said, said
    try:
        java = spark_environment(tmp_path, master="local")["JAVA_HOME"]
    except UserError as error:
        pytest.skip(str(error))
    read = subprocess.run(
        [sys.executable, "-c", block["python"]],
        cwd=tmp_path,
        env=activated() | {"JAVA_HOME": java, "SPARK_LOCAL_IP": "127.0.0.1"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert read.returncode == 0, read.stderr
    assert re.search(r"^\|\s*0\|.*\|\s*hello\|$", read.stdout, re.MULTILINE), read.stdout
