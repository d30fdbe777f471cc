"""The client's asyncio shell, for the CLI and for brokers.

In: a `ports.Network` and a bootstrap list. Out: answers as the dataclasses of `calls.py`. It never starts a thread or
a task: an answer resolves a future, and the caller awaits it.

Raises Unavailable("broker HOST:PORT unreachable: …") where no broker answers, Rejected(code) where the cluster
refuses a request or the login. For one event loop.

    client = await Client.connect(network, "127.0.0.1:9092")
    await client.create_topics([NewTopic("t", partitions=1)])
    async with client.pipeline(window=5) as pipeline:
        await pipeline.send("t", 0, batch)
    await client.close()
"""

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from logging import getLogger
from math import inf
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeVar, cast
from uuid import UUID

from stratalog.client import calls
from stratalog.client.admin import OF_TRANSACTIONAL_ID
from stratalog.client.calls import (
    BrokerAddress,
    Call,
    ClusterInfo,
    ListedOffset,
    NewTopic,
    Produced,
    ResourceConfigs,
    TopicResult,
)
from stratalog.client.cluster import LOGGER, Ask, ClusterView, Program, parse_bootstrap
from stratalog.client.fetches import OTHER_TOPIC, FetchedPartition, FetchSpan
from stratalog.client.link import Link, is_refused, open_link
from stratalog.client.security import PLAIN, ClientSecurity, Dialer
from stratalog.errors import ErrorCode, Rejected, Unavailable, again
from stratalog.ports import Network
from stratalog.wire.ids import TopicPartition
from stratalog.wire.records import BatchBuilder

__all__ = ["Client", "Leader", "Pipeline"]

T = TypeVar("T")


class Leader(NamedTuple):
    """The broker that leads a partition, the epoch of its leadership (-1: unknown), and the topic's id."""

    node_id: int
    epoch: int
    topic_id: UUID


