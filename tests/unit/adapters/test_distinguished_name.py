"""Subjects of certificates as Java's X500Principal writes them."""

from contextlib import suppress

import pytest
from cryptography.x509 import Name, NameAttribute, ObjectIdentifier, RelativeDistinguishedName
from cryptography.x509.name import _ASN1Type
from cryptography.x509.oid import NameOID
from hypothesis import given
from hypothesis import strategies as st

from stratalog.adapters.distinguished_name import distinguished_name, subject_of

COMMON, EMAIL, USER = NameOID.COMMON_NAME, NameOID.EMAIL_ADDRESS, NameOID.USER_ID
OWN = ObjectIdentifier("1.3.6.1.4.1.99999.1")
LETTERS = "a" * 200
PARTS: list[tuple[list[tuple[ObjectIdentifier, str]], str]] = [
    ([], ""),
    (
        [(NameOID.COUNTRY_NAME, "DE"), (NameOID.ORGANIZATION_NAME, "Org"), (COMMON, "a")],
        "CN=a,O=Org,C=DE",
    ),
    (
        [
            (NameOID.STATE_OR_PROVINCE_NAME, "s"),
            (NameOID.LOCALITY_NAME, "l"),
            (NameOID.STREET_ADDRESS, "r"),
            (NameOID.ORGANIZATIONAL_UNIT_NAME, "u"),
        ],
        "OU=u,STREET=r,L=l,ST=s",
    ),
    ([(COMMON, "Doe, Jane+x")], r"CN=Doe\, Jane\+x"),
    ([(COMMON, "#1")], r"CN=\#1"),
    ([(COMMON, " a ")], r"CN=\ a\ "),
    ([(COMMON, "  a b\r ")], "CN=\\ \\ a b\\\r\\ "),
    ([(COMMON, "  ")], r"CN=\ \ "),
    ([(COMMON, "tenant=42")], r"CN=tenant\=42"),
    ([(COMMON, "reader #1")], r"CN=reader \#1"),
    ([(COMMON, "a\0b")], r"CN=a\00b"),
    ([(COMMON, "Zoë")], "CN=Zoë"),
    ([(EMAIL, "a@b")], "1.2.840.113549.1.9.1=#1603614062"),
    ([(EMAIL, LETTERS)], "1.2.840.113549.1.9.1=#1681c8" + "61" * 200),
    ([(NameOID.SURNAME, "é")], "2.5.4.4=#0c02c3a9"),
    ([(OWN, "x")], "1.3.6.1.4.1.99999.1=#0c0178"),
    ([(USER, "u"), (NameOID.DOMAIN_COMPONENT, "d")], "DC=d,UID=u"),
]


@pytest.mark.parametrize(("parts", "name"), PARTS)
def test_names_are_javas(parts: list[tuple[ObjectIdentifier, str]], name: str) -> None:
    subject = Name([NameAttribute(*part) for part in parts])
    assert distinguished_name(subject.public_bytes()) == name


def test_several_attributes_of_one_part_are_joined() -> None:
    part = RelativeDistinguishedName([NameAttribute(COMMON, "a"), NameAttribute(USER, "b")])
    assert distinguished_name(Name([part]).public_bytes()) == "CN=a+UID=b"


def test_an_encoded_value_has_its_certificates_type() -> None:
    printable = NameAttribute(NameOID.TITLE, "Dr", _ASN1Type.PrintableString)
    assert distinguished_name(Name([printable]).public_bytes()) == "2.5.4.12=#13024472"


@pytest.mark.parametrize("end", range(1, 15))
def test_a_subject_that_is_no_der_is_refused(end: int) -> None:
    whole = Name([NameAttribute(COMMON, "abc")]).public_bytes()
    with pytest.raises(ValueError, match=r".+"):
        distinguished_name(whole[:end])


@pytest.mark.parametrize(
    "subject",
    ["", "3080", "3006310430020600", "300b3109300706005103550400", "300d310b300906035504031f0201"],
)
def test_a_subject_of_other_elements_is_refused(subject: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        distinguished_name(bytes.fromhex(subject))


@given(st.binary(max_size=60), st.integers(0, 40), st.binary(max_size=4))
def test_any_bytes_are_a_name_or_a_value_error(noise: bytes, at: int, damage: bytes) -> None:
    whole = Name([NameAttribute(COMMON, "abc"), NameAttribute(OWN, "x")]).public_bytes()
    for data in (noise, whole[:at] + damage + whole[at + len(damage) :]):
        for read in (distinguished_name, subject_of):
            with suppress(ValueError):
                assert read(data) is not None
