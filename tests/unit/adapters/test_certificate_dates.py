"""The dates of certificates are those that another library wrote, in both of X.509's forms."""

from datetime import UTC, datetime

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from stratalog.adapters.certificate_dates import dates

FIRST = datetime(1987, 6, 5, 4, 3, 2, tzinfo=UTC)
ENDS = [
    datetime(1999, 12, 31, 23, 59, 59, tzinfo=UTC),
    datetime(2000, 1, 1, tzinfo=UTC),
    datetime(2049, 12, 31, 23, 59, 59, tzinfo=UTC),  # the last with a year of two digits
    datetime(2050, 1, 1, tzinfo=UTC),
    datetime(2069, 1, 1, tzinfo=UTC),
    datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC),  # RFC 5280: no end
]


def certificate(begins: datetime, ends: datetime, names: int = 1) -> bytes:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "n" * 60)] * names)
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begins)
        .not_valid_after(ends)
        .sign(key, hashes.SHA256())
        .public_bytes(serialization.Encoding.DER)
    )


@pytest.mark.parametrize("ends", ENDS, ids=str)
@pytest.mark.parametrize("names", [1, 3, 10])  # lengths of one byte, two and three
def test_dates_are_those_that_were_written(ends: datetime, names: int) -> None:
    assert dates(certificate(FIRST, ends, names)) == (FIRST.timestamp(), ends.timestamp())


def test_a_certificate_that_is_cut_off_or_none_has_no_dates() -> None:
    whole = certificate(FIRST, ENDS[0])
    at = whole.index(b"991231235959Z") + 13
    for size in range(at):
        with pytest.raises(ValueError):
            dates(whole[:size])
    for other in (bytes(200), b"\xff" * 200):
        with pytest.raises(ValueError):
            dates(other)
