"""Goal: an admin client that knows one controller finds them all (KIP-919).

Method: real nodes in one world; DescribeCluster as Kafka's admin client sends it to a controller's listener.
"""

import asyncio
from typing import Any

import pytest
from tests.sim.cluster import CONTROLLER_PORT, Cluster, host_of
from tests.sim.loop import run
from tests.sim.raw import Raw
from tests.sim.world import World

from stratalog.errors import ErrorCode
from stratalog.wire.messages.describe_cluster import DescribeClusterRequest

CONTROLLERS = 2


async def described(cluster: Cluster, node_id: int, endpoint_type: int, version: int = 1) -> Any:
    raw = await Raw.connect(cluster.world.network, host_of(node_id), CONTROLLER_PORT)
    answer = await raw.ask(
        version,
        DescribeClusterRequest(
            include_cluster_authorized_operations=True, endpoint_type=endpoint_type
        ),
    )
    raw.close()
    return answer


def test_every_controller_names_all_of_them_and_the_active_one() -> None:
    async def story() -> None:
        cluster = Cluster(World(1), 3)
        await cluster.start()
        active = await cluster.until_active()
        await asyncio.sleep(3)
        for node_id in (1, 2, 3):
            answer = await described(cluster, node_id, CONTROLLERS)
            assert ErrorCode(answer.error_code) is ErrorCode.none
            found = {(one.broker_id, one.host, one.port) for one in answer.brokers}
            assert found == {(one, host_of(one), CONTROLLER_PORT) for one in (1, 2, 3)}
            assert answer.controller_id == active
        before = cluster.machines[1].node._quorum
        assert before is not None
        incarnations = dict(before.image.image.controllers)
        await cluster.machines[2].kill()
        await cluster.machines[2].start()
        await asyncio.sleep(3)
        quorum = cluster.machines[1].node._quorum
        assert quorum is not None
        after = quorum.image.image.controllers
        assert {one for one in after if after[one] != incarnations[one]} == {2}
        await cluster.stop()

    run(story())


@pytest.mark.parametrize(
    ("endpoint_type", "version", "code"),
    [
        (1, 1, ErrorCode.mismatched_endpoint_type),
        (1, 0, ErrorCode.invalid_request),
        (7, 1, ErrorCode.unsupported_endpoint_type),
    ],
)
def test_a_controller_does_not_describe_brokers(
    endpoint_type: int, version: int, code: ErrorCode
) -> None:
    async def story() -> None:
        cluster = Cluster(World(1), 3)
        await cluster.start()
        answer = await described(cluster, 1, endpoint_type, version)
        assert ErrorCode(answer.error_code) is code
        await cluster.stop()

    run(story())
