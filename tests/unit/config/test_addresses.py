"""Addresses have one text, Java's; `tests/compat/test_principal_names.py` compares with Java."""

import pytest

from stratalog.config.addresses import address_text, is_same_address


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("::1", "0:0:0:0:0:0:0:1"),
        ("[::1]", "0:0:0:0:0:0:0:1"),
        ("2001:0DB8::00A0", "2001:db8:0:0:0:0:0:a0"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("::FFFF:a00:1", "10.0.0.1"),
        ("fe80::1%2", "fe80:0:0:0:0:0:0:1%2"),
        ("fe80::1%eth0", "fe80:0:0:0:0:0:0:1%eth0"),
        ("*", "*"),
        ("", ""),
        ("host.example", "host.example"),
        ("a:b", "a:b"),
        ("10.0.0.1:9092", "10.0.0.1:9092"),
    ],
)
def test_an_address_has_one_text_and_another_text_stays(given: str, text: str) -> None:
    assert address_text(given) == text
    assert is_same_address(given, text)
    assert not is_same_address(given, "10.0.0.2")
