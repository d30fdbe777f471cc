"""Ask at this controller's own address which node serves there: a second node with its id must not vote beside it.

In: the quorum as this node sees it. Out: nothing, or the error with which this node must end. It changes no state.

`controller.quorum.voters` names no directories, so voters cannot tell two nodes with one id apart. Each of the two may
vote, and one epoch may get two leaders. But only one of them serves at the voter's address. The question is a
pre-vote (KIP-996) that names this node's directory: another node refuses it with INVALID_VOTER_KEY (KIP-853), and a
pre-vote binds no voter. Where the log names the voters, the second node is no voter, and ends all the same. Apache
Kafka does not ask.
"""

from collections.abc import Callable

from stratalog.broker.background import Background
from stratalog.broker.coordination.metadata_quorum import MetadataQuorum
from stratalog.broker.coordination.quorum_wire import response_of, wire_request
from stratalog.config import BrokerConfig
from stratalog.errors import Corrupt, ErrorCode, Rejected, Unavailable, UserError
from stratalog.quorum.messages import EPOCH_MAX, VoteRequest
from stratalog.quorum.voters import ReplicaKey

__all__ = ["keep_alone"]

_REFUSALS = 2
"""So many answers in a row end the node: one may be damaged."""


async def keep_alone(
    config: BrokerConfig,
    quorum: MetadataQuorum,
    background: Background,
    on_fatal: Callable[[str], None],
) -> None:
    """Ask before this node listens, and again and again: the other node may start later.

    Raises UserError where another node answers now; `on_fatal` gets its text later.
    """
    node_id = config.int("node.id")

    async def again() -> None:
        try:
            await _check(quorum, node_id)
        except UserError as error:
            on_fatal(str(error))

    await _check(quorum, node_id)
    background.repeat(again, config.int("controller.quorum.fetch.timeout.ms") / 1000)


async def _check(quorum: MetadataQuorum, node_id: int) -> None:
    """Ask once. Raises UserError where another node answers; an address without an answer is no fault."""
    address, voters = quorum.address_of(node_id), quorum.voters
    me, epoch = ReplicaKey(node_id, quorum.log.directory.id), quorum.leader_epoch
    is_alone = len(voters.voters) == 1 and voters.has(me)
    if address is None or is_alone:
        return
    refusals = 0
    for _ in range(3):  # the other node's epoch may be newer, and one answer may be damaged
        question = VoteRequest(epoch, me, me, last_epoch=0, last_offset=0, pre_vote=True)
        request = wire_request(question, quorum.image.cluster_id)
        try:
            answer = response_of(question, await quorum.ask(address, request))
        except (Unavailable, Rejected, Corrupt):
            return
        if answer.error is ErrorCode.invalid_voter_key:
            refusals += 1
            if refusals < _REFUSALS:
                continue
            raise UserError(
                f"node.id: {node_id}: another node serves at {address.host}:{address.port}, which is the address of "
                "this controller; stop that node, give this one an id of its own, or correct the voters' addresses"
            )
        if answer.error is not ErrorCode.fenced_leader_epoch or answer.leader_epoch > EPOCH_MAX:
            return
        epoch = answer.leader_epoch
