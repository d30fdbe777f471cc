"""Map a group id or transactional id to its partition of an internal topic.

In: an id. Out: a partition index. It never knows the partition's leader.
"""

from functools import lru_cache
from typing import Final

_IDS_KEPT: Final = 10_000
_LENGTH_KEPT: Final = 256
"""Longer ids, which clients may send in any number, would stay in memory: 10,000 of them take 330 MB."""


def partition_for(key: str, count: int) -> int:
    """Return the index, of `count` partitions, for a group id or transactional id.

    Kafka: `Utils.abs(key.hashCode()) % count`, with Java's hash over UTF-16 code units.
    """
    positive = _kept_hash(key) if len(key) <= _LENGTH_KEPT else _hash(key)
    return positive % count


def _hash(key: str) -> int:
    code = 0
    units = key.encode("utf-16-be", "surrogatepass")
    for position in range(0, len(units), 2):
        code = (31 * code + (units[position] << 8) + units[position + 1]) & 0xFFFFFFFF
    signed = code - (1 << 32) if code >= 1 << 31 else code
    return 0 if signed == -(1 << 31) else abs(signed)


_kept_hash = lru_cache(_IDS_KEPT)(_hash)
