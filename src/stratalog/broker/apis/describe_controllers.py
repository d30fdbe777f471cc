"""DescribeCluster (key 60), versions 0-2.

On a controller's listener: the controllers, for admin clients (KIP-919). v0 cannot ask for them.

Kafka: ControllerApis.handleDescribeCluster, ControllerRegistrationsPublisher.
"""

from typing import NamedTuple

from stratalog.broker.coordination.cluster_image import ClusterImage
from stratalog.broker.coordination.metadata_quorum import MetadataQuorum
from stratalog.broker.network.authorizer import NOT_REQUESTED, Operation
from stratalog.broker.network.dispatch import Call
from stratalog.errors import ErrorCode
from stratalog.wire.messages.describe_cluster import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)

_BROKERS = 1
_CONTROLLERS = 2
_NO_CONTROLLER = -1


class Needs(NamedTuple):
    """The parts of the node that the handler works with."""

    metadata: ClusterImage
    quorum: MetadataQuorum


def handle(call: Call[DescribeClusterRequest, Needs]) -> DescribeClusterResponse:
    """Return the registered controllers that have a listener of this name, and the active one."""
    metadata, quorum = call.needs
    if not call.allows_cluster(Operation.ALTER):
        return _refused(ErrorCode.cluster_authorization_failed, "ALTER is not allowed")
    if call.body.endpoint_type == _BROKERS:
        code = ErrorCode.mismatched_endpoint_type if call.version else ErrorCode.invalid_request
        return _refused(code, "this listener is a controller's: ask with endpoint type 2")
    if call.body.endpoint_type != _CONTROLLERS:
        code = ErrorCode.unsupported_endpoint_type
        return _refused(code, "this listener is a controller's: ask with endpoint type 2")
    nodes = [
        DescribeClusterBroker(broker_id=one.controller_id, host=at.host, port=at.port, rack=None)
        for one in metadata.image.controllers.values()
        for at in one.end_points
        if at.name == call.session.listener.name
    ]
    is_known = any(one.broker_id == quorum.leader_id for one in nodes)
    return DescribeClusterResponse(
        error_code=ErrorCode.none,
        error_message=None,
        endpoint_type=_CONTROLLERS,
        cluster_id=metadata.cluster_id,
        controller_id=quorum.leader_id if is_known else _NO_CONTROLLER,
        brokers=nodes,
        cluster_authorized_operations=call.cluster_operations()
        if call.body.include_cluster_authorized_operations
        else NOT_REQUESTED,
    )


def _refused(code: ErrorCode, message: str) -> DescribeClusterResponse:
    return DescribeClusterResponse(
        error_code=code, error_message=message, cluster_id="", brokers=[]
    )
