"""End transactions that an earlier release left open for ever, at the last producer epoch (KAFKA-20090).

In: the partitions that this broker leads, and the transactions of every coordinator. Out: markers that abort. It ends
no transaction that a coordinator still knows to be open, or to lack markers.

Such a release gave that epoch to a client after a time-out, and its leaders refused the marker of what the client wrote
then; the coordinator took the transaction for ended. No client gets that epoch any more.
"""

from typing import Final

import structlog

from stratalog.broker.coordination.broker_peers import BrokerPeers
from stratalog.broker.coordination.cluster_view import ClusterView
from stratalog.broker.coordination.markers import Markers
from stratalog.broker.coordination.transactions import TRANSACTIONS_TOPIC, Transactions
from stratalog.broker.partitions.hosting import Hosting
from stratalog.coordinators.transaction import EPOCH_MAX, PREPARED, State
from stratalog.errors import ErrorCode, Rejected, Unavailable
from stratalog.wire.ids import TopicPartition
from stratalog.wire.markers import Ended, Marker
from stratalog.wire.messages.list_transactions import ListTransactionsRequest

__all__ = ["StrandedTransactions"]

_HELD: Final = (State.ONGOING, *PREPARED)
_Open = dict[tuple[TopicPartition, int], int]
"""Partition and producer id -> first offset of the transaction."""
_log = structlog.get_logger()


class StrandedTransactions:
    """Those of one broker's partitions."""

    def __init__(
        self,
        cluster: ClusterView,
        hosting: Hosting,
        transactions: Transactions,
        markers: Markers,
        peers: BrokerPeers,
    ) -> None:
        """`peers` are those of `markers`, which closes them."""
        self._cluster = cluster
        self._hosting = hosting
        self._transactions = transactions
        self._markers = markers
        self._peers = peers
        self._seen: _Open = {}

    async def look(self) -> None:
        """End each transaction that was there at the look before, too, and that no coordinator holds."""
        found = self._open()
        lasting = {key: start for key, start in found.items() if self._seen.get(key) == start}
        self._seen = found
        if not lasting:
            return
        try:
            held = await self._held({producer_id for _, producer_id in lasting})
        except (Rejected, Unavailable) as error:
            _log.info("transactions at the last epoch not looked up", reason=str(error))
            return
        still = self._open()
        for (partition, producer_id), start in lasting.items():
            if producer_id not in held and still.get((partition, producer_id)) == start:
                await self._end(partition, producer_id)

    def _open(self) -> _Open:
        found: _Open = {}
        for hosted in self._hosting.all():
            if hosted.replica.leads:
                for producer_id, start in hosted.log.producers.open_at(EPOCH_MAX):
                    found[hosted.name, producer_id] = start
        return found

    async def _held(self, producer_ids: set[int]) -> set[int]:
        """Return those with a transaction that a coordinator holds. Raises Rejected and Unavailable where one does not
        answer.
        """
        topic = self._cluster.topic(TRANSACTIONS_TOPIC)
        coordinators = set() if topic is None else {one.leader for one in topic.partitions.values()}
        held: set[int] = set()
        for node_id in coordinators:
            if node_id == self._cluster.node_id:
                listed = await self._transactions.listed()
                held |= {one.producer_id for _, one in listed if one.state in _HELD}
                continue
            request = ListTransactionsRequest(
                state_filters=[state.label for state in _HELD],
                producer_id_filters=sorted(producer_ids),
            )
            answer = await self._peers.get(node_id).request(request)
            if answer.error_code:
                raise Rejected(ErrorCode(answer.error_code), f"broker {node_id} refuses")
            held |= {one.producer_id for one in answer.transaction_states}
        return held

    async def _end(self, partition: TopicPartition, producer_id: int) -> None:
        state = self._hosting.get(*partition).log.producers.get(producer_id)
        epoch = 0 if state is None else max(state.coordinator_epoch, 0)
        ended = Ended(producer_id, EPOCH_MAX, Marker(is_commit=False, coordinator_epoch=epoch))
        errors = await self._markers.write(ended, [partition])
        _log.warning(
            "stranded transaction aborted",
            partition=str(partition),
            producer=producer_id,
            result=errors[partition].name,
        )
