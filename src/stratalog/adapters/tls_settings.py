"""What the contexts of listeners and clients need of Kafka's TLS settings: keys, certificates, versions and suites.

In: `ports.Tls`. Out: PEM text and names, or UserError that names the setting, the file and the remedy. It never logs
or repeats a key or a password.
"""

import binascii
import os
import re
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from msgspec import Struct

from stratalog.errors import UserError
from stratalog.ports import Certificate, Store, Tls

__all__ = [
    "DAMAGED",
    "NOT_ITS_KEY",
    "Suites",
    "certificates_of",
    "in_memory",
    "own_key",
    "state_of",
    "suites_of",
    "trusted_certificates",
    "unknown_suite",
    "unreadable",
    "wrong_password",
]

DAMAGED: Final = "a key or a certificate is damaged"
NOT_ITS_KEY: Final = "the key does not belong to the first certificate"
_OLDER: Final = "TLSv1.2"
_NEWEST: Final = "TLSv1.3"
_JKS: Final = (b"\xfe\xed\xfe\xed", b"\xce\xce\xce\xce")
_PEM: Final = b"-----BEGIN"
_BLOCK: Final = re.compile(r"-----BEGIN ([A-Z0-9 ]+)-----((?:[^-]+|-(?!----))*+)-----END \1-----")
_LINE: Final = 64
_OF_TLS_13: Final = frozenset(
    {"TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256"}
)


class Suites(Struct, frozen=True):
    """The versions and the suites that a context allows. `older` maps names of the settings to OpenSSL's names.

    Without suites of a version, the library's own count where that version is allowed.
    """

    lowest: str
    highest: str
    older: dict[str, str]
    newest: tuple[str, ...]


def state_of(tls: Tls) -> tuple[object, ...]:
    """Return a value that changes when one of the files changes."""
    return tuple(
        (store.location, found.st_mtime_ns, found.st_size, found.st_ino)
        for store in (tls.own, tls.trusted)
        if store is not None and store.location
        for found in [_stat(store)]
    )


def certificates_of(tls: Tls) -> list[Certificate]:
    """Return the certificates of both stores; those that cannot be read are left out. Raises UserError."""
    from cryptography.x509 import (  # noqa: PLC0415 - clients never call it
        InvalidVersion,
        load_der_x509_certificate,
    )

    found = []
    for store in (tls.own, tls.trusted):
        if store is None:
            continue
        for _label, body in _BLOCK.findall(_certificates(store)):
            with suppress(ValueError, InvalidVersion), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of odd numbers
                one = load_der_x509_certificate(binascii.a2b_base64(body))
                ends = one.not_valid_before_utc.timestamp(), one.not_valid_after_utc.timestamp()
                found.append(Certificate(store.setting, store.location, *ends))
    return found


def _stat(store: Store) -> os.stat_result:
    try:
        return os.stat(store.location)
    except OSError as error:
        raise unreadable(store, error.strerror or str(error)) from error


def suites_of(tls: Tls) -> Suites:
    """Return versions and suites. Raises UserError where no suite of the list belongs to an allowed version."""
    versions = sorted(tls.protocols) or [_OLDER, _NEWEST]
    lowest, highest = versions[0], versions[-1]
    newest = tuple(name for name in tls.ciphers if name in _OF_TLS_13)
    older = {name: _openssl_name(name) for name in tls.ciphers if name not in _OF_TLS_13}
    if older and not newest:
        highest = _OLDER
    if newest and not older:
        lowest = _NEWEST
    if lowest > highest:
        raise UserError(
            f"ssl.cipher.suites: {', '.join(tls.ciphers)} has no suite of ssl.enabled.protocols; accepted: suites of "
            "them"
        )
    return Suites(lowest, highest, older, newest)


def trusted_certificates(store: Store) -> str:
    """Return the certificates of a truststore as PEM text. Raises UserError, without any too."""
    certificates = _certificates(store)
    if not certificates:
        where = store.location or "this value"
        raise UserError(
            f"{_named(store, 'certificates')}: {where} has no certificate; accepted: certificates as PEM or PKCS12"
        )
    return certificates


def own_key(store: Store) -> tuple[str, str]:
    """Return the private key and the certificates of a keystore as PEM text. Raises UserError, without either too."""
    key, certificates = _contents(store, with_key=True)
    for what, text in (("private key", key), ("certificate", certificates)):
        if not text:
            where = store.location or "this value"
            raise UserError(
                f"{_named(store, 'key')}: {where} has no {what}; accepted: a key and its certificates as PEM or PKCS12"
            )
    return key, certificates


def _openssl_name(name: str) -> str:
    """Return OpenSSL's name of a suite of TLSv1.2 that has Java's name."""
    exchange, with_, rest = name.removeprefix("TLS_").partition("_WITH_")
    if not with_:
        return name
    rest = rest.replace("AES_", "AES").replace("_CBC", "").replace("POLY1305_SHA256", "POLY1305")
    parts = [exchange] if exchange != "RSA" else []
    return "-".join([*parts, rest]).replace("_", "-")


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
        raise unreadable(store, "a key or a certificate has a character that is not ASCII")
    return found


def _read_file(store: Store, *, with_key: bool) -> tuple[str, str]:
    """Return the private key and the certificates of a file as PEM text."""
    try:
        data = Path(store.location).read_bytes()
    except OSError as error:
        raise unreadable(store, error.strerror or str(error)) from error
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
    raise unreadable(store, "it is neither PEM nor PKCS12")


def _read_pkcs12(store: Store, data: bytes) -> tuple[str, str]:
    # Most clients have PEM files, and do not pay for the import.
    from cryptography.hazmat.primitives import serialization  # noqa: PLC0415
    from cryptography.hazmat.primitives.serialization import pkcs12  # noqa: PLC0415

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of BER, which Java reads, too
            found = pkcs12.load_pkcs12(data, store.password.encode() if store.password else None)
    except ValueError:
        raise unreadable(
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
def in_memory(text: str) -> Iterator[str]:
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


def unreadable(store: Store, reason: str) -> UserError:
    """Return the error of a store that cannot be used."""
    where = f"cannot use {store.location}: " if store.location else ""
    what = "key" if store.setting.endswith("keystore") else "certificates"
    return UserError(f"{_named(store, what)}: {where}{reason}")


def wrong_password(store: Store) -> str:
    """Return the reason for a key that its password does not open."""
    return f"{store.setting.removesuffix('.keystore')}.key.password does not open the key"


def unknown_suite(name: str) -> UserError:
    """Return the error of a name that OpenSSL does not know."""
    return UserError(
        f"ssl.cipher.suites: {name!r} is not accepted; accepted: Java's or OpenSSL's name of a cipher suite"
    )


def _named(store: Store, otherwise: str) -> str:
    return f"{store.setting}.{'location' if store.location else otherwise}"
