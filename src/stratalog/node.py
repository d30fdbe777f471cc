"""The composition root: build a node from its settings and its ports, start it and stop it.

In: settings and `ports.Outside`. Out: a broker that serves. Only this module connects the parts; it decides nothing
itself.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final
from uuid import UUID

import structlog
from msgspec import Struct

from stratalog.adapters.local_disk import check_distinct
from stratalog.broker.background import Background, Patience
from stratalog.broker.broker import Broker, Coordinator
from stratalog.broker.coordination.changes import log_changes
from stratalog.broker.coordination.cluster_image import ClusterImage
from stratalog.broker.coordination.cluster_metadata import ClusterMetadata, open_cluster_metadata
from stratalog.broker.coordination.controller_duties import repeat_duties
from stratalog.broker.coordination.metadata_quorum import MetadataQuorum
from stratalog.broker.network.connections import Connections
from stratalog.broker.network.dispatch import Dispatcher
from stratalog.broker.network.listening import Listening
from stratalog.broker.partitions.hosting import Hosting
from stratalog.broker.partitions.moves import MOVES, Assign, Moves
from stratalog.broker.partitions.pace import Pace
from stratalog.broker.partitions.partition import HostedPartition
from stratalog.broker.partitions.upkeep import Upkeep
from stratalog.broker.replication.replication import Replication
from stratalog.broker.slices import slices
from stratalog.broker.small_requests import SmallRequests
from stratalog.broker.storage.claim import open_directories
from stratalog.broker.storage.directory import LogDirectory
from stratalog.broker.storage.survey import read_incarnation
from stratalog.broker.storage.timed_disk import TimedDisk
from stratalog.config import BrokerConfig, DynamicConfigs
from stratalog.errors import Rejected, UserError
from stratalog.metadata.delta import Delta
from stratalog.metadata.image import Endpoint, Image, ResourceType
from stratalog.ports import Disk, Outside
from stratalog.replication.roles import Transition
from stratalog.wire.apis import ListenerKind
from stratalog.wire.ids import TopicIdPartition
from stratalog.wire.interpreted import INTERPRETED

if TYPE_CHECKING:
    from stratalog.broker.controller_server import ControllerServer
    from stratalog.broker.tier.service import TierService
    from stratalog.broker.tier.state_upload import StateUpload
    from stratalog.monitor.server import Monitor

_PARTITIONS_A_TURN: Final = 1000
_NO_DOOR: Final = "stratalog has no usable library; on Linux install cargo, then stratalog again"
_DRAIN_S: Final = 2.0
_DRAIN_STEP_S: Final = 0.01
_SLOW_DISKS_S: Final = 10.0
_STRANDED_S: Final = 60.0
_KEYS_S: Final = 10.0
"""How often the node looks whether keys and certificates have changed."""
_SLOW_DISK_NS: Final = 1_000_000_000


class Ready(Struct, frozen=True):
    """The addresses of a started node; the content of `--ready-file`."""

    node_id: int
    host: str
    port: int
    pid: int
    monitor_port: int | None = None


class Node:
    """One node: controller, broker and tier. `start`, then `stop`, on one event loop.

    `on_fatal` receives, once, the reason why the node must be stopped. `on_broken` receives every failure of background
    work, which is always a bug.
    """

    def __init__(
        self,
        config: BrokerConfig,
        outside: Outside,
        *,
        on_fatal: Callable[[str], None] = lambda _why: None,
        on_broken: Callable[[BaseException], None] = lambda _error: None,
    ) -> None:
        self.config = config
        self.outside = outside
        self.node_id = config.int("node.id")
        self.directories: list[LogDirectory] = []
        self.broker: Broker | None = None
        self._on_fatal = on_fatal
        self._watches: list[TimedDisk] = []
        self._monitor: Monitor | None = None
        self.console_url: str | None = None  # of a web console beside this node
        self._is_stopping = False
        self._patience = Patience()
        self._quorum: MetadataQuorum | None = None
        self._stopping: list[Callable[[], Awaitable[None]]] = []
        self._connections = Connections(config, outside, self._count_connection)
        self._listening: list[Listening] = []
        self._in_effect = config
        self._background = Background(on_broken)
        self._log = structlog.get_logger()

    async def start(self) -> Ready:
        """Recover, lead, listen. Raises UserError for a problem that the operator must fix (directory, port, bucket).

        Raises Unavailable after `abandon`. The caller must call `stop` afterwards, whether `start` succeeded or not.
        """
        self._log.info("starting", node=self.node_id, directories=list(self.config.log_dirs))
        if INTERPRETED:
            self._log.warning("not compiled", reason=INTERPRETED)
        check_distinct(self.config.log_dirs)
        monitor_port = await self._open_monitor()
        cluster_id, self.directories = open_directories(
            self.config, self.outside, self._open, self._directory_failed
        )
        hosting = Hosting(
            self.config, self.node_id, self.directories, self.outside.clock, self.outside.entropy
        )
        cluster = await open_cluster_metadata(
            self.config,
            self.outside,
            cluster_id,
            self._metadata_directory(),
            [directory.id for directory in self.directories if directory.failure is None],
            on_change=partial(self._changed, hosting),
            on_failed=lambda error: self._on_fatal(f"metadata quorum: {error}"),
        )
        self._quorum = cluster.quorum
        if self.config.is_broker:
            image = cluster.image
            image.holds.append(lambda: not image.acts or hosting.is_deleting)
        self._stopping.append(cluster.close)
        self._connections.begin(cluster.throttling, cluster.audit)
        first = await self._join_quorum(cluster)
        if self.config.is_broker:
            first = await self._start_broker(cluster, hosting)
        self._repeat()
        assert first is not None, "a controller alone has a listener for controllers"
        self._log.info("serving", node=self.node_id, cluster=cluster_id, port=first.port)
        return Ready(self.node_id, first.host, first.port, os.getpid(), monitor_port)

    async def _join_quorum(self, cluster: ClusterMetadata) -> Endpoint | None:
        """Open the controller's listeners, take part in the quorum, catch up; return the first of the listeners."""
        endpoints: list[Endpoint] = []
        listeners = self.config.controller_listeners
        if listeners:
            from stratalog.broker.controller_server import ControllerServer  # noqa: PLC0415
            from stratalog.broker.coordination.own_address import keep_alone  # noqa: PLC0415

            await keep_alone(self.config, cluster.quorum, self._background, self._on_fatal)
            server = ControllerServer(self.config, self.outside, cluster, self._connections.memory)
            self._stopping.append(server.large.close)
            listening = self._listening_to(server)
            endpoints = await listening.open(ListenerKind.CONTROLLER, listeners)
            await listening.accept()
        cluster.quorum.start()
        async with self._patience.waiting():
            await cluster.quorum.caught_up
        if endpoints:
            from stratalog.broker.coordination.auto_join import join_voters_again  # noqa: PLC0415
            from stratalog.broker.coordination.controller_registration import (  # noqa: PLC0415
                keep_controller_registered,
            )

            self._background.spawn(
                keep_controller_registered(
                    self.node_id,
                    endpoints,
                    self.outside.entropy,
                    cluster.image,
                    cluster.controller,
                )
            )
            join_voters_again(self.config, cluster.quorum, endpoints, self._background)
        return endpoints[0] if endpoints else None

    async def _start_broker(self, cluster: ClusterMetadata, hosting: Hosting) -> Endpoint:
        """Host this broker's partitions, listen, and register; return the first listener's endpoint."""
        registration = cluster.registration
        registration.on_unreported_failure = partial(
            self._on_fatal, "no controller answers the report of a failed log directory"
        )
        self._stopping += (registration.leave, lambda: hosting.close(registration.broker_epoch))
        metadata = cluster.image
        tiering = await self._open_tier(metadata, hosting)
        assign = registration.assign_directories
        pace = Pace(MOVES, self.config, self.outside.clock)
        moves = Moves(hosting, assign, self.outside.entropy, pace, spawn=self._background.spawn)
        memory = self._connections.memory
        replication = Replication(
            self.config,
            self.outside,
            cluster,
            hosting,
            self._background,
            None if tiering is None else tiering.find_history,
        )
        self._stopping += (moves.close, replication.close)
        self.broker = Broker(
            self.config, self.outside, cluster, hosting, tiering, moves, memory, replication
        )
        self._configure(metadata.dynamic_configs.over(self.config))
        state = None if tiering is None else self._upload_state(tiering, self.broker)
        self._stopping += (self.broker.recompression.close, self.broker.large.close)
        self._stopping.append(self.broker.cleaners.close)
        upkeep = Upkeep(hosting, self.config, self._background)
        self._open_door(self.broker)
        self._follow(hosting, self.broker)
        await hosting.start(metadata.hold(), metadata.removed_topics)
        if tiering is not None:
            await tiering.claim_first()
        advertised = self.config.advertised_listeners
        listening = self._listening_to(self.broker)
        endpoints = await listening.open(ListenerKind.BROKER, advertised)
        async with self._patience.waiting():
            await registration.register(endpoints, hosting.previous_epoch)
            await metadata.act()
            await registration.unfence()
            # As in Kafka, clients wait: librdkafka gives up every broker that an answer lacks, and before this the
            # image may lack all.
            await listening.accept()
            self._background.spawn(registration.keep_session())
            await self._assign_all(assign, hosting)
            await self._resume_moves(hosting, moves)
        if tiering is not None and state is not None:
            tiering.start()
            self._background.spawn(state.repeat())
        await replication.start()
        upkeep.start(self.broker.cleaners)
        return endpoints[0]

    def _open_door(self, broker: Broker) -> None:
        """Let the door serve small requests, where the installation has one."""
        if not self.config.bool("small.requests.compiled"):
            return
        door = self.outside.door()
        if door is None:
            self._log.warning("small requests are not compiled", reason=_NO_DOOR)
            return
        small = SmallRequests(door, broker, self._connections.turns)
        self._connections.lend_by(small)
        self._stopping.append(small.close)

    def abandon(self) -> None:
        """Let `start` wait for other nodes no more: it raises Unavailable at its present or next such wait."""
        self._patience.end()

    def partitions(self) -> int:
        """Return the number of partitions that this node hosts."""
        return 0 if self.broker is None else len(self.broker.hosting.by_id)

    def _repeat(self) -> None:
        if self.config.is_controller:
            assert self._quorum is not None, "opened by start"
            repeat_duties(self.config, self._background, self._quorum)
        self._background.repeat(self._log_slow_disks, _SLOW_DISKS_S)
        if self.broker is not None:
            self._stopping.append(self.broker.telemetry.close)
            self._background.spawn(self.broker.telemetry.run())
            self._background.repeat(self.broker.stranded().look, _STRANDED_S)
        if any(listening.has_keys for listening in self._listening):
            self._background.repeat(self._look_at_keys, _KEYS_S)

    async def stop(self) -> None:
        """Give leaderships away, stop accepting connections, finish running requests, close every log cleanly."""
        self._is_stopping = True
        if self.broker is not None:
            await self.broker.registration.shut_down()
        if self._quorum is not None:
            await self._quorum.resign()
        for listening in self._listening:
            await listening.close()
        await self._finish_connections()
        await self._background.cancel(_DRAIN_S)
        for close in reversed(self._stopping):
            await close()
        for directory in self.directories:
            await directory.close()
        if self._monitor is not None:
            await self._monitor.close()
        self._log.info("stopped", node=self.node_id)

    async def _open_monitor(self) -> int | None:
        """Open the monitor before the node loads anything: the monitor answers that the node is starting."""
        if (address := self.config.monitor) is None:
            return None
        # Importing the server takes a quarter of a second and some megabytes: only where a monitor is configured.
        from stratalog.monitor.server import Monitor  # noqa: PLC0415
        from stratalog.monitor.watched import Watched  # noqa: PLC0415

        host, port = address
        self._monitor = Monitor(
            Watched(
                clock=self.outside.clock,
                broker=lambda: self.broker,
                directories=lambda: self.directories,
                disks=lambda: self._watches,
                connections=lambda: self._connections,
                stopping=lambda: self._is_stopping,
                console_url=lambda: self.console_url,
            ),
            [
                host,
                os.uname().nodename,
                *(one.host for one in self.config.advertised_listeners),
                *self.config.list("monitor.allowed.hosts"),
            ],
        )
        try:
            bound = await self._monitor.open(self.outside.network, host, port)
        except OSError as error:
            raise UserError(
                f"monitor.listener: cannot listen on {host}:{port}: {error.strerror or error}"
            ) from error
        self._log.info("monitor", host=host, port=bound)
        return bound

    async def _open_tier(self, metadata: ClusterImage, hosting: Hosting) -> "TierService | None":
        """Open the bucket, if one is configured. A broker without a bucket never loads this code."""
        if not self.config.tier_url:
            return None
        from stratalog.broker.tier.bucket import open_bucket  # noqa: PLC0415
        from stratalog.broker.tier.service import TierService  # noqa: PLC0415

        incarnation = await self._metadata_directory().run(read_incarnation())
        bucket = await open_bucket(
            self.config,
            self.outside,
            metadata,
            incarnation=max(incarnation, metadata.image.incarnation),
            on_fenced=self._on_fatal,
        )
        tiering = TierService(bucket, metadata, hosting, spawn=self._background.spawn)
        self._stopping.append(tiering.close)
        return tiering

    def _upload_state(self, tiering: "TierService", broker: Broker) -> "StateUpload":
        """Return the task that uploads the cluster's state with the groups' offsets; it stops before the bucket
        closes.
        """
        from stratalog.broker.tier.state_upload import StateUpload  # noqa: PLC0415

        state = StateUpload(tiering.bucket, broker.metadata, broker.hosting, broker.groups)
        self._stopping.append(state.close)
        return state

    async def _finish_connections(self) -> None:
        """Answer pending requests; end waits at once that could last for ever."""
        if self.broker is not None:
            self.broker.groups.close()
            self.broker.transactions.close()
            self.broker.verification.close()
            for part in slices(self.broker.hosting.all(), _PARTITIONS_A_TURN):
                for hosted in part:
                    hosted.wake()
                await asyncio.sleep(0)
        for connection in self._connections:
            connection.finish()
        for _ in range(round(_DRAIN_S / _DRAIN_STEP_S)):
            if not len(self._connections):
                break
            await asyncio.sleep(_DRAIN_STEP_S)
        for connection in self._connections:
            connection.abort()

    def _open(self, path: str) -> Disk:
        watch = TimedDisk(
            path,
            self.outside.disk(path),
            self.outside.clock.elapsed_ns,
            is_only=len(self.config.log_dirs) == 1,
        )
        self._watches.append(watch)
        return watch.as_disk()

    def _metadata_directory(self) -> LogDirectory:
        wanted = self.config.metadata_log_dir
        for directory in self.directories:
            if directory.path == wanted:
                return directory
        raise UserError(f"metadata.log.dir: {wanted!r} is not accepted; accepted: one of log.dirs")

    def _directory_failed(self, directory: LogDirectory, error: BaseException) -> None:
        self._log.error("log directory failed", path=directory.path, reason=str(error))
        if self.broker is not None:
            self.broker.hosting.stop_failed(directory)
            self.broker.registration.directory_failed(directory.id)
        if directory.path == self.config.metadata_log_dir:
            self._on_fatal(f"the metadata log's directory failed: {directory.path}: {error}")

    def _changed(
        self, hosting: Hosting, image: Image, delta: Delta
    ) -> "asyncio.Future[None] | None":
        done = hosting.apply(image, delta)
        log_changes(image, delta)
        if any(kind == ResourceType.BROKER for kind, _name in delta.changed_configs):
            self._configure(DynamicConfigs.of(image.configs, self.node_id).over(self.config))
        if delta.deleted_topics and self.broker is not None:
            gone = {topic.name: topic.id for topic in delta.deleted_topics.values()}
            self._background.spawn(self.broker.groups.forget_topics(gone))
            if self.broker.tiering is not None:
                self.broker.tiering.topics_deleted(gone.values())
        return done

    def _configure(self, in_effect: BrokerConfig) -> None:
        """Apply the settings that may change while the node runs. `hosting.apply` does so for topics' logs."""
        self._in_effect = in_effect
        self._connections.configure(in_effect)
        self._secure()
        if self.broker is not None:
            self.broker.configure(in_effect)
            self._cordon(self.broker, in_effect.list("cordoned.log.dirs"))

    def _secure(self) -> None:
        for listening in self._listening:
            listening.secure(self._in_effect)

    async def _look_at_keys(self) -> None:
        self._secure()
        for listening in self._listening:
            await listening.refresh_tokens()

    def _cordon(self, broker: Broker, paths: Sequence[str]) -> None:
        accepted = {directory.path for directory in self.directories} | {"*"}
        for path in paths:
            if path not in accepted:
                self._log.warning("cordoned.log.dirs names no directory of this broker", path=path)
        for directory in self.directories:
            directory.is_cordoned = directory.path in paths or "*" in paths
        broker.registration.cordon([one.id for one in self.directories if one.is_cordoned])

    async def _assign_all(self, assign: Assign, hosting: Hosting) -> None:
        for part in slices(list(hosting.by_id), _PARTITIONS_A_TURN):
            await self._assign(assign, hosting.unassigned(part))
            await asyncio.sleep(0)

    async def _assign(self, assign: Assign, assigned: Mapping[TopicIdPartition, UUID]) -> None:
        """Report to the controller which directory the broker chose for each partition."""
        if assigned:
            try:
                await assign(assigned)
            except Rejected as error:
                self._log.warning("directories not assigned", reason=error.message)

    async def _resume_moves(self, hosting: Hosting, moves: Moves) -> None:
        for key, path in hosting.resumed:
            hosted = hosting.by_id.get(key)
            try:
                if hosted is not None:
                    await moves.ask(*hosted.name, path)
            except Rejected as error:
                self._log.warning("move not begun again", reason=error.message)

    def _follow(self, hosting: Hosting, broker: Broker) -> None:
        """Let the tier and the coordinators follow the transitions of partitions."""
        hosting.on_transition.append(partial(self._coordinate, broker.coordinators))
        hosting.on_placed.append(
            lambda placed: self._background.spawn(
                self._assign(broker.registration.assign_directories, placed)
            )
        )

    def _coordinate(
        self,
        coordinators: Mapping[str, Coordinator],
        transition: Transition,
        hosted: HostedPartition,
    ) -> None:
        """Let the coordinator of an internal topic follow its partition's transition."""
        coordinator = coordinators.get(hosted.name.topic)
        if coordinator is None:
            return
        if transition is Transition.LED:
            self._background.spawn(coordinator.lead(hosted))
        elif transition is Transition.RESIGNED:
            coordinator.resign(hosted)

    def _listening_to(self, server: "Broker | ControllerServer") -> Listening:
        """Return the listeners of one role, which `stop` closes."""
        serve = Dispatcher(server, self._connections.turns).serve
        listening = Listening(self.config, self.outside, self._connections, serve)
        self._listening.append(listening)
        return listening

    def _count_connection(self, accepted: bool) -> None:  # noqa: FBT001 - a callback
        if self.broker is not None:  # else a controller's alone, or of a broker that starts
            self.broker.metrics.connections_accepted += accepted
            self.broker.metrics.connections_refused += not accepted

    async def _log_slow_disks(self) -> None:
        for watch in self._watches:
            took_ns, operation, file = watch.take_slowest()
            if took_ns >= _SLOW_DISK_NS:
                self._log.warning(
                    "slow disk",
                    path=watch.path,
                    operation=operation,
                    file=file,
                    ms=took_ns // 1_000_000,
                )
