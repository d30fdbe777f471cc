"""Start the floor: a program in C (`floor.c`) that makes a line's system calls, and decides nothing.

In: a scratch directory. Out: a server like the compared brokers, with one topic of one partition. Never here: a line.
"""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.load import compiled
from bench.peers import Server

NAME = "the floor in C"


def is_possible() -> bool:
    """Return whether this machine has a C compiler; say in one line what is missing where it has none."""
    compiler = os.environ.get("CC", "cc")
    if shutil.which(compiler):
        return True
    print(f"{NAME} is left out: there is no C compiler `{compiler}`; install one, or name it in CC")
    return False


@contextmanager
def floor(directory: Path) -> Iterator[Server]:
    """Yield the floor, ready to serve; its one file is in this directory."""
    directory.mkdir(parents=True, exist_ok=True)
    words = [str(compiled("floor")), str(directory / "records")]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL) as process:
        try:
            assert process.stdout is not None
            yield Server(NAME, int(process.stdout.readline()), process)
        finally:
            process.kill()
