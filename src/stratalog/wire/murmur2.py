"""Return the partition of a key, as every Kafka client that hashes like Java's does.

In: key bytes. Out: a non-negative hash, or a partition. It never sees a record without a key.

The hash is Austin Appleby's MurmurHash2 (32 bits, little-endian, seed 0x9747b28c), as in
`org.apache.kafka.common.utils.Utils.murmur2` and the default partitioner there.
"""

from struct import iter_unpack

__all__ = ["murmur2", "partition_of_key"]

_SEED = 0x9747B28C
_MULTIPLIER = 0x5BD1E995
_MASK = 0xFFFFFFFF


def murmur2(key: bytes) -> int:
    """Return the hash of `key` with the sign bit cleared (Java's `Utils.toPositive(Utils.murmur2(key))`)."""
    length = len(key)
    hashed = _SEED ^ length
    whole = length & ~3
    for (word,) in iter_unpack("<I", key[:whole]):
        mixed = word * _MULTIPLIER & _MASK
        mixed = (mixed ^ mixed >> 24) * _MULTIPLIER & _MASK
        hashed = hashed * _MULTIPLIER & _MASK ^ mixed
    if length > whole:
        tail = int.from_bytes(key[whole:], "little")
        hashed = (hashed ^ tail) * _MULTIPLIER & _MASK
    hashed = (hashed ^ hashed >> 13) * _MULTIPLIER & _MASK
    return (hashed ^ hashed >> 15) & 0x7FFFFFFF


def partition_of_key(key: bytes, partitions: int) -> int:
    """Return the partition, of `partitions`, that Java's default partitioner picks for `key`."""
    return murmur2(key) % partitions
