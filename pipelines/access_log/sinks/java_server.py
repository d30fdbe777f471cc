"""Run a server in Java for as long as a `with` block.

In: arguments for Java, a directory, a log. Out: the process. It never outlives the block. It does not know when the
server is ready: each server has its own way.
"""

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from stratalog.errors import UserError

STOP_S = 60.0


@contextmanager
def java_server(
    words: Sequence[str], *, directory: Path, log: Path
) -> Iterator["subprocess.Popen[bytes]"]:
    """Run Java with `words` in `directory`, and append its output to `log`. Raises UserError without Java."""
    with log.open("ab") as output:
        process = subprocess.Popen(  # noqa: S603 - the user's own Java
            [_java(), *words],
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={name: value for name, value in os.environ.items() if name != "CLASSPATH"},
            start_new_session=True,  # Ctrl-C is for the job, which stops its server itself
        )
    try:
        yield process
    finally:
        for how in (signal.SIGTERM, signal.SIGKILL):
            if process.poll() is None:
                process.send_signal(how)
                with suppress(subprocess.TimeoutExpired):
                    process.wait(STOP_S)


def _java() -> str:
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if java is None:
        raise UserError("this sink's server needs Java 17 or newer: set JAVA_HOME")
    return java
