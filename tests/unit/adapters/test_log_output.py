"""Each event of a server's log is one line, whatever name a client chose."""

import subprocess
import sys

WRITE = """
import structlog
from stratalog.adapters.log_output import keep_logging

keep_logging()
log = structlog.get_logger()
quoted = ["plain", "a b", "ü", "a\\nb", "a\\rb"]
obeyed = ["\\x1b[2J", "\\x1b[1A b", "a\\u2028b", "a\\x85b", "a\\x0bb", "\\x9b2J", "\\u202e"]
for name in quoted + obeyed:
    log.info("group rebalanced", group=name, members=[name])
log.info("end")
"""
SHOWN = r"plain|'a b'|ü|'a\nb'|'a\rb'|\x1b[2J|'\\x1b[1A b'|a\u2028b|a\x85b|a\x0bb|\x9b2J|\u202e"


def test_a_name_that_a_terminal_would_obey_is_escaped() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WRITE], capture_output=True, timeout=60, check=True
    )
    lines = done.stdout.decode().split("\n")
    assert lines.pop() == ""
    assert "end" in lines.pop()
    assert [
        line.partition(" group=")[2].partition(" members=")[0] for line in lines
    ] == SHOWN.split("|")
    assert all(line.isprintable() for line in lines), lines
