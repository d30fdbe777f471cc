"""The cluster as the pages see it: brokers, topics, offsets, sizes, rates.

In: a bootstrap list. Out: facts, some of them a few seconds old and shared by all pages. A broker that does not answer
leaves a gap in an answer and never fails the rest of it.
"""

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Final, TypeVar

from stratalog.client import calls
from stratalog.client.admin import LogDirectory, log_directories
from stratalog.client.aio import Client
from stratalog.client.calls import (
    EARLIEST,
    LATEST,
    READ_UNCOMMITTED,
    BrokerAddress,
    Call,
    ClusterInfo,
    TopicInfo,
)
from stratalog.client.cluster_admin import RegisteredBroker, describe_cluster
from stratalog.client.security import PLAIN, ClientSecurity
from stratalog.console.kept import Kept
from stratalog.errors import ErrorCode, Rejected, Unavailable
from stratalog.ports import Clock, Network
from stratalog.wire.ids import TopicPartition

__all__ = ["RIGHTS", "Cluster", "Span", "reason_of"]

T = TypeVar("T")

RIGHTS: Final = "give the console's user the right to see it: strata acl add"
_TIMEOUT_S: Final = 8.0
_REFUSALS_MAX: Final = 3
"""A page says so after less than a second where no broker listens; a restart that is shorter goes unseen."""
_METADATA_MS: Final = 1_000
_SIZES_MS: Final = 5_000
_PARTITIONS_A_REQUEST: Final = 1_000
_SAMPLES_MAX: Final = 500_000
_RATE_NS_MIN: Final = 2_000_000_000
_SECOND_NS: Final = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Span:
    """A partition's first offset and the offset after its last record."""

    start: int
    end: int


def reason_of(error: Rejected | Unavailable) -> str:
    """Return why a broker refused a request or did not answer; with the remedy where a right is missing."""
    is_denied = isinstance(error, Rejected) and error.code.name.endswith("_authorization_failed")
    return f"{error}; {RIGHTS}" if is_denied else str(error)


