"""The wide-column store: a Cassandra table of the good lines.

In: a directory, or the user's own `cassandra://host:port[,host:port…]/keyspace/table`. Out: a table in which topic,
partition and offset are the key. Without a URL Cassandra comes from Maven, once, and runs for as long as the job does.
Never here: a table that has rows already.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from urllib.parse import urlsplit

from sinks.cassandra_server import running_cassandra
from sinks.sink import Sink, SinkPlace
from stratalog.errors import UserError
from stratalog.sinks.cassandra_options import parse_cassandra_options

KEYSPACE, TABLE = "stratalog", "access_log"


@contextmanager
def cassandra(place: SinkPlace) -> Iterator[Sink]:
    """Open a table, which must be empty."""
    if place.url is not None:
        yield _opened(*_parts(place.url), place.url)
        return
    with running_cassandra(place.root) as server:
        url = f"cassandra://{server.address}/{KEYSPACE}/{TABLE}"
        yield _opened(server.address, KEYSPACE, TABLE, url, replication="1", consistency="ONE")


def _parts(url: str) -> tuple[str, str, str]:
    parts = urlsplit(url)
    names = parts.path.strip("/").split("/")
    if parts.scheme != "cassandra" or not parts.netloc or len(names) != 2:
        raise UserError(f"--sink-url {url}: cassandra://host:port/keyspace/table is expected")
    return parts.netloc, names[0], names[1]


def _opened(hosts: str, keyspace: str, table: str, url: str, **more: str) -> Sink:
    options = {"hosts": hosts, "keyspace": keyspace, "table": table, "create_table": "true", **more}
    if _status_counts(options):
        raise UserError(f"--sink-url {url}: there are rows already; name a table that is not there")
    return Sink("stratalog_cassandra", options, url, lambda: _status_counts(options))


def _status_counts(given: dict[str, str]) -> dict[int, int]:
    """Return how many rows have which status; nothing where the table is missing."""
    if find_spec("cassandra") is None:
        raise UserError("Cassandra's driver is missing: pip install 'stratalog[cassandra]'")
    from stratalog.sinks.cassandra import connected  # noqa: PLC0415 - the driver is an extra

    try:
        options = parse_cassandra_options(given)
    except ValueError as error:
        raise UserError(f"--sink-url: {error}") from error
    session = connected(options)
    try:
        if options.replication is None and not session.has_keyspace(options.keyspace):
            raise UserError(f"--sink-url: keyspace '{options.keyspace}' is missing: make it")
        if session.shape(options.keyspace, options.table) is None:
            return {}
        rows = session.rows(f'SELECT status FROM "{options.keyspace}"."{options.table}"')  # noqa: S608 - names are checked
        return dict(Counter(status for (status,) in rows))
    finally:
        session.close()
