"""The metadata quorum as this node sees it: its leader, this node's image, and the controller while this node leads.

In: the metadata log and the image of what is committed. Out: where the leader is, and `active`, the controller, on the
leader only. It decides no change of the cluster.
"""

from collections.abc import Callable
from typing import NamedTuple

from stratalog.broker.coordination.active_controller import ActiveController
from stratalog.broker.coordination.cluster_image import ClusterImage
from stratalog.broker.coordination.metadata_log import MetadataLog
from stratalog.wire.internal.control_records import VotersRecord

__all__ = ["Address", "MetadataQuorum"]


class Address(NamedTuple):
    """Where a node listens."""

    host: str
    port: int


class MetadataQuorum:
    """One node's part in the quorum."""

    def __init__(self, log: MetadataLog, image: ClusterImage) -> None:
        self.image = image
        """The cluster as of the last committed record that this node has."""
        self.active: ActiveController | None = None
        """The controller; None while another node leads, or none does."""
        self.on_leader_change: list[Callable[[], None]] = []
        """Called after `leader_id`, `leader_epoch` or `active` changed."""
        self._log = log

    @property
    def leader_id(self) -> int:
        """The leader as far as this node knows, else -1."""
        return self._log.leader_id

    @property
    def leader_epoch(self) -> int:
        """The latest epoch that this node knows."""
        return self._log.leader_epoch

    @property
    def voters(self) -> VotersRecord:
        """The voters that count."""
        return self._log.voters

    @property
    def high_watermark(self) -> int:
        """All below is committed."""
        return self._log.high_watermark

    def leader_address(self) -> Address | None:
        """Return the leader's controller listener; None while the leader or its address is unknown."""
        return None
