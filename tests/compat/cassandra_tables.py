"""A real Cassandra for tests, and the rows of its tables.

In: a directory; a server's address. Out: a server that runs; rows. A missing program skips the test.
"""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from sinks.cassandra_server import RunningCassandra, running_cassandra
from tests.compat.tools import cannot_be_had

from stratalog.adapters.cassandra_session import Access, CassandraSession
from stratalog.errors import UserError

KEYSPACE = "logs"


@contextmanager
def cassandra(
    place: Path, settings: dict[str, object] | None = None, port: int | None = None
) -> Iterator[RunningCassandra]:
    try:
        running = running_cassandra(place, settings, port=port)
        server = running.__enter__()
    except UserError as error:
        cannot_be_had("Cassandra", str(error))
    try:
        yield server
    finally:
        running.__exit__(None, None, None)


def options(server: RunningCassandra, table: str, **more: str) -> dict[str, str]:
    """Options that create keyspace and table, and fail only after minutes."""
    return {
        "hosts": server.address,
        "keyspace": KEYSPACE,
        "table": table,
        "replication": "1",
        "create_table": "true",
        "consistency": "ONE",
        "max_retries": "60",
        "backoff.max": "2s",
        **more,
    }


@contextmanager
def session(server: RunningCassandra) -> Iterator[CassandraSession]:
    opened = CassandraSession(
        [("127.0.0.1", server.port)],
        Access(None, None, None),
        datacenter=None,
        consistency="ONE",
        timeout_s=60,
    )
    with closing(opened):
        yield opened


def run(server: RunningCassandra, statement: str) -> None:
    with session(server) as opened:
        opened.run(statement)


def rows(server: RunningCassandra, table: str, *columns: str) -> list[tuple[Any, ...]]:
    named = ", ".join(f'"{name}"' for name in columns)
    with session(server) as opened:
        return sorted(opened.rows(f'SELECT {named} FROM "{KEYSPACE}"."{table}"'))
