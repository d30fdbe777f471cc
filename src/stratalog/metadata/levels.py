"""The levels of metadata.version that this release reads and writes.

In: a level. Out: a refusal that names a remedy. It never changes a level.
"""

from stratalog.errors import Corrupt
from stratalog.metadata.image import METADATA_VERSION, METADATA_VERSION_LEVEL, METADATA_VERSION_MIN

__all__ = ["check_level", "unreadable"]

_LOWER = (
    "start Apache Kafka 4.3 there and raise it: kafka-features.sh upgrade --release-version 4.3"
)
_HIGHER = "a later release of Stratalog may know it"


def check_level(level: int) -> None:
    """Raise Corrupt for a level that this release does not write."""
    if not METADATA_VERSION_MIN <= level <= METADATA_VERSION_LEVEL:
        raise Corrupt(
            f"the metadata log is at {METADATA_VERSION} {level}, known are {METADATA_VERSION_MIN} to "
            f"{METADATA_VERSION_LEVEL}; {_HIGHER if level > METADATA_VERSION_LEVEL else _LOWER}"
        )


def unreadable(error: Exception, level: int | None) -> Corrupt:
    """Return why records cannot be read: `error`, or the log's `level` where that is of a later release."""
    if level is not None and level > METADATA_VERSION_LEVEL:
        try:
            check_level(level)
        except Corrupt as unknown:
            return unknown
    return Corrupt(str(error))