class Client:
    """A client of a cluster, with connections to its brokers as needed."""

    def __init__(
        self,
        dialer: Dialer,
        bootstrap: str,
        *,
        client_id: str,
        timeout_s: float,
        patience_s: float = 0.0,
    ) -> None:
        """Connect with the first call; `patience_s` as for `ClusterView`, `timeout_s` for one request."""
        self._dialer = dialer
        self._view = ClusterView(parse_bootstrap(bootstrap), patience_s)
        self._client_id = client_id
        self.timeout_s = timeout_s
        self.refusals_max = inf
        """A call ends once all known brokers have refused connections more often than this; silent ones are awaited."""
        self._links: dict[tuple[str, int], Link] = {}
        self._opening: dict[tuple[str, int], asyncio.Lock] = {}

    @classmethod
    async def connect(
        cls,
        network: Network,
        bootstrap: str,
        *,
        client_id: str = "strata",
        timeout_s: float = 30.0,
        security: ClientSecurity = PLAIN,
    ) -> "Client":
        """Reach one broker of `host:port,…` now.

        Raises Unavailable, Rejected for a refused login, UserError for unusable keys and certificates, ValueError for a
        malformed list.
        """
        dialer = Dialer(network, security)
        client = cls(dialer, bootstrap, client_id=client_id, timeout_s=timeout_s)
        failure: Unavailable | None = None
        for address in client._view.candidates(None):
            try:
                await client._link(address)
            except Unavailable as error:
                failure = failure or error
            else:
                return client
        assert failure is not None, "a bootstrap list is never empty"
        raise failure

    async def close(self) -> None:
        """Close every connection; pending calls raise Unavailable."""
        links, self._links = self._links, {}
        for link in links.values():
            link.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def metadata(self, topics: Sequence[str] | None = None) -> ClusterInfo:
        """Return brokers and the topics named (None: all); a missing topic has its error in its entry."""
        return await self._run(self._view.metadata(topics))

    async def create_topics(
        self, topics: Sequence[NewTopic], *, validate_only: bool = False
    ) -> list[TopicResult]:
        """Return one result per topic, in the broker's order; look at each `error`."""
        return await self._run(
            self._view.on_controller(calls.create_topics(topics, validate_only=validate_only))
        )

    async def delete_topics(self, names: Sequence[str]) -> list[TopicResult]:
        """Return one result per topic; look at each `error`."""
        return await self._run(self._view.on_controller(calls.delete_topics(names)))

    async def describe_configs(
        self, resources: Sequence[tuple[int, str]], *, documentation: bool = False
    ) -> list[ResourceConfigs]:
        """Return configurations of (calls.TOPIC, name) or (calls.BROKER, node id as text)."""
        return await self._run(
            self._view.on_any(calls.describe_configs(resources, documentation=documentation))
        )

    async def on_any(self, call: Call[T]) -> T:
        """Run a call of `admin.py` on any broker that answers."""
        return await self._run(self._view.on_any(call))

    async def on_controller(self, call: Call[T]) -> T:
        """Run a call that changes the cluster on the controller."""
        return await self._run(self._view.on_controller(call))

    async def on_each(self, call: Call[T]) -> list[T]:
        """Run a call on every broker; return an answer for each."""
        return await self._run(self._view.on_each(call))

    async def on_coordinator(self, group: str, call: Call[T]) -> T:
        """Run a call about a group on its coordinator."""
        return await self._run(self._view.on_coordinator(group, call))

    async def on_transaction_coordinator(self, transactional_id: str, call: Call[T]) -> T:
        """Run a call about a transactional id on its coordinator."""
        program = self._view.on_coordinator(transactional_id, call, OF_TRANSACTIONAL_ID)
        return await self._run(program)

    async def list_offsets(
        self, wanted: Mapping[TopicPartition, int], *, isolation: int = calls.READ_UNCOMMITTED
    ) -> dict[TopicPartition, ListedOffset]:
        """Return the offset of each partition for a timestamp (epoch ms, calls.EARLIEST, calls.LATEST)."""
        return await self._run(self._view.list_offsets(wanted, isolation))

    async def fetch(  # noqa: PLR0913 - Kafka's knobs, all optional
        self,
        topic: str,
        partition: int,
        offset: int,
        *,
        max_bytes: int = 1 << 20,
        max_wait_ms: int = 500,
        min_bytes: int = 1,
        isolation: int = calls.READ_UNCOMMITTED,
    ) -> FetchedPartition:
        """Fetch record batches from the one that holds `offset` on. `records` is one memoryview; it may be empty, and
        may end with a part of a batch. Raises Rejected(OFFSET_OUT_OF_RANGE) and the like.
        """
        for fresh in (False, True):
            await self._run(self._view.led(topic, partition, fresh=fresh))
            span = FetchSpan(
                topic,
                self._view.topics[topic].topic_id,
                partition,
                offset,
                max_bytes,
                max_wait_ms,
                min_bytes,
                isolation,
            )
            try:
                return await self._run(self._view.fetch(span))
            except Rejected as error:
                # The topic was deleted and created again under its name since the look-up: the caller means the name.
                if fresh or error.code not in OTHER_TOPIC:
                    raise
        raise AssertionError("the second round returns or raises")

    async def init_producer_id(self) -> tuple[int, int]:
        """Return a fresh (producer id, epoch), to be built into batches."""
        return await self._run(self._view.on_any(calls.init_producer_id()))

    async def produce(
        self, topic: str, partition: int, batch: bytes | bytearray | memoryview, *, acks: int = -1
    ) -> Produced:
        """Produce one whole batch; return once it is acknowledged. For volume use `pipeline`.

        Raises Rejected, Unavailable: the batch may be in the log then. The next call looks for the leader again.
        """
        async with self.pipeline(acks=acks, window=1) as pipeline:
            future = await pipeline.send(topic, partition, batch)
        return future.result()

    def pipeline(self, *, acks: int = -1, window: int = 5) -> "Pipeline":
        """Return a pipeline with at most `window` unanswered batches at a time."""
        return Pipeline(self, acks=acks, window=window)

    async def call(self, call: Call[T], node_id: int | None = None) -> T:
        """Run one call on one broker (None: any), without retries."""
        return cast("T", await self._ask(Ask(node_id, call)))

    async def leader_link(self, topic: str, partition: int) -> Link:
        return await self.link_to((await self.leader_of(topic, partition)).node_id)

    async def leader_of(self, topic: str, partition: int) -> Leader:
        """Return a partition's leader, as far as is known."""
        led = await self._run(self._view.led(topic, partition))
        return Leader(led.leader, led.leader_epoch, self._view.topics[topic].topic_id)

    def forget(self, topic: str) -> None:
        """Look the topic's leaders up again before its next call."""
        self._view.forget(topic)

    async def link_to(self, node_id: int) -> Link:
        for address in self._view.candidates(node_id):
            return await self._link(address)
        raise Unavailable(f"broker {node_id} is not in the cluster")

    async def _run(self, program: Program[T]) -> T:
        """Perform a program of `cluster.py`."""
        refusals = 0
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        try:
            step = next(program)
            while True:
                if isinstance(step, Ask):
                    try:
                        answer = await self._ask(step)
                    except (Unavailable, Rejected) as error:
                        refusals += step.node_id is None and is_refused(error)
                        if refusals > self.refusals_max:
                            raise
                        step = program.throw(error)
                    else:
                        step = program.send(answer)
                else:
                    if step.says:
                        getLogger(LOGGER).warning("%s", step.says)
                    await asyncio.sleep(step.seconds)
                    step = program.send(loop.time() - began_s)
        except StopIteration as stop:
            return cast("T", stop.value)

    async def _ask(self, ask: Ask) -> Any:
        failures = []
        for address in self._view.candidates(ask.node_id):
            try:
                link = await self._link(address)
                return await self.within(link, link.send(ask.call))
            except Unavailable as error:
                failures.append(error)
        absent = Unavailable(f"broker {ask.node_id} is not in the cluster")
        raise min(failures, key=is_refused, default=absent)  # one that may answer soon, if any

    async def within(self, link: Link, future: "asyncio.Future[T]") -> T:
        """Return the answer, or close the link and raise Unavailable once the client's timeout is over."""
        return await link.within(self.timeout_s, future)

    async def _link(self, address: BrokerAddress) -> Link:
        key = (address.host, address.port)
        async with self._opening.setdefault(key, asyncio.Lock()):
            link = self._links.get(key)
            if link is None or link.is_over:
                link = await open_link(
                    self._dialer, *key, client_id=self._client_id, timeout_s=self.timeout_s
                )
                self._links[key] = link
            return link


