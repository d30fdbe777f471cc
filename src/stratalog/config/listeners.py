"""Parse the addresses on which a node listens, and those that clients receive.

In: the text of `listeners` and its relatives. Out: `Listener` values, or `BadValue`. It never resolves a name and never
opens a port.
"""

from collections.abc import Sequence
from ipaddress import ip_address
from string import ascii_letters, digits
from typing import Final

from msgspec import Struct

from stratalog.config.addresses import address_text
from stratalog.config.kinds import BadValue
from stratalog.errors import UserError

PORT_MAX = 65535
SECURITY_PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_IN_A_HOST: Final = frozenset(ascii_letters + digits + "-%._:")
"""Kafka: SocketServerConfigs.URI_PARSE_REGEXP."""


class Listener(Struct, frozen=True):
    """`NAME://host:port`. An empty host means every address of the machine; port 0 means a free one."""

    name: str
    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.name}://{host}:{self.port}"


def parse_listener(text: str) -> Listener:
    """Return one listener; raises BadValue where it is not `NAME://host:port`."""
    name, separator, address = text.partition("://")
    host, colon, port = address.rpartition(":")
    if not (separator and colon and name and port.isdecimal() and int(port) <= PORT_MAX):
        raise BadValue
    if not name.replace("_", "").replace("-", "").isalnum():
        raise BadValue
    bracketed = host.startswith("[") and host.endswith("]")
    host = host[1:-1] if bracketed else host
    if not _IN_A_HOST.issuperset(host) or (":" in host and not bracketed):
        raise BadValue
    return Listener(name.upper(), host, int(port))


def parse_address(text: str) -> tuple[str, int]:
    """Return `host:port`, as in a listener; raises BadValue."""
    listener = parse_listener(f"ADDRESS://{text}")
    return listener.host, listener.port


def check_address(texts: Sequence[str]) -> None:
    """Raise BadValue unless the text is empty or `host:port`."""
    (text,) = texts
    if text:
        parse_address(text)


def check_listeners(texts: Sequence[str]) -> None:
    """Raise BadValue unless every item of one or more is a listener, and no name or fixed port comes twice."""
    listeners = [parse_listener(text) for text in texts]
    names = [listener.name for listener in listeners]
    addresses = [(listener.host, listener.port) for listener in listeners if listener.port]
    if not texts or len(set(names)) < len(names) or len(set(addresses)) < len(addresses):
        raise BadValue


def items_of(text: str) -> tuple[str, ...]:
    """Return the items of a text that Kafka calls a string and reads as a list."""
    return tuple(item.strip() for item in text.split(",") if item.strip())


def check_protocols(texts: Sequence[str]) -> None:
    """Raise BadValue unless every item of the text is `NAME:PROTOCOL` with one of Kafka's security protocols."""
    for text in items_of(texts[0]):
        name, colon, protocol = text.partition(":")
        if not (name and colon) or protocol not in SECURITY_PROTOCOLS:
            raise BadValue


def check_url(texts: Sequence[str]) -> None:
    """Raise BadValue unless the text is empty or a bucket's URL."""
    (text,) = texts
    scheme, separator, rest = text.partition("://")
    if text and not (separator and rest and scheme in {"file", "memory", "s3", "gs", "az"}):
        raise BadValue


def check_directories(texts: Sequence[str]) -> None:
    """Raise BadValue unless there is at least one directory."""
    if not texts:
        raise BadValue


def check_cordoned(cordoned: Sequence[str], directories: Sequence[str]) -> None:
    """Raise UserError unless each cordoned directory is one of `log.dirs`, or `*` (KIP-1066)."""
    for path in cordoned:
        if path not in {"*", *directories}:
            raise UserError(
                f"cordoned.log.dirs: {path!r} is not accepted; accepted: *, or of log.dirs: {', '.join(directories)}"
            )


def parse_address_limit(text: str) -> tuple[str, int]:
    """Return `address:count`, an IPv6 address as it is or in brackets; raises BadValue."""
    address, colon, count = text.rpartition(":")
    if not (colon and count.isdecimal()):
        raise BadValue
    try:
        return address_text(str(ip_address(address.removeprefix("[").removesuffix("]")))), int(
            count
        )
    except ValueError:
        raise BadValue from None


def check_address_limits(texts: Sequence[str]) -> None:
    """Raise BadValue unless every item of the text is `address:count`."""
    for text in items_of(texts[0]):
        parse_address_limit(text)
