"""DescribeCluster (key 60), versions 0-2.

v1 endpoint type (KIP-919). v2 fenced brokers.
"""

from typing import NamedTuple

from stratalog.broker.coordination.cluster_view import ClusterView
from stratalog.broker.network.authorizer import NOT_REQUESTED
from stratalog.broker.network.dispatch import Call
from stratalog.errors import ErrorCode
from stratalog.wire.messages.describe_cluster import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)

_BROKERS = 1
_CONTROLLERS = 2


class Needs(NamedTuple):
    """The parts of the broker that the handler works with."""

    cluster: ClusterView


def handle(call: Call[DescribeClusterRequest, Needs]) -> DescribeClusterResponse:
    """Return the cluster's id, controller and brokers."""
    cluster = call.needs.cluster
    endpoint_type = call.body.endpoint_type
    if endpoint_type != _BROKERS:
        return DescribeClusterResponse(
            error_code=ErrorCode.mismatched_endpoint_type
            if endpoint_type == _CONTROLLERS
            else ErrorCode.unsupported_endpoint_type,
            error_message="this listener is a broker's: ask with endpoint type 1",
            cluster_id="",
            brokers=[],
        )
    return DescribeClusterResponse(
        error_code=ErrorCode.none,
        error_message=None,
        endpoint_type=_BROKERS,
        cluster_id=cluster.cluster_id,
        controller_id=cluster.controller_id(),
        brokers=[
            DescribeClusterBroker(
                broker_id=node,
                host=host,
                port=port,
                rack=rack,
                is_fenced=cluster.image.brokers[node].fenced,
            )
            for node, host, port, rack in cluster.live_brokers(
                call.session.listener.name, and_fenced=call.body.include_fenced_brokers
            )
        ],
        cluster_authorized_operations=call.cluster_operations()
        if call.body.include_cluster_authorized_operations
        else NOT_REQUESTED,
    )
