"""The saved state of a member of the quorum: its epoch, that epoch's leader, and its vote.

In: a state, or the content of a `quorum-state` file. Out: the other. It never reads or writes a file.

The format is that of Kafka's FileQuorumStateStore under kraft.version 1.
"""

from json import dumps, loads
from uuid import UUID

from msgspec import Struct

from stratalog.errors import Corrupt
from stratalog.ports import Buffer
from stratalog.wire.ids import ZERO_ID, topic_id_parse, topic_id_text

QUORUM_STATE_FILE = "quorum-state"
NO_NODE = -1


class QuorumState(Struct, frozen=True):
    """A member's saved state: its epoch, that epoch's leader, and its vote. Kafka: ElectionState."""

    leader_epoch: int = 0
    leader_id: int = NO_NODE
    voted_id: int = NO_NODE
    voted_directory_id: UUID = ZERO_ID


def encode_quorum_state(state: QuorumState) -> bytes:
    """Return the content of `quorum-state`, byte for byte as Kafka 4.3 writes it."""
    content = {
        "leaderId": state.leader_id,
        "leaderEpoch": state.leader_epoch,
        "votedId": state.voted_id,
        "votedDirectoryId": topic_id_text(state.voted_directory_id),
        "data_version": 1,
    }
    return dumps(content, separators=(",", ":")).encode()


def decode_quorum_state(data: Buffer) -> QuorumState:
    """Return the state in a `quorum-state` file of version 0 or 1; raises Corrupt for anything else."""
    try:
        content = loads(bytes(data))
        if content["data_version"] not in (0, 1):
            raise ValueError("of another version")
        state = QuorumState(
            leader_epoch=content["leaderEpoch"],
            leader_id=content["leaderId"],
            voted_id=content["votedId"],
            voted_directory_id=topic_id_parse(
                content.get("votedDirectoryId", topic_id_text(ZERO_ID))
            ),
        )
        if not all(type(n) is int for n in (state.leader_epoch, state.leader_id, state.voted_id)):
            raise ValueError("not whole numbers")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise Corrupt(
            f"{QUORUM_STATE_FILE} is not as Kafka or Strata writes it; remove the file: the metadata log beside it has "
            "the epoch, too"
        ) from error
    return state
