"""Track each idempotent producer's last batches: accept, refuse, or recognise a repeat.

In: batch headers. Out: verdicts, and the `.snapshot` file. It never decodes records and never assigns an offset.

The rules are Kafka 4's (`ProducerAppendInfo`, `ProducerStateEntry`, KIP-98, KIP-360). The log remembers the last five
batches of a producer. A batch with the sequences of one of them is a repeat. Any other batch must continue the last
sequence, which wraps from 2^31 - 1 to 0. A newer producer epoch starts at sequence 0. An unknown producer (its
records are deleted, or it expired) may start at any sequence.

A marker ends a transaction: of the same producer epoch or a newer one, and of a coordinator whose epoch is not older.
Its records stay unstable until the marker lies below the high watermark (KIP-98, `ProducerStateManager`).

Two differences from Kafka. A producer expires by the time of its last append here, not by its records' timestamps:
otherwise a producer that loads old records would be forgotten at once, and its repeats would be stored twice. And a
snapshot has all remembered batches of a producer: `encode`.
"""

import struct
from collections import deque
from collections.abc import Iterable, Iterator
from struct import Struct
from typing import Final

from crc32c import crc32c

from stratalog.errors import Corrupt, ErrorCode, Rejected
from stratalog.log.transaction_index import Aborted
from stratalog.wire.batch import (
    ATTRIBUTES,
    BASE_SEQUENCE,
    CONTROL,
    LAST_OFFSET_DELTA,
    MAX_TIMESTAMP,
    PRODUCER_EPOCH,
    PRODUCER_ID,
    TRANSACTIONAL,
    BatchHeader,
)
from stratalog.wire.markers import Marker, read_marker

__all__ = ["BATCHES_KEPT", "ProducerState", "ProducerStates", "WrittenBatch"]

BATCHES_KEPT: Final = 5
EPOCH_MAX: Final = 2**15 - 1
_SEQUENCES: Final = 1 << 31
_PREFIX: Final = Struct(">hIi")
_CRC_END: Final = 6
_ENTRY: Final = Struct(">qhiqiqiq")
_VERSION: Final = 1

WrittenBatch = tuple[int, int, int, int, int]
"""First sequence, last sequence, base offset, last offset, max timestamp."""
_NO_BATCH: Final = (-1, -1, -1, -1, -1)


class ProducerState:
    """One producer. `batches` are the newest, oldest first; `transaction_start` is -1 outside a transaction."""

    __slots__ = (
        "batches",
        "coordinator_epoch",
        "epoch",
        "markers",
        "touched_ms",
        "transaction_start",
    )

    def __init__(self, epoch: int, touched_ms: int) -> None:
        self.epoch = epoch
        self.touched_ms = touched_ms
        self.coordinator_epoch = -1
        self.markers = 0
        """How many markers this broker has seen: they tell one transaction from the next (KIP-890)."""
        self.transaction_start = -1
        self.batches: deque[WrittenBatch] = deque(maxlen=BATCHES_KEPT)


