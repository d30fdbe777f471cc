"""The location of a topic of log lines, for the programs that follow one; and Spark's errors in one line.

In: a broker's address, a bucket's URL, a topic; an exception of Spark's. Out: the source's options; the log's end, read
before Spark's slow start, so that errors show at once. Never here: Spark sessions.
"""

import re

from stratalog.errors import UserError
from stratalog.spark.failures import OURS
from stratalog.table.log import Log
from stratalog.table.options import parse_options
from stratalog.table.query import shared_of

CAUSE = re.compile(r"^(?!SQLSTATE)[A-Za-z_][\w.]*: (.+)")
PLAN = "=== Streaming Query ==="
Ends = dict[str, dict[str, int]]
"""topic -> partition -> offset, as `startingOffsets` and `endingOffsets` take them."""


def source(bootstrap_server: str | None, tier_url: str | None, topic: str) -> dict[str, str]:
    """Return the source's options."""
    given = {
        "kafka.bootstrap.servers": bootstrap_server,
        "tier.url": tier_url,
        "subscribe": topic,
    }
    return {name: value for name, value in given.items() if value}


def log_ends(given: dict[str, str]) -> Ends:
    """Return the log's present ends. Raises UserError where an option is wrong or the topic missing, Unavailable."""
    try:
        parsed = parse_options(given | {"kafka.default.api.timeout.ms": "5000"})
        snapshot = Log(parsed, shared_of(parsed)).snapshot()
    except ValueError as error:
        raise UserError(str(error)) from error
    ends: Ends = {}
    for (topic_id, partition), extent in snapshot.extents.items():
        ends.setdefault(snapshot.topics[topic_id].name, {})[str(partition)] = extent.end
    return ends


def spark_failure(error: BaseException) -> str:
    """Return the most informative line of a Spark exception: an error of ours, else the last cause that its tracebacks
    name, else the first line.
    """
    said = str(error).partition(PLAN)[0].strip().splitlines() or [type(error).__name__]
    ours = [found[1] for found in map(OURS.search, said) if found]
    if ours:
        return ours[-1]
    causes = [found[1] for found in map(CAUSE.match, said[1:]) if found]
    return causes[-1] if causes else said[0]
