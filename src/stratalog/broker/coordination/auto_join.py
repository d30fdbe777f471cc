"""Ask the leader to make this controller a voter (`controller.quorum.auto.join.enable`), or to note its new address.

In: the quorum as this node sees it. Out: at most one request at a time to the leader, which decides. It never changes
the voters itself.

A voter with this node's id and another directory is of a disk that this node lost: that voter leaves first.
Kafka: KafkaRaftClient.pollFollowerAsObserver, pollFollowerAsVoter, KIP-853.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import structlog
from msgspec.structs import replace

from stratalog.broker.background import Background
from stratalog.broker.coordination.metadata_quorum import MetadataQuorum
from stratalog.config import BrokerConfig
from stratalog.errors import ErrorCode, Rejected, Unavailable
from stratalog.metadata.image import Endpoint
from stratalog.quorum.messages import UpdateVoterRequest
from stratalog.quorum.voters import ReplicaKey
from stratalog.wire.messages.add_raft_voter import AddRaftVoterRequest, Listener
from stratalog.wire.messages.remove_raft_voter import RemoveRaftVoterRequest
from stratalog.wire.messages.update_raft_voter import KRaftVersionFeature, UpdateRaftVoterRequest
from stratalog.wire.messages.update_raft_voter import Listener as UpdatedListener

__all__ = ["join_voters", "join_voters_again", "update_voter"]


def join_voters_again(
    config: BrokerConfig,
    quorum: MetadataQuorum,
    endpoints: Sequence[Endpoint],
    background: Background,
) -> None:
    """Ask again and again where the log names the voters: for a new address, and for a vote if the settings want it."""
    if config.quorum_servers:
        background.repeat(
            partial(update_voter, quorum, config.int("node.id"), endpoints),
            config.int("controller.quorum.fetch.timeout.ms") / 1000,
        )
    if config.bool("controller.quorum.auto.join.enable"):
        timeout_ms = config.int("controller.quorum.request.timeout.ms")
        background.repeat(
            partial(join_voters, quorum, config.int("node.id"), endpoints, timeout_ms),
            config.int("controller.quorum.fetch.timeout.ms") / 1000,
        )


async def join_voters(
    quorum: MetadataQuorum, node_id: int, endpoints: Sequence[Endpoint], timeout_ms: int
) -> None:
    """Ask once, where this node is no voter and knows the voters and their leader."""
    me, voters = ReplicaKey(node_id, quorum.log.directory.id), quorum.voters
    if quorum.leader_id in (-1, node_id) or not voters.voters or voters.has(me):
        return
    cluster_id, before = quorum.image.cluster_id, voters.voter(node_id)
    request: Any
    if before is not None:
        request = RemoveRaftVoterRequest(
            cluster_id=cluster_id, voter_id=node_id, voter_directory_id=before.directory_id
        )
    else:
        request = AddRaftVoterRequest(
            cluster_id=cluster_id,
            timeout_ms=timeout_ms,
            voter_id=node_id,
            voter_directory_id=me.directory_id,
            listeners=[Listener(name=one.name, host=one.host, port=one.port) for one in endpoints],
            ack_when_committed=False,
        )
    log = structlog.get_logger()
    try:
        answer = await quorum.ask_leader(request)
    except (Unavailable, Rejected) as error:
        log.info("no voter yet", node=node_id, reason=str(error))
        return
    if answer.error_code:
        log.info("no voter yet", node=node_id, reason=answer.error_message)


async def update_voter(quorum: MetadataQuorum, node_id: int, endpoints: Sequence[Endpoint]) -> None:
    """Have the log name this voter's present endpoints, where it names others: the node has moved.

    The log names no endpoints of voters of `controller.quorum.voters`.
    """
    me = ReplicaKey(node_id, quorum.log.directory.id)
    logged, epoch = quorum.voters.voter(node_id), quorum.leader_epoch
    is_mine = logged is not None and logged.key == me and logged.endpoints
    if logged is None or not is_mine or _places(logged.endpoints) == _places(endpoints):
        return
    log = structlog.get_logger()
    try:
        if quorum.is_leader:
            voter = replace(logged, endpoints=tuple(endpoints))
            answer = await quorum.change(UpdateVoterRequest(voter, epoch))
            error, reason = answer.error, answer.message
        else:
            low, high = logged.kraft_versions
            request = UpdateRaftVoterRequest(
                cluster_id=quorum.image.cluster_id,
                current_leader_epoch=epoch,
                voter_id=node_id,
                voter_directory_id=me.directory_id,
                listeners=[
                    UpdatedListener(name=one.name, host=one.host, port=one.port)
                    for one in endpoints
                ],
                kraft_version_feature=KRaftVersionFeature(
                    min_supported_version=low, max_supported_version=high
                ),
            )
            error, reason = ErrorCode((await quorum.ask_leader(request)).error_code), None
    except (Unavailable, Rejected) as failure:
        log.info("address of the voter not updated yet", node=node_id, reason=str(failure))
        return
    if error is not ErrorCode.none:
        log.info("address of the voter not updated yet", node=node_id, reason=reason or error.name)


def _places(endpoints: Sequence[Endpoint]) -> set[tuple[str, str, int]]:
    return {(one.name.upper(), one.host, one.port) for one in endpoints}
