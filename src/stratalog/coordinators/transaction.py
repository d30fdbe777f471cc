"""The last transaction of one transactional id: its states, its record, and what an end makes of it.

In: a transaction, or the bytes of its record. Out: the next transaction, or the bytes. It never decides.

The producer that writes and the one that may end the transaction are the same, but for a transaction that
InitProducerId has kept (KIP-939): there `next_id` and `next_epoch` are the producer that may end it.

Kafka: `TransactionMetadata`.
"""

from enum import IntEnum
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from stratalog.statemachine import Now
from stratalog.wire.ids import TopicPartition
from stratalog.wire.internal.transactions import (
    PartitionsSchema,
    TransactionLogValue,
    decode_key,
    decode_value,
    encode_key,
    encode_value,
)
from stratalog.wire.markers import RAISED_FROM

__all__ = [
    "COMPLETE",
    "EPOCH_LAST",
    "EPOCH_MAX",
    "NO_TIMEOUT_MS",
    "PREPARED",
    "State",
    "Transaction",
    "TransactionRecord",
    "bytes_max",
    "completed",
    "decode_record",
    "encode_record",
    "fenced",
    "is_before",
    "is_repeat",
    "kept",
    "needs_id_to_fence",
    "next_client",
    "raised",
]

TransactionRecord = tuple[str, "Transaction | None"]
"""A transactional id with its last transaction; None for a tombstone. `encode_record` writes it."""
_RECORD_BYTES: Final = 128
_PARTITION_BYTES: Final = 16
_CHARACTER_BYTES_MAX: Final = 4
EPOCH_LAST: Final = 2**15 - 2
"""At this epoch a producer gets another producer id: one more is left to fence it."""
EPOCH_MAX: Final = 2**15 - 1
NO_TIMEOUT_MS: Final = 2**31 - 1
"""The time-out of a transaction that takes part in a two-phase commit: only its client ends it (KIP-939)."""


class State(IntEnum):
    """States by their numbers in the records (Kafka: `TransactionState`)."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5

    @property
    def label(self) -> str:
        """The name that Kafka's tools show: `PrepareCommit`."""
        return self.name.title().replace("_", "")


PREPARED: Final = (State.PREPARE_COMMIT, State.PREPARE_ABORT)
COMPLETE: Final = {
    State.PREPARE_COMMIT: State.COMPLETE_COMMIT,
    State.PREPARE_ABORT: State.COMPLETE_ABORT,
}

_ENDED: Final = (*PREPARED, *COMPLETE.values())


class Transaction(Struct, frozen=True):
    """The last transaction of one transactional id. Times are wall time in epoch ms; `started_ms` is -1 before one."""

    producer_id: int
    producer_epoch: int
    timeout_ms: int
    state: State
    partitions: frozenset[TopicPartition]
    updated_ms: int
    started_ms: int = -1
    version: int = 0
    """2 where it follows Kafka's second protocol."""
    previous_id: int = -1
    """The producer id of the transaction before, where its end exhausted that id's epochs."""
    next_id: int = -1
    """The producer id after a prepared end that exhausts the epochs of this one; or as `next_epoch` says."""
    next_epoch: int = -1
    """With `next_id` the producer that may end a transaction that InitProducerId has kept; -1: none has."""

    @property
    def client(self) -> tuple[int, int]:
        """Producer id and epoch of the newest client: those that may end the transaction."""
        if self.next_epoch >= 0:
            return self.next_id, self.next_epoch
        return self.producer_id, self.producer_epoch


def is_repeat(found: Transaction, producer: tuple[int, int]) -> bool:
    """Return whether a producer repeats the request that ended the last transaction in the second protocol."""
    if found.version < RAISED_FROM or found.state not in _ENDED:
        return False
    producer_id, epoch = found.client
    if epoch == 0:
        return is_before(found, producer)
    if epoch == EPOCH_MAX and (found.next_id < 0 or found.next_epoch >= 0):
        return False  # a fence of the first protocol, or of a kept transaction, used the last epoch
    return producer == (producer_id, epoch - 1)


def is_before(found: Transaction, producer: tuple[int, int]) -> bool:
    """Return whether an end at this producer's last epoch brought the present producer id."""
    is_renewed = found.state in _ENDED and found.client[1] == 0
    return is_renewed and producer == (found.previous_id, EPOCH_LAST)


def kept(found: Transaction, fresh_id: int | None, timeout_ms: int, now: Now) -> Transaction | None:
    """Return an open transaction with a newer client; None where that needs a fresh producer id."""
    producer_id, epoch = found.client
    previous_id = found.previous_id
    if epoch < EPOCH_LAST:
        epoch += 1
    elif fresh_id is None:
        return None
    else:
        previous_id, producer_id, epoch = producer_id, fresh_id, 0
    return replace(
        found,
        next_id=producer_id,
        next_epoch=epoch,
        previous_id=previous_id,
        timeout_ms=max(found.timeout_ms, timeout_ms),
        updated_ms=now.wall_ms,
    )


