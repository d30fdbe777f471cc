"""Changes of a simulated quorum's voters (KIP-853), asked of the active controller until they are made.

In: a cluster whose metadata log names the voters. Out: a node that votes, or votes no more; counts and notes.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import suppress

from tests.cluster.checks import quorums
from tests.sim.cluster import CLUSTER_ID, CONTROLLER_PORT, Cluster, host_of

from stratalog.client.peer import Peer
from stratalog.client.security import Dialer
from stratalog.errors import ErrorCode, Rejected, Unavailable
from stratalog.wire.messages.add_raft_voter import AddRaftVoterRequest, Listener
from stratalog.wire.messages.remove_raft_voter import RemoveRaftVoterRequest


class Voters:
    """See the module."""

    def __init__(self, cluster: Cluster, counts: Counter[str], note: Callable[[str], None]) -> None:
        self._cluster = cluster
        self._counts = counts
        self._note = note

    async def remove(self, node_id: int, directory: object) -> None:
        await self._until_answered(
            lambda: RemoveRaftVoterRequest(
                cluster_id=CLUSTER_ID, voter_id=node_id, voter_directory_id=directory
            ),
            ErrorCode.voter_not_found,
        )
        self._counts["voter changes"] += 1
        self._note(f"{node_id} votes no more")

    async def add(self, node_id: int) -> None:
        """Have the quorum take a node as a voter."""
        listener = Listener(name="CONTROLLER", host=host_of(node_id), port=CONTROLLER_PORT)
        await self._until_answered(
            lambda: AddRaftVoterRequest(
                cluster_id=CLUSTER_ID,
                timeout_ms=5000,
                voter_id=node_id,
                voter_directory_id=quorums(self._cluster)[node_id].log.directory.id,
                listeners=[listener],
            ),
            ErrorCode.duplicate_voter,
        )
        self._counts["voter changes"] += 1
        self._note(f"{node_id} votes")

    async def _until_answered(self, request: Callable[[], object], already: ErrorCode) -> None:
        """Ask the active controller until the change is made, now or by an earlier request."""
        while True:
            active = self._cluster.active()
            if active is not None:
                peer = Peer(
                    Dialer(self._cluster.world.network),
                    host_of(active),
                    CONTROLLER_PORT,
                    client_id="voters",
                    timeout_s=6.0,
                )
                with suppress(Unavailable, Rejected, KeyError):
                    answer = await peer.request(request())
                    code = ErrorCode(answer.error_code)
                    if code in (ErrorCode.none, already):
                        peer.close()
                        return
                    self._note(f"voters: {code.name}")
                peer.close()
            await asyncio.sleep(0.2)
