"""The request of `strata produce`, for lines and for generated records.

In: parsed options. Out: one value with source, destination and format. It never sends anything.
"""

from dataclasses import dataclass

BATCH_BYTES = 256 * 1024
Headers = tuple[tuple[str, bytes | None], ...]


@dataclass(frozen=True, slots=True)
class Order:
    """Source and destination of the records, and the way from a line to a record.

    `timestamp` is for every line; without it a line may have its own (`timestamp_separator`), else the time is now.
    """

    topic: str
    partition: int | None
    compression: str
    acks: int
    key_separator: bytes | None
    timestamp_separator: bytes | None
    timestamp: int | None
    source: str = "standard input"
    """The source of the lines, for people."""
    headers: Headers = ()
    """Headers of every record, before the record's own."""
    json: bool = False
    """Lines are objects as `strata consume --json` prints them."""
