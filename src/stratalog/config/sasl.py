"""The SASL settings of one listener.

In: settings by Kafka's names. Out: `SaslListener`, or UserError that names setting and remedy, never a password.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from stratalog.config.jaas import read_jaas
from stratalog.config.kinds import Value
from stratalog.config.tokens import TokenRules, read_token_rules
from stratalog.errors import UserError

__all__ = ["OAUTHBEARER", "PASSWORDS", "PLAIN", "SERVED_MECHANISMS", "SaslListener", "read_sasl"]

PLAIN: Final = "PLAIN"
OAUTHBEARER: Final = "OAUTHBEARER"
PASSWORDS: Final = (PLAIN, "SCRAM-SHA-256", "SCRAM-SHA-512")
"""The mechanisms with a user and a password."""
SERVED_MECHANISMS: Final = (*PASSWORDS, OAUTHBEARER)
_USER: Final = "user_"


@dataclass(frozen=True, slots=True)
class SaslListener:
    """What a listener's clients may log in with. `plain` are the passwords of PLAIN by user."""

    mechanisms: tuple[str, ...]
    plain: Mapping[str, str] = field(default_factory=dict, repr=False)
    reauth_ms: int = 0
    """After how long a client must authenticate again; 0: never."""
    tokens: TokenRules | None = None
    """The tokens of OAUTHBEARER."""


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
    tokens = read_token_rules(get) if OAUTHBEARER in mechanisms else None
    return SaslListener(mechanisms, passwords, reauth_ms, tokens)


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
