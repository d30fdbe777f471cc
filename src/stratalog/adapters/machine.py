"""What this machine can do at best, and what a process on it has used.

In: how long to measure, and where. Out: bytes a second, seconds. It never takes longer than it is told by more than
one step, nor leaves a file.
"""

import os
from pathlib import Path


def process_cpu_s(pid: int) -> float:
    """CPU seconds that a process of this machine has used, its threads' too. Raises OSError, ValueError.

    From Linux's /proc; elsewhere there is none, which is an OSError.
    """
    text = Path(f"/proc/{pid}/stat").read_text()
    fields = text.rpartition(")")[
        2
    ].split()  # a process's name may hold anything but ends with the last parenthesis
    user, system = int(fields[11]), int(fields[12])
    return (user + system) / os.sysconf("SC_CLK_TCK")
