"""An artificial partition log with transactions: its batches, the aborted transactions, and the records that each kind
of reader sees.

In: steps, each a producer and its action. Out: batches that follow each other from offset 0 on, as a broker would have
them once every transaction has ended.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from stratalog.wire.records import BatchBuilder, Record, build_batch
from stratalog.wire.transactions import AbortedTransaction

NOW_MS = 1_700_000_000_000
ABORT, COMMIT = 0, 1


class Step(NamedTuple):
    """`records` of a producer in one batch, in a transaction or beside it; with none, the end of its transaction."""

    producer: int
    records: int
    transactional: bool = True
    kind: int = COMMIT
    codec: str = "none"


@dataclass
class TransactionalLog:
    """The batches, the aborted transactions by last offset, and the offsets that each reader sees."""

    batches: list[bytes] = field(default_factory=list)
    aborted: list[AbortedTransaction] = field(default_factory=list)
    committed: list[int] = field(default_factory=list)
    uncommitted: list[int] = field(default_factory=list)
    end: int = 0
    _open: dict[int, list[int]] = field(default_factory=dict)

    def write(self, step: Step) -> None:
        """Append a producer's batch; key and value say the record's offset."""
        builder = BatchBuilder(step.codec)
        offsets = range(self.end, self.end + step.records)
        for offset in offsets:
            builder.add(b"key-%d" % offset, b"value-%d." % offset, NOW_MS + offset)
        built = builder.build(
            self.end, 0, producer_id=step.producer, transactional=step.transactional
        )
        self.batches.append(bytes(built))
        self.uncommitted += offsets
        if step.transactional:
            self._open.setdefault(step.producer, []).extend(offsets)
        else:
            self.committed += offsets
        self.end += step.records

    def finish(self, producer: int, kind: int) -> None:
        """End a producer's transaction, if it has one open, with its marker."""
        if producer not in self._open:
            return
        marker = [Record(0, NOW_MS, b"\0\0" + kind.to_bytes(2, "big"), bytes(6), ())]
        self.batches.append(
            bytes(
                build_batch(
                    marker,
                    base_offset=self.end,
                    producer_id=producer,
                    transactional=True,
                    control=True,
                )
            )
        )
        offsets = self._open.pop(producer)
        if kind == COMMIT:
            self.committed += offsets
        else:
            self.aborted.append(AbortedTransaction(producer, offsets[0], self.end))
        self.end += 1


def transactional_log(steps: Iterable[Step]) -> TransactionalLog:
    """The log that these steps write; whatever is open at the end is aborted."""
    log = TransactionalLog()
    for step in steps:
        if step.records:
            log.write(step)
        else:
            log.finish(step.producer, step.kind)
    for producer in list(log._open):
        log.finish(producer, ABORT)
    log.committed.sort()
    return log
