"""What the kernel of this machine offers to tests."""

import os
import re
import sys

import pytest


def _release() -> tuple[int, ...]:
    found = re.match(r"(\d+)\.(\d+)", os.uname().release)
    return tuple(map(int, found.groups())) if found else (0, 0)


needs_cachestat = pytest.mark.skipif(
    sys.platform != "linux" or _release() < (6, 5),
    reason="cachestat, which tells cached pages, is a system call of Linux 6.5 and later",
)
