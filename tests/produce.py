"""Produce requests of one batch, for tests that speak the protocol themselves.

In: a topic, by name or id, and its batch. Out: a request. It sends nothing.
"""

from uuid import UUID

from stratalog.ports import Buffer
from stratalog.wire.ids import ZERO_ID
from stratalog.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)


def produce_body(
    topic: str | UUID,
    records: Buffer | None,
    *,
    acks: int = -1,
    index: int = 0,
    timeout_ms: int = 10_000,
) -> ProduceRequest:
    """One records field for one partition; versions before 13 know a topic by its name."""
    view = None if records is None else memoryview(records)
    return ProduceRequest(
        acks=acks,
        timeout_ms=timeout_ms,
        topic_data=[
            TopicProduceData(
                name="" if isinstance(topic, UUID) else topic,
                topic_id=topic if isinstance(topic, UUID) else ZERO_ID,
                partition_data=[PartitionProduceData(index=index, records=view)],
            )
        ],
    )
