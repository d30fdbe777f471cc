"""The documentation's shell and Python blocks as they are written: pasted into one shell, then into one Python.

README's block starts a server on Kafka's port, 9092; the clients' programs use it. The tutorial starts one of its own.
Where the system permits, the shell has a network of its own, so that another server on that port does not matter.
`tests/doc_blocks.py` says which blocks run elsewhere or not at all.
"""

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.doc_blocks import unmarked
from tests.spark_scratch import scratch

from stratalog.cli.pipeline import spark_environment

README, CLIENTS, TUTORIAL = PAGES = ("README.md", "docs/clients.md", "docs/tutorial.md")
NETWORK = ("unshare", "--map-root-user", "--net")
LOOPBACK_UP = """
import fcntl, os, socket, struct, sys
with socket.socket() as any_socket:
    fcntl.ioctl(any_socket, 0x8914, struct.pack("16sh", b"lo", 1))  # SIOCSIFFLAGS, IFF_UP
os.execvp(sys.argv[1], sys.argv[1:])
"""

pytestmark = [pytest.mark.serial, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("docs")


def texts(place: Path, language: str, *pages: str) -> list[str]:
    """Return the blocks of these pages that run as they are written, with `place` for /tmp."""
    return [
        block.text.replace("/tmp/", f"{place}/")
        for block in unmarked()
        if block.language == language and block.page in pages
    ]


def activated() -> dict[str, str]:
    """Return the variables of a shell in which this Python's environment is activated."""
    return os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}


def own_network() -> list[str]:
    """Return the words that run a command in a network of its own, with a loopback; none where forbidden."""
    if shutil.which(NETWORK[0]) is None:
        return []
    prefix = [*NETWORK, sys.executable, "-c", LOOPBACK_UP]
    permitted = subprocess.run([*prefix, "true"], capture_output=True, check=False).returncode == 0
    return prefix if permitted else []


def until_tiered(bucket: Path, records: int) -> str:
    """Return a shell command that waits until the bucket has an object of so many records: at most some 30 s."""
    found = f"strata tier list {bucket.as_uri()} --json | grep -q '\"records\": {records},'"
    return f"for _ in {{1..60}}; do {found} && echo tiered && break; sleep 0.2; done\n"


def script(place: Path) -> str:
    """Return one shell script: README's block, the clients' programs while its server runs, then the tutorial."""
    tiered = until_tiered(place / "bucket", 1)
    python = shlex.quote(sys.executable)
    return "".join(
        [
            *texts(place, "sh", README),
            tiered,
            *(f"{python} -c {shlex.quote(text)}\n" for text in texts(place, "python", CLIENTS)),
            "strata consume orders --from beginning --until-end\nkill %1\nwait\necho TUTORIAL\n",
            *(
                text.replace("sleep 3\n", until_tiered(place / "tutorial" / "bucket", 3))
                for text in texts(place, "sh", TUTORIAL)
            ),
        ]
    )


@pytest.fixture(scope="module")
def printed(place: Path) -> tuple[str, str]:
    """Return the shell's output up to the tutorial, and during the tutorial."""
    process = subprocess.Popen(
        [*own_network(), "bash", "-c", script(place)],
        cwd=place,
        env=activated(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        first, _, second = process.communicate(timeout=300)[0].partition("TUTORIAL\n")
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    return first, second


def test_every_block_that_is_not_marked_runs_here() -> None:
    assert {block.page for block in unmarked()} == set(PAGES)


def test_readme_works_when_pasted(printed: tuple[str, str]) -> None:
    said = printed[0]
    assert "created topic events with 1 partition(s)\n" in said, said
    assert "hello\n1 record(s)\n" in said, said
    assert "is sound" in said, said
    assert "\ntiered\n" in said, said
    assert "strata: " not in said, said


def test_each_client_of_the_clients_page_sends_its_record(
    printed: tuple[str, str], place: Path
) -> None:
    clients = len(texts(place, "python", CLIENTS))
    assert clients == 3
    assert "book\n" * clients + f"{clients} record(s)\n" in printed[0], printed[0]


def test_the_tutorial_works_when_pasted(printed: tuple[str, str]) -> None:
    said = printed[1]
    assert "strata: " not in said, said
    assert "anna:book" not in said
    for line in ("book", "lamp", "chair", "3 record(s)", "2 record(s)", "is sound"):
        assert line in said, (line, said)


def test_the_python_blocks_work_in_one_spark_session(printed: tuple[str, str], place: Path) -> None:
    assert printed, "the shell blocks must fill the buckets first"
    java = spark_environment(place, master="local")["JAVA_HOME"]
    read = subprocess.run(
        [sys.executable, "-c", "".join(texts(place, "python", README, TUTORIAL))],
        cwd=place,
        env=activated() | {"JAVA_HOME": java, "SPARK_LOCAL_IP": "127.0.0.1"} | scratch(place),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert read.returncode == 0, read.stderr
    assert re.search(r"^\|\s*0\|.*\|\s*hello\|$", read.stdout, re.MULTILINE), read.stdout
    assert "b'anna' b'chair'" in read.stdout
    assert re.search(r"\|anna\|\s*2\|", read.stdout), read.stdout
