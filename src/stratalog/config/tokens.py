"""The rules by which a listener accepts tokens of OAUTHBEARER.

In: settings by Kafka's names. Out: `TokenRules`, or UserError. It reads no key and no token.
"""

from collections.abc import Callable

from msgspec import Struct

from stratalog.config.kinds import Value
from stratalog.errors import UserError

__all__ = ["TokenRules", "read_token_rules"]


class TokenRules(Struct, frozen=True):
    """Which tokens are accepted. An empty issuer, or no audience: any."""

    keys_url: str
    """Where the issuer's keys are (a JSON Web Key Set)."""
    issuer: str = ""
    audiences: tuple[str, ...] = ()
    skew_s: int = 30
    """How far the issuer's clock may differ from the broker's."""
    user_claim: str = "sub"
    """The claim that names the user."""
    refresh_ms: int = 3_600_000


def read_token_rules(get: Callable[[str], tuple[str, Value]]) -> TokenRules:
    """Return the rules of a listener. `get` returns a setting's full name and value. Raises UserError."""

    def text(name: str) -> str:
        return str(get(f"sasl.oauthbearer.{name}")[1] or "")

    name, url = get("sasl.oauthbearer.jwks.endpoint.url")
    if not url:
        raise UserError(
            f"{name} is not set, and clients log in with OAUTHBEARER; accepted: the URL of the issuer's keys"
        )
    audiences = get("sasl.oauthbearer.expected.audience")[1]
    skew_s = get("sasl.oauthbearer.clock.skew.seconds")[1]
    refresh_ms = get("sasl.oauthbearer.jwks.endpoint.refresh.ms")[1]
    assert isinstance(audiences, tuple)
    assert isinstance(skew_s, int)
    assert isinstance(refresh_ms, int)
    return TokenRules(
        str(url),
        text("expected.issuer"),
        audiences,
        skew_s,
        text("sub.claim.name"),
        refresh_ms,
    )
