"""Subjects of certificates as Java's X500Principal writes them."""

import pytest

from stratalog.adapters.distinguished_name import distinguished_name

PARTS = [
    ([("countryName", "DE"), ("organizationName", "Org"), ("commonName", "a")], "CN=a,O=Org,C=DE"),
    ([("commonName", "Doe, Jane+x")], r"CN=Doe\, Jane\+x"),
    ([("commonName", "#1")], r"CN=\#1"),
    ([("commonName", " a ")], r"CN=\ a\ "),
    ([("emailAddress", "a@b")], "1.2.840.113549.1.9.1=#1603614062"),
    ([("emailAddress", "a" * 200)], "1.2.840.113549.1.9.1=#1681c8" + "61" * 200),
    ([("userId", "u"), ("domainComponent", "d")], "DC=d,UID=u"),
]


@pytest.mark.parametrize(("parts", "name"), PARTS)
def test_names_are_javas(parts: list[tuple[str, str]], name: str) -> None:
    assert distinguished_name(tuple((part,) for part in parts)) == name


def test_several_attributes_of_one_part_are_joined() -> None:
    assert distinguished_name(((("commonName", "a"), ("userId", "b")),)) == "CN=a+UID=b"


def test_no_subject_is_no_name() -> None:
    assert distinguished_name(None) == ""
    assert distinguished_name(()) == ""
