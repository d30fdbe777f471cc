"""Build OpenSSL's contexts from Kafka's TLS settings.

In: `ports.Tls`. Out: an `ssl.SSLContext`, or UserError that names the setting, the file and the remedy. It never logs
or repeats a key or a password.

Python's `ssl` reads keys from files only, so a key from a setting or a PKCS12 file goes through a file in memory. A
PKCS12 file needs the `cryptography` package (`stratalog[tls]`).
"""

import binascii
import os
import re
import ssl
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Final

from stratalog.adapters.certificate_dates import dates
from stratalog.errors import UserError
from stratalog.ports import Certificate, Store, Tls

__all__ = [
    "certificates_of",
    "client_context",
    "kept_client_context",
    "server_context",
    "state_of",
]

_JKS: Final = (b"\xfe\xed\xfe\xed", b"\xce\xce\xce\xce")
_PEM: Final = b"-----BEGIN"
_BLOCK: Final = re.compile(r"-----BEGIN ([A-Z0-9 ]+)-----((?:[^-]+|-(?!----))*+)-----END \1-----")
_LINE: Final = 64
_OF_DAMAGE: Final = re.compile("PEM lib|ASN1 lib|BASE64|does not contain a certificate")
"""OpenSSL's reasons for contents that it cannot parse."""
_VERSIONS: Final = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
_OF_TLS_13: Final = frozenset(
    {"TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256"}
)
_DEMANDS: Final = {
    "none": ssl.CERT_NONE,
    "requested": ssl.CERT_OPTIONAL,
    "required": ssl.CERT_REQUIRED,
}


def server_context(tls: Tls) -> ssl.SSLContext:
    """Return a listener's context. Raises UserError."""
    context = _context(ssl.PROTOCOL_TLS_SERVER, tls)
    context.verify_mode = _DEMANDS[tls.client_certificate]
    # No session is resumed: every connection shows its certificate, and new authorities count at once.
    context.num_tickets = 0
    context.options |= ssl.OP_NO_TICKET | ssl.OP_NO_RENEGOTIATION
    return context


def client_context(tls: Tls) -> ssl.SSLContext:
    """Return a client's context. Raises UserError."""
    context = _context(ssl.PROTOCOL_TLS_CLIENT, tls)
    context.check_hostname = tls.verifies_host
    if tls.trusted is None:
        context.load_default_certs()
    return context


def kept_client_context(tls: Tls) -> ssl.SSLContext:
    """Return `client_context`, built again only where a file has changed. Raises UserError."""
    return _kept(tls, state_of(tls))


@lru_cache(maxsize=8)
def _kept(tls: Tls, _state: tuple[object, ...]) -> ssl.SSLContext:
    return client_context(tls)


def state_of(tls: Tls) -> tuple[object, ...]:
    """Return a value that changes when one of the files changes."""
    return tuple(
        (store.location, found.st_mtime_ns, found.st_size, found.st_ino)
        for store in (tls.own, tls.trusted)
        if store is not None and store.location
        for found in [_stat(store)]
    )


def certificates_of(tls: Tls) -> list[Certificate]:
    """Return the certificates of both stores; those without readable dates are left out. Raises UserError."""
    found = []
    for store in (tls.own, tls.trusted):
        if store is None:
            continue
        for _label, body in _BLOCK.findall(_certificates(store)):
            with suppress(ValueError):
                ends = dates(binascii.a2b_base64(body))
                found.append(Certificate(store.setting, store.location, *ends))
    return found


def _stat(store: Store) -> os.stat_result:
    try:
        return os.stat(store.location)
    except OSError as error:
        raise _unreadable(store, error.strerror or str(error)) from error


def _context(protocol: int, tls: Tls) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    versions = [_VERSIONS[name] for name in tls.protocols] or list(_VERSIONS.values())
    context.minimum_version, context.maximum_version = min(versions), max(versions)
    if tls.ciphers:
        _choose_ciphers(context, tls.ciphers)
    if tls.trusted is not None:
        _trust(context, tls.trusted)
    if tls.own is not None:
        _load_own(context, tls.own)
    return context


