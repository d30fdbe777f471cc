"""The request of `strata produce`, for lines and for generated records.

In: the options, read. Out: one value that says what goes where. It never sends anything.
"""

from dataclasses import dataclass

BATCH_BYTES = 256 * 1024
Headers = tuple[tuple[str, bytes | None], ...]


@dataclass(frozen=True, slots=True)
class Order:
    """What is to be sent where, and how a line becomes a record.

    `timestamp` is for every line; without it a line may bring its own (`timestamp_separator`), else it is now.
    """

    topic: str
    partition: int | None
    compression: str
    acks: int
    key_separator: bytes | None
    timestamp_separator: bytes | None
    timestamp: int | None
    source: str = "standard input"
    """What the lines are from, for people."""
    headers: Headers = ()
    """For every record, before its own."""
    json: bool = False
    """Lines are objects as `strata consume --json` prints them."""
