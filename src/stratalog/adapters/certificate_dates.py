"""Read the dates of an X.509 certificate, which Python's `ssl` shows of a peer's certificate only.

In: a certificate as DER. Out: the first and the last second at which it is valid. Nothing is verified.
"""

from datetime import UTC, datetime
from typing import Final

__all__ = ["dates"]

_VERSION: Final = 0xA0
_SHORT_YEAR: Final = 0x17
"""The tag of UTCTime, whose years have two digits."""


def dates(der: bytes) -> tuple[float, float]:
    """Return the epoch seconds between which the certificate is valid. Raises ValueError where it has no dates."""
    try:
        _, at, _ = _element(der, 0)  # the certificate
        _, at, _ = _element(der, at)  # its signed part
        tag, _, end = _element(der, at)
        if tag == _VERSION:
            at = end
        for _ in ("serial number", "algorithm", "issuer"):
            _, _, at = _element(der, at)
        _, at, _ = _element(der, at)  # the two dates
        begins_s, at = _second(der, at)
        return begins_s, _second(der, at)[0]
    except IndexError:
        raise ValueError("the certificate is cut off") from None


def _element(der: bytes, at: int) -> tuple[int, int, int]:
    """Return the tag of the element at a byte, and where its contents begin and end."""
    tag, size, at = der[at], der[at + 1], at + 2
    if size & 0x80:
        more = size & 0x7F
        size = int.from_bytes(der[at : at + more], "big")
        at += more
    return tag, at, at + size


def _second(der: bytes, at: int) -> tuple[float, int]:
    """Return the date at a byte, and where it ends. Raises ValueError for any other element."""
    tag, at, end = _element(der, at)
    text = der[at:end].decode("ascii")
    if tag == _SHORT_YEAR:
        text = f"{'19' if text >= '5' else '20'}{text}"
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC).timestamp(), end
