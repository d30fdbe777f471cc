"""A temporary directory that is removed at the end of its process, however the process ends.

In: a prefix. Out: an empty directory. It removes nothing but that directory.

A shell beside the process waits for the end of its input, which only this process can end, and removes the directory:
after `kill -9` too.
"""

import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Final

_WAIT_AND_REMOVE: Final = 'read -r _; exec rm -rf -- "$1"'


class ScratchDirectory:
    """An empty directory, until `remove` or until the process ends."""

    def __init__(self, prefix: str) -> None:
        self.path = Path(tempfile.mkdtemp(prefix=prefix))
        self._remover = subprocess.Popen(  # noqa: S603 - fixed words and a directory of our own
            ["/bin/sh", "-c", _WAIT_AND_REMOVE, "sh", str(self.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def remove(self) -> None:
        """Remove the directory with its contents; a second call has no effect."""
        assert self._remover.stdin is not None
        self._remover.stdin.close()
        self._remover.wait()
        shutil.rmtree(self.path, ignore_errors=True)
