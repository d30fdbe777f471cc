"""Write rows into a table of Cassandra: prepare the table once, then write each task's rows.

In: options, an Arrow schema, record batches. Out: rows that Cassandra has acknowledged, and their number. It never
deletes anything and never changes a table.

No row is lost silently: the write returns once every row was acknowledged at the requested consistency, else it
fails. Rows that failed for now (too few replicas, an overloaded node, no answer) are sent again, alone, after a
growing backoff. Writing a row twice overwrites it with itself. Meanwhile the task reads no further rows: that is the
back-pressure.
"""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeVar

import pyarrow as pa

from stratalog.adapters.cassandra_session import (
    Access,
    CassandraSession,
    Failed,
    PreparedStatement,
    pause,
)
from stratalog.adapters.system import SystemEntropy
from stratalog.errors import BadOption, Unavailable, UserError
from stratalog.sinks.cassandra_options import RECORD, CassandraOptions
from stratalog.sinks.cql import columns_of, create_keyspace, create_table, insert, rows_of
from stratalog.tier.writing.backoff import Backoff

__all__ = ["connected", "prepare", "write_rows"]

USER: Final = "CASSANDRA_USERNAME"
PASSWORD: Final = "CASSANDRA_PASSWORD"  # noqa: S105 - a variable's name
CA_FILE: Final = "CASSANDRA_CA_FILE"

ROWS_AT_ONCE: Final = 1024
"""Rows converted to Python values at a time, in each task."""

_JITTER: Final = 0.25

Result = TypeVar("Result")


class _Patience:
    """Consecutive failures, and the growing wait after each."""

    def __init__(self, options: CassandraOptions) -> None:
        self._options = options
        first_ms, most_ms = (
            round(s * 1000) for s in (options.backoff_init_s, options.backoff_max_s)
        )
        self._backoff = Backoff(first_ms, most_ms, _JITTER, SystemEntropy())

    def wait(self, failure: str) -> None:
        """Wait before the next attempt. Raises Unavailable after too many failures."""
        if self._backoff.failures >= self._options.retries_max:
            raise Unavailable(
                f"table {self._options.name}: {failure}, after {self._backoff.failures} retries"
            )
        pause(self._backoff.failed())

    def progress(self) -> None:
        """Note a success: the next failure counts as the first."""
        self._backoff.succeeded()

    def tried(self, attempt: Callable[[], Result]) -> Result:
        """Return the result of the first attempt that Cassandra answers."""
        while True:
            try:
                return attempt()
            except Unavailable as error:
                self.wait(str(error))


def access_from(environment: Mapping[str, str]) -> Access:
    """Raise UserError where only half of what is needed is there."""
    user, password = environment.get(USER), environment.get(PASSWORD)
    if (user is None) != (password is None):
        given, missing = (USER, PASSWORD) if password is None else (PASSWORD, USER)
        raise UserError(f"{given} is set in the environment, {missing} is not")
    ca_file = environment.get(CA_FILE)
    if ca_file is not None and not os.access(ca_file, os.R_OK):
        raise UserError(f"{CA_FILE}={ca_file} cannot be read")
    return Access(user, password, ca_file)


def connected(options: CassandraOptions) -> CassandraSession:
    """Return a session with the credentials of options and environment. Raises Unavailable, UserError."""
    return CassandraSession(
        options.hosts,
        access_from(os.environ),
        datacenter=options.datacenter,
        consistency=options.consistency,
        timeout_s=options.timeout_s,
    )


def prepare(options: CassandraOptions, schema: pa.Schema) -> None:
    """Create a missing keyspace and table if the options ask for that, and compare them with the rows.

    Raises BadOption for columns that the table cannot store, UserError where Cassandra refuses, Unavailable where it
    stays unreachable for the time that the options allow. A stream calls this for each of its batches.
    """
    columns = columns_of(schema)
    _Patience(options).tried(lambda: _make_ready(options, columns))


def _make_ready(options: CassandraOptions, columns: Mapping[str, str]) -> None:
    session = connected(options)
    try:
        if options.replication is not None:
            session.run(create_keyspace(options))
        elif not session.has_keyspace(options.keyspace):
            raise BadOption(
                f"keyspace '{options.keyspace}' is missing: make it, or let option 'replication' say how"
            )
        if options.create_table:
            session.run(create_table(options, columns))
        _check(session, options, columns)
    finally:
        session.close()


def _check(
    session: CassandraSession, options: CassandraOptions, columns: Mapping[str, str]
) -> None:
    shape = session.shape(options.keyspace, options.table)
    if shape is None:
        raise BadOption(
            f"table '{options.name}' is missing: make it, or write with option 'create_table' = 'true'"
        )
    for name, kind in columns.items():
        found = shape.columns.get(name)
        if found is None:
            raise BadOption(
                f"table '{options.name}' has no column '{name}': add it there, or leave it out here"
            )
        if found != kind and (kind, found) not in _TAKEN:
            raise BadOption(f"column '{name}' is {kind}, in table '{options.name}' it is {found}")
    if missing := [name for name in RECORD if name not in shape.key]:
        raise BadOption(
            f"table '{options.name}' has the primary key ({', '.join(shape.key)}), without {', '.join(missing)}: "
            "rows of different records would overwrite each other"
        )
    if missing := [name for name in shape.key if name not in columns]:
        raise BadOption(f"column '{missing[0]}' is needed: it is in the key of '{options.name}'")


_TAKEN: Final = {("text", "ascii"), ("bigint", "varint"), ("int", "varint"), ("int", "bigint")}
"""Other column types that accept a value unchanged."""


def write_rows(found: Iterable[pa.RecordBatch], options: CassandraOptions) -> int:
    """Write every row and wait for the acknowledgements; return the number of rows.

    Raises UserError where Cassandra refuses, Unavailable where it accepted no row for the time that the options allow.
    """
    patience = _Patience(options)
    session = patience.tried(lambda: connected(options))
    written = 0
    try:
        for batch in found:
            statement = insert(options, columns_of(batch.schema))
            prepared = patience.tried(partial(session.insert, statement))
            for start in range(0, batch.num_rows, ROWS_AT_ONCE):
                rows = list(rows_of(batch.slice(start, ROWS_AT_ONCE)))
                _delivered(session, prepared, rows, options, patience)
                written += len(rows)
    finally:
        session.close()
    return written


def _delivered(
    session: CassandraSession,
    prepared: PreparedStatement,
    rows: Sequence[Sequence[Any]],
    options: CassandraOptions,
    patience: _Patience,
) -> None:
    """Send rows until each is acknowledged."""
    while rows:
        failed = session.write(prepared, rows, options.concurrency)
        refused = [one for one in failed if not one.passing]
        if refused:
            raise UserError(_complaint(options, refused))
        if len(failed) < len(rows):
            patience.progress()
        if failed:
            patience.wait(f"{len(failed)} rows were not taken: {failed[0].reason}")
        rows = [one.row for one in failed]


def _complaint(options: CassandraOptions, refused: Sequence[Failed]) -> str:
    others = f" (and {len(refused) - 1} more rows)" if len(refused) > 1 else ""
    return f"table {options.name} refuses a row{others}: {refused[0].reason}"