def _choose_ciphers(context: ssl.SSLContext, names: tuple[str, ...]) -> None:
    """Allow these suites only. Python cannot choose among those of TLSv1.3, so a list has all of them or none."""
    newest = _OF_TLS_13 & set(names)
    older = [_openssl_name(name) for name in names if name not in _OF_TLS_13]
    if newest and newest != _OF_TLS_13 and context.maximum_version == ssl.TLSVersion.TLSv1_3:
        missing = ", ".join(sorted(_OF_TLS_13 - newest))
        raise UserError(
            f"ssl.cipher.suites: the suites of TLSv1.3 are allowed together only; accepted: also {missing}, or none of "
            "them, or ssl.enabled.protocols=TLSv1.2"
        )
    if not newest:
        context.maximum_version = ssl.TLSVersion.TLSv1_2
    if not older:
        context.minimum_version = ssl.TLSVersion.TLSv1_3
    if context.minimum_version > context.maximum_version:
        raise UserError(
            f"ssl.cipher.suites: {', '.join(names)} has no suite of ssl.enabled.protocols; accepted: suites of them"
        )
    for name, ours in zip([one for one in names if one not in _OF_TLS_13], older, strict=True):
        try:
            context.set_ciphers(ours)
        except ssl.SSLError:
            raise UserError(
                f"ssl.cipher.suites: {name!r} is not accepted; accepted: Java's or OpenSSL's name of a cipher suite"
            ) from None
    if older:
        context.set_ciphers(":".join(older))


def _openssl_name(name: str) -> str:
    """Return OpenSSL's name of a suite of TLSv1.2 that has Java's name."""
    exchange, with_, rest = name.removeprefix("TLS_").partition("_WITH_")
    if not with_:
        return name
    rest = rest.replace("AES_", "AES").replace("_CBC", "").replace("POLY1305_SHA256", "POLY1305")
    parts = [exchange] if exchange != "RSA" else []
    return "-".join([*parts, rest]).replace("_", "-")


def _trust(context: ssl.SSLContext, store: Store) -> None:
    certificates = _certificates(store)
    if not certificates:
        where = store.location or "this value"
        raise UserError(
            f"{_named(store, 'certificates')}: {where} has no certificate; accepted: certificates as PEM or PKCS12"
        )
    try:
        context.load_verify_locations(cadata=certificates)
    except (ssl.SSLError, ValueError) as error:
        raise _unreadable(store, _reason(error)) from None


def _certificates(store: Store) -> str:
    return _contents(store, with_key=False)[1]


def _contents(store: Store, *, with_key: bool) -> tuple[str, str]:
    """Return the private key and the certificates of a store as PEM text. Raises UserError."""
    if store.location:
        found = _read_file(store, with_key=with_key)
    else:
        key = _blocks(store.key, "PRIVATE KEY") if with_key else ""
        found = key, _blocks(store.certificates, "CERTIFICATE")
    if not "".join(found).isascii():
        raise _unreadable(store, "a key or a certificate has a character that is not ASCII")
    return found


def _load_own(context: ssl.SSLContext, store: Store) -> None:
    key, certificates = _contents(store, with_key=True)
    for what, text in (("private key", key), ("certificate", certificates)):
        if not text:
            where = store.location or "this value"
            raise UserError(
                f"{_named(store, 'key')}: {where} has no {what}; accepted: a key and its certificates as PEM or PKCS12"
            )
    is_encrypted = False

    def password() -> str:
        nonlocal is_encrypted
        is_encrypted = True
        return store.key_password

    with _in_memory(key + certificates) as path:
        try:
            context.load_cert_chain(path, password=password)
        except (ssl.SSLError, ValueError) as error:
            reason = _reason(error)
            if "KEY_VALUES_MISMATCH" in reason:
                reason = "the key does not belong to the first certificate"
            elif is_encrypted:
                setting = f"{store.setting.removesuffix('.keystore')}.key.password"
                reason = f"{setting} does not open the key"
            raise _unreadable(store, reason) from None


