"""The real access log that tests share, and its known counts.

In: nothing. Out: its path; its lines; the number of requests by HTTP status, counted by its publisher's tools and not
by ours. Never here: the parsing of a line.
"""

from pathlib import Path

LOG = Path(__file__).parent.parent / "pipelines" / "access_log" / "apache_access.log"
LINES = 10_000
STATUS = {200: 9126, 304: 445, 404: 213, 301: 164, 206: 45, 500: 3, 416: 2, 403: 2}


def log_lines() -> list[str]:
    return LOG.read_text(errors="replace").splitlines()
