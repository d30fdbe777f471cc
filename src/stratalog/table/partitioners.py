"""Say whether murmur2 placed a topic's keys, where a read by it found no row.

In: the options of the read. Out: one line, which names the partitioner that fits a sample of the topic's keys; None
where murmur2 fits. It never changes what is read.
"""

from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from itertools import islice
from typing import Final
from zlib import crc32

from stratalog.errors import Error
from stratalog.table.log import Log
from stratalog.table.metrics import ReadMetrics
from stratalog.table.options import Options
from stratalog.table.pruning import Pruning
from stratalog.table.query import shared_of
from stratalog.table.records import all_records
from stratalog.wire.murmur2 import partition_of_key

__all__ = ["misplaced", "verdict"]

_SAMPLE: Final = 200
"""Keys that are looked at."""
_RECORDS_MAX: Final = 10_000
"""Records among which there must be keys."""
_FITS: Final = 0.95
"""The share of keys in their places from which a partitioner fits: a key may have come before a change of producers."""


def _by_crc32(key: bytes, partitions: int) -> int:
    """As librdkafka's `consistent` and `consistent_random`, its default."""
    return crc32(key) % partitions


def _by_fnv1a(key: bytes, partitions: int) -> int:
    """As sarama's default, and librdkafka's `fnv1a`."""
    hashed = 0x811C9DC5
    for byte in key:
        hashed = (hashed ^ byte) * 0x01000193 & 0xFFFFFFFF
    return (hashed if hashed < 1 << 31 else (1 << 32) - hashed) % partitions


_MURMUR2: Final = "murmur2"
_PARTITIONERS: Final[Mapping[str, Callable[[bytes, int], int]]] = {
    _MURMUR2: partition_of_key,
    "CRC32 (librdkafka's default)": _by_crc32,
    "FNV-1a (sarama's default)": _by_fnv1a,
}


def misplaced(options: Options) -> str | None:
    """Return a line for a topic whose keys murmur2 did not place; None also where no sample can be read."""
    try:
        (topic,) = Log(options, shared_of(options)).snapshot().topics.values()
        with closing(all_records(options, Pruning(), ReadMetrics())) as records:
            first = islice(records, _RECORDS_MAX)
            keys = ((one.record.key, one.partition) for one in first if one.record.key is not None)
            sample = dict(islice(keys, _SAMPLE))
    except Error:
        return None
    return verdict(topic.name, topic.partition_count, sample)


def verdict(topic: str, partitions: int, sample: Mapping[bytes, int]) -> str | None:
    """Return the line for keys with their partitions."""
    fitting = {
        name: sum(_places(place, partitions, sample.items()))
        for name, place in _PARTITIONERS.items()
    }
    enough = _FITS * len(sample)
    if fitting[_MURMUR2] >= enough:
        return None
    seen = f"topic {topic}: murmur2 placed {fitting[_MURMUR2]} of {len(sample)} sampled keys"
    best = max(fitting, key=lambda name: fitting[name])
    if fitting[best] >= enough:
        return f"{seen}, and {best} placed {fitting[best]}: read without a partitioner"
    return f"{seen}, or the topic got more partitions later: read without a partitioner"


def _places(
    place: Callable[[bytes, int], int], partitions: int, sample: Iterable[tuple[bytes, int]]
) -> Iterable[bool]:
    return (place(key, partitions) == partition for key, partition in sample)