class ProducerStates:
    """Every producer of one partition, by producer id."""

    __slots__ = ("_ending", "_open", "_states")

    def __init__(self) -> None:
        self._states: dict[int, ProducerState] = {}
        self._open: set[int] = set()
        """Producers with an open transaction: every fetch needs them, and must not walk over all producers."""
        self._ending: deque[tuple[int, int]] = deque()
        """First offset and marker of each ended transaction whose marker may not be below the high watermark."""

    def __len__(self) -> int:
        return len(self._states)

    def get(self, producer_id: int) -> ProducerState | None:
        """Return the state of a producer, or None. Do not change it."""
        return self._states.get(producer_id)

    def items(self) -> Iterable[tuple[int, ProducerState]]:
        """Return every producer id with its state. Do not change them."""
        return self._states.items()

    def check(self, header: BatchHeader) -> WrittenBatch | None:
        """Return None if a client may append this batch of a producer now, else the batch that it repeats.

        Raises Rejected: INVALID_PRODUCER_EPOCH, OUT_OF_ORDER_SEQUENCE_NUMBER, INVALID_TXN_STATE.
        """
        state = self._states.get(header[PRODUCER_ID])
        if state is None:
            return None
        epoch = header[PRODUCER_EPOCH]
        first = header[BASE_SEQUENCE]
        if epoch == state.epoch:
            batches = state.batches
            if batches:
                newest = batches[-1]
                if first != (newest[1] + 1) % _SEQUENCES:
                    last = (first + header[LAST_OFFSET_DELTA]) % _SEQUENCES
                    for batch in batches:
                        if batch[0] == first and batch[1] == last:
                            return batch
                    raise _out_of_order(header, newest[1])
            elif first != 0:
                raise _out_of_order(header, -1)
            if state.transaction_start >= 0 and not header[ATTRIBUTES] & TRANSACTIONAL:
                raise Rejected(
                    ErrorCode.invalid_txn_state,
                    f"producer {header[PRODUCER_ID]} writes outside the transaction it has open",
                )
            return None
        if epoch < state.epoch:
            raise Rejected(
                ErrorCode.invalid_producer_epoch,
                f"producer {header[PRODUCER_ID]} of epoch {epoch} where {state.epoch} has written",
            )
        if first != 0:
            raise _out_of_order(header, -1)
        return None

    def update(self, header: BatchHeader, base_offset: int, now_ms: int) -> None:
        """Record an accepted batch of a producer (id at least 0) at its offsets."""
        producer_id = header[PRODUCER_ID]
        state = self._states.get(producer_id)
        if state is None:
            state = self._states[producer_id] = ProducerState(header[PRODUCER_EPOCH], now_ms)
        elif header[PRODUCER_EPOCH] > state.epoch:
            state.epoch = header[PRODUCER_EPOCH]
            state.batches.clear()
        state.touched_ms = now_ms
        delta = header[LAST_OFFSET_DELTA]
        first = header[BASE_SEQUENCE]
        state.batches.append(
            (
                first,
                # A coordinator's own batches have no sequence.
                first if first < 0 else (first + delta) % _SEQUENCES,
                base_offset,
                base_offset + delta,
                header[MAX_TIMESTAMP],
            )
        )
        if header[ATTRIBUTES] & TRANSACTIONAL and state.transaction_start < 0:
            state.transaction_start = base_offset
            self._open.add(producer_id)

    def check_marker(self, header: BatchHeader, view: memoryview) -> None:
        """Check the control batch of a producer that a coordinator asks this leader to append.

        Raises Rejected: INVALID_PRODUCER_EPOCH, TRANSACTION_COORDINATOR_FENCED.
        """
        state = self._states.get(header[PRODUCER_ID])
        marker = read_marker(view)
        if state is None or marker is None:
            return
        if header[PRODUCER_EPOCH] < state.epoch:
            raise Rejected(
                ErrorCode.invalid_producer_epoch,
                f"a marker for epoch {header[PRODUCER_EPOCH]} of producer {header[PRODUCER_ID]}, "
                f"where {state.epoch} has written",
            )
        if marker.coordinator_epoch < state.coordinator_epoch:
            raise Rejected(
                ErrorCode.transaction_coordinator_fenced,
                f"a marker of coordinator epoch {marker.coordinator_epoch} for producer "
                f"{header[PRODUCER_ID]}, where {state.coordinator_epoch} has written",
            )

    def check_raised(self, producer_id: int, epoch: int) -> None:
        """Check a marker of Kafka's second protocol: its epoch is above every one that the producer has written.

        At the last epoch none is above: such a marker ends what an earlier release let a producer write there
        (KAFKA-20090). Raises Rejected: INVALID_PRODUCER_EPOCH.
        """
        state = self._states.get(producer_id)
        if state is not None and epoch <= state.epoch and epoch != EPOCH_MAX:
            raise Rejected(
                ErrorCode.invalid_producer_epoch,
                f"a marker that raises the epoch of producer {producer_id} to {epoch}, where "
                f"{state.epoch} has written",
            )

    def take(
        self, header: BatchHeader, view: memoryview, base_offset: int, now_ms: int
    ) -> Aborted | None:
        """Record an accepted batch of a producer, as `update`; return the transaction that it aborts, if it is a
        marker. Raises Corrupt for a control record that cannot be read.
        """
        if not header[ATTRIBUTES] & CONTROL:
            self.update(header, base_offset, now_ms)
            return None
        marker = read_marker(view)
        if marker is None:
            return None  # the cleaner has taken the whole transaction
        return self._end(header, marker, base_offset, now_ms)

    def _end(self, header: BatchHeader, marker: Marker, offset: int, now_ms: int) -> Aborted | None:
        """End the producer's transaction; a marker without one changes epochs only."""
        producer_id = header[PRODUCER_ID]
        state = self._states.get(producer_id)
        if state is None:
            state = self._states[producer_id] = ProducerState(header[PRODUCER_EPOCH], now_ms)
        elif header[PRODUCER_EPOCH] > state.epoch:
            state.epoch = header[PRODUCER_EPOCH]
            state.batches.clear()
        state.touched_ms = now_ms
        state.coordinator_epoch = marker.coordinator_epoch
        state.markers += 1
        start = state.transaction_start
        if start < 0:
            return None
        state.transaction_start = -1
        self._open.discard(producer_id)
        self._ending.append((start, offset))
        if marker.is_commit:
            return None
        others = self._first_open()
        return Aborted(producer_id, start, offset, offset + 1 if others is None else others)

    def first_unstable_offset(self, high_watermark: int) -> int | None:
        """Return the first offset of the oldest transaction that is open, or whose marker is not committed; None
        without one.
        """
        self.committed(high_watermark)
        if not self._ending:
            return self._first_open() if self._open else None
        first = min(start for start, _marker in self._ending)
        return min([first, *(self._states[one].transaction_start for one in self._open)])

    def committed(self, high_watermark: int) -> None:
        """Forget ended transactions with a committed marker. Call it as the high watermark moves: no read may come."""
        ending = self._ending
        while ending and ending[0][1] < high_watermark:
            ending.popleft()

    def _first_open(self) -> int | None:
        return min((self._states[one].transaction_start for one in self._open), default=None)

    def open_at(self, epoch: int) -> Iterator[tuple[int, int]]:
        """Yield producer id and first offset of each open transaction of a producer with this epoch."""
        for producer_id in self._open:
            state = self._states[producer_id]
            if state.epoch == epoch:
                yield producer_id, state.transaction_start

    def has_late(self, now_ms: int, limit_ms: int) -> bool:
        """Return whether an open transaction has had no batch for longer than `limit_ms`."""
        return any(now_ms - self._states[one].touched_ms > limit_ms for one in self._open)

    def expire(self, now_ms: int, expiration_ms: int) -> None:
        """Forget producers without an append for `expiration_ms` and without an open transaction."""
        gone = [
            producer_id
            for producer_id, state in self._states.items()
            if state.transaction_start < 0 and now_ms - state.touched_ms >= expiration_ms
        ]
        for producer_id in gone:
            del self._states[producer_id]

    def encode(self) -> bytes:
        """Return the `.snapshot` file (Kafka's ProducerSnapshot, version 1): an entry for each batch, oldest first.

        Kafka keeps the newest batch alone, so it stores a repeat of the one before as new records after a restart. A
        reader that expects one entry for each producer takes the last, as Kafka does.
        """
        entries = []
        for producer_id, state in self._states.items():
            for batch in state.batches or (_NO_BATCH,):
                _first, last, base_offset, last_offset, timestamp = batch
                entries.append(
                    _ENTRY.pack(
                        producer_id,
                        state.epoch,
                        last,
                        last_offset,
                        last_offset - base_offset,
                        timestamp,
                        state.coordinator_epoch,
                        state.transaction_start,
                    )
                )
        body = len(entries).to_bytes(4, "big") + b"".join(entries)
        return _VERSION.to_bytes(2, "big") + crc32c(body).to_bytes(4, "big") + body

    @classmethod
    def decode(cls, data: bytes, now_ms: int) -> "ProducerStates":
        """Decode a `.snapshot` file; raises Corrupt. The last append of every producer in it counts as at `now_ms`."""
        try:
            version, crc, count = _PREFIX.unpack_from(data)
        except struct.error as error:
            raise Corrupt(f"a producer snapshot of {len(data)} bytes") from error
        if version != _VERSION:
            raise Corrupt(f"a producer snapshot of version {version}")
        if len(data) != _PREFIX.size + count * _ENTRY.size or crc32c(data[_CRC_END:]) != crc:
            raise Corrupt("a producer snapshot whose CRC does not hold")
        states = cls()
        for fields in _ENTRY.iter_unpack(data[_PREFIX.size :]):
            producer_id, epoch, last, last_offset, delta, timestamp, coordinator, start = fields
            state = states._states.setdefault(producer_id, ProducerState(epoch, now_ms))
            state.coordinator_epoch = coordinator
            state.transaction_start = start
            if last_offset >= 0:
                first = (last - delta) % _SEQUENCES
                state.batches.append((first, last, last_offset - delta, last_offset, timestamp))
            if start >= 0:
                states._open.add(producer_id)
        return states


def _out_of_order(header: BatchHeader, last: int) -> Rejected:
    return Rejected(
        ErrorCode.out_of_order_sequence_number,
        f"producer {header.producer_id} epoch {header.producer_epoch}: "
        f"sequence {header.base_sequence} after {last}",
    )
