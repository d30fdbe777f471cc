"""The security of a query's connections, without its secrets.

In: Spark's options `kafka.security.protocol`, `kafka.ssl.*`. Out: properties of Kafka's clients, which travel in
plans, checkpoints and tasks; then, in each process, a `ClientSecurity`. A secret enters none of the former: an option
names its place, as `${env:NAME}` or `${file:PATH:KEY}`, and each process reads it there.
"""

import re
from collections.abc import Mapping
from typing import Final

from stratalog.adapters.references import resolved
from stratalog.client.security import SECRETS, ClientSecurity, security_of
from stratalog.config.jaas import read_jaas
from stratalog.config.kinds import BadValue
from stratalog.config.security_settings import JAAS
from stratalog.errors import BadOption, UserError

__all__ = ["Secured", "is_about_security", "read_security", "security_options"]

Secured = tuple[tuple[str, str], ...]
"""Properties as pairs, in order of name."""
_PREFIX: Final = "kafka."
_OURS: Final = ("kafka.security.", "kafka.ssl.", "kafka.sasl.")
_REFERENCES: Final = re.compile(r"(\$\{(env|file):[^}]+\})+")
_NAMES: Final = re.compile(r"(?<![\w.])(security|ssl|sasl)(\.[a-z0-9]+)+")
_OF_LOGIN: Final = ("password", "clientsecret")
"""The options of a login module that are secrets, in lower case."""


def is_about_security(name: str) -> bool:
    """Return whether an option is one of these; names are case-insensitive, as everywhere in Spark."""
    return name.lower().startswith(_OURS)


def security_options(given: Mapping[str, str], *, literal_secrets: bool = False) -> Secured:
    """Check the options of security among all; return them as a client's properties.

    `literal_secrets`: the caller's options leave no process, so they may contain secrets. Raises BadOption.
    """
    found = {
        name.lower().removeprefix(_PREFIX): text
        for name, text in given.items()
        if is_about_security(name)
    }
    for name, text in found.items():
        if name in SECRETS and not literal_secrets and not _is_elsewhere(name, text):
            raise BadOption(
                f"option '{_PREFIX}{name}': a secret would be in Spark's plan; accepted: ${{env:NAME}} or "
                "${file:PATH:KEY}, which driver and executors read"
            )
    try:
        security_of(found)
    except UserError as error:
        named = _NAMES.sub(lambda found: f"'{_PREFIX}{found[0]}'", str(error))
        raise BadOption(f"option {named}") from None
    return tuple(sorted(found.items()))


def _is_elsewhere(name: str, text: str) -> bool:
    """Return whether the whole secret is at the place that `text` names; a login has other options, too."""
    secrets = [text]
    if name == JAAS and not _REFERENCES.fullmatch(text):
        try:
            options = read_jaas(text).options
        except BadValue:
            return False
        secrets = [value for key, value in options.items() if key.lower() in _OF_LOGIN]
    return all(map(_REFERENCES.fullmatch, secrets))


def read_security(secured: Secured) -> ClientSecurity:
    """Return the security, with the secrets of this process's files and environment. Raises UserError."""
    return security_of(resolved(dict(secured)))
