"""Build OpenSSL's context of a listener from Kafka's TLS settings, with pyOpenSSL (decision 0050).

In: `ports.Tls`. Out: a context for `TlsSession`, or UserError that names the setting, the file and the remedy. It never
logs or repeats a key or a password.
"""

from typing import Any, Final

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.bindings.openssl.binding import Binding
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from OpenSSL import SSL

from stratalog.adapters.tls_settings import (
    DAMAGED,
    NOT_ITS_KEY,
    in_memory,
    own_key,
    suites_of,
    trusted_certificates,
    unknown_suite,
    unreadable,
    wrong_password,
)
from stratalog.ports import Store, Tls

__all__ = ["listener_context"]

_VERSIONS: Final = {"TLSv1.2": SSL.TLS1_2_VERSION, "TLSv1.3": SSL.TLS1_3_VERSION}
_DEMANDS: Final = {
    "none": SSL.VERIFY_NONE,
    "requested": SSL.VERIFY_PEER,
    "required": SSL.VERIFY_PEER | SSL.VERIFY_FAIL_IF_NO_PEER_CERT,
}
_OLDER_SUITES: Final = b"@SECLEVEL=2:ECDH+AESGCM:ECDH+CHACHA20:ECDH+AES:!SHA1:!AESCCM"
"""The suites of TLSv1.2 where the settings name none: those with forward secrecy, as of Python's `ssl`."""


def listener_context(tls: Tls) -> SSL.Context:
    """Return a listener's context. Raises UserError."""
    context = SSL.Context(SSL.TLS_SERVER_METHOD)
    # No session is resumed: every connection shows its certificate, and new authorities count at once.
    context.set_options(SSL.OP_NO_TICKET | SSL.OP_CIPHER_SERVER_PREFERENCE)
    context.set_session_cache_mode(SSL.SESS_CACHE_OFF)
    context.set_mode(SSL.MODE_RELEASE_BUFFERS)  # an idle connection holds 13 KiB less
    context.clear_mode(Binding.lib.SSL_MODE_ENABLE_PARTIAL_WRITE)  # pyOpenSSL sets it
    context.set_verify(_DEMANDS[tls.client_certificate])
    _bound(context, tls)
    if tls.trusted is not None:
        _trust(context, tls.trusted)
    if tls.own is not None:
        _load_own(context, tls.own)
    return context


def _bound(context: SSL.Context, tls: Tls) -> None:
    """Allow the settings' versions and suites only."""
    suites = suites_of(tls)
    context.set_min_proto_version(_VERSIONS[suites.lowest])
    context.set_max_proto_version(_VERSIONS[suites.highest])
    context.set_cipher_list(_OLDER_SUITES)
    for name, ours in suites.older.items():
        try:
            context.set_cipher_list(ours.encode())
        except SSL.Error:
            raise unknown_suite(name) from None
    if suites.older:
        context.set_cipher_list(":".join(suites.older.values()).encode())
    if suites.newest:
        context.set_tls13_ciphersuites(":".join(suites.newest).encode())


def _trust(context: SSL.Context, store: Store) -> None:
    with in_memory(trusted_certificates(store)) as path:
        try:
            context.load_verify_locations(path)
        except SSL.Error as error:
            raise unreadable(store, _reason(error)) from None


def _load_own(context: SSL.Context, store: Store) -> None:
    text, certificates = own_key(store)
    is_encrypted = "ENCRYPTED" in text
    password = store.key_password.encode() if is_encrypted else None
    try:
        key: Any = load_pem_private_key(text.encode(), password)
    except UnsupportedAlgorithm as error:
        raise unreadable(store, f"the key or its encryption is not supported: {error}") from None
    except (TypeError, ValueError):
        reason = wrong_password(store) if is_encrypted else DAMAGED
        raise unreadable(store, reason) from None
    with in_memory(certificates) as path:
        try:
            context.use_certificate_chain_file(path)
            context.use_privatekey(key)
            context.check_privatekey()
        except TypeError:
            raise unreadable(store, "TLS has no use for a key of this kind") from None
        except SSL.Error as error:
            raise unreadable(store, _reason(error)) from None


def _reason(error: SSL.Error) -> str:
    """Return OpenSSL's reason in words."""
    reasons = [reason for _library, _function, reason in error.args[0]]
    if any("mismatch" in one or one == "no certificate assigned" for one in reasons):
        return NOT_ITS_KEY
    return DAMAGED if not reasons or "PEM lib" in reasons else reasons[0]