def _read_file(store: Store, *, with_key: bool) -> tuple[str, str]:
    """Return the private key and the certificates of a file as PEM text."""
    try:
        data = Path(store.location).read_bytes()
    except OSError as error:
        raise _unreadable(store, error.strerror or str(error)) from error
    if data.startswith(_JKS):
        raise UserError(
            f"{store.setting}.location: {store.location} is a JKS file, which is not read; convert it: keytool "
            f"-importkeystore -srckeystore {store.location} -destkeystore NAME.p12 -deststoretype PKCS12"
        )
    if _PEM in data:
        text = data.decode("latin-1")
        return _blocks(text, "PRIVATE KEY") if with_key else "", _blocks(text, "CERTIFICATE")
    if data[:1] == b"\x30":  # DER, as every PKCS12 file
        return _read_pkcs12(store, data)
    raise _unreadable(store, "it is neither PEM nor PKCS12")


def _read_pkcs12(store: Store, data: bytes) -> tuple[str, str]:
    try:
        from cryptography.hazmat.primitives import serialization  # noqa: PLC0415 - few listeners
        from cryptography.hazmat.primitives.serialization import pkcs12  # noqa: PLC0415
    except ImportError:
        raise UserError(
            f"{store.setting}.location: {store.location} is PKCS12, which needs the package cryptography; "
            "pip install 'stratalog[tls]', or use PEM"
        ) from None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of BER, which Java reads, too
            found = pkcs12.load_pkcs12(data, store.password.encode() if store.password else None)
    except ValueError:
        raise _unreadable(
            store, f"{store.setting}.password does not open it, or it is damaged"
        ) from None
    key = b""
    if found.key is not None:
        key = found.key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    entries = [found.cert, *found.additional_certs]
    pem = serialization.Encoding.PEM
    certificates = b"".join(one.certificate.public_bytes(pem) for one in entries if one is not None)
    return key.decode(), certificates.decode()


def _blocks(text: str, label: str) -> str:
    """Return the PEM blocks whose label ends with `label`, with whole lines: Kafka takes PEM on one line, too."""
    return "".join(
        _whole_lines(*found) for found in _BLOCK.findall(text) if found[0].endswith(label)
    )


def _whole_lines(label: str, body: str) -> str:
    if ":" in body:  # headers of an old encrypted key, which need their own lines
        return f"-----BEGIN {label}-----{body}-----END {label}-----\n"
    packed = "".join(body.split())
    lines = [packed[start : start + _LINE] for start in range(0, len(packed), _LINE)]
    return "\n".join([f"-----BEGIN {label}-----", *lines, f"-----END {label}-----", ""])


@contextmanager
def _in_memory(text: str) -> Iterator[str]:
    """Yield the path of a file with the text; on Linux it is in memory and has no name."""
    data = text.encode("ascii")
    if not hasattr(os, "memfd_create"):
        with tempfile.NamedTemporaryFile(prefix="strata-") as file:  # readable by its owner only
            file.write(data)
            file.flush()
            yield file.name
        return
    number = os.memfd_create("key")
    try:
        os.write(number, data)
        yield f"/proc/self/fd/{number}"
    finally:
        os.close(number)


def _named(store: Store, otherwise: str) -> str:
    return f"{store.setting}.{'location' if store.location else otherwise}"


def _unreadable(store: Store, reason: str) -> UserError:
    where = f"cannot use {store.location}: " if store.location else ""
    what = "key" if store.setting.endswith("keystore") else "certificates"
    return UserError(f"{_named(store, what)}: {where}{reason}")


def _reason(error: Exception) -> str:
    """Return OpenSSL's reason without its place in OpenSSL's source."""
    reason = getattr(error, "reason", None) or str(error).partition(" (_ssl.c")[0]
    return "a key or a certificate is damaged" if _OF_DAMAGE.search(reason) else reason
