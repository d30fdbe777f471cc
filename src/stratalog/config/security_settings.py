"""Settings of TLS and SASL, by Kafka's names.

In: nothing. Out: settings, and the names that one listener may have for itself. Data only.

Names, types and defaults are those of Apache Kafka 4.3's `SslConfigs` and `BrokerSecurityConfigs`.
"""

from collections.abc import Sequence
from typing import Final

from stratalog.config.jaas import read_jaas
from stratalog.config.kinds import BadValue, Between, Dynamic, Kind, OneOf, Setting, Shaped
from stratalog.config.principal_rules import parse_rules

__all__ = [
    "JAAS_OF_MECHANISM",
    "KEYSTORE_SETTINGS",
    "OF_ONE_LISTENER",
    "SASL",
    "SECURITY",
    "is_jaas",
]

_BY_CONTENT: Final = (
    "The file's content decides: PEM and PKCS12 are read; JKS is refused and must be converted."
)


def _check_rules(texts: Sequence[str]) -> None:
    parse_rules(texts[0])


def _check_identification(texts: Sequence[str]) -> None:
    if texts[0].lower() not in {"", "https"}:
        raise BadValue


def _secret(name: str, doc: str) -> Setting:
    return Setting(name, Kind.PASSWORD, None, doc, dynamic=Dynamic.PER_BROKER)


def _text(name: str, default: str | None, doc: str, check: OneOf | Shaped | None = None) -> Setting:
    return Setting(name, Kind.STRING, default, doc, check, dynamic=Dynamic.PER_BROKER)


_MECHANISM: Final = OneOf(("GSSAPI", "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"))
"""GSSAPI is Kafka's default, and refused where a node would log in with it."""
SASL: Final = (
    Setting(
        "connection.failed.authentication.delay.ms",
        Kind.INT,
        100,
        "How long the answer to a wrong password waits.",
        Between(0),
    ),
    Setting(
        "connections.max.reauth.ms",
        Kind.LONG,
        0,
        "After how long a client of a SASL listener must authenticate again (KIP-368); 0: never.",
    ),
    Setting(
        "delegation.token.expiry.check.interval.ms",
        Kind.LONG,
        3_600_000,
        "How often the active controller removes expired delegation tokens.",
        Between(1),
    ),
    Setting(
        "delegation.token.expiry.time.ms",
        Kind.LONG,
        86_400_000,
        "How long a delegation token lives from its creation, or from a renewal.",
        Between(1),
    ),
    Setting(
        "delegation.token.max.lifetime.ms",
        Kind.LONG,
        604_800_000,
        "The longest life of a delegation token, however often it is renewed.",
        Between(1),
    ),
    Setting(
        "delegation.token.secret.key",
        Kind.PASSWORD,
        None,
        "The secret that makes the keys of delegation tokens (KIP-48), the same on every node; by default there are no "
        "tokens.",
    ),
    Setting(
        "sasl.enabled.mechanisms",
        Kind.LIST,
        ("GSSAPI",),
        "Mechanisms of SASL listeners: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER. A SASL listener needs one.",
        dynamic=Dynamic.PER_BROKER,
    ),
    Setting(
        "sasl.mechanism.controller.protocol",
        Kind.STRING,
        "GSSAPI",
        "The mechanism with which this node logs in to SASL listeners of controllers.",
        _MECHANISM,
    ),
    Setting(
        "sasl.mechanism.inter.broker.protocol",
        Kind.STRING,
        "GSSAPI",
        "The mechanism with which this node logs in to SASL listeners of brokers.",
        _MECHANISM,
        dynamic=Dynamic.PER_BROKER,
    ),
    Setting(
        "sasl.oauthbearer.clock.skew.seconds",
        Kind.INT,
        30,
        "How far the clock of a token's issuer may differ from the broker's.",
        Between(0),
    ),
    Setting(
        "sasl.oauthbearer.expected.audience",
        Kind.LIST,
        (),
        "The token of OAUTHBEARER must be for one of these audiences (`aud`); by default for any.",
    ),
    Setting(
        "sasl.oauthbearer.expected.issuer",
        Kind.STRING,
        None,
        "The issuer (`iss`) of tokens of OAUTHBEARER; by default any whose key signs them.",
    ),
    Setting(
        "sasl.oauthbearer.jwks.endpoint.refresh.ms",
        Kind.LONG,
        3_600_000,
        "How often the broker reads the keys of tokens again. A token with a new key hastens it.",
        Between(1),
    ),
    Setting(
        "sasl.oauthbearer.jwks.endpoint.url",
        Kind.STRING,
        None,
        "Where the public keys of tokens are (JSON Web Key Set): `https:`, `file:`, or `http:` of this machine.",
    ),
    Setting(
        "sasl.oauthbearer.sub.claim.name",
        Kind.STRING,
        "sub",
        "The claim of a token that names the user.",
    ),
    Setting(
        "sasl.server.max.receive.size",
        Kind.INT,
        524288,
        "Most bytes of a request before its client has authenticated.",
    ),
)
SECURITY: Final = (
    Setting(
        "ssl.cipher.suites",
        Kind.LIST,
        (),
        "Cipher suites of TLS, by Java's or OpenSSL's names; by default OpenSSL's choice. Of TLSv1.3 a list has all "
        "three suites or none.",
        dynamic=Dynamic.PER_BROKER,
    ),
    _text(
        "ssl.client.auth",
        "none",
        "Whether a client of an SSL listener shows a certificate. On a SASL_SSL listener only "
        "`listener.name.NAME.ssl.client.auth` has an effect.",
        OneOf(("required", "requested", "none")),
    ),
    Setting(
        "ssl.enabled.protocols",
        Kind.LIST,
        ("TLSv1.2", "TLSv1.3"),
        "Versions of TLS.",
        OneOf(("TLSv1.2", "TLSv1.3")),
        dynamic=Dynamic.PER_BROKER,
    ),
    _text(
        "ssl.endpoint.identification.algorithm",
        "https",
        "Whether this node, as a client of other nodes, compares their certificates with their host names; empty: no.",
        Shaped(_check_identification, "https or nothing"),
    ),
    _secret("ssl.key.password", "The password of the private key."),
    _secret(
        "ssl.keystore.certificate.chain",
        "The node's certificate and the chain to its authority, as PEM text, where no file has them.",
    ),
    _secret("ssl.keystore.key", "The node's private key, as PEM text, where no file has it."),
    _text(
        "ssl.keystore.location",
        None,
        "The file of the node's private key and certificates. The node looks for a change every ten seconds.",
    ),
    _secret("ssl.keystore.password", "The password of a PKCS12 file."),
    _text("ssl.keystore.type", "JKS", _BY_CONTENT),
    Setting(
        "ssl.principal.mapping.rules",
        Kind.STRING,
        "DEFAULT",
        "Rules that turn the distinguished name of a client's certificate into the name of its principal "
        "(`RULE:pattern/replacement/[LU]`, the first that matches); DEFAULT is the whole name. Patterns are Java's, "
        "without `\\p`, and of the flags with `(?i)` alone.",
        Shaped(_check_rules, "RULE:pattern/replacement/[LU] and DEFAULT, separated by commas"),
    ),
    _secret(
        "ssl.truststore.certificates",
        "The certificates of trusted authorities, as PEM text, where no file has them.",
    ),
    _text("ssl.truststore.location", None, "The file of the certificates of trusted authorities."),
    _secret("ssl.truststore.password", "The password of a PKCS12 file of authorities."),
    _text("ssl.truststore.type", "JKS", _BY_CONTENT),
)
JAAS: Final = "sasl.jaas.config"


