"""Explain a denied request: name the ACL that the command needs.

In: a refusal with one of Kafka's AUTHORIZATION_FAILED codes, and the command's arguments. Out: the refusal with a note,
`strata acl add …`. It never asks a broker, and does not know an ACL that denies.
"""

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from stratalog.cli.shared.client_config import client_properties, running

if TYPE_CHECKING:
    from stratalog.client.sasl import Login

__all__ = ["explained"]

NEEDED: dict[str, dict[str, str]] = {
    "acl add": {"cluster": "alter"},
    "acl check": {"cluster": "describe"},
    "acl list": {"cluster": "describe"},
    "acl remove": {"cluster": "alter"},
    "broker drain": {"cluster": "alter alter-configs"},
    "broker list": {"cluster": "describe"},
    "broker undrain": {"cluster": "alter alter-configs"},
    "config alter": {"cluster": "alter-configs", "topic": "alter-configs"},
    "config describe": {"cluster": "describe-configs", "topic": "describe-configs"},
    "consume": {"topic": "read", "group": "read"},
    "get": {"topic": "read"},
    "group delete": {"group": "delete"},
    "group describe": {"topic": "describe", "group": "describe"},
    "group reset-offsets": {"topic": "read", "group": "read"},
    "log dirs": {"cluster": "describe"},
    "partition elect": {"topic": "describe", "cluster": "alter"},
    "partition list": {"topic": "describe"},
    "partition reassign": {"cluster": "alter alter-configs"},
    "perf consume": {"topic": "read", "group": "read"},
    "perf produce": {"topic": "write"},
    "produce": {"topic": "write"},
    "quorum add": {"cluster": "alter"},
    "quorum describe": {"cluster": "describe"},
    "quorum remove": {"cluster": "alter"},
    "quota list": {"cluster": "describe-configs"},
    "quota remove": {"cluster": "alter-configs"},
    "quota set": {"cluster": "alter-configs"},
    "tail": {"topic": "write"},
    "topic alter": {
        "topic": "describe partitions:alter set_values:alter-configs unset:alter-configs"
    },
    "topic create": {"topic": "create"},
    "topic delete": {"topic": "delete"},
    "topic describe": {"topic": "describe"},
    "topic move": {"topic": "describe", "cluster": "alter"},
    "topic trim": {"topic": "delete"},
    "txn abort": {"topic": "read", "cluster": "alter"},
    "txn describe": {"transactional-id": "describe"},
    "txn find-hanging": {"topic": "read"},
    "user alter": {"cluster": "alter"},
    "user create": {"cluster": "alter"},
    "user delete": {"cluster": "alter"},
    "user list": {"cluster": "describe"},
}
"""The operations that a command needs, by resource. `option:operation` counts where the command has the option."""
_SUFFIX = "_authorization_failed"


@contextmanager
def explained() -> Iterator[None]:
    """Add a note to a refusal that comes from a missing right, alone or in a task group."""
    from stratalog.errors import Rejected

    try:
        yield
    except (Rejected, BaseExceptionGroup) as error:
        cause: BaseException = error
        while isinstance(cause, BaseExceptionGroup) and len(cause.exceptions) == 1:
            cause = cause.exceptions[0]
        if isinstance(cause, Rejected) and (remedy := _remedy(cause.code.name)):
            cause.add_note(remedy)
        raise


def _remedy(code: str) -> str:
    """Return the remedy of a denial; "" for another error, or a command without an entry."""
    context, kind = running(), code.removesuffix(_SUFFIX).replace("_", "-")
    if context is None or not code.endswith(_SUFFIX):
        return ""
    command = context.command_path.partition(" ")[2]
    operations = _operations(NEEDED.get(command, {}).get(kind, ""), context.params)
    if not operations:
        return ""
    words = ["strata", "acl", "add", "--principal", _principal()]
    words += [word for one in operations for word in ("--operation", one)]
    if kind == "cluster":
        words.append("--cluster")
    else:
        names = _names(command, kind, context.params)
        words += [word for name in names for word in (f"--{kind}", name)]
    return f"permit it with: {shlex.join(words)}"


def _operations(text: str, params: dict[str, Any]) -> list[str]:
    pairs = [one.rpartition(":") for one in text.split()]
    return list(dict.fromkeys(found for option, _, found in pairs if not option or params[option]))


def _names(command: str, kind: str, params: dict[str, Any]) -> list[str]:
    """Return the names of the resources among the arguments; a placeholder where they are elsewhere."""
    own = "name" if command.startswith(f"{kind} ") else ""
    found = params.get(kind.replace("-", "_")) or params.get(f"{kind}s") or params.get(own)
    if not found or params.get("regex"):
        return [kind.upper()]
    return [found] if isinstance(found, str) else list(found)


def _principal() -> str:
    """Return the principal that the command's settings log in as; a placeholder where the broker alone knows it."""
    from stratalog.client.security import security_of

    security = security_of(client_properties())
    login: Login | None = security.login
    if login is None:
        return "User:ANONYMOUS" if security.tls is None else "User:NAME"
    return f"User:{login.user}" if login.user and not login.by_token else "User:NAME"