def raised(found: Transaction, prepared: State, fresh_id: int | None, now: Now) -> Transaction:
    """Return a transaction with an end of the second protocol, whose markers have a higher epoch.

    `fresh_id` is needed where the client's epoch is EPOCH_LAST.
    """
    producer_id, epoch = found.client
    is_last = epoch >= EPOCH_LAST
    assert fresh_id is not None or not is_last, "the caller has asked for a producer id"
    ended = replace(
        found,
        producer_epoch=_above(found.producer_epoch),
        state=prepared,
        updated_ms=now.wall_ms,
        started_ms=found.started_ms if found.state is State.ONGOING else now.wall_ms,
        version=RAISED_FROM,
        previous_id=-1,
        next_id=fresh_id if is_last and fresh_id is not None else -1,
    )
    if found.next_epoch < 0:
        return ended
    if is_last:
        return replace(ended, next_epoch=0, previous_id=producer_id)
    return replace(ended, next_id=producer_id, next_epoch=epoch + 1, previous_id=found.previous_id)


def fenced(found: Transaction, fresh_id: int | None, now: Now) -> Transaction:
    """Return the prepared abort of an open transaction, with a higher epoch: its producer is fenced.

    In the second protocol that is the epoch of the producer's own end, which its request then seems to repeat
    (KAFKA-19367). `fresh_id` is needed where `needs_id_to_fence` says so (KAFKA-20090).
    """
    if found.next_epoch < 0 and found.version >= RAISED_FROM:
        return raised(found, State.PREPARE_ABORT, fresh_id, now)
    ended = replace(
        found,
        producer_epoch=_above(found.producer_epoch),
        state=State.PREPARE_ABORT,
        updated_ms=now.wall_ms,
    )
    if found.next_epoch < 0:
        return ended
    return replace(ended, next_epoch=min(found.next_epoch + 2, EPOCH_MAX))


def needs_id_to_fence(found: Transaction) -> bool:
    """Return whether `fenced` needs a new producer id: the fence uses up the epochs of the present one."""
    has_one_producer = found.next_epoch < 0 and found.version >= RAISED_FROM
    return has_one_producer and found.producer_epoch >= EPOCH_LAST


def _above(epoch: int) -> int:
    """Return the epoch of markers that raise it. EPOCH_MAX stays: a client had it from a release before this one."""
    return min(epoch + 1, EPOCH_MAX)


def completed(ended: Transaction, now: Now) -> Transaction:
    """Return a prepared end's transaction once its markers are written."""
    producer_id, epoch = next_client(ended)
    is_exhausted = ended.next_id >= 0 and ended.next_epoch < 0
    return replace(
        ended,
        producer_id=producer_id,
        producer_epoch=epoch,
        state=COMPLETE[ended.state],
        partitions=frozenset(),
        updated_ms=now.wall_ms,
        previous_id=ended.producer_id if is_exhausted else ended.previous_id,
        next_id=-1,
        next_epoch=-1,
    )


def next_client(ended: Transaction) -> tuple[int, int]:
    """Return the producer id and epoch of the transaction after a prepared end.

    In the second protocol the answer to the end has them, so a client may use them before the markers are written.
    """
    if ended.next_id >= 0 and ended.next_epoch < 0:
        return ended.next_id, 0
    return ended.client


def bytes_max(record: TransactionRecord) -> int:
    """Return a size that the record's bytes do not exceed."""
    transactional_id, one = record
    size = _RECORD_BYTES + _CHARACTER_BYTES_MAX * len(transactional_id)
    for topic, _partition in () if one is None else one.partitions:
        size += _PARTITION_BYTES + len(topic)
    return size


def encode_record(record: TransactionRecord) -> tuple[bytes, bytes | None]:
    """Return the key and the value of an id's last transaction."""
    transactional_id, one = record
    if one is None:
        return encode_key(transactional_id), None
    topics: dict[str, list[int]] = {}
    for topic, partition in sorted(one.partitions):
        topics.setdefault(topic, []).append(partition)
    value = TransactionLogValue(
        producer_id=one.producer_id,
        producer_epoch=one.producer_epoch,
        transaction_timeout_ms=one.timeout_ms,
        transaction_status=one.state,
        transaction_partitions=None
        if one.state is State.EMPTY
        else tuple(
            PartitionsSchema(topic=topic, partition_ids=tuple(ids)) for topic, ids in topics.items()
        ),
        transaction_last_update_timestamp_ms=one.updated_ms,
        transaction_start_timestamp_ms=one.started_ms,
        previous_producer_id=one.previous_id,
        next_producer_id=one.next_id,
        next_producer_epoch=one.next_epoch,
        client_transaction_version=one.version,
    )
    return encode_key(transactional_id), encode_value(value)


def decode_record(key: bytes, value: bytes | None) -> TransactionRecord | None:
    """Return the record of a key and a value; None for another kind of record, to be skipped. Raises Corrupt."""
    transactional_id = decode_key(key)
    if transactional_id is None:
        return None
    return transactional_id, None if value is None else _transaction_of(decode_value(value))


def _transaction_of(value: TransactionLogValue) -> Transaction:
    return Transaction(
        value.producer_id,
        value.producer_epoch,
        value.transaction_timeout_ms,
        State(value.transaction_status),
        frozenset(
            TopicPartition(topic.topic, index)
            for topic in value.transaction_partitions or ()
            for index in topic.partition_ids
        ),
        value.transaction_last_update_timestamp_ms,
        value.transaction_start_timestamp_ms,
        value.client_transaction_version,
        value.previous_producer_id,
        value.next_producer_id,
        value.next_producer_epoch,
    )
