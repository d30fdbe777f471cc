"""Records that a simulation writes and later checks.

In: numbers. Out: batches whose values name them; a topic's records, read through the broker or from the bucket.
"""

from collections.abc import Iterator

from stratalog.client.aio import Client
from stratalog.ports import ObjectStore
from stratalog.tier.formats.manifest import Manifest
from stratalog.tier.reading.reader import open_bucket
from stratalog.wire.batch import scan
from stratalog.wire.records import BatchBuilder, read_records


def batch(values: list[bytes], timestamp: int) -> bytearray:
    builder = BatchBuilder()
    for value in values:
        builder.add(None, value, timestamp)
    return builder.build()


def values_in(data: bytes | memoryview) -> Iterator[tuple[int, bytes]]:
    """(offset, value) of every record in whole batches."""
    view = memoryview(data)
    for position, header in scan(view):
        for record in read_records(view[position : position + header.size]):
            assert record.value is not None
            yield record.offset, record.value


async def read_all(
    client: Client, topic: str, start: int, end: int, *, partition: int = 0, max_bytes: int = 4096
) -> dict[int, bytes]:
    """Offset -> value of [start, end), fetched as a consumer does."""
    found: dict[int, bytes] = {}
    offset = start
    while offset < end:
        fetched = await client.fetch(topic, partition, offset, max_bytes=max_bytes)
        assert isinstance(fetched.records, memoryview)
        new = {at: value for at, value in values_in(fetched.records) if at >= offset}
        assert new, f"nothing at {offset} of {topic}, which ends at {end}"
        found |= new
        offset = max(new) + 1
    return found


def in_bucket(
    store: ObjectStore, topic: str, partition: int = 0
) -> tuple[Manifest | None, dict[int, bytes]]:
    """Return the newest manifest of a partition, and the records of its segments, read without a broker."""
    bucket = open_bucket(store)
    found: dict[int, bytes] = {}
    named = bucket.topic(topic)
    manifest = None if named is None else bucket.manifest(named, partition)
    if manifest is not None:
        for segment in bucket.live(manifest):
            found |= dict(values_in(store.get_range(segment.path, 0, segment.entry.data_size)))
    return manifest, found
