"""Follow the leaders of this broker's other partitions: one source for each broker and fetcher.

In: changes of partitions' roles, the metadata image. Out: partitions added to their sources, and removed from them. It
fetches nothing itself.

Kafka: `ReplicaFetcherManager`, `AbstractFetcherManager`.
"""

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Final

from msgspec.structs import replace

from stratalog.broker.coordination.cluster_image import ClusterImage
from stratalog.broker.coordination.damaged_answers import DamagedAnswers
from stratalog.broker.coordination.dialing import dialer_to_brokers
from stratalog.broker.coordination.registration import Registration
from stratalog.broker.partitions.hosting import Hosting
from stratalog.broker.partitions.partition import HostedPartition
from stratalog.broker.replication.source import FindHistory, Source, Surroundings
from stratalog.broker.replication.throttle import Throttle
from stratalog.broker.slices import slices
from stratalog.config import BrokerConfig
from stratalog.metadata.image import NO_LEADER
from stratalog.ports import Outside, SocketBuffers
from stratalog.replication.fetcher import FetchLimits
from stratalog.replication.roles import Transition
from stratalog.wire.ids import TopicIdPartition

__all__ = ["Followed"]

_AT_ONCE: Final = 1000
_SKIPS_TIERED: Final = "follower.fetch.last.tiered.offset.enable"


class Followed:
    """The partitions that this broker follows. `start` it once the broker is registered, `close` it at a stop."""

    def __init__(  # noqa: PLR0913, PLR0917 - its parts
        self,
        config: BrokerConfig,
        outside: Outside,
        image: ClusterImage,
        registration: Registration,
        hosting: Hosting,
        throttle: Throttle,
        spawn: Callable[[Coroutine[Any, Any, None]], object],
        find_history: FindHistory | None,
        answers: DamagedAnswers,
    ) -> None:
        self._node_id = config.int("node.id")
        self._fetchers = config.int("num.replica.fetchers")
        self._skips_tiered = config.bool(_SKIPS_TIERED)
        self._image = image
        self._hosting = hosting
        self._spawn = spawn
        self._sources: dict[tuple[int, int], Source] = {}
        self._source_of: dict[TopicIdPartition, Source] = {}
        self._finishing: set[asyncio.Task[None]] = set()
        self._around = Surroundings(
            node_id=self._node_id,
            listener=config.inter_broker_listener,
            limits=FetchLimits(
                max_bytes=config.int("replica.fetch.max.bytes"),
                response_max_bytes=config.int("replica.fetch.response.max.bytes"),
                min_bytes=config.int("replica.fetch.min.bytes"),
                wait_max_ms=config.int("replica.fetch.wait.max.ms"),
                backoff_ms=config.int("replica.fetch.backoff.ms"),
            ),
            timeout_s=config.int("replica.socket.timeout.ms") / 1000,
            clock=outside.clock,
            dialer=replace(
                dialer_to_brokers(config, outside.network, answers),
                buffers=SocketBuffers(receive=config.int("replica.socket.receive.buffer.bytes")),
            ),
            image=image,
            registration=registration,
            throttle=throttle,
            finish=self._finish,
            find_history=find_history,
            skips_tiered=lambda: self._skips_tiered,
        )

    async def start(self) -> None:
        """Follow the partitions that other brokers lead now, and every later change."""
        self._hosting.on_transition.append(self._on_transition)
        self._image.on_published.append(self._look_at_leaders)
        for part in slices(self._hosting.all(), _AT_ONCE):
            for hosted in part:
                if hosted.key not in self._source_of and not hosted.replica.leads:
                    self._follow(hosted)
            await asyncio.sleep(0)

    async def learn_tiered(self) -> None:
        """Ask every leader how far the bucket has the partitions that are followed: one request for each leader."""
        for source in list(self._sources.values()):
            await source.learn_tiered()

    def configure(self, in_effect: BrokerConfig) -> None:
        """Apply a new number of fetchers, and whether empty replicas skip what the bucket has."""
        self._skips_tiered = in_effect.bool(_SKIPS_TIERED)
        fetchers = in_effect.int("num.replica.fetchers")
        if fetchers != self._fetchers:
            self._fetchers = fetchers
            for key in list(self._source_of):
                hosted = self._hosting.by_id[key]
                self._unfollow(hosted)
                self._follow(hosted)

    async def close(self) -> None:
        """Finish running truncations; close every connection."""
        for source in self._sources.values():
            source.close()
        if self._finishing:
            await asyncio.wait(self._finishing)

    def _on_transition(self, transition: Transition, hosted: HostedPartition) -> None:
        if transition is not Transition.RESIGNED:
            self._unfollow(hosted)
        if transition is Transition.FOLLOWED:
            self._follow(hosted)

    def _unfollow(self, hosted: HostedPartition) -> None:
        source = self._source_of.pop(hosted.key, None)
        if source is not None:
            source.unfollow(hosted.key)

    def _follow(self, hosted: HostedPartition) -> None:
        key, epoch = hosted.key, hosted.replica.leader_epoch
        partition = self._image.image.partition(*key)
        is_followed = (
            partition is not None
            and partition.leader_epoch == epoch
            and partition.leader not in (NO_LEADER, self._node_id)
            and hosted.directory.failure is None
        )
        if partition is None or not is_followed:
            return  # newer metadata names another role
        slot = (key.topic_id.int + key.partition) % self._fetchers
        source = self._source(partition.leader, slot)
        self._source_of[key] = source
        # What this broker appended as the leader, or as a follower of another one, comes before.
        hosted.write(()).add_done_callback(partial(self._begin, source, hosted, epoch))

    def _begin(
        self,
        source: Source,
        hosted: HostedPartition,
        leader_epoch: int,
        performed: "asyncio.Future[None]",
    ) -> None:
        if performed.cancelled() or performed.exception() is not None:
            return  # its directory has failed
        if hosted.rewriting is not None:
            begin = partial(self._begin, source, hosted, leader_epoch)
            hosted.rewriting.add_done_callback(begin)
            return
        is_current = hosted.replica.leader_epoch == leader_epoch and not hosted.deleted
        if is_current and self._source_of.get(hosted.key) is source:
            source.follow(hosted, leader_epoch)

    def _source(self, leader_id: int, slot: int) -> Source:
        found = self._sources.get((leader_id, slot))
        if found is None:
            found = self._sources[leader_id, slot] = Source(self._around, leader_id, slot)
            self._spawn(found.run())
        return found

    def _look_at_leaders(self) -> None:
        for source in self._sources.values():
            source.look_at_leader()

    def _finish(self, work: Coroutine[Any, Any, None]) -> None:
        """Run work that a stop waits for; a bug in it is reported as one of the node's."""
        task = asyncio.get_running_loop().create_task(work)
        self._finishing.add(task)
        task.add_done_callback(self._finishing.discard)
        self._spawn(_wait_for(task))


async def _wait_for(task: "asyncio.Task[None]") -> None:
    await asyncio.shield(task)
