"""Follow transactions through the batches of a log that is cleaned.

In: aborted transactions, by the log's `.txnindex` files; batches in order. Out: whether a batch, or a marker, may go.
It never decides that a marker goes at once: its delete horizon does (`filtering.py`).

A batch of an aborted transaction goes. A marker may go once no batch of its transaction is left. Kafka:
`CleanedTransactionMetadata`, `TransactionIndex`.
"""

from collections.abc import Iterable

from stratalog.log.transaction_index import Aborted
from stratalog.wire.batch import BatchHeader
from stratalog.wire.markers import read_marker

__all__ = ["Transactions"]


class Transactions:
    """The transactions that batches seen so far belong to. Feed it every batch, in order.

    `kept` are the aborted transactions whose markers stay, for the index of the segment that is written.
    """

    def __init__(self, aborted: Iterable[Aborted]) -> None:
        self.kept: list[Aborted] = []
        self._coming = sorted(aborted, key=lambda one: one.first_offset, reverse=True)
        self._aborted: dict[int, tuple[Aborted, bool]] = {}
        """By producer: the transaction, and whether a batch of it was seen."""
        self._committed: set[int] = set()

    def is_aborted(self, header: BatchHeader) -> bool:
        """Take in a batch of data; return whether its transaction is aborted, so that the batch may go."""
        self._begin(header.last_offset)
        if not header.is_transactional:
            return False
        found = self._aborted.get(header.producer_id)
        if found is None or found[0].last_offset < header.base_offset:
            self._committed.add(header.producer_id)
            return False
        self._aborted[header.producer_id] = found[0], True
        return True

    def may_go(self, view: memoryview, header: BatchHeader) -> bool:
        """Take in a control batch; return whether nothing that stays needs it. Raises Corrupt."""
        self._begin(header.last_offset)
        marker = read_marker(view)
        if marker is None:
            return True  # cleaned before, and kept for its producer
        if marker.is_commit:
            seen = header.producer_id in self._committed
            self._committed.discard(header.producer_id)
            return not seen
        found = self._aborted.pop(header.producer_id, None)
        if found is not None and found[1]:
            self.kept.append(found[0])
            return False
        return True

    def _begin(self, offset: int) -> None:
        while self._coming and self._coming[-1].first_offset <= offset:
            one = self._coming.pop()
            if one.last_offset >= offset:  # else it ended below the first batch that was fed
                self._aborted.setdefault(one.producer_id, (one, False))
