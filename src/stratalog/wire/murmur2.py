"""Return the partition of a key, as every Kafka client that hashes like Java's does.

In: key bytes. Out: a non-negative hash, or a partition. It never sees a record without a key.

The hash is Austin Appleby's MurmurHash2 (32 bits, little-endian, seed 0x9747b28c), as in
`org.apache.kafka.common.utils.Utils.murmur2` and the default partitioner there. Compiled by mypyc like `walk`
(`hatch_build.py`): a key takes 0.1 us instead of 2. All numbers fit 63 bits, so that compiled and interpreted code
agree.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

__all__ = ["murmur2", "partition_of_key"]

_SEED: Final = 0x9747B28C
_MULTIPLIER: Final = 0x5BD1E995
_MASK: Final = 0xFFFFFFFF


def murmur2(key: bytes) -> int:
    """Return the hash of `key` with the sign bit cleared (Java's `Utils.toPositive(Utils.murmur2(key))`)."""
    length: i64 = len(key)
    hashed: i64 = _SEED ^ length
    whole: i64 = length & ~3
    at: i64 = 0
    while at < whole:
        mixed: i64 = key[at] | key[at + 1] << 8 | key[at + 2] << 16 | key[at + 3] << 24
        mixed = mixed * _MULTIPLIER & _MASK
        mixed = (mixed ^ mixed >> 24) * _MULTIPLIER & _MASK
        hashed = hashed * _MULTIPLIER & _MASK ^ mixed
        at += 4
    if length > whole:
        tail: i64 = 0
        while length > whole:
            length -= 1
            tail = tail << 8 | key[length]
        hashed = (hashed ^ tail) * _MULTIPLIER & _MASK
    hashed = (hashed ^ hashed >> 13) * _MULTIPLIER & _MASK
    return (hashed ^ hashed >> 15) & 0x7FFFFFFF


def partition_of_key(key: bytes, partitions: int) -> int:
    """Return the partition, of `partitions`, that Java's default partitioner picks for `key`."""
    return murmur2(key) % partitions
