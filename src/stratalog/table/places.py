"""The location of a query's log, which driver and tasks share, and the connections to brokers and bucket.

In: parsed options. Out: a `Shared`, which is pickled into tasks, and one client and one store for it in each process.
A `Shared` holds no secret: credentials come from each process's own environment and files.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from logging import getLogger

from stratalog.adapters.blocking_socket import BlockingNetwork
from stratalog.adapters.object_store import open_store
from stratalog.client.blocking import BlockingClient
from stratalog.errors import BadOption, Corrupt, ErrorCode, Rejected
from stratalog.ports import ObjectStore
from stratalog.table.secured import Secured, read_security


def damage_log(*, fail: bool) -> Callable[[Corrupt], None] | None:
    """Return a function that logs damage found by planning; None where planning must raise (`fail`)."""
    return None if fail else lambda fault: getLogger("stratalog.spark").warning("%s", fault)


def refused_topic(name: str, code: ErrorCode, bootstrap: str | None) -> BadOption | Rejected:
    """Return the error for a topic whose metadata have an error."""
    if code is ErrorCode.unknown_topic_or_partition:
        create = f"create it (strata topic create {name}), or see strata topic list"
        return BadOption(f"topic {name} does not exist at {bootstrap}: {create}")
    if code is ErrorCode.invalid_topic_exception:
        return BadOption(
            f"no topic can have the name {name[:249]!r}: 1 to 249 ASCII letters, digits, '.', '_' and '-' "
            "are needed"
        )
    if code is ErrorCode.topic_authorization_failed:
        return Rejected(code, f"topic {name} at {bootstrap}: this user has no right to it")
    return Rejected(code, f"topic {name} at {bootstrap}: {code.name}")


@dataclass(frozen=True, slots=True)
class Shared:
    """Values that all tasks of a query share."""

    bootstrap: str | None
    tier_url: str | None
    columns: tuple[str, ...]
    isolation: int
    fail_on_data_loss: bool
    client_id: str
    request_timeout_s: float
    api_timeout_s: float
    secured: Secured = field(default=(), repr=False)


def client_of(shared: Shared) -> BlockingClient:
    """Return the process's client for these brokers."""
    assert shared.bootstrap is not None, "a client without brokers"
    return _client(
        shared.bootstrap,
        shared.client_id,
        shared.request_timeout_s,
        shared.api_timeout_s,
        shared.secured,
    )


@lru_cache(maxsize=4)
def _client(
    bootstrap: str, client_id: str, timeout_s: float, patience_s: float, secured: Secured
) -> BlockingClient:
    return BlockingClient(
        BlockingNetwork(),
        bootstrap,
        client_id=client_id,
        timeout_s=timeout_s,
        patience_s=patience_s,
        security=read_security(secured),
    )


@lru_cache(maxsize=4)
def store_at(url: str) -> ObjectStore:
    """Return the process's store at `url`. Raises UserError for an unknown URL."""
    return open_store(url)