def is_jaas(name: str) -> bool:
    """Return whether `name`, without a listener's prefix, is `MECHANISM.sasl.jaas.config`."""
    mechanism, dot, rest = name.partition(".")
    return bool(mechanism and dot) and rest == JAAS


def _check_jaas(texts: Sequence[str]) -> None:
    if texts[0]:
        read_jaas(texts[0])


JAAS_OF_MECHANISM: Final = Setting(
    JAAS,
    Kind.PASSWORD,
    None,
    "Users and passwords of a mechanism, as Kafka writes them: `listener.name.NAME.plain.sasl.jaas.config`.",
    Shaped(_check_jaas, "the name of a login module, required, options, and a semicolon"),
    dynamic=Dynamic.PER_BROKER,
)
KEYSTORE_SETTINGS: Final = frozenset(
    {
        "ssl.key.password",
        "ssl.keystore.certificate.chain",
        "ssl.keystore.key",
        "ssl.keystore.location",
        "ssl.keystore.password",
        "ssl.keystore.type",
        "ssl.truststore.certificates",
        "ssl.truststore.location",
        "ssl.truststore.password",
        "ssl.truststore.type",
    }
)
"""Keys and certificates: a running broker takes them for one listener only (Kafka: `DynamicSecurityConfigs`)."""
OF_ONE_LISTENER: Final = frozenset(
    {
        *(one.name for one in SECURITY),
        *(one.name for one in SASL if one.name.startswith("sasl.oauthbearer.")),
        "connections.max.reauth.ms",
        "sasl.enabled.mechanisms",
    }
)
"""`listener.name.NAME.` before one of these makes it that of one listener."""
