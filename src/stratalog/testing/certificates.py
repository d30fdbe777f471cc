"""Certificates for tests: an authority of one's own, and what it signs.

In: names and hosts. Out: keys and certificates as PEM and PKCS12 files in a directory. Only for tests: keys lie on the
disk without a password.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import pkcs12
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from stratalog.adapters.system import SystemClock

__all__ = ["Authority", "Identity"]

_PEM: Final = serialization.Encoding.PEM
_PKCS8: Final = serialization.PrivateFormat.PKCS8
_DAY: Final = timedelta(days=1)
_USAGES: Final = (ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH)


@dataclass(frozen=True, slots=True)
class Identity:
    """A key and its certificate. `pem` has both, `key` and `certificate` each alone."""

    name: str
    pem: Path
    key: Path
    certificate: Path


class Authority:
    """A certificate authority. `certificate` is the file that others trust."""

    def __init__(self, directory: Path, name: str = "test authority", *, days: int = 3650) -> None:
        """Write the authority's certificate into `directory`, which is created. With negative `days` it has expired."""
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        identifier = x509.SubjectKeyIdentifier.from_public_key(self._key.public_key())
        signs = x509.KeyUsage(
            digital_signature=True,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            key_cert_sign=True,
            crl_sign=True,
            encipher_only=False,
            decipher_only=False,
        )
        self._certificate = (
            self._builder(self._name, self._key, min(-1, days - 1), days)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(identifier, critical=False)
            .add_extension(signs, critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.certificate = directory / "authority.pem"
        self.certificate.write_bytes(self._certificate.public_bytes(_PEM))

    def _builder(
        self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, first_day: int, last_day: int
    ) -> x509.CertificateBuilder:
        now = datetime.fromtimestamp(SystemClock().now_ms() / 1000, UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now + first_day * _DAY)
            .not_valid_after(now + last_day * _DAY)
        )

    def issue(
        self,
        name: str,
        *,
        hosts: Sequence[str] = ("127.0.0.1", "localhost"),
        unit: str = "",
        begins: int = 0,
        days: int = 365,
    ) -> Identity:
        """Sign a certificate for CN=`name` and these hosts, valid after `begins` days and until `days` days.

        With negative `days` it has expired already. Its files are `NAME.pem`, `NAME.key` and `NAME.crt`; an
        earlier identity of the name is replaced.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        attributes = [x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, unit)] if unit else []
        subject = x509.Name([*attributes, x509.NameAttribute(NameOID.COMMON_NAME, name)])
        certificate = (
            self._builder(subject, key, begins or min(-1, days - 1), days)
            .add_extension(x509.SubjectAlternativeName(list(map(_host, hosts))), critical=False)
            .add_extension(x509.ExtendedKeyUsage(_USAGES), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()),
                critical=False,
            )
            .sign(self._key, hashes.SHA256())
        )
        key_pem = key.private_bytes(_PEM, _PKCS8, serialization.NoEncryption())
        found = Identity(
            name, *(self._directory / f"{name}.{ending}" for ending in ("pem", "key", "crt"))
        )
        found.key.write_bytes(key_pem)
        found.certificate.write_bytes(certificate.public_bytes(_PEM))
        found.pem.write_bytes(key_pem + certificate.public_bytes(_PEM))
        return found

    def pkcs12(self, identity: Identity, password: str) -> Path:
        """Write an identity as a PKCS12 file, as `keytool` and `openssl` do; return its path."""
        key = serialization.load_pem_private_key(identity.key.read_bytes(), None)
        certificate = x509.load_pem_x509_certificate(identity.certificate.read_bytes())
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        path = identity.pem.with_suffix(".p12")
        path.write_bytes(
            pkcs12.serialize_key_and_certificates(
                identity.name.encode(),
                key,
                certificate,
                [self._certificate],
                serialization.BestAvailableEncryption(password.encode()),
            )
        )
        return path


def _host(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(text))
    except ValueError:
        return x509.DNSName(text)
