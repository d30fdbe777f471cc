"""Batching: every record is in a batch, in order, and no batch exceeds the limit."""

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from stratalog.client.batching import Batches
from stratalog.wire.ids import TopicPartition
from stratalog.wire.records import BatchBuilder, read_records

NOW_MS = 1_700_000_000_000
PARTITIONS = [TopicPartition("t", index) for index in range(3)]


class Sent:
    """A pipeline that keeps the batches that it gets."""

    def __init__(self) -> None:
        self.batches: list[tuple[int, bytes]] = []

    async def send(self, _topic: str, partition: int, batch: BatchBuilder) -> None:
        self.batches.append((partition, bytes(batch.build())))


@given(
    st.lists(st.tuples(st.none() | st.binary(max_size=20), st.binary(max_size=300)), max_size=60)
)
def test_batches_hold_every_record_in_order_within_the_limit(
    records: list[tuple[bytes | None, bytes]],
) -> None:
    async def fill() -> Sent:
        sent = Sent()
        batches = Batches(sent.send, "none", 1000)
        for key, value in records:
            partition = batches.choose(key, PARTITIONS)
            await batches.add(partition, key, value, NOW_MS)
        await batches.flush()
        assert batches.count == len(records)
        return sent

    sent = asyncio.run(fill())
    assert all(len(batch) <= 1000 for _, batch in sent.batches)
    for key in {key for key, _ in records}:
        wanted = [value for k, value in records if k == key]
        found = [r.value for _, batch in sent.batches for r in read_records(batch) if r.key == key]
        # Keyless records may spread over partitions; those with a key keep their order.
        assert found == wanted if key is not None else sorted(found) == sorted(wanted)
