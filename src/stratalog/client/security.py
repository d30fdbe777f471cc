"""How a client secures its connections, by the settings of Kafka's clients.

In: `security.protocol`, `ssl.*`, `sasl.*`, as text. Out: `ClientSecurity`, or UserError that names setting, value and
remedy. It reads no file, and never repeats a secret.

    security_of({"security.protocol": "SSL", "ssl.truststore.location": "/etc/strata/authority.pem"})
"""

from collections.abc import Callable, Mapping
from typing import Final

from msgspec import Struct

from stratalog.client.sasl import Login
from stratalog.config.jaas import read_jaas
from stratalog.config.kinds import BadValue, Value
from stratalog.config.sasl import OAUTHBEARER, SERVED_MECHANISMS
from stratalog.config.sasl import PLAIN as PLAIN_MECHANISM
from stratalog.config.security_settings import JAAS, SECURITY
from stratalog.config.tls import read_tls
from stratalog.errors import UserError
from stratalog.ports import SYSTEM_BUFFERS, Network, SocketBuffers, Tls, TokenSource

__all__ = ["PLAIN", "SECRETS", "ClientSecurity", "Dialer", "login_of", "security_of"]

_PROTOCOL: Final = "security.protocol"
_PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_TOKEN: Final = "sasl.oauthbearer.token.endpoint.url"  # noqa: S105 - a name
_CLIENT_ID: Final = "sasl.oauthbearer.client.credentials.client.id"
_CLIENT_SECRET: Final = "sasl.oauthbearer.client.credentials.client.secret"  # noqa: S105 - a name
_SCOPE: Final = "sasl.oauthbearer.scope"
_ENCODED: Final = "sasl.oauthbearer.header.urlencode"
_SASL: Final = ("sasl.mechanism", JAAS, _TOKEN, _CLIENT_ID, _CLIENT_SECRET, _SCOPE, _ENCODED)
_OURS: Final = ("ssl.", "sasl.", "security.")
_SETTINGS: Final = {
    setting.name: setting
    for setting in SECURITY
    if setting.name not in {"ssl.client.auth", "ssl.principal.mapping.rules"}
}
_WITHOUT_EFFECT: Final = frozenset(
    "security.providers ssl.engine.factory.class ssl.keymanager.algorithm ssl.protocol ssl.provider "
    "ssl.secure.random.implementation ssl.trustmanager.algorithm".split()
)
"""They tune Java's TLS."""
_OF_LIBRDKAFKA: Final = {
    "sasl.mechanisms": "sasl.mechanism",
    "sasl.username": JAAS,
    "sasl.password": JAAS,
    "ssl.ca.location": "ssl.truststore.location",
    "ssl.certificate.location": "ssl.keystore.location",
    "ssl.key.location": "ssl.keystore.location",
}
"""Settings of librdkafka, and so of confluent-kafka, with the settings that Kafka has for them."""
_OF_JAVAS_LOGIN: Final = ("sasl.login.", "sasl.client.callback.", "sasl.oauthbearer.jwt.")
"""Classes, and when they are called: here a token comes before its connection, and again before its end."""
SECRETS: Final = frozenset(
    {
        JAAS,
        _CLIENT_SECRET,
        "ssl.key.password",
        "ssl.keystore.key",
        "ssl.keystore.password",
        "ssl.truststore.password",
    }
)
"""Settings whose values must be shown nowhere."""


class ClientSecurity(Struct, frozen=True):
    """`tls` None: the client sends plain text. `login` None: it does not log in."""

    tls: Tls | None = None
    login: Login | None = None


PLAIN: Final = ClientSecurity()


def _ignored(_node: str, _api_key: int | None, _reason: str) -> None:
    """Count nothing: the damaged answer ends its connection, and the caller learns why."""


class Dialer(Struct, frozen=True):
    """A network, and the security and system buffers of the connections that are opened over it.

    `damaged` is called with the address, the request's API and the reason where an answer is damaged or makes no sense.
    """

    network: Network
    security: ClientSecurity = PLAIN
    buffers: SocketBuffers = SYSTEM_BUFFERS
    damaged: Callable[[str, int | None, str], None] = _ignored


