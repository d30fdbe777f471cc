"""Open the parts of this node that hold the cluster's metadata, in the order of their dependencies.

In: the metadata log's directory. Out: log, image, snapshots, controller and registration. It does nothing itself.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from stratalog.broker.coordination.active_controller import open_controller
from stratalog.broker.coordination.cluster_image import ClusterImage, OnChange
from stratalog.broker.coordination.controller_channel import ControllerChannel
from stratalog.broker.coordination.local_controller import LocalController
from stratalog.broker.coordination.metadata_log import MetadataLog, open_metadata_log
from stratalog.broker.coordination.metadata_quorum import MetadataQuorum
from stratalog.broker.coordination.metadata_snapshots import MetadataSnapshots
from stratalog.broker.coordination.registration import Registration
from stratalog.broker.storage.directory import LogDirectory
from stratalog.config import BrokerConfig
from stratalog.ports import Outside

__all__ = ["ClusterMetadata", "open_cluster_metadata"]


@dataclass(frozen=True, slots=True)
class ClusterMetadata:
    """The cluster's metadata on one node."""

    log: MetadataLog
    image: ClusterImage
    snapshots: MetadataSnapshots
    quorum: MetadataQuorum
    local_controller: LocalController
    controller: ControllerChannel
    registration: Registration

    async def close(self) -> None:
        """Close the log cleanly. A snapshot that is being written is abandoned."""
        self.controller.close()
        self.snapshots.close()
        await self.log.close()


async def open_cluster_metadata(
    config: BrokerConfig,
    outside: Outside,
    cluster_id: str,
    directory: LogDirectory,
    directory_ids: Sequence[UUID],
    *,
    on_change: OnChange,
) -> ClusterMetadata:
    """Read the metadata log, lead it, and activate the controller. Raises UserError where a file is damaged."""
    clock, node_id = outside.clock, config.int("node.id")
    log, replay = await open_metadata_log(node_id, directory, outside)
    image = ClusterImage(cluster_id, node_id, replay.image(), replay.removed_topics, on_change)
    snapshots = MetadataSnapshots(config, clock, log, image)
    quorum = MetadataQuorum(log, image)
    quorum.active = await open_controller(config, clock, log, image)
    local = LocalController(lambda: quorum.active, outside.entropy)
    controller = ControllerChannel(
        quorum,
        local,
        outside.network,
        cluster_id=cluster_id,
        session_timeout_s=config.int("broker.session.timeout.ms") / 1000,
        request_timeout_s=config.int("controller.socket.timeout.ms") / 1000,
    )
    registration = Registration(config, outside.entropy, directory_ids, image, controller)
    return ClusterMetadata(log, image, snapshots, quorum, local, controller, registration)
