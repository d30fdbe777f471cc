"""Clients of a run that write in transactions, and the check that each transaction is seen whole or never.

In: a cluster under faults. Out: the transactions with their outcomes; raises `Broken` where a reader of committed
records sees an aborted one, where a committed one is missing, and where a group's offset does not belong to the last
committed transaction that has one.

A producer whose request fails begins anew with InitProducerId: that ends the transaction it left. Where the answer to
the end is missing, the transaction may be committed or aborted, as a whole.
"""

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from random import Random
from typing import Any

from msgspec.structs import replace
from tests.cluster.checks import Broken
from tests.cluster.clients import PAUSE_S, TIMEOUT_S, Session, kind_of
from tests.produce import produce_body
from tests.sim.cluster import Cluster, host_of
from tests.sim.raw import Raw
from tests.sim.records import values_in
from tests.sim.world import START_MS

from stratalog.client.calls import READ_COMMITTED
from stratalog.errors import ErrorCode, Rejected, Unavailable
from stratalog.wire.batch import scan
from stratalog.wire.markers import read_marker
from stratalog.wire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from stratalog.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
)
from stratalog.wire.messages.end_txn import EndTxnRequest
from stratalog.wire.messages.find_coordinator import FindCoordinatorRequest
from stratalog.wire.messages.init_producer_id import InitProducerIdRequest
from stratalog.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from stratalog.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from stratalog.wire.records import Record, build_batch
from stratalog.wire.transactions import Aborted

TRANSACTION_MS = 15_000
AGAIN = (
    ErrorCode.not_coordinator,
    ErrorCode.coordinator_not_available,
    ErrorCode.coordinator_load_in_progress,
    ErrorCode.concurrent_transactions,
)
COMMITTED, ABORTED, UNKNOWN = "committed", "aborted", "unknown"


@dataclass
class Transaction:
    """`values` by partition were acknowledged; `offset` is the one that its group gets with it, or None."""

    number: int
    values: dict[int, list[bytes]] = field(default_factory=dict)
    offset: int | None = None
    outcome: str = ABORTED


