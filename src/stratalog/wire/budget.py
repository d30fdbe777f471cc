"""The memory that one request may take once it is decoded.

In: the size of each thing that a reader is about to build. Out: nothing, or a refusal before the thing is built. It
never measures an object: sizes are estimates of what CPython takes, on the high side.

A frame of 9 MB can name a million topics, and a million objects take 140 MB. A reader therefore calls `charge` once
for each array (with all of its items' own bytes), each string, each bytes field that it copies and each tagged field.
Records of a Produce request are views of the frame: they cost nothing here.
"""

from typing import Final

from stratalog.errors import ErrorCode, Rejected

__all__ = [
    "ARRAY_BYTES",
    "ITEM_BYTES",
    "NUMBER_BYTES",
    "STRING_BYTES",
    "TAG_BYTES",
    "TRUSTED",
    "UUID_BYTES",
    "DecodeBudget",
    "OverBudget",
    "struct_bytes",
]

ARRAY_BYTES: Final = 120
"""Size of an array without its items, with the spare room of a list."""
ITEM_BYTES: Final = 8
"""An array's reference to one item."""
STRING_BYTES: Final = 80
"""A string or bytes field without its characters. Those beyond ASCII may take four times their bytes on the wire."""
NUMBER_BYTES: Final = 32
UUID_BYTES: Final = 112
TAG_BYTES: Final = 64
"""A tagged field without its content. A skipped one takes time instead of memory."""
_STRUCT_BYTES: Final = 32


class OverBudget(Rejected):
    """A request would take more memory than it may, once decoded.

    INVALID_REQUEST, as for a request that cannot be parsed: the connection is closed. Kafka has no such limit, but
    refuses an array longer than its request this way (`SocketServer.processCompletedReceives`).
    """

    def __init__(self, allowed: int) -> None:
        super().__init__(
            ErrorCode.invalid_request,
            f"the request takes more than {allowed} bytes once decoded; ask for less at once",
        )


class DecodeBudget:
    """The budget for decoding one request. `charged` is the sum of all charges, in bytes."""

    __slots__ = ("allowed", "charged")

    def __init__(self, allowed: int) -> None:
        """`allowed`: the most bytes that may be charged."""
        self.allowed = allowed
        self.charged = 0

    def charge(self, size: int) -> None:
        """Count `size` bytes before their allocation. Raises OverBudget, a Rejected(INVALID_REQUEST)."""
        self.charged += size
        if self.charged > self.allowed:
            raise OverBudget(self.allowed)


TRUSTED: Final = DecodeBudget(1 << 62)
"""A budget without a limit, for trusted data: a client reads its broker's answers with it."""


def struct_bytes(fields: int) -> int:
    """Return the size of an object with this many fields, including numbers, without strings and arrays."""
    return _STRUCT_BYTES + (ITEM_BYTES + NUMBER_BYTES) * fields
