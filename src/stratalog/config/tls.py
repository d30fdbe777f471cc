"""The TLS settings of one listener, or of a client.

In: settings by Kafka's names. Out: `ports.Tls`. It reads no file, and never looks into a key.
"""

from collections.abc import Callable

from stratalog.config.kinds import Value
from stratalog.errors import UserError
from stratalog.ports import Store, Tls

__all__ = ["check_server_tls", "read_tls"]

Get = Callable[[str], tuple[str, Value]]
"""Returns a setting's full name, with the prefix under which it was found, and its value."""


def read_tls(get: Get, *, is_server: bool = True) -> Tls:
    """Return the TLS of one side. A node's client side has no `client_certificate`."""
    protocols, ciphers = get("ssl.enabled.protocols")[1], get("ssl.cipher.suites")[1]
    assert isinstance(protocols, tuple)
    assert isinstance(ciphers, tuple)
    return Tls(
        own=_store(get, "ssl.keystore"),
        trusted=_store(get, "ssl.truststore"),
        protocols=protocols,
        ciphers=ciphers,
        client_certificate=_text(get, "ssl.client.auth") if is_server else "none",
        verifies_host=bool(_text(get, "ssl.endpoint.identification.algorithm")),
    )


def check_server_tls(listener: str, tls: Tls) -> None:
    """Raise UserError where a listener has no key, or must check certificates and trusts no authority."""
    prefix = f"listener.name.{listener.lower()}."
    if tls.own is None:
        raise UserError(
            f"{prefix}ssl.keystore.location is not set, and the listener {listener} uses TLS; accepted: a PEM or "
            "PKCS12 file of key and certificates, here or in ssl.keystore.location"
        )
    if not tls.own.location and not (tls.own.key and tls.own.certificates):
        raise UserError(
            f"{tls.own.setting}.key and {tls.own.setting}.certificate.chain: one is set without the other; "
            "accepted: both"
        )
    if tls.client_certificate != "none" and tls.trusted is None:
        raise UserError(
            f"ssl.client.auth: '{tls.client_certificate}' needs the authorities that sign clients' certificates; "
            f"accepted: none, or {prefix}ssl.truststore.location"
        )


def _store(get: Get, name: str) -> Store | None:
    own = name == "ssl.keystore"
    certificates = _text(get, f"{name}.certificate.chain" if own else f"{name}.certificates")
    location = _text(get, f"{name}.location")
    key = _text(get, f"{name}.key") if own else ""
    if not (location or key or certificates):
        return None
    found = get(
        f"{name}.location" if location else f"{name}.key" if own else f"{name}.certificates"
    )
    prefix = found[0].partition(name)[0]
    return Store(
        f"{prefix}{name}",
        location,
        _text(get, f"{name}.password"),
        key,
        _text(get, "ssl.key.password") if own else "",
        certificates,
    )


def _text(get: Get, name: str) -> str:
    value = get(name)[1]
    assert value is None or isinstance(value, str), name
    return value or ""