class TransactionalProducer:
    """Writes one transaction after another with one transactional id. `id` names its group too."""

    def __init__(
        self, number: int, cluster: Cluster, counts: Counter[str], seed: int, topic: str, count: int
    ) -> None:
        self.id = f"producer-{number}"
        self.transactions: list[Transaction] = []
        self._cluster = cluster
        self._counts = counts
        self._chance = Random(seed)
        self._topic = topic
        self._partitions = count
        self._links: dict[int, Raw] = {}
        self._leaders = Session(cluster, counts)
        self._producer: tuple[int, int] | None = None
        self._sequences: dict[int, int] = {}

    async def step(self) -> None:
        """Write one transaction, and end it or leave it."""
        one = Transaction(len(self.transactions) + 1)
        self.transactions.append(one)
        try:
            if self._producer is None:
                await self._begin()
            await self._write(one)
            if self._chance.random() < 0.1:
                self._producer = None  # InitProducerId ends it
            else:
                await self._end(one, commit=self._chance.random() < 0.7)
        except (Unavailable, Rejected, TimeoutError, OSError) as error:
            self._counts[f"transaction refused: {kind_of(error)}"] += 1
            self._producer = None
            self._close_links()
            await asyncio.sleep(PAUSE_S)
        self._counts[f"transactions {one.outcome}"] += 1

    async def finish(self) -> None:
        """End what is open. Raises Unavailable, Rejected and the like."""
        await self._begin()

    async def _begin(self) -> None:
        request = InitProducerIdRequest(
            transactional_id=self.id, transaction_timeout_ms=TRANSACTION_MS
        )
        answer = await self._ask_coordinator(1, self.id, 4, request)
        self._producer, self._sequences = (answer.producer_id, answer.producer_epoch), {}

    async def _write(self, one: Transaction) -> None:
        chance, (producer_id, epoch) = self._chance, self._own()
        partitions = chance.sample(range(self._partitions), chance.randint(1, self._partitions))
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.id,
            v3_and_below_producer_id=producer_id,
            v3_and_below_producer_epoch=epoch,
            v3_and_below_topics=[AddPartitionsToTxnTopic(name=self._topic, partitions=partitions)],
        )
        await self._ask_coordinator(1, self.id, 3, request)
        for partition in partitions:
            values = [
                f"{self.id}-{one.number}-{partition}-{n}".encode()
                for n in range(chance.randint(1, 3))
            ]
            await self._produce(partition, values)
            one.values[partition] = values
        if chance.random() < 0.5:
            await self._commit_offset(one)

    async def _produce(self, partition: int, values: list[bytes]) -> None:
        producer_id, epoch = self._own()
        sequence = self._sequences.get(partition, 0)
        batch = build_batch(
            [Record(n, START_MS, None, value) for n, value in enumerate(values)],
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=sequence,
            transactional=True,
        )
        body = produce_body(self._topic, batch, index=partition)
        request = replace(body, transactional_id=self.id)
        found = await self._leaders.ask(lambda client: client.leader_of(self._topic, partition))
        if found is None:
            raise Unavailable("no leader is known")
        answer = await self._ask(found.node_id, 9, request)
        code = ErrorCode(answer.responses[0].partition_responses[0].error_code)
        if code is not ErrorCode.none:
            await self._leaders.close()
            raise Rejected(code, "produce")
        self._sequences[partition] = sequence + len(values)

    async def _commit_offset(self, one: Transaction) -> None:
        producer_id, epoch = self._own()
        await self._ask_coordinator(
            1,
            self.id,
            3,
            AddOffsetsToTxnRequest(
                transactional_id=self.id,
                producer_id=producer_id,
                producer_epoch=epoch,
                group_id=self.id,
            ),
        )
        part = TxnOffsetCommitRequestPartition(
            partition_index=0, committed_offset=one.number, committed_metadata=None
        )
        await self._ask_coordinator(
            0,
            self.id,
            3,
            TxnOffsetCommitRequest(
                transactional_id=self.id,
                group_id=self.id,
                producer_id=producer_id,
                producer_epoch=epoch,
                topics=[TxnOffsetCommitRequestTopic(name=self._topic, partitions=[part])],
            ),
        )
        one.offset = one.number

    async def _end(self, one: Transaction, *, commit: bool) -> None:
        producer_id, epoch = self._own()
        if commit:
            one.outcome = UNKNOWN
        request = EndTxnRequest(
            transactional_id=self.id,
            producer_id=producer_id,
            producer_epoch=epoch,
            committed=commit,
        )
        await self._ask_coordinator(1, self.id, 3, request)
        one.outcome = COMMITTED if commit else ABORTED

    def _own(self) -> tuple[int, int]:
        assert self._producer is not None, "begun"
        return self._producer

    # Requests

    async def _ask_coordinator(self, kind: int, key: str, version: int, request: Any) -> Any:
        """Return the answer of the coordinator; ask again where another one may have it. Raises Rejected."""
        code = ErrorCode.none
        for _ in range(30):
            node_id = await self._coordinator(kind, key)
            if node_id >= 0:
                answer = await self._ask(node_id, version, request)
                code = code_of(answer)
                if code is ErrorCode.none:
                    return answer
                if code not in AGAIN:
                    break
            await asyncio.sleep(PAUSE_S)
        raise Rejected(code, type(request).__name__)

    async def _coordinator(self, kind: int, key: str) -> int:
        node_id = self._chance.choice(list(self._cluster.machines))
        request = FindCoordinatorRequest(key_type=kind, coordinator_keys=[key])
        (found,) = (await self._ask(node_id, 4, request)).coordinators
        return -1 if found.error_code else int(found.node_id)

    async def _ask(self, node_id: int, version: int, request: Any) -> Any:
        async with asyncio.timeout(TIMEOUT_S):
            raw = self._links.get(node_id)
            if raw is None or raw.closed.done():
                network = self._cluster.world.network
                raw = self._links[node_id] = await Raw.connect(network, host_of(node_id))
            answer = raw.ask(version, request)
            await asyncio.wait((answer,))
            if answer.cancelled():
                raise Unavailable("the connection has ended")
            return answer.result()

    def _close_links(self) -> None:
        for raw in self._links.values():
            raw.close()
        self._links.clear()

    async def close(self) -> None:
        self._close_links()
        await self._leaders.close()

    # The end

    async def offset(self) -> int | None:
        """Return the group's committed offset. Raises Rejected, Unavailable and the like."""
        group = OffsetFetchRequestGroup(
            group_id=self.id,
            topics=[OffsetFetchRequestTopics(name=self._topic, partition_indexes=[0])],
        )
        for _ in range(30):
            node_id = await self._coordinator(0, self.id)
            request = OffsetFetchRequest(groups=[group], require_stable=True)
            if node_id >= 0:
                (found,) = (await self._ask(node_id, 8, request)).groups
                if not found.error_code:
                    part = found.topics[0].partitions[0]
                    if not part.error_code:
                        return part.committed_offset if part.committed_offset >= 0 else None
            await asyncio.sleep(PAUSE_S)
        raise Unavailable(f"no stable offset of {self.id}")

    async def check(self, visible: dict[int, list[bytes]]) -> None:
        """Compare with the committed records by partition, and the group's offset too. Raises Broken."""
        last = self.check_values(visible)
        offset = await self.offset()
        if offset != last:
            raise Broken(
                f"{self.id}: the group's offset is {offset}; its last transaction has {last}"
            )

    def check_values(self, visible: dict[int, list[bytes]]) -> int | None:
        """Compare with the committed records; return the offset of the last transaction that has one."""
        seen = {partition: set(values) for partition, values in visible.items()}
        last = None
        for one in self.transactions:
            found = {
                value in seen[partition]
                for partition, values in one.values.items()
                for value in values
            }
            name = f"ReadCommittedHidesAborts: {self.id}, transaction {one.number} ({one.outcome})"
            if len(found) > 1:
                raise Broken(f"{name}: seen in part")
            if one.outcome == COMMITTED and found != {True}:
                raise Broken(f"{name}: not seen")
            if one.outcome == ABORTED and True in found:
                raise Broken(f"{name}: seen")
            if True in found and one.offset is not None:
                last = one.offset
        return last


