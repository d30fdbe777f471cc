"""The story of a leader that archives after its successor was elected: without the fence it would write a manifest.

In: a tiered partition's leader, a bucket. Out: that leader with closed, committed segments that the bucket lacks. It is
paused or cut off until its successor has written a manifest, and then it alone can upload. This checks nothing:
`bucket_checks.py` does.
"""

import asyncio
from collections.abc import Callable

from tests.cluster.bucket_checks import WatchedStore
from tests.cluster.checks import newest, partitions_of
from tests.sim.cluster import Cluster, host_of
from tests.sim.process import current
from tests.sim.store import FaultyStore

from stratalog.tier.formats.paths import SEGMENT_SUFFIX
from stratalog.wire.ids import topic_id_text

BACKLOG_S = 2.5
"""Two segments of the run's `segment.ms` are closed meanwhile."""
WAIT_S = 12.0
LOOK_S = 0.02


class LateArchiver:
    """See the module."""

    def __init__(
        self, cluster: Cluster, bucket: FaultyStore, watched: WatchedStore, topic: str
    ) -> None:
        self._cluster = cluster
        self._bucket = bucket
        self._watched = watched
        self._topic = topic
        self._tries = 0
        """Uploads that the late leader began since its successor wrote a manifest."""

    def leader_of(self, index: int) -> int:
        """Return the leader of a partition of the tiered topic, -1 for none."""
        found = partitions_of(newest(self._cluster), self._topic).get(index)
        return -1 if found is None else found.leader

    async def carry_out(self, node_id: int, index: int, *, pauses: bool) -> str:
        """Let the node be late with `index` until it has tried to upload, or has had the time to; say which."""
        machine = self._cluster.machines[node_id]
        image = newest(self._cluster)
        topic = None if image is None else image.topic(self._topic)
        assert topic is not None, "the run created it"
        folder = f"/{topic_id_text(topic.id)}/{index}/"
        self._bucket.refused = lambda operation, path: self._uploads(operation, path, folder)
        await asyncio.sleep(BACKLOG_S)
        others = [host_of(one) for one in self._cluster.machines if one != node_id]
        pairs = [
            pair
            for there in others
            for pair in ((machine.host.name, there), (there, machine.host.name))
        ]
        if pauses:
            machine.pause()
        else:
            for pair in pairs:
                self._cluster.world.network.cut(*pair)
        succeeded = await self._until(lambda: self._watched.writer(folder) not in (None, node_id))
        self._tries = 0
        self._bucket.refused = lambda operation, path: (
            self._uploads(operation, path, folder) and not self._is_late(machine.host.name)
        )
        machine.resume()
        await self._until(lambda: self._tries > 0)
        for pair in pairs if not pauses else ():
            self._cluster.world.network.heal(*pair)
        self._bucket.refused = lambda _operation, _path: False
        return f"the successor wrote: {succeeded}, uploads of node {node_id}: {self._tries}"

    @staticmethod
    def _uploads(operation: str, path: str, folder: str) -> bool:
        return operation == "put" and folder in path and path.endswith(SEGMENT_SUFFIX)

    def _is_late(self, host: str) -> bool:
        process = current()
        is_late = process is not None and process.host == host
        self._tries += is_late
        return is_late

    async def _until(self, holds: Callable[[], bool]) -> bool:
        for _ in range(round(WAIT_S / LOOK_S)):
            if holds():
                return True
            await asyncio.sleep(LOOK_S)
        return False
