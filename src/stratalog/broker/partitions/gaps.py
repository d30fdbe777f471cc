"""Refuse a gap in a producer's sequences right after an election as if this broker did not lead yet.

In: a refused batch, the log and the replica that refused it. Out: the error for the client. It changes neither.

A producer sends several batches at once. A broker that begins to lead in between refuses the first with
NOT_LEADER_OR_FOLLOWER, and finds a gap before the second. Kafka answers OUT_OF_ORDER_SEQUENCE_NUMBER to the second.
Java's producer then repeats both, in order. librdkafka 2.16 takes a new producer epoch instead. It sends all unanswered
batches of all partitions in it, so a batch that the former leader had replicated is stored twice. After
NOT_LEADER_OR_FOLLOWER it repeats both in order.
"""

from collections.abc import Sequence
from typing import Final

from stratalog.errors import ErrorCode, Rejected
from stratalog.log.partition_log import PartitionLog
from stratalog.log.values import Placed
from stratalog.replication.partition import PartitionReplica
from stratalog.wire.batch import BASE_SEQUENCE, PRODUCER_EPOCH, PRODUCER_ID, BatchHeader

YOUNG_MS: Final = 1000
"""How long after its election a leader expects batches that were sent before it: later gaps are the producer's own."""


def refused(
    rows: Sequence[Placed | Rejected],
    headers: Sequence[BatchHeader],
    log: PartitionLog,
    replica: PartitionReplica,
    now_ms: int,
) -> list[Placed | Rejected]:
    """Return the rows of one append, with NOT_LEADER_OR_FOLLOWER for a gap before a producer's first batch of an epoch
    that is young.
    """
    if now_ms - replica.led_since_ms >= YOUNG_MS:
        return list(rows)
    return [
        Rejected(ErrorCode.not_leader_or_follower, f"a gap after an election: {row.message}")
        if isinstance(row, Rejected) and _is_early_gap(row, header, log, replica)
        else row
        for row, header in zip(rows, headers, strict=True)
    ]


def _is_early_gap(
    error: Rejected, header: BatchHeader, log: PartitionLog, replica: PartitionReplica
) -> bool:
    if error.code is not ErrorCode.out_of_order_sequence_number:
        return False
    state = log.producers.get(header[PRODUCER_ID])
    if state is None or not state.batches or state.epoch != header[PRODUCER_EPOCH]:
        return False
    _, last, _, last_offset, _ = state.batches[-1]
    return header[BASE_SEQUENCE] > last and last_offset < replica.epoch_start_offset
