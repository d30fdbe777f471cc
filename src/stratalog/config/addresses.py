"""Write addresses of clients in one form, so that two texts of one address are equal.

In: an address, in any form. Out: the form of Java's `InetAddress.getHostAddress()`, with which Apache Kafka compares
hosts. It looks up no name.
"""

from ipaddress import IPv4Address, ip_address

__all__ = ["address_text", "is_address", "is_same_address"]


def address_text(text: str) -> str:
    """Return the address as Java writes it: `::1` is `0:0:0:0:0:0:0:1`, `::ffff:10.0.0.1` is `10.0.0.1`.

    An address in brackets counts, too. Any other text stays as it is.
    """
    if ":" not in text:
        return text
    try:
        address = ip_address(text.removeprefix("[").removesuffix("]"))
    except ValueError:
        return text
    if isinstance(address, IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    groups = ":".join(f"{int(group, 16):x}" for group in address.packed.hex(":", 2).split(":"))
    return groups if address.scope_id is None else f"{groups}%{address.scope_id}"


def is_same_address(one: str, other: str) -> bool:
    """Return whether both texts are one address, or equal."""
    return one == other or (
        (":" in one or ":" in other) and address_text(one) == address_text(other)
    )


def is_address(text: str) -> bool:
    """Return whether the text is an address, and no name."""
    try:
        ip_address(text.removeprefix("[").removesuffix("]"))
    except ValueError:
        return False
    return True