def security_of(properties: Mapping[str, str]) -> ClientSecurity:
    """Return the security that a client's properties describe; properties of other areas are ignored.

    Raises UserError.
    """
    protocol = properties.get(_PROTOCOL, "PLAINTEXT").strip().upper()
    if protocol not in _PROTOCOLS:
        raise UserError(
            f"{_PROTOCOL}: {properties[_PROTOCOL]!r} is not accepted; accepted: {', '.join(_PROTOCOLS)}"
        )
    values: dict[str, Value] = {}
    for name, text in properties.items():
        ignored = name == _PROTOCOL or name in _WITHOUT_EFFECT or name in _SASL
        if ignored or not name.startswith(_OURS) or name.startswith(_OF_JAVAS_LOGIN):
            continue
        setting = _SETTINGS.get(name)
        if setting is None:
            raise UserError(f"{name} is no setting{_hint(name)}")
        try:
            values[name] = setting.parse(text)
        except BadValue as bad:
            raise UserError(str(bad)) from None
    login = _login(properties) if protocol.startswith("SASL_") else None
    if not protocol.endswith("SSL"):
        return ClientSecurity(login=login)

    def get(name: str) -> tuple[str, Value]:
        return name, values.get(name, _SETTINGS[name].default)

    tls = read_tls(get, is_server=False)
    if tls.own is not None and not tls.own.location and not (tls.own.key and tls.own.certificates):
        raise UserError(
            "ssl.keystore.key and ssl.keystore.certificate.chain: one is set without the other; accepted: both"
        )
    return ClientSecurity(tls, login)


def _hint(name: str) -> str:
    """Return what to say about an unknown setting, behind its name."""
    from difflib import get_close_matches  # noqa: PLC0415 - a server needs none

    if name in _OF_LIBRDKAFKA:
        return f": that is librdkafka's name, here it is in {_OF_LIBRDKAFKA[name]}"
    close = get_close_matches(name, [*_SETTINGS, *_SASL, _PROTOCOL], n=1, cutoff=0.8)
    return f"; did you mean {close[0]}?" if close else ""


def _login(properties: Mapping[str, str]) -> Login:
    mechanism = properties.get("sasl.mechanism", "").strip()
    if mechanism not in SERVED_MECHANISMS:
        problem = f": {mechanism!r} is not accepted" if mechanism else " is not set"
        raise UserError(f"sasl.mechanism{problem}; accepted: {', '.join(SERVED_MECHANISMS)}")
    if mechanism == OAUTHBEARER:
        return Login(OAUTHBEARER, "", "", _source(properties))
    return login_of(JAAS, properties.get(JAAS, ""), mechanism)


def _source(properties: Mapping[str, str]) -> TokenSource:
    """Return where tokens come from. Kafka's older names of id, secret and scope are options of JAAS."""
    url = properties.get(_TOKEN, "").strip()
    if not url:
        raise UserError(
            f"{_TOKEN} is not set; accepted: the URL of the server that issues tokens, or of a file with one"
        )
    options: dict[str, str] = {}
    if properties.get(JAAS):
        try:
            module, options = read_jaas(properties[JAAS])
        except BadValue:
            module = ""
        if module != "OAuthBearerLoginModule":
            raise UserError(
                f"{JAAS}: this value is not accepted; accepted: "
                "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required;"
            )
    found = TokenSource(
        url,
        properties.get(_CLIENT_ID) or options.get("clientId", ""),
        properties.get(_CLIENT_SECRET) or options.get("clientSecret", ""),
        properties.get(_SCOPE) or options.get("scope", ""),
        properties.get(_ENCODED, "").strip().lower() == "true",
    )
    if not url.startswith("file:") and not (found.client_id and found.client_secret):
        raise UserError(f"{_CLIENT_ID} and {_CLIENT_SECRET} are not set, and {_TOKEN} is a server")
    return found


def login_of(name: str, text: str, mechanism: str) -> Login:
    """Return the login of a setting of JAAS. Raises UserError with the setting's name."""
    module = "plain.PlainLoginModule" if mechanism == PLAIN_MECHANISM else "scram.ScramLoginModule"
    accepted = (
        f'accepted: org.apache.kafka.common.security.{module} required username="…" password="…";'
    )
    if not text.strip():
        raise UserError(f"{name} is not set; {accepted}")
    try:
        jaas = read_jaas(text)
    except BadValue:
        raise UserError(f"{name}: this value is not accepted; {accepted}") from None
    user, password = jaas.options.get("username", ""), jaas.options.get("password", "")
    if jaas.module != module.partition(".")[2] or not user or not password:
        raise UserError(f"{name}: this value is not accepted; {accepted}")
    by_token = jaas.options.get("tokenauth", "").lower() == "true"
    if by_token and mechanism == PLAIN_MECHANISM:
        raise UserError(f"{name}: tokenauth is not accepted of PLAIN; accepted: SCRAM-SHA-256")
    return Login(mechanism, user, password, by_token=by_token)
