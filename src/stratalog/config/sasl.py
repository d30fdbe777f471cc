"""The SASL settings of one listener.

In: settings by Kafka's names. Out: `SaslListener`, or UserError that names setting and remedy, never a password.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from stratalog.config.jaas import read_jaas
from stratalog.config.kinds import Value
from stratalog.errors import UserError

__all__ = ["PLAIN", "SERVED_MECHANISMS", "SaslListener", "read_sasl"]

PLAIN: Final = "PLAIN"
SERVED_MECHANISMS: Final = (PLAIN, "SCRAM-SHA-256", "SCRAM-SHA-512")
_USER: Final = "user_"


@dataclass(frozen=True, slots=True)
class SaslListener:
    """What a listener's clients may log in with. `plain` are the passwords of PLAIN by user."""

    mechanisms: tuple[str, ...]
    plain: Mapping[str, str] = field(default_factory=dict, repr=False)
    reauth_ms: int = 0
    """After how long a client must authenticate again; 0: never."""


def read_sasl(listener: str, get: Callable[[str], tuple[str, Value]]) -> SaslListener:
    """Return the SASL of a listener. `get` returns a setting's full name and value. Raises UserError."""
    name, mechanisms = get("sasl.enabled.mechanisms")
    assert isinstance(mechanisms, tuple)
    for mechanism in mechanisms:
        if mechanism not in SERVED_MECHANISMS:
            raise UserError(
                f"{name}: {mechanism!r} is not accepted; accepted: {', '.join(SERVED_MECHANISMS)}"
            )
    if not mechanisms:
        raise UserError(f"{name}: '' is not accepted; accepted: {', '.join(SERVED_MECHANISMS)}")
    reauth_ms = get("connections.max.reauth.ms")[1]
    assert isinstance(reauth_ms, int)
    passwords = {}
    if PLAIN in mechanisms:
        passwords = _passwords(f"listener.name.{listener.lower()}.plain.sasl.jaas.config", get)
    return SaslListener(mechanisms, passwords, reauth_ms)


def _passwords(name: str, get: Callable[[str], tuple[str, Value]]) -> dict[str, str]:
    text = get(name)[1]
    module = f"{PLAIN.capitalize()}LoginModule"
    accepted = f'accepted: org.apache.kafka.common.security.plain.{module} required user_alice="…";'
    if not text:
        raise UserError(
            f"{name} is not set, and the listener's clients log in with {PLAIN}; {accepted}"
        )
    jaas = read_jaas(str(text))
    passwords = {
        option.removeprefix(_USER): secret
        for option, secret in jaas.options.items()
        if option.startswith(_USER)
    }
    if jaas.module != module or not all(passwords.values()):
        raise UserError(f"{name}: this value is not accepted; {accepted}")
    return passwords