class CommittedReader:
    """Reads committed records during the faults. All that it sees must be committed at the end."""

    def __init__(
        self, cluster: Cluster, counts: Counter[str], seed: int, topic: str, count: int
    ) -> None:
        self._session = Session(cluster, counts)
        self._counts = counts
        self._chance = Random(seed)
        self._topic = topic
        self._offsets = dict.fromkeys(range(count), 0)
        self.seen: dict[int, list[bytes]] = {partition: [] for partition in range(count)}

    async def step(self) -> None:
        partition = self._chance.randrange(len(self._offsets))
        offset = self._offsets[partition]
        fetched = await self._session.ask(
            lambda client: client.fetch(
                self._topic, partition, offset, max_wait_ms=100, isolation=READ_COMMITTED
            )
        )
        if fetched is not None:
            aborted = Aborted(fetched.aborted)
            for position, header in scan(fetched.records):
                is_aborted = aborted.has(header)
                if header.base_offset >= offset and not is_aborted:
                    self._offsets[partition] = header.last_offset + 1
                    if not header.is_control:
                        data = fetched.records[position : position + header.size]
                        self.seen[partition] += [value for _, value in values_in(data)]
        await asyncio.sleep(self._chance.uniform(0, 0.2))

    def check(self, visible: dict[int, list[bytes]]) -> None:
        """Compare with the committed records by partition. Raises Broken."""
        for partition, values in self.seen.items():
            self._counts["read committed"] += len(values)
            if visible[partition][: len(values)] != values:
                extra = [one for one in values if one not in set(visible[partition])]
                raise Broken(
                    f"ReadCommittedHidesAborts: {self._topic}-{partition}: read {len(values)} records in "
                    f"another order than the log has, or not committed: {extra[:3]}"
                )

    async def close(self) -> None:
        await self._session.close()


def committed_in(data: bytes) -> tuple[list[bytes], set[int]]:
    """Return the committed values of a log, in order of their offsets, and the producers with an open transaction."""
    view = memoryview(data)
    batches: list[tuple[int, list[bytes]]] = []
    decided: dict[int, bool] = {}
    open_: dict[int, list[int]] = {}
    for at, (position, header) in enumerate(scan(view)):
        part = view[position : position + header.size]
        if header.is_control:
            marker = read_marker(part)
            assert marker is not None, "nothing cleans this topic"
            for earlier in open_.pop(header.producer_id, []):
                decided[earlier] = marker.is_commit
            batches.append((at, []))
            continue
        open_.setdefault(header.producer_id, []).append(at)
        batches.append((at, [value for _, value in values_in(part)]))
    values = [value for at, found in batches if decided.get(at) for value in found]
    return values, set(open_)


def code_of(answer: Any) -> ErrorCode:
    """Return the first error of an answer of the transaction APIs."""
    codes = [getattr(answer, "error_code", 0)]
    for topic in getattr(answer, "results_by_topic_v3_and_below", ()):
        codes += [one.partition_error_code for one in topic.results_by_partition]
    for topic in getattr(answer, "topics", ()):
        codes += [one.error_code for one in topic.partitions]
    return ErrorCode(next((code for code in codes if code), 0))