class Pipeline:
    """Batches in flight, acknowledged in order per broker. The first refusal is raised by the next `send` or at the
    end of the `async with` block, and nothing is sent after it; what was in flight may have been appended.
    """

    def __init__(self, client: Client, *, acks: int, window: int) -> None:
        assert window > 0, "a window of at least one batch"
        self._client = client
        self._acks = acks
        self._window = window
        self._in_flight: deque[tuple[str, Link, asyncio.Future[Produced]]] = deque()
        self._failure: Exception | None = None
        self.acknowledged = 0
        """Batches acknowledged so far."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            await self.drain()
        else:
            self._in_flight.clear()

    async def send(
        self, topic: str, partition: int, batch: bytes | bytearray | memoryview
    ) -> "asyncio.Future[Produced]":
        """Queue one whole batch, which must not change until it is acknowledged; wait while the window is full.

        The future may be ignored: a refusal is raised here or by `drain` all the same. Raises Rejected, Unavailable.
        """
        while len(self._in_flight) >= self._window:
            await self._await_oldest()
        if self._failure is not None:
            raise again(self._failure)
        try:
            link = await self._client.leader_link(topic, partition)
        except Unavailable:
            self._client.forget(topic)
            await self.drain()  # the broker may have sent an error before it closed the connection
            raise
        await link.writable()
        call = calls.produce(
            topic, partition, batch, acks=self._acks, timeout_ms=int(self._client.timeout_s * 1000)
        )
        future = link.send(call)
        self._in_flight.append((topic, link, future))
        return future

    async def send_built(
        self, topic: str, partition: int, batch: BatchBuilder
    ) -> "asyncio.Future[Produced]":
        """Build a batch and send it, as `send`."""
        return await self.send(topic, partition, batch.build())

    async def drain(self) -> None:
        """Wait until every batch is acknowledged. Raises the first Rejected or Unavailable."""
        while self._in_flight:
            await self._await_oldest()
        if self._failure is not None:
            raise again(self._failure)

    async def _await_oldest(self) -> None:
        """Wait for the oldest batch."""
        topic, link, future = self._in_flight.popleft()
        try:
            produced = await self._client.within(link, future)
        except (Unavailable, Rejected) as error:
            self._client.forget(topic)
            self._failure = self._failure or error
            return
        if produced.error != ErrorCode.none:
            self._client.forget(topic)
            refused = Rejected(produced.error, produced.message or "")
            self._failure = self._failure or refused
            return
        self.acknowledged += 1
