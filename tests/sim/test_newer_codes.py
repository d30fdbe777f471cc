"""Goal: an error code that is newer than ours, in another node's answer, strands no transaction.

Method: real nodes in one world. What a node receives has such a code in place of the real one, a number of times. Node
1 leads the data, node 2 coordinates.
"""

import asyncio
from typing import Any
from unittest.mock import patch

import pytest
from msgspec import Struct
from msgspec.structs import replace
from tests.sim.cluster import Cluster, host_of
from tests.sim.raw import Raw
from tests.sim.test_replication import story
from tests.sim.transactional import Producer, committed, eventually

from stratalog.broker.coordination.transactions import TRANSACTIONS_TOPIC
from stratalog.client.aio import Client
from stratalog.client.calls import NewTopic
from stratalog.client.peer import Peer
from stratalog.errors import ErrorCode
from stratalog.wire.messages.add_partitions_to_txn import AddPartitionsToTxnRequest
from stratalog.wire.messages.write_txn_markers import WriteTxnMarkersRequest

NEWER = 9_999


def newer(answer: Any, field: str) -> Any:
    """Return an answer with a code that no release of ours knows in each field of this name."""
    if isinstance(answer, list | tuple):
        return [newer(one, field) for one in answer]
    if not isinstance(answer, Struct):
        return answer
    changed = {
        name: NEWER if name == field else newer(getattr(answer, name), field)
        for name in answer.__struct_fields__
    }
    return replace(answer, **changed)


async def began(cluster: Cluster, client: Client, *, raises: bool) -> tuple[Producer, Raw, Raw]:
    await client.create_topics(
        [NewTopic("t", assignments={0: [1]}), NewTopic(TRANSACTIONS_TOPIC, assignments={0: [2]})]
    )
    network = cluster.world.network
    data, coordinator = [await Raw.connect(network, host_of(node)) for node in (1, 2)]
    producer = Producer(coordinator, raises=raises)
    await eventually(producer.begin, ErrorCode.none)
    return producer, data, coordinator


def lying(kind: type, field: str, times: int) -> Any:
    """Let the next answers to requests of a kind have a newer code."""
    real = Peer.request
    left = times

    async def request(self: Peer, body: Any) -> Any:
        nonlocal left
        answer = await real(self, body)
        if isinstance(body, kind) and left:
            left -= 1
            return newer(answer, field)
        return answer

    return patch.object(Peer, "request", request)


def test_a_marker_is_sent_again_after_a_newer_code() -> None:
    async def tell(cluster: Cluster, client: Client) -> None:
        producer, data, coordinator = await began(cluster, client, raises=False)
        assert await producer.add(0) is ErrorCode.none
        producer.raw = data
        assert await producer.write(0, b"x") is ErrorCode.none
        producer.raw = coordinator
        with lying(WriteTxnMarkersRequest, "error_code", 3):
            assert await producer.end(commit=True) is ErrorCode.none
            await asyncio.sleep(5)
        assert await committed(data) == [b"x"]
        await eventually(lambda: producer.add(0), ErrorCode.none)

    story(tell, count=2)


@pytest.mark.parametrize("raises", [False, True])
@pytest.mark.parametrize("field", ["partition_error_code", "error_code"])
def test_a_batch_that_is_not_verified_because_of_a_newer_code_is_refused(
    field: str, raises: bool
) -> None:
    async def tell(cluster: Cluster, client: Client) -> None:
        producer, data, coordinator = await began(cluster, client, raises=raises)
        assert await producer.add(0) is ErrorCode.none
        producer.raw = data
        with lying(AddPartitionsToTxnRequest, field, 1):
            assert await producer.write(0, b"x") is ErrorCode.unknown_server_error
        assert await producer.write(0, b"x") is ErrorCode.none
        producer.raw = coordinator
        assert await producer.end(commit=True) is ErrorCode.none
        await eventually(lambda: committed(data), [b"x"])

    story(tell, count=2)