class Cluster:
    """Facts about one cluster. Methods raise Unavailable where no broker answers."""

    def __init__(
        self, network: Network, bootstrap: str, clock: Clock, security: ClientSecurity = PLAIN
    ) -> None:
        self.bootstrap = bootstrap
        self._security = security
        self.clock = clock
        self._network = network
        self._client: Client | None = None
        self._connecting = asyncio.Lock()
        self._metadata = Kept(self._all_topics, clock, _METADATA_MS)
        self._directories = Kept(self._every_directory, clock, _SIZES_MS)
        self._ends: dict[TopicPartition, tuple[int, int]] = {}
        """By partition: a log end and its time (ns), to compute rates from."""
        self._rates: dict[TopicPartition, float] = {}

    async def close(self) -> None:
        """Close the shared connections."""
        if self._client is not None:
            await self._client.close()

    async def client(self) -> Client:
        """Return the client that pages share, for requests that a broker answers at once."""
        async with self._connecting:
            if self._client is None:
                self._client = await self._connect()
            return self._client

    @asynccontextmanager
    async def own_client(self) -> AsyncIterator[Client]:
        """Open connections for one page: on shared ones a slow Fetch would hold up the answers to other pages."""
        client = await self._connect()
        async with client:
            yield client

    async def _connect(self) -> Client:
        client = await Client.connect(
            self._network,
            self.bootstrap,
            client_id="strata-console",
            timeout_s=_TIMEOUT_S,
            security=self._security,
        )
        client.refusals_max = _REFUSALS_MAX
        return client

    def forget(self) -> None:
        """Fetch topics and sizes again for the next page."""
        self._metadata.forget()
        self._directories.forget()

    async def metadata(self) -> ClusterInfo:
        """Return brokers and all topics."""
        return await self._metadata.get()

    async def _all_topics(self) -> ClusterInfo:
        return await (await self.client()).metadata()

    async def topic(self, name: str) -> TopicInfo | None:
        """Return a topic as the cluster has it now; None where there is none. Raises Rejected."""
        found = (await (await self.client()).metadata([name])).topics[name]
        if found.error in {
            ErrorCode.unknown_topic_or_partition,
            ErrorCode.invalid_topic_exception,
        }:
            return None
        if found.error:
            raise Rejected(found.error, f"topic {name}: {found.error.name}")
        return found

    async def brokers(self) -> list[RegisteredBroker]:
        """Return the brokers, with fenced ones where the cluster names them."""
        client = await self.client()
        try:
            found = await client.on_any(describe_cluster())
        except Rejected:  # a cluster without DescribeCluster
            metadata = await self.metadata()
            found = [_registered(one) for one in metadata.brokers.values()]
        return sorted(found, key=lambda one: one.node_id)

    async def each(self, call: Call[T]) -> dict[int, T | str]:
        """Run a call on every broker at once; return each one's answer, or why there is none."""
        client = await self.client()
        nodes = sorted((await self.metadata()).brokers)
        answers: dict[int, T | str] = {}

        async def ask(node_id: int) -> None:
            try:
                answer: T = await client.call(call, node_id)
                answers[node_id] = answer
            except (Unavailable, Rejected) as error:
                answers[node_id] = reason_of(error)

        async with asyncio.TaskGroup() as group:
            for node_id in nodes:
                group.create_task(ask(node_id))
        return answers

    async def on_broker(self, call: Call[T], node_id: int) -> T:
        """Run a call on one broker. Raises Rejected, Unavailable."""
        await self.metadata()  # the client learns addresses from it
        return await (await self.client()).call(call, node_id)

    async def directories(self) -> dict[int, list[LogDirectory] | str]:
        """Return the log directories of each broker, with the replicas in them."""
        return await self._directories.get()

    async def _every_directory(self) -> dict[int, list[LogDirectory] | str]:
        return await self.each(log_directories())

    async def sizes(self) -> dict[TopicPartition, int]:
        """Return bytes of each partition on one disk: the largest of its replicas."""
        sizes: dict[TopicPartition, int] = {}
        for found in (await self.directories()).values():
            for directory in found if isinstance(found, list) else ():
                for one in directory.replicas:
                    key = TopicPartition(one.topic, one.partition)
                    if not one.is_future:
                        sizes[key] = max(sizes.get(key, 0), one.size)
        return sizes

    async def spans(self, topics: Collection[TopicInfo]) -> dict[TopicPartition, Span]:
        """Return the offsets of the topics' partitions, without those whose leader does not answer."""
        starts, ends = await self.offsets(topics, EARLIEST), await self.offsets(topics, LATEST)
        self._sample(ends)
        return {key: Span(starts[key], end) for key, end in ends.items() if key in starts}

    async def offsets(
        self, topics: Collection[TopicInfo], timestamp: int
    ) -> dict[TopicPartition, int]:
        """Return the offset of each partition for a timestamp, without those whose leader does not answer.

        -1: no record is that young.
        """
        client = await self.client()
        by_leader: dict[int, dict[TopicPartition, int]] = {}
        for topic in topics:
            for index, one in topic.partitions.items():
                if one.leader >= 0:
                    key = TopicPartition(topic.name, index)
                    by_leader.setdefault(one.leader, {})[key] = one.leader_epoch
        answers: dict[TopicPartition, int] = {}

        async def ask(leader: int, keys: Sequence[TopicPartition]) -> None:
            wanted = dict.fromkeys(keys, timestamp)
            call = calls.list_offsets(wanted, READ_UNCOMMITTED, by_leader[leader])
            with suppress(Unavailable, Rejected):
                found = await client.call(call, leader)
                answers.update({key: one.offset for key, one in found.items() if not one.error})

        async with asyncio.TaskGroup() as group:
            for leader, epochs in by_leader.items():
                keys = list(epochs)
                for first in range(0, len(keys), _PARTITIONS_A_REQUEST):
                    group.create_task(ask(leader, keys[first : first + _PARTITIONS_A_REQUEST]))
        return answers

    def _sample(self, ends: Mapping[TopicPartition, int]) -> None:
        now_ns = self.clock.elapsed_ns()
        if len(self._ends) > _SAMPLES_MAX:  # of topics that exist no more, too
            self._ends.clear()
            self._rates.clear()
        for key, end in ends.items():
            before = self._ends.get(key)
            if before is None:
                self._ends[key] = end, now_ns
            elif now_ns - before[1] >= _RATE_NS_MIN:
                self._rates[key] = max(end - before[0], 0) * _SECOND_NS / (now_ns - before[1])
                self._ends[key] = end, now_ns

    def rate(self, keys: Sequence[TopicPartition]) -> float | None:
        """Return records a second written to these partitions between the last two looks; None before the second."""
        rates = [self._rates[key] for key in keys if key in self._rates]
        return sum(rates) if rates else None


def _registered(broker: BrokerAddress) -> RegisteredBroker:
    return RegisteredBroker(broker.node_id, broker.host, broker.port, broker.rack, is_fenced=False)
