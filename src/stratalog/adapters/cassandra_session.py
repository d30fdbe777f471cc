"""CQL to a Cassandra cluster; the only use of cassandra-driver.

In: the cluster's address, statements, rows. Out: a table's shape; the rows that were not written, and whether to
retry. It never retries by itself (the caller knows for how long), and never shows a user or a password.
"""

import ssl
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from time import sleep
from typing import Any

import cassandra
from cassandra.auth import PlainTextAuthProvider
from cassandra.cluster import (
    EXEC_PROFILE_DEFAULT,
    Cluster,
    ExecutionProfile,
    NoHostAvailable,
    ResponseFuture,
)
from cassandra.connection import ConnectionException
from cassandra.policies import (
    ConstantReconnectionPolicy,
    DCAwareRoundRobinPolicy,
    FallthroughRetryPolicy,
    TokenAwarePolicy,
)
from cassandra.protocol import IsBootstrappingErrorMessage, OverloadedErrorMessage, ServerError
from cassandra.query import UNSET_VALUE, PreparedStatement, tuple_factory

from stratalog.errors import Unavailable, UserError
from stratalog.ports import Secret

__all__ = ["Access", "CassandraSession", "Failed", "PreparedStatement", "Shape", "pause"]

PASSING = (
    cassandra.OperationTimedOut,
    cassandra.Timeout,
    cassandra.Unavailable,
    cassandra.WriteFailure,
    ConnectionException,
    IsBootstrappingErrorMessage,
    NoHostAvailable,
    OverloadedErrorMessage,
    ServerError,
    OSError,
)
"""Errors on which to retry: no node answered, too few did, or a node is overloaded."""

LASTING = (cassandra.DriverException, ValueError, TypeError)
"""Permanent errors: no permission, no such column, a value that does not fit the column."""

RECONNECT_S = 1.0


@dataclass(frozen=True, slots=True, repr=False)
class Access(Secret):
    """Credentials: a user and a password, and a file with the authority that signed the servers' certificates; each may
    be None. Never printed.
    """

    user: str | None
    password: str | None
    ca_file: str | None


@dataclass(frozen=True, slots=True)
class Failed:
    """A row that may not have been written. `passing`: the next attempt may go well."""

    row: Sequence[Any]
    passing: bool
    reason: str


@dataclass(frozen=True, slots=True)
class Shape:
    """A table as it is: its columns with their CQL types, and which of them are its primary key."""

    columns: dict[str, str]
    key: tuple[str, ...]


def pause(seconds: float) -> None:
    """Wait between attempts; a session goes on connecting meanwhile."""
    sleep(seconds)


