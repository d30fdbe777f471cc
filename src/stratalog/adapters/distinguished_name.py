r"""Write the subject of a certificate as Java does.

In: the DER of a certificate. Out: its subject, and the distinguished name by RFC 2253 as `X500Principal.getName()`
writes it: most specific part first. It verifies nothing.

Java differs from RFC 2253. It escapes `=`, and `#` wherever it stands, all spaces and carriage returns at both ends,
and NUL as `\00`. It reads the bytes of a T61String or BMPString as UTF-8, too, and encodes a value that is no text.
Libraries refuse values that Java takes, such as a PrintableString with a `*`, so the bytes are read here.
"""

from collections.abc import Iterator
from typing import Final

__all__ = ["distinguished_name", "subject_of"]

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
_UTF8, _PRINTABLE, _T61, _IA5, _GENERAL, _BMP = 12, 19, 20, 22, 27, 30
_TEXTS: Final = frozenset({_UTF8, _PRINTABLE, _T61, _IA5, _GENERAL, _BMP})
_ESCAPED: Final = str.maketrans({"\0": "\\00"} | {one: f"\\{one}" for one in ',=+<>#;"\\'})
_BLANK: Final = " \r"
_MORE: Final = 0x80
"""The bit of a length that has bytes of its own, and of each byte of a number but the last."""
_LONG_TAG: Final = 0x1F
_VERSION: Final = 0xA0
_NOT_DER: Final = "its name is no DER"


def subject_of(certificate: bytes) -> bytes:
    """Return the DER of the subject. Raises ValueError for a certificate that is no DER."""
    [(_, signed, _)] = _elements(certificate)
    (_, body, _), *_ = _elements(signed)
    fields = [encoded for kind, _, encoded in _elements(body) if kind != _VERSION]
    _, _, _, _, subject, *_ = (
        fields  # after the serial number, the algorithm, the issuer and the dates
    )
    return subject


def distinguished_name(subject: bytes) -> str:
    """Return the name, "" for an empty one. Raises ValueError for a subject that is no DER."""
    [(_, entries, _)] = _elements(subject)
    names = [
        "+".join(_part(pair) for _, pair, _ in _elements(entry))
        for _, entry, _ in _elements(entries)
    ]
    return ",".join(reversed(names))


def _part(pair: bytes) -> str:
    """Return one attribute; its pair is an object identifier and a value."""
    (_, identifier, _), (kind, value, encoded) = _elements(pair)
    number = _dotted(identifier)
    keyword = _KEYWORDS.get(number)
    if keyword is None or kind not in _TEXTS:
        return f"{keyword or number}=#{encoded.hex()}"
    return f"{keyword}={_escaped(value.decode(errors='replace'))}"


def _elements(der: bytes) -> Iterator[tuple[int, bytes, bytes]]:
    """Yield the tag, the content and all bytes of each element."""
    at = 0
    while at < len(der):
        start = at + 2
        size = der[at + 1] if start <= len(der) else _MORE
        if size == _MORE or der[at] & _LONG_TAG == _LONG_TAG:
            raise ValueError(_NOT_DER)
        if size & _MORE:
            start += size & ~_MORE
            size = int.from_bytes(der[at + 2 : start])
        end = start + size
        if end > len(der):
            raise ValueError(_NOT_DER)
        yield der[at], der[start:end], der[at:end]
        at = end


def _dotted(identifier: bytes) -> str:
    """Return an object identifier as digits and dots."""
    numbers, value = [], 0
    for one in identifier:
        value = value << 7 | one & ~_MORE
        if not one & _MORE:
            numbers.append(value)
            value = 0
    if not numbers:
        raise ValueError(_NOT_DER)
    first = min(numbers[0] // 40, 2)
    return ".".join(map(str, [first, numbers[0] - 40 * first, *numbers[1:]]))


def _escaped(value: str) -> str:
    text = value.translate(_ESCAPED)
    start = len(text) - len(text.lstrip(_BLANK))
    end = max(len(text.rstrip(_BLANK)), start)
    return (
        "".join(f"\\{one}" for one in text[:start])
        + text[start:end]
        + "".join(f"\\{one}" for one in text[end:])
    )
