"""Write the subject of a certificate as Java does.

In: the subject as `SSLSocket.getpeercert` gives it. Out: a distinguished name by RFC 2253, as
`X500Principal.getName()` writes it: most specific part first. It verifies nothing.
"""

from typing import Any, Final

__all__ = ["distinguished_name"]

_KEYWORDS: Final = {
    "commonName": "CN",
    "countryName": "C",
    "localityName": "L",
    "stateOrProvinceName": "ST",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "streetAddress": "STREET",
    "domainComponent": "DC",
    "userId": "UID",
}
# Attributes without a keyword in RFC 2253: Java writes the number and the encoded value.
_NUMBERS: Final = {
    "emailAddress": ("1.2.840.113549.1.9.1", 0x16),
    "serialNumber": ("2.5.4.5", 0x13),
    "surname": ("2.5.4.4", 0x0C),
    "title": ("2.5.4.12", 0x0C),
    "givenName": ("2.5.4.42", 0x0C),
    "initials": ("2.5.4.43", 0x0C),
    "dnQualifier": ("2.5.4.46", 0x13),
    "pseudonym": ("2.5.4.65", 0x0C),
}
_SPECIAL: Final = frozenset(',+"\\<>;')
_LONG_FROM: Final = 0x80


def distinguished_name(subject: Any) -> str:
    """Return the name, "" without a subject. `subject` is a tuple of sets of (attribute, value)."""
    return ",".join("+".join(_part(*pair) for pair in entry) for entry in reversed(subject or ()))


def _part(attribute: str, value: str) -> str:
    if attribute in _NUMBERS:
        number, tag = _NUMBERS[attribute]
        data = value.encode()
        return f"{number}=#{(bytes([tag]) + _length(len(data)) + data).hex()}"
    return f"{_KEYWORDS.get(attribute, attribute)}={_escaped(value)}"


def _length(size: int) -> bytes:
    """Return a length as DER encodes it."""
    if size < _LONG_FROM:
        return bytes([size])
    digits = size.to_bytes((size.bit_length() + 7) // 8)
    return bytes([_LONG_FROM | len(digits)]) + digits


def _escaped(value: str) -> str:
    text = "".join(f"\\{one}" if one in _SPECIAL else one for one in value)
    if text[:1] in {" ", "#"}:
        text = f"\\{text}"
    if len(value) > 1 and text.endswith(" "):
        text = f"{text[:-1]}\\ "
    return text