class CassandraSession:
    """Connected to a cluster through `hosts` (name and port; all of one port).

    `datacenter`: the data centre whose nodes receive requests; None: that of the first host that answers. `consistency`
    as in CQL: `LOCAL_QUORUM`. Raises Unavailable where no node answers, UserError where the login is refused.
    """

    def __init__(
        self,
        hosts: Sequence[tuple[str, int]],
        access: Access,
        *,
        datacenter: str | None,
        consistency: str,
        timeout_s: float,
    ) -> None:
        near = DCAwareRoundRobinPolicy(local_dc=datacenter or "")
        profile = ExecutionProfile(
            load_balancing_policy=TokenAwarePolicy(near),
            consistency_level=cassandra.ConsistencyLevel.name_to_value[consistency],
            request_timeout=timeout_s,
            retry_policy=FallthroughRetryPolicy(),  # the caller handles this
            row_factory=tuple_factory,
        )
        auth = None
        if access.user is not None:
            auth = PlainTextAuthProvider(access.user, access.password)
        tls = None
        if access.ca_file is not None:
            tls = ssl.create_default_context(cafile=access.ca_file)
        self._cluster = Cluster(
            [name for name, _ in hosts],
            port=hosts[0][1],
            auth_provider=auth,
            ssl_context=tls,
            execution_profiles={EXEC_PROFILE_DEFAULT: profile},
            reconnection_policy=ConstantReconnectionPolicy(RECONNECT_S, max_attempts=None),
            connect_timeout=timeout_s,
            control_connection_timeout=timeout_s,
        )
        try:
            self._session = self._cluster.connect()
        except (*PASSING, *LASTING) as error:
            self._cluster.shutdown()
            raise _failure(error) from error

    def close(self) -> None:
        self._cluster.shutdown()

    def run(self, statement: str) -> None:
        """Run a statement that returns no rows. Raises Unavailable, UserError."""
        for _ in self.rows(statement):
            pass

    def rows(self, statement: str, values: Sequence[Any] = ()) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of the answer, a page in memory at a time; `%s` in the statement stands for a value.

        Raises Unavailable, UserError.
        """
        try:
            yield from self._session.execute(statement, tuple(values) or None)
        except (*PASSING, *LASTING) as error:
            raise _failure(error) from error

    def shape(self, keyspace: str, table: str) -> Shape | None:
        """Return a table's shape; None where it or its keyspace is missing. Raises Unavailable, UserError."""
        found = list(
            self.rows(
                "SELECT column_name, type, kind FROM system_schema.columns "
                "WHERE keyspace_name = %s AND table_name = %s",
                (keyspace, table),
            )
        )
        if not found:
            return None
        key = tuple(name for name, _, kind in found if kind in {"partition_key", "clustering"})
        return Shape({name: kind for name, kind, _ in found}, key)

    def has_keyspace(self, keyspace: str) -> bool:
        """Return whether the keyspace exists. Raises Unavailable, UserError."""
        question = "SELECT keyspace_name FROM system_schema.keyspaces WHERE keyspace_name = %s"
        return any(self.rows(question, (keyspace,)))

    def insert(self, statement: str) -> PreparedStatement:
        """Prepare a statement with `?` for values, for `write`. Raises Unavailable, UserError."""
        try:
            return self._session.prepare(statement)
        except (*PASSING, *LASTING) as error:
            raise _failure(error) from error

    def write(
        self, insert: PreparedStatement, rows: Sequence[Sequence[Any]], concurrency: int
    ) -> list[Failed]:
        """Write each row, at most `concurrency` at a time; return the rows that failed. None in a row leaves its column
        alone.
        """
        failed: list[Failed] = []
        under_way: deque[tuple[Sequence[Any], ResponseFuture]] = deque()

        # The driver's own execute_concurrent recurses without end while no node is reachable (3.30).
        def finish() -> None:
            row, answer = under_way.popleft()
            try:
                answer.result()
            except (*PASSING, *LASTING) as error:
                failed.append(Failed(row, isinstance(error, PASSING), _reason(error)))

        for row in rows:
            if len(under_way) == concurrency:
                finish()
            values = [UNSET_VALUE if one is None else one for one in row]
            try:
                under_way.append((row, self._session.execute_async(insert, values)))
            except LASTING as error:
                failed.append(Failed(row, isinstance(error, PASSING), _reason(error)))
        while under_way:
            finish()
        return failed


def _failure(error: BaseException) -> BaseException:
    """Return the failure as one of this project's errors; a bug stays as it is."""
    if isinstance(error, NoHostAvailable) and isinstance(error.errors, dict):
        causes = [cause for cause in error.errors.values() if not isinstance(cause, PASSING)]
        if causes and all(isinstance(cause, LASTING) for cause in causes):
            return UserError(f"Cassandra: {_reason(causes[0])}")
    if isinstance(error, PASSING):
        return Unavailable(f"Cassandra: {_reason(error)}")
    if isinstance(error, LASTING):
        return UserError(f"Cassandra: {_reason(error)}")
    return error


def _reason(error: BaseException) -> str:
    """Return the reason in one line. The driver's own text may have many lines, and tuples."""
    if isinstance(error, NoHostAvailable) and isinstance(error.errors, dict) and error.errors:
        host, cause = next(iter(error.errors.items()))
        return f"no host answers: {host}: {_reason(cause)}"
    text = " ".join(chain.from_iterable(str(one).split() for one in error.args))
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
