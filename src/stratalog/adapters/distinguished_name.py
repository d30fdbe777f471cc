"""Write the subject of a certificate as Java does.

In: a subject that `cryptography` has parsed. Out: a distinguished name by RFC 2253, as `X500Principal.getName()` writes
it: most specific part first. It verifies nothing.
"""

from typing import Any, Final

from cryptography.x509 import Name, NameAttribute

__all__ = ["distinguished_name"]

_KEYWORDS: Final = {
    "2.5.4.3": "CN",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.9": "STREET",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "0.9.2342.19200300.100.1.1": "UID",
    "0.9.2342.19200300.100.1.25": "DC",
}
_SPECIAL: Final = frozenset(',+"\\<>;')
_LONG_FROM: Final = 0x80


def distinguished_name(subject: Name) -> str:
    """Return the name, "" for an empty one. Raises ValueError for a subject that cannot be decoded."""
    return ",".join("+".join(_part(one) for one in entry) for entry in reversed(subject.rdns))


def _part(attribute: "NameAttribute[Any]") -> str:
    number = attribute.oid.dotted_string
    keyword = _KEYWORDS.get(number)
    if keyword is None:  # RFC 2253 has none: Java writes the number and the encoded value
        return f"{number}=#{_encoded(attribute).hex()}"
    return f"{keyword}={_escaped(str(attribute.value))}"


def _encoded(attribute: "NameAttribute[Any]") -> bytes:
    """Return the DER of the value, with the type of string that its certificate has."""
    der = Name([attribute]).public_bytes()
    for _ in range(3):  # a sequence of one set of one pair
        der = der[_head(der) :]
    return der[_head(der) + der[1] :]  # behind the number, which is short


def _head(der: bytes) -> int:
    """Return the bytes of the first element's tag and length."""
    return 2 + (der[1] & ~_LONG_FROM if der[1] & _LONG_FROM else 0)


def _escaped(value: str) -> str:
    text = "".join(f"\\{one}" if one in _SPECIAL else one for one in value)
    if text[:1] in {" ", "#"}:
        text = f"\\{text}"
    if len(value) > 1 and text.endswith(" "):
        text = f"{text[:-1]}\\ "
    return text
