"""Build contexts of Python's `ssl` for clients from Kafka's TLS settings.

In: `ports.Tls`. Out: an `ssl.SSLContext`, or UserError that names the setting, the file and the remedy. It never logs
or repeats a key or a password. Listeners have contexts of their own (`tls_listener.py`, decision 0050).

Python's `ssl` reads keys from files only, so a key goes through a file in memory.
"""

import re
import ssl
from functools import lru_cache
from typing import Final

from stratalog.adapters.tls_settings import (
    DAMAGED,
    NOT_ITS_KEY,
    in_memory,
    own_key,
    state_of,
    suites_of,
    trusted_certificates,
    unknown_suite,
    unreadable,
    wrong_password,
)
from stratalog.errors import UserError
from stratalog.ports import Store, Tls

__all__ = ["client_context", "kept_client_context"]

_OF_DAMAGE: Final = re.compile("PEM lib|ASN1 lib|BASE64|does not contain a certificate")
"""OpenSSL's reasons for contents that it cannot parse."""
_OF_ANOTHER_KEY: Final = ("KEY_VALUES_MISMATCH", "KEY_TYPE_MISMATCH", "NO_CERTIFICATE_ASSIGNED")
_VERSIONS: Final = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
_NEWEST_SUITES: Final = 3


def client_context(tls: Tls) -> ssl.SSLContext:
    """Return a client's context. Raises UserError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = tls.verifies_host
    _bound(context, tls)
    if tls.trusted is None:
        context.load_default_certs()
    else:
        _trust(context, tls.trusted)
    if tls.own is not None:
        _load_own(context, tls.own)
    return context


def kept_client_context(tls: Tls) -> ssl.SSLContext:
    """Return `client_context`, built again only where a file has changed. Raises UserError."""
    return _kept(tls, state_of(tls))


@lru_cache(maxsize=8)
def _kept(tls: Tls, _state: tuple[object, ...]) -> ssl.SSLContext:
    return client_context(tls)


def _bound(context: ssl.SSLContext, tls: Tls) -> None:
    """Allow the settings' versions and suites only. Python cannot choose among the suites of TLSv1.3."""
    suites = suites_of(tls)
    context.minimum_version = _VERSIONS[suites.lowest]
    context.maximum_version = _VERSIONS[suites.highest]
    if 0 < len(suites.newest) < _NEWEST_SUITES and suites.highest == "TLSv1.3":
        raise UserError(
            f"ssl.cipher.suites: a client allows the suites of TLSv1.3 together only, not {', '.join(suites.newest)}; "
            "accepted: all three, none of them, or ssl.enabled.protocols=TLSv1.2"
        )
    for name, ours in suites.older.items():
        try:
            context.set_ciphers(ours)
        except ssl.SSLError:
            raise unknown_suite(name) from None
    if suites.older:
        context.set_ciphers(":".join(suites.older.values()))


def _trust(context: ssl.SSLContext, store: Store) -> None:
    try:
        context.load_verify_locations(cadata=trusted_certificates(store))
    except (ssl.SSLError, ValueError) as error:
        raise unreadable(store, _reason(error)) from None


def _load_own(context: ssl.SSLContext, store: Store) -> None:
    key, certificates = own_key(store)
    is_encrypted = False

    def password() -> str:
        nonlocal is_encrypted
        is_encrypted = True
        return store.key_password

    with in_memory(key + certificates) as path:
        try:
            context.load_cert_chain(path, password=password)
        except (ssl.SSLError, ValueError) as error:
            reason = _reason(error)
            if reason in _OF_ANOTHER_KEY:
                reason = NOT_ITS_KEY
            elif is_encrypted:
                reason = wrong_password(store)
            raise unreadable(store, reason) from None


def _reason(error: Exception) -> str:
    """Return OpenSSL's reason without its place in OpenSSL's source."""
    reason = getattr(error, "reason", None) or str(error).partition(" (_ssl.c")[0]
    return DAMAGED if _OF_DAMAGE.search(reason) else reason
